// Float operations of one lane, written so that every host gives the same bits.
#pragma once
#include "types.h"
#include <cmath>

namespace moon {

inline bool is_nan32(u32 b) { return (b & 0x7fffffffu) > 0x7f800000u; }
inline bool is_snan32(u32 b) { return is_nan32(b) && !(b & 0x400000u); }
inline bool is_nan64(u64 b) { return (b & 0x7fffffffffffffffull) > 0x7ff0000000000000ull; }
inline bool is_snan64(u64 b) { return is_nan64(b) && !(b & 0x8000000000000ull); }

// min and max of IEEE=0 return the other operand for any NaN; IEEE=1 quiets a signalling NaN. -0 < +0.
inline float max_f32(float x, float y, bool ieee) {
    u32 a = as_u32(x), b = as_u32(y);
    u32 r = x > y ? a : x < y ? b : (a & b);
    r = is_nan32(b) ? a : r;
    r = is_nan32(a) ? b : r;
    if (ieee) {
        r = is_snan32(b) ? b | 0x400000u : r;
        r = is_snan32(a) ? a | 0x400000u : r;
    }
    return as_f32(r);
}
inline float min_f32(float x, float y, bool ieee) {
    u32 a = as_u32(x), b = as_u32(y);
    u32 r = x < y ? a : x > y ? b : (a | b);
    r = is_nan32(b) ? a : r;
    r = is_nan32(a) ? b : r;
    if (ieee) {
        r = is_snan32(b) ? b | 0x400000u : r;
        r = is_snan32(a) ? a | 0x400000u : r;
    }
    return as_f32(r);
}
inline double max_f64(double x, double y, bool ieee) {
    u64 a = as_u64(x), b = as_u64(y);
    u64 r = x > y ? a : x < y ? b : (a & b);
    r = is_nan64(b) ? a : r;
    r = is_nan64(a) ? b : r;
    if (ieee) {
        r = is_snan64(b) ? b | 0x8000000000000ull : r;
        r = is_snan64(a) ? a | 0x8000000000000ull : r;
    }
    return as_f64(r);
}
inline double min_f64(double x, double y, bool ieee) {
    u64 a = as_u64(x), b = as_u64(y);
    u64 r = x < y ? a : x > y ? b : (a | b);
    r = is_nan64(b) ? a : r;
    r = is_nan64(a) ? b : r;
    if (ieee) {
        r = is_snan64(b) ? b | 0x8000000000000ull : r;
        r = is_snan64(a) ? a | 0x8000000000000ull : r;
    }
    return as_f64(r);
}
// The median; with a NaN among the operands, the minimum of the three.
inline float med3_f32(float x, float y, float z, bool ieee) {
    if (std::isnan(x) || std::isnan(y) || std::isnan(z)) return min_f32(min_f32(x, y, ieee), z, ieee);
    return max_f32(min_f32(x, y, ieee), min_f32(max_f32(x, y, ieee), z, ieee), ieee);
}
// NaN-propagating forms of gfx950.
inline float maximum_f32(float x, float y) {
    if (std::isnan(x)) return as_f32(as_u32(x) | 0x400000u);
    if (std::isnan(y)) return as_f32(as_u32(y) | 0x400000u);
    return max_f32(x, y, false);
}
inline float minimum_f32(float x, float y) {
    if (std::isnan(x)) return as_f32(as_u32(x) | 0x400000u);
    if (std::isnan(y)) return as_f32(as_u32(y) | 0x400000u);
    return min_f32(x, y, false);
}

inline u32 cvt_u32(double x) { return !(x > 0) ? 0u : x >= 4294967295.0 ? 0xffffffffu : u32(x); }
inline i32 cvt_i32(double x) {
    return x != x ? 0 : x <= -2147483648.0 ? i32(0x80000000u) : x >= 2147483647.0 ? 0x7fffffff : i32(x);
}

// 2^x, to within the rounding of a double evaluation; results below the normal range are zero.
inline float exp2_f32(float x) {
    double d = double(x);
    d = d > 300.0 ? 300.0 : d;
    d = d < -300.0 ? -300.0 : d;
    const double magic = 6755399441055744.0;  // 1.5 * 2^52: rounds to an integer held in the low mantissa bits
    double shifted = d + magic;
    double n = shifted - magic, f = d - n;
    double p = 1.0178086009239699e-07;  // ln2^9/9!, then downwards
    p = p * f + 1.3215486790144307e-06;
    p = p * f + 1.5252733804059840e-05;
    p = p * f + 1.5403530393381609e-04;
    p = p * f + 1.3333558146428443e-03;
    p = p * f + 9.6181291076284772e-03;
    p = p * f + 5.5504108664821580e-02;
    p = p * f + 2.4022650695910072e-01;
    p = p * f + 6.9314718055994531e-01;
    p = p * f + 1.0;
    u64 scale = (as_u64(shifted) + 1023) << 52;  // the low bits of `shifted` are n
    float r = float(p * as_f64(scale));
    r = x < -126.0f ? 0.0f : r;
    return x != x ? as_f32(as_u32(x) | 0x400000u) : r;
}

inline float log2_f32(float x) {
    u32 b = as_u32(x);
    if (is_nan32(b)) return as_f32(b | 0x400000u);
    if ((b & 0x7f800000u) == 0) return as_f32(0xff800000u);
    if (b >> 31) return as_f32(0x7fc00000u);
    return float(std::log2(double(x)));
}

// Trans results and operands below the normal range are flushed whatever MODE says.
inline float tiny_to_zero(float x) {
    u32 b = as_u32(x);
    return as_f32((b & 0x7f800000u) ? b : b & 0x80000000u);
}
inline float rcp_f32(float x) {
    x = tiny_to_zero(x);
    return x != x ? as_f32(as_u32(x) | 0x400000u) : tiny_to_zero(1.0f / x);
}
inline float sqrt_f32(float x) {
    x = tiny_to_zero(x);
    if (x != x) return as_f32(as_u32(x) | 0x400000u);
    return x < 0 ? as_f32(0x7fc00000u) : float(std::sqrt(double(x)));
}
inline float rsq_f32(float x) {
    x = tiny_to_zero(x);
    if (x != x) return as_f32(as_u32(x) | 0x400000u);
    if (x < 0) return as_f32(0x7fc00000u);
    return x == 0 ? as_f32(as_u32(x) | 0x7f800000u) : float(1.0 / std::sqrt(double(x)));
}
// sin and cos take revolutions; beyond +-256 the hardware gives 0 (sin) and 1 (cos).
inline float sin_f32(float x) {
    if (!(std::fabs(x) <= 256.0f)) return std::isfinite(x) ? 0.0f : as_f32(0x7fc00000u);
    double d = double(x), turns = d - std::floor(d);
    return float(std::sin(turns * 6.283185307179586476925));
}
inline float cos_f32(float x) {
    if (!(std::fabs(x) <= 256.0f)) return std::isfinite(x) ? 1.0f : as_f32(0x7fc00000u);
    double d = double(x), turns = d - std::floor(d);
    return float(std::cos(turns * 6.283185307179586476925));
}
inline float fract_f32(float x) {
    float r = x - std::floor(x);
    return r >= 1.0f ? as_f32(0x3f7fffffu) : r;
}
inline double fract_f64(double x) {
    double r = x - std::floor(x);
    return r >= 1.0 ? as_f64(0x3fefffffffffffffull) : r;
}
inline int frexp_exp_f32(float x) {
    int e = 0;
    if (!std::isfinite(x) || x == 0) return 0;
    std::frexp(x, &e);
    return e;
}
inline int frexp_exp_f64(double x) {
    int e = 0;
    if (!std::isfinite(x) || x == 0) return 0;
    std::frexp(x, &e);
    return e;
}
inline float frexp_mant_f32(float x) {
    int e;
    return std::isfinite(x) ? std::frexp(x, &e) : x;
}
inline double frexp_mant_f64(double x) {
    int e;
    return std::isfinite(x) ? std::frexp(x, &e) : x;
}
inline float ldexp_f32(float x, i32 e) { return std::ldexp(x, e < -400 ? -400 : e > 400 ? 400 : e); }
inline double ldexp_f64(double x, i32 e) { return std::ldexp(x, e < -4000 ? -4000 : e > 4000 ? 4000 : e); }

// The class bits of v_cmp_class: sNaN, qNaN, -Inf, -normal, -denormal, -0, +0, +denormal, +normal, +Inf.
inline u32 class_f32(u32 b) {
    u32 sign = b >> 31, exp = (b >> 23) & 255, man = b & 0x7fffff;
    if (exp == 255) return man ? (man & 0x400000 ? 2u : 1u) : sign ? 4u : 512u;
    if (exp) return sign ? 8u : 256u;
    if (man) return sign ? 16u : 128u;
    return sign ? 32u : 64u;
}
inline u32 class_f64(u64 b) {
    u64 sign = b >> 63, exp = (b >> 52) & 0x7ff, man = b & 0xfffffffffffffull;
    if (exp == 0x7ff) return man ? (man >> 51 ? 2u : 1u) : sign ? 4u : 512u;
    if (exp) return sign ? 8u : 256u;
    if (man) return sign ? 16u : 128u;
    return sign ? 32u : 64u;
}

float div_scale_f32(float s0, float den, float num, bool *vcc);
float div_fixup_f32(float q, float den, float num);
double div_scale_f64(double s0, double den, double num, bool *vcc);
double div_fixup_f64(double q, double den, double num);

}  // namespace moon
