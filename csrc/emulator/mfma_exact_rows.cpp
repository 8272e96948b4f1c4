// The exact accumulation of mfma_exact.cpp for whole result rows at once. It serves finite operands whose products stay
// below 2^128; anything else is left to the model of one dot product.
#include <algorithm>
#include <cmath>

#include "mfma.h"

namespace moon {

namespace {

constexpr int kEmpty = -100000;

// Elements as man * 2^(exp - 10): 16-bit floats have at most 11 significant bits.
struct Split {
    alignas(64) i32 man[16][kLanes], exp[16][kLanes];
    int largest = kEmpty;
    bool finite = true;
};

void split_all(const float (*x)[kLanes], int per, Split *s) {
    i32 largest = kEmpty, special = 0;
    for (int j = 0; j < per; j++)
        for (int i = 0; i < kLanes; i++) {
            u32 b = as_u32(x[j][i]);
            i32 e = i32(b >> 23 & 255), m = i32(b & 0x7fffffu) | (e ? 0x800000 : 0);
            special |= e == 255;
            e = (e ? e : 1) - 127;
            m >>= 13;
            s->man[j][i] = b >> 31 ? -m : m;
            s->exp[j][i] = e;
            largest = std::max(largest, e);
        }
    s->largest = largest;
    s->finite = !special;
}

template <int M>
struct Row32 {
    alignas(64) i32 v[M];
};

// One group of 8 values of k (or fewer) for a row of M columns. acc holds binary32 bits.
template <int M>
void group_row(const i32 *const *mb, const i32 *const *eb, const i32 *ma, const i32 *ea, int n, u32 *acc) {
    Row32<M> p[8], e[8], top, dot;
    for (int c = 0; c < M; c++) top.v[c] = kEmpty, dot.v[c] = 0;
    for (int k = 0; k < n; k++)
        for (int c = 0; c < M; c++) {
            i32 x = ma[k] * mb[k][c], y = ea[k] + eb[k][c];
            p[k].v[c] = x, e[k].v[c] = y;
            i32 t = x != 0 ? y : kEmpty;
            top.v[c] = t > top.v[c] ? t : top.v[c];
        }
    for (int k = 0; k < n; k++)
        for (int c = 0; c < M; c++) {
            i32 d = top.v[c] - e[k].v[c], x = p[k].v[c];
            d = d < 0 ? 0 : d > 31 ? 31 : d;  // below zero only where the product is zero
            i32 mag = i32((u32(x < 0 ? -x : x) << 4) >> d);
            dot.v[c] += x < 0 ? -mag : mag;
        }
    for (int c = 0; c < M; c++) {
        u32 b = acc[c];
        i32 f = i32(b >> 23 & 255), mc = i32(b & 0x7fffffu) | (f ? 0x800000 : 0);
        i32 ec = mc ? (f ? f : 1) - 127 : top.v[c];
        mc = b >> 31 ? -mc : mc;
        i32 base = top.v[c] > ec ? top.v[c] : ec;
        i32 down = base - top.v[c];  // the dot keeps 31 fractional bits
        down = down > 60 ? 60 : down;
        i64 d = (i64(dot.v[c]) * 128) >> down;
        i32 cdown = base - ec;  // C keeps 24
        cdown = cdown > 60 ? 60 : cdown;
        i64 cc = ((i64(mc) * 2) >> cdown) * 128;
        double scale = as_f64(u64(base - 31 + 1023) << 52);
        float r = float(double(d + cc) * scale);  // exact but for this one rounding
        u32 sum = as_u32(r);
        u32 kept = mc == 0 ? 0u : b;  // no product: C as it is, and zero without a sign
        acc[c] = top.v[c] == kEmpty ? kept : sum;
    }
}

template <int M>
bool rows(const MfmaTile &t, const Split &a, const Split &b, const u32 (*c)[kLanes], u32 (*out)[kLanes]) {
    constexpr int groups = kLanes / M, regs = M * M / 64;
    const int per = t.per, total = groups * per;
    for (int r = 0; r < regs; r++)
        for (int g = 0; g < groups; g++) {
            const int row = mfma_row(M, r, g);
            alignas(64) u32 acc[M];
            std::memcpy(acc, &c[r][g * M], sizeof(acc));
            for (int k0 = 0; k0 < total; k0 += 8) {
                const i32 *mb[8], *eb[8];
                i32 ma[8], ea[8];
                int n = std::min(8, total - k0);
                for (int k = 0; k < n; k++) {
                    int j = (k0 + k) % per, lane = (k0 + k) / per * M;
                    ma[k] = a.man[j][lane + row], ea[k] = a.exp[j][lane + row];
                    mb[k] = &b.man[j][lane], eb[k] = &b.exp[j][lane];
                }
                u32 bad = 0;
                for (int i = 0; i < M; i++) bad |= (acc[i] & 0x7f800000u) == 0x7f800000u;
                if (bad) return false;
                group_row<M>(mb, eb, ma, ea, n, acc);
            }
            std::memcpy(&out[r][g * M], acc, sizeof(acc));
        }
    return true;
}

}  // namespace

bool mfma_rows_exact(const MfmaTile &t, const u32 (*c)[kLanes], u32 (*out)[kLanes]) {
    Split a, b;
    split_all(t.a, t.per, &a);
    split_all(t.b, t.per, &b);
    if (!a.finite || !b.finite || a.largest + b.largest >= 126) return false;
    return t.m == 32 ? rows<32>(t, a, b, c, out) : rows<16>(t, a, b, c, out);
}

}  // namespace moon
