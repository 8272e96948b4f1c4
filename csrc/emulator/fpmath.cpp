// The three-step division helpers, from the ISA document's pseudo code.
#include "fpmath.h"

namespace moon {

namespace {
int exp32(float x) { return int((as_u32(x) >> 23) & 255); }
int exp64(double x) { return int((as_u64(x) >> 52) & 0x7ff); }
bool denormal32(double x) { return x != 0 && std::fabs(x) < 1.1754943508222875e-38; }
bool denormal64(double x) { return x != 0 && std::fabs(x) < 2.2250738585072014e-308; }
}  // namespace

float div_scale_f32(float s0, float den, float num, bool *vcc) {
    *vcc = false;
    if (num == 0 || den == 0) return as_f32(0x7fc00000u);
    double inverse = 1.0 / double(den), quotient = double(num) / double(den);
    if (exp32(num) - exp32(den) >= 96) {
        *vcc = true;
        return s0 == den ? std::ldexp(s0, 64) : s0;
    }
    if (exp32(den) == 0) return std::ldexp(s0, 64);
    if (denormal32(inverse) && denormal32(quotient)) {
        *vcc = true;
        return s0 == den ? std::ldexp(s0, 64) : s0;
    }
    if (denormal32(inverse)) return std::ldexp(s0, -64);
    if (denormal32(quotient)) {
        *vcc = true;
        return s0 == num ? std::ldexp(s0, 64) : s0;
    }
    return exp32(num) <= 23 ? std::ldexp(s0, 64) : s0;
}

float div_fixup_f32(float q, float den, float num) {
    u32 sign = (as_u32(den) ^ as_u32(num)) & 0x80000000u;
    if (num != num) return as_f32(as_u32(num) | 0x400000u);
    if (den != den) return as_f32(as_u32(den) | 0x400000u);
    bool den_inf = std::isinf(den), num_inf = std::isinf(num);
    if ((den == 0 && num == 0) || (den_inf && num_inf)) return as_f32(0xffc00000u);
    if (den == 0 || num_inf) return as_f32(sign | 0x7f800000u);
    if (den_inf || num == 0) return as_f32(sign);
    if (exp32(num) - exp32(den) < -150) return as_f32(sign);
    return as_f32((as_u32(q) & 0x7fffffffu) | sign);
}

double div_scale_f64(double s0, double den, double num, bool *vcc) {
    *vcc = false;
    if (num == 0 || den == 0) return as_f64(0x7ff8000000000000ull);
    if (exp64(num) - exp64(den) >= 768) {
        *vcc = true;
        return s0 == den ? std::ldexp(s0, 128) : s0;
    }
    if (exp64(den) == 0) return std::ldexp(s0, 128);
    bool inverse = denormal64(1.0 / den), quotient = denormal64(num / den) || num / den == 0;
    if (inverse && quotient) {
        *vcc = true;
        return s0 == den ? std::ldexp(s0, 128) : s0;
    }
    if (inverse) return std::ldexp(s0, -128);
    if (quotient) {
        *vcc = true;
        return s0 == num ? std::ldexp(s0, 128) : s0;
    }
    return exp64(num) <= 53 ? std::ldexp(s0, 128) : s0;
}

double div_fixup_f64(double q, double den, double num) {
    u64 sign = (as_u64(den) ^ as_u64(num)) & 0x8000000000000000ull;
    if (num != num) return as_f64(as_u64(num) | 0x8000000000000ull);
    if (den != den) return as_f64(as_u64(den) | 0x8000000000000ull);
    bool den_inf = std::isinf(den), num_inf = std::isinf(num);
    if ((den == 0 && num == 0) || (den_inf && num_inf)) return as_f64(0xfff8000000000000ull);
    if (den == 0 || num_inf) return as_f64(sign | 0x7ff0000000000000ull);
    if (den_inf || num == 0) return as_f64(sign);
    if (exp64(num) - exp64(den) < -1075) return as_f64(sign);
    return as_f64((as_u64(q) & 0x7fffffffffffffffull) | sign);
}

}  // namespace moon
