// The bit-exact accumulation of CDNA3's 16-bit matrix cores, after the published MMA-Sim model. K is consumed in groups
// of 8: products are exact, aligned to the largest product's exponent and truncated toward zero at 24 fractional bits,
// then summed; the sum is floored at 31 fractional bits and C at 24, both relative to the larger of the two exponents;
// their sum is rounded to nearest even.
#include "mfma.h"
#include <cmath>

namespace moon {

namespace {

struct Part {
    i64 man = 0;  // signed; value is man * 2^(exp - frac)
    int exp = 0;  // of a value in [1, 2) before normalisation
    bool zero = true;
};

// value = man * 2^(exp - 23), man with the implicit bit.
void split(float x, i64 *man, int *exp) {
    u32 b = as_u32(x);
    int e = int(b >> 23 & 255);
    i64 m = b & 0x7fffffu;
    if (e)
        m |= 0x800000;
    else
        e = 1;
    *man = b >> 31 ? -m : m;
    *exp = e - 127;
}

i64 shift_toward_zero(i64 m, int right) {
    if (right <= 0) return m * (i64(1) << -right);
    if (right > 62) return 0;
    i64 a = m < 0 ? -m : m;
    a >>= right;
    return m < 0 ? -a : a;
}
i64 shift_floor(i64 m, int right) {
    if (right <= 0) return m * (i64(1) << -right);
    return right > 62 ? (m < 0 ? -1 : 0) : m >> right;
}

// Rounds m * 2^e to binary32, nearest even.
float round_f32(i64 m, int e) {
    if (m == 0) return 0.0f;
    bool neg = m < 0;
    u64 a = neg ? 0 - u64(m) : u64(m);
    int top = 63 - __builtin_clzll(a);  // value in [2^top, 2^(top+1)) * 2^e
    int exp = top + e;
    int keep_lsb = exp - 23 < -149 ? -149 : exp - 23;  // weight of the last kept bit
    int drop = keep_lsb - e;
    u64 q;
    if (drop <= 0) {
        q = a << -drop;
    } else if (drop > 63) {
        q = 0;
    } else {
        u64 rest = a & ((1ull << drop) - 1), half = 1ull << (drop - 1);
        q = a >> drop;
        q += rest > half || (rest == half && (q & 1));
    }
    float r = std::ldexp(float(q), keep_lsb);  // q <= 2^24: exact; overflow gives Inf
    return neg ? -r : r;
}

float group(const float *a, const float *b, int n, float c) {
    bool nan = c != c, pos = false, neg = false;
    if (std::isinf(c)) (c > 0 ? pos : neg) = true;
    i64 man[8];
    int exp[8], top = -100000;
    for (int k = 0; k < n; k++) {
        float p = a[k] * b[k];  // only to see the special values: 16-bit operands' products are exact within range
        if (a[k] != a[k] || b[k] != b[k] || ((std::isinf(a[k]) || std::isinf(b[k])) && p != p)) {
            nan = true;
            continue;
        }
        if (std::isinf(p)) {  // also |product| >= 2^128 of finite operands
            (p > 0 ? pos : neg) = true;
            continue;
        }
        i64 ma, mb;
        int ea, eb;
        split(a[k], &ma, &ea);
        split(b[k], &mb, &eb);
        man[k] = ma * mb;  // value man * 2^(ea + eb - 46)
        exp[k] = ea + eb;
        if (man[k] != 0 && exp[k] > top) top = exp[k];
    }
    if (nan || (pos && neg)) return as_f32(0x7fc00000u);
    if (pos || neg) return as_f32(pos ? 0x7f800000u : 0xff800000u);
    i64 mc;
    int ec;
    split(c, &mc, &ec);
    if (top == -100000) {
        bool minus = as_u32(c) >> 31;
        if (mc == 0) return minus ? 0.0f : c;  // a sum of zeros of both signs is +0
        return c;
    }
    i64 dot = 0;  // value dot * 2^(top - 24)
    for (int k = 0; k < n; k++)
        if (man[k] != 0) dot += shift_toward_zero(man[k], 22 + (top - exp[k]));  // 46 - 24
    if (mc == 0) ec = top;  // C does not take part in the alignment
    int base = top > ec ? top : ec;
    i64 d = shift_floor(dot, base - top - 7);                 // 31 fractional bits
    i64 cc = shift_floor(mc, base - ec - 1) * (i64(1) << 7);  // 24 fractional bits, in the same unit
    return round_f32(d + cc, base - 31);
}

}  // namespace

float mfma_dot_exact(const float *a, const float *b, int n, float c) {
    for (int k = 0; k < n; k += 8) c = group(a + k, b + k, n - k < 8 ? n - k : 8, c);
    return c;
}

}  // namespace moon
