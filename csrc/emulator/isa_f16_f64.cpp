// Rows: half and double precision vector instructions.
#include "fpmath.h"
#include "valu.h"

namespace moon {

namespace {
// Half values travel as double; a NaN among min/max operands returns the other one.
double hmax(double x, double y, bool ieee) { return max_f64(x, y, ieee); }
double hmin(double x, double y, bool ieee) { return min_f64(x, y, ieee); }
double hmed(double x, double y, double z, bool ieee) {
    if (std::isnan(x) || std::isnan(y) || std::isnan(z)) return hmin(hmin(x, y, ieee), z, ieee);
    return hmax(hmin(x, y, ieee), hmin(hmax(x, y, ieee), z, ieee), ieee);
}
u32 u16_of(double x) { return !(x > 0) ? 0u : x >= 65535.0 ? 65535u : u32(x); }
i32 i16_of(double x) { return x != x ? 0 : x <= -32768.0 ? -32768 : x >= 32767.0 ? 32767 : i32(x); }
double turn_sin(double x) { return std::isfinite(x) ? std::sin((x - std::floor(x)) * 6.283185307179586476925) : NAN; }
double turn_cos(double x) { return std::isfinite(x) ? std::cos((x - std::floor(x)) * 6.283185307179586476925) : NAN; }
int frexp_exp_f16(double x) { return frexp_exp_f64(x); }
}  // namespace

extern const Row kF16F64Rows[] = {
    v2<F16, F16, F16>(Enc::VOP2, 31, "v_add_f16", MOON_XY(x + y)),
    v2<F16, F16, F16>(Enc::VOP2, 32, "v_sub_f16", MOON_XY(x - y)),
    v2<F16, F16, F16>(Enc::VOP2, 33, "v_subrev_f16", MOON_XY(y - x)),
    v2<F16, F16, F16>(Enc::VOP2, 34, "v_mul_f16", MOON_XY(x *y)),
    v3<F16, F16, F16, F16>(Enc::VOP2, 35, "v_mac_f16", MOON_XYZ(f16_to_f32(f64_to_f16(x *y)) + z), READS_DST),
    v2<F16, F16, F16>(Enc::VOP2, 45, "v_max_f16", MOON_XY(hmax(x, y, w.ieee))),
    v2<F16, F16, F16>(Enc::VOP2, 46, "v_min_f16", MOON_XY(hmin(x, y, w.ieee))),
    v2<F16, F16, I16>(Enc::VOP2, 51, "v_ldexp_f16", MOON_XY(ldexp_f64(x, y))),
    v3<F16, F16, F16, F16>(Enc::VOP3, 500, "v_min3_f16", MOON_XYZ(hmin(hmin(x, y, w.ieee), z, w.ieee)), PRESERVES_HI),
    v3<F16, F16, F16, F16>(Enc::VOP3, 503, "v_max3_f16", MOON_XYZ(hmax(hmax(x, y, w.ieee), z, w.ieee)), PRESERVES_HI),
    v3<F16, F16, F16, F16>(Enc::VOP3, 506, "v_med3_f16", MOON_XYZ(hmed(x, y, z, w.ieee)), PRESERVES_HI),
    v3<F16, F16, F16, F16>(Enc::VOP3, 518, "v_fma_f16", MOON_XYZ(std::fma(x, y, z)), PRESERVES_HI),

    v1<F16, U16>(Enc::VOP1, 57, "v_cvt_f16_u16", MOON_X(double(x))),
    v1<F16, I16>(Enc::VOP1, 58, "v_cvt_f16_i16", MOON_X(double(x))),
    v1<U16, F16>(Enc::VOP1, 59, "v_cvt_u16_f16", MOON_X(u16_of(x))),
    v1<I16, F16>(Enc::VOP1, 60, "v_cvt_i16_f16", MOON_X(i16_of(x))),
    v1<F16, F16>(Enc::VOP1, 61, "v_rcp_f16", MOON_X(1.0 / x), 0, BOTH, Class::TRANS),
    v1<F16, F16>(Enc::VOP1, 62, "v_sqrt_f16", MOON_X(std::sqrt(x)), 0, BOTH, Class::TRANS),
    v1<F16, F16>(Enc::VOP1, 63, "v_rsq_f16", MOON_X(1.0 / std::sqrt(x)), 0, BOTH, Class::TRANS),
    v1<F16, F16>(Enc::VOP1, 64, "v_log_f16", MOON_X(std::log2(x)), 0, BOTH, Class::TRANS),
    v1<F16, F16>(Enc::VOP1, 65, "v_exp_f16", MOON_X(std::exp2(x)), 0, BOTH, Class::TRANS),
    v1<F16, F16>(Enc::VOP1, 66, "v_frexp_mant_f16", MOON_X(frexp_mant_f64(x))),
    v1<I16, F16>(Enc::VOP1, 67, "v_frexp_exp_i16_f16", MOON_X(frexp_exp_f16(x))),
    v1<F16, F16>(Enc::VOP1, 68, "v_floor_f16", MOON_X(std::floor(x))),
    v1<F16, F16>(Enc::VOP1, 69, "v_ceil_f16", MOON_X(std::ceil(x))),
    v1<F16, F16>(Enc::VOP1, 70, "v_trunc_f16", MOON_X(std::trunc(x))),
    v1<F16, F16>(Enc::VOP1, 71, "v_rndne_f16", MOON_X(std::nearbyint(x))),
    v1<F16, F16>(Enc::VOP1, 72, "v_fract_f16", MOON_X(x - std::floor(x) >= 1.0 ? 0.99951171875 : x - std::floor(x))),
    v1<F16, F16>(Enc::VOP1, 73, "v_sin_f16", MOON_X(turn_sin(x)), 0, BOTH, Class::TRANS),
    v1<F16, F16>(Enc::VOP1, 74, "v_cos_f16", MOON_X(turn_cos(x)), 0, BOTH, Class::TRANS),

    v1<I32, F64>(Enc::VOP1, 3, "v_cvt_i32_f64", MOON_X(cvt_i32(x))),
    v1<F64, I32>(Enc::VOP1, 4, "v_cvt_f64_i32", MOON_X(double(x))),
    v1<F32, F64>(Enc::VOP1, 15, "v_cvt_f32_f64", MOON_X(float(x))),
    v1<F64, F32>(Enc::VOP1, 16, "v_cvt_f64_f32", MOON_X(double(x))),
    v1<U32, F64>(Enc::VOP1, 21, "v_cvt_u32_f64", MOON_X(cvt_u32(x))),
    v1<F64, U32>(Enc::VOP1, 22, "v_cvt_f64_u32", MOON_X(double(x))),
    v1<F64, F64>(Enc::VOP1, 23, "v_trunc_f64", MOON_X(std::trunc(x))),
    v1<F64, F64>(Enc::VOP1, 24, "v_ceil_f64", MOON_X(std::ceil(x))),
    v1<F64, F64>(Enc::VOP1, 25, "v_rndne_f64", MOON_X(std::nearbyint(x))),
    v1<F64, F64>(Enc::VOP1, 26, "v_floor_f64", MOON_X(std::floor(x))),
    v1<F64, F64>(Enc::VOP1, 37, "v_rcp_f64", MOON_X(1.0 / x), 0, BOTH, Class::TRANS),
    v1<F64, F64>(Enc::VOP1, 38, "v_rsq_f64", MOON_X(1.0 / std::sqrt(x)), 0, BOTH, Class::TRANS),
    v1<F64, F64>(Enc::VOP1, 40, "v_sqrt_f64", MOON_X(std::sqrt(x)), 0, BOTH, Class::TRANS),
    v1<I32, F64>(Enc::VOP1, 48, "v_frexp_exp_i32_f64", MOON_X(frexp_exp_f64(x))),
    v1<F64, F64>(Enc::VOP1, 49, "v_frexp_mant_f64", MOON_X(frexp_mant_f64(x))),
    v1<F64, F64>(Enc::VOP1, 50, "v_fract_f64", MOON_X(fract_f64(x))),

    v3<F64, F64, F64, F64>(Enc::VOP2, 4, "v_fmac_f64", MOON_XYZ(std::fma(x, y, z)), READS_DST),
    v3<F64, F64, F64, F64>(Enc::VOP3, 460, "v_fma_f64", MOON_XYZ(std::fma(x, y, z))),
    v2<F64, F64, F64>(Enc::VOP3, 640, "v_add_f64", MOON_XY(x + y)),
    v2<F64, F64, F64>(Enc::VOP3, 641, "v_mul_f64", MOON_XY(x *y)),
    v2<F64, F64, F64>(Enc::VOP3, 642, "v_min_f64", MOON_XY(min_f64(x, y, w.ieee))),
    v2<F64, F64, F64>(Enc::VOP3, 643, "v_max_f64", MOON_XY(max_f64(x, y, w.ieee))),
    v2<F64, F64, I32>(Enc::VOP3, 644, "v_ldexp_f64", MOON_XY(ldexp_f64(x, y))),
    v3<F64, F64, F64, F64>(Enc::VOP3, 479, "v_div_fixup_f64", MOON_XYZ(div_fixup_f64(x, y, z))),
    {nullptr, Enc::VOP1, 0, 0, Class::OTHER, Ty::NONE, {Ty::NONE, Ty::NONE, Ty::NONE}, 0, nullptr, 0, 0, 0, 0}};

}  // namespace moon
