// Rows: 32-bit float vector instructions and conversions.
#include "fpmath.h"
#include "valu.h"

namespace moon {

namespace {
// A quotient-style NaN rule does not apply to conversions and selections: those use the v forms.
u32 pk_bf16(float lo, float hi) { return f32_to_bf16(lo) | u32(f32_to_bf16(hi)) << 16; }

// One value at a time, hidden from the vectoriser: without AVX-512 that converts by a subtraction of constants, which
// makes 0 to -0 when the rounding mode is down.
float from_u32(uint32_t x) {
    asm("" : "+r"(x));
    return float(x);
}

template <int BYTE>
float ubyte(u32 x) {
    return float((x >> (8 * BYTE)) & 255);
}

u32 cvt_pk_u8(float value, u32 byte, u32 old) {
    u32 v = !(value > 0) ? 0u : value >= 255.0f ? 255u : u32(std::nearbyint(value)), sh = (byte & 3) * 8;
    return (old & ~(255u << sh)) | v << sh;
}
i16 pknorm_i16(float x) {
    return x != x ? i16(0) : i16(std::nearbyint((x < -1 ? -1.0f : x > 1 ? 1.0f : x) * 32767.0f));
}
u16 pknorm_u16(float x) { return !(x > 0) ? u16(0) : u16(std::nearbyint((x > 1 ? 1.0f : x) * 65535.0f)); }
u32 pkrtz(float lo, float hi) { return f64_to_f16(lo, 3) | u32(f64_to_f16(hi, 3)) << 16; }
}  // namespace

extern const Row kF32Rows[] = {
    a2<F32, F32, F32>(Enc::VOP2, 1, "v_add_f32", MOON_XY(x + y)),
    a2<F32, F32, F32>(Enc::VOP2, 2, "v_sub_f32", MOON_XY(x - y)),
    a2<F32, F32, F32>(Enc::VOP2, 3, "v_subrev_f32", MOON_XY(y - x)),
    a2<F32, F32, F32>(Enc::VOP2, 5, "v_mul_f32", MOON_XY(x *y)),
    v2<F32, F32, F32>(Enc::VOP2, 10, "v_min_f32", MOON_XY(min_f32(x, y, w.ieee))),
    v2<F32, F32, F32>(Enc::VOP2, 11, "v_max_f32", MOON_XY(max_f32(x, y, w.ieee))),
    a3<F32, F32, F32, F32>(Enc::VOP2, 23, "v_fmamk_f32", MOON_XYZ(__builtin_fmaf(x, y, z)), NO_SUFFIX | LITERAL_K),
    a3<F32, F32, F32, F32>(Enc::VOP2, 24, "v_fmaak_f32", MOON_XYZ(__builtin_fmaf(x, y, z)), NO_SUFFIX | LITERAL_K),
    a3<F32, F32, F32, F32>(Enc::VOP2, 59, "v_fmac_f32", MOON_XYZ(__builtin_fmaf(x, y, z)), READS_DST),
    a3<F32, F32, F32, F32>(Enc::VOP3, 459, "v_fma_f32", MOON_XYZ(__builtin_fmaf(x, y, z))),
    v3<F32, F32, F32, F32>(Enc::VOP3, 464, "v_min3_f32", MOON_XYZ(min_f32(min_f32(x, y, w.ieee), z, w.ieee))),
    v3<F32, F32, F32, F32>(Enc::VOP3, 467, "v_max3_f32", MOON_XYZ(max_f32(max_f32(x, y, w.ieee), z, w.ieee))),
    v3<F32, F32, F32, F32>(Enc::VOP3, 470, "v_med3_f32", MOON_XYZ(med3_f32(x, y, z, w.ieee))),
    v3<F32, F32, F32, F32>(Enc::VOP3, 680, "v_minimum3_f32", MOON_XYZ(minimum_f32(minimum_f32(x, y), z)), 0, GFX950),
    v3<F32, F32, F32, F32>(Enc::VOP3, 681, "v_maximum3_f32", MOON_XYZ(maximum_f32(maximum_f32(x, y), z)), 0, GFX950),
    v3<F32, F32, F32, F32>(Enc::VOP3, 478, "v_div_fixup_f32", MOON_XYZ(div_fixup_f32(x, y, z))),
    a2<F32, F32, F32>(Enc::VOP3, 673, "v_mul_legacy_f32", MOON_XY(x == 0 || y == 0 ? 0.0f : x * y)),
    v2<F32, F32, I32>(Enc::VOP3, 648, "v_ldexp_f32", MOON_XY(ldexp_f32(x, y))),

    a1<F32, F32>(Enc::VOP1, 27, "v_fract_f32", MOON_X(fract_f32(x))),
    v1<F32, F32>(Enc::VOP1, 28, "v_trunc_f32", MOON_X(std::trunc(x))),
    v1<F32, F32>(Enc::VOP1, 29, "v_ceil_f32", MOON_X(std::ceil(x))),
    v1<F32, F32>(Enc::VOP1, 30, "v_rndne_f32", MOON_X(std::nearbyint(x))),
    v1<F32, F32>(Enc::VOP1, 31, "v_floor_f32", MOON_X(std::floor(x))),
    v1<F32, F32>(Enc::VOP1, 32, "v_exp_f32", MOON_X(exp2_f32(x)), 0, BOTH, Class::TRANS),
    v1<F32, F32>(Enc::VOP1, 33, "v_log_f32", MOON_X(log2_f32(x)), 0, BOTH, Class::TRANS),
    v1<F32, F32>(Enc::VOP1, 34, "v_rcp_f32", MOON_X(rcp_f32(x)), 0, BOTH, Class::TRANS),
    v1<F32, F32>(Enc::VOP1, 35, "v_rcp_iflag_f32", MOON_X(rcp_f32(x)), 0, BOTH, Class::TRANS),
    v1<F32, F32>(Enc::VOP1, 36, "v_rsq_f32", MOON_X(rsq_f32(x)), 0, BOTH, Class::TRANS),
    v1<F32, F32>(Enc::VOP1, 39, "v_sqrt_f32", MOON_X(sqrt_f32(x)), 0, BOTH, Class::TRANS),
    v1<F32, F32>(Enc::VOP1, 41, "v_sin_f32", MOON_X(sin_f32(x)), 0, BOTH, Class::TRANS),
    v1<F32, F32>(Enc::VOP1, 42, "v_cos_f32", MOON_X(cos_f32(x)), 0, BOTH, Class::TRANS),
    v1<F32, F32>(Enc::VOP1, 75, "v_exp_legacy_f32", MOON_X(exp2_f32(x)), 0, BOTH, Class::TRANS),
    v1<F32, F32>(Enc::VOP1, 76, "v_log_legacy_f32", MOON_X(log2_f32(x)), 0, BOTH, Class::TRANS),
    v1<I32, F32>(Enc::VOP1, 51, "v_frexp_exp_i32_f32", MOON_X(frexp_exp_f32(x))),
    v1<F32, F32>(Enc::VOP1, 52, "v_frexp_mant_f32", MOON_X(frexp_mant_f32(x))),

    v1<F32, I32>(Enc::VOP1, 5, "v_cvt_f32_i32", MOON_X(float(x))),
    v1<F32, U32>(Enc::VOP1, 6, "v_cvt_f32_u32", MOON_X(from_u32(x))),
    v1<U32, F32>(Enc::VOP1, 7, "v_cvt_u32_f32", MOON_X(cvt_u32(x))),
    v1<I32, F32>(Enc::VOP1, 8, "v_cvt_i32_f32", MOON_X(cvt_i32(x))),
    v1<I32, F32>(Enc::VOP1, 12, "v_cvt_rpi_i32_f32", MOON_X(cvt_i32(std::floor(double(x) + 0.5)))),
    v1<I32, F32>(Enc::VOP1, 13, "v_cvt_flr_i32_f32", MOON_X(cvt_i32(std::floor(double(x))))),
    v1<F32, U32>(Enc::VOP1, 14, "v_cvt_off_f32_i4", MOON_X(float(i32(x << 28) >> 28) / 16.0f)),
    v1<F32, U32>(Enc::VOP1, 17, "v_cvt_f32_ubyte0", MOON_X(ubyte<0>(x))),
    v1<F32, U32>(Enc::VOP1, 18, "v_cvt_f32_ubyte1", MOON_X(ubyte<1>(x))),
    v1<F32, U32>(Enc::VOP1, 19, "v_cvt_f32_ubyte2", MOON_X(ubyte<2>(x))),
    v1<F32, U32>(Enc::VOP1, 20, "v_cvt_f32_ubyte3", MOON_X(ubyte<3>(x))),
    v1<F16, F32>(Enc::VOP1, 10, "v_cvt_f16_f32", MOON_X(double(x))),
    v1<F32, F16>(Enc::VOP1, 11, "v_cvt_f32_f16", MOON_X(float(x))),
    v1<F32, U16>(Enc::VOP1, 91, "v_cvt_f32_bf16", MOON_X(bf16_to_f32(x)), 0, GFX950),

    v3<U32, F32, U32, U32>(Enc::VOP3, 477, "v_cvt_pk_u8_f32", MOON_XYZ(cvt_pk_u8(x, y, z))),
    v2<U32, F32, F32>(Enc::VOP3, 660, "v_cvt_pknorm_i16_f32",
                      MOON_XY(u16(pknorm_i16(x)) | u32(u16(pknorm_i16(y))) << 16)),
    v2<U32, F32, F32>(Enc::VOP3, 661, "v_cvt_pknorm_u16_f32", MOON_XY(pknorm_u16(x) | u32(pknorm_u16(y)) << 16)),
    v2<U32, F32, F32>(Enc::VOP3, 662, "v_cvt_pkrtz_f16_f32", MOON_XY(pkrtz(x, y))),
    v2<U32, F32, F32>(Enc::VOP3, 615, "v_cvt_pk_f16_f32",
                      MOON_XY(f64_to_f16(x, f16_rounding()) | u32(f64_to_f16(y, f16_rounding())) << 16), 0, GFX950),
    v2<U32, F32, F32>(Enc::VOP3, 616, "v_cvt_pk_bf16_f32", MOON_XY(pk_bf16(x, y)), 0, GFX950),
    {nullptr, Enc::VOP1, 0, 0, Class::OTHER, Ty::NONE, {Ty::NONE, Ty::NONE, Ty::NONE}, 0, nullptr, 0, 0, 0, 0}};

}  // namespace moon
