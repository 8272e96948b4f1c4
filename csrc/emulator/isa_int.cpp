// Rows: integer vector instructions.
#include "valu.h"
#include <string_view>

namespace moon {

namespace {
template <class T>
T lo(T a, T b) {
    return a < b ? a : b;
}
template <class T>
T hi(T a, T b) {
    return a > b ? a : b;
}
template <class T>
T med(T a, T b, T c) {
    return hi(lo(a, b), lo(hi(a, b), c));
}

i32 i24(u32 x) { return i32(x << 8) >> 8; }
u32 u24(u32 x) { return x & 0xffffffu; }

u32 reverse(u32 x) {
    x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
    x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
    x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(x);
}
u32 first_high(u32 x) { return x ? u32(__builtin_clz(x)) : ~0u; }
u32 first_low(u32 x) { return x ? u32(__builtin_ctz(x)) : ~0u; }
u32 first_sign_change(u32 x) { return first_high(i32(x) < 0 ? ~x : x); }

u32 bfe_u(u32 x, u32 off, u32 width) {
    off &= 31, width &= 31;
    return width == 0 ? 0u : (x >> off) & ((1u << width) - 1);
}
i32 bfe_i(u32 x, u32 off, u32 width) {
    off &= 31, width &= 31;
    if (width == 0) return 0;
    return off + width >= 32 ? i32(x) >> off : i32(x << (32 - off - width)) >> (32 - width);
}
// v_perm_b32: bytes 0-3 are S1, 4-7 S0, 8-11 replicate sign bits, 12 is 0, above is 0xff.
u32 perm_byte(u64 bytes, u32 sel) {
    u32 b = u32(bytes >> (8 * (sel & 7))) & 255u;
    u32 sign = (u32(bytes >> (16 * (sel & 3) + 15)) & 1u) ? 255u : 0u;
    return sel < 8 ? b : sel < 12 ? sign : sel == 12 ? 0u : 255u;
}
u32 perm(u32 s0, u32 s1, u32 sel) {
    u64 bytes = u64(s0) << 32 | s1;
    return perm_byte(bytes, sel & 255) | perm_byte(bytes, sel >> 8 & 255) << 8 |
           perm_byte(bytes, sel >> 16 & 255) << 16 | perm_byte(bytes, sel >> 24) << 24;
}
struct AnyPerm {
    static constexpr bool arith = false;
    static u32 f(const Wave &, u32 x, u32 y, u32 z) { return perm(x, y, z); }
};
// One selector for all lanes, as kernels use it, needs no 64-bit shifts.
void perm_lanes(Wave &w, const Op &op) {
    u32 sel = op.src[2].kind == Kind::VGPR ? ~0u : read_s32(w, op.src[2]);
    if ((sel & 0xf8f8f8f8u) != 0) {
        return valu3<AnyPerm, U32, U32, U32, U32>(w, op);
    }
    const u32 *s0 = fetch(w, op, 0), *s1 = fetch(w, op, 1);
    const u32 *from[4];
    u32 shift[4];
    for (int k = 0; k < 4; k++) {
        u32 b = sel >> (8 * k) & 7;
        from[k] = b < 4 ? s1 : s0;
        shift[k] = 8 * (b & 3);
    }
    const u32 *a = from[0], *b = from[1], *c = from[2], *d = from[3];
    const u32 sa = shift[0], sb = shift[1], sc = shift[2], sd = shift[3];
    u32 *r = result(w, op);
    MOON_LANES r[i] = (a[i] >> sa & 255u) | (b[i] >> sb & 255u) << 8 | (c[i] >> sc & 255u) << 16 | d[i] >> sd << 24;
    finish(w, op, r, 1);
}
constexpr Row perm_row() {
    Row r = v3<U32, U32, U32, U32>(Enc::VOP3, 493, "v_perm_b32", MOON_XYZ(x + y + z));
    r.run = perm_lanes;
    return r;
}
u32 absdiff(u32 a, u32 b) { return a > b ? a - b : b - a; }
u32 sad_u8(u32 a, u32 b) {
    u32 r = 0;
    for (int k = 0; k < 32; k += 8) r += absdiff(a >> k & 255, b >> k & 255);
    return r;
}
u32 msad_u8(u32 a, u32 b) {
    u32 r = 0;
    for (int k = 0; k < 32; k += 8) r += (b >> k & 255) ? absdiff(a >> k & 255, b >> k & 255) : 0;
    return r;
}
u32 lerp_u8(u32 a, u32 b, u32 c) {
    u32 r = 0;
    for (int k = 0; k < 32; k += 8) r |= (((a >> k & 255) + (b >> k & 255) + (c >> k & 1)) >> 1) << k;
    return r;
}
u32 sat_pk_u8(u32 x) {
    i32 a = i16(x), b = i16(x >> 16);
    return u32(a < 0 ? 0 : a > 255 ? 255 : a) | u32(b < 0 ? 0 : b > 255 ? 255 : b) << 8;
}
u16 sat_u16(u32 x) { return u16(x > 0xffff ? 0xffff : x); }
u16 sat_i16(i32 x) { return u16(x < -32768 ? -32768 : x > 32767 ? 32767 : x); }
u32 ashr_pk(i32 x, i32 y, u32 sh, i32 low, i32 high) {
    x >>= sh & 31, y >>= sh & 31;
    return (u32(x < low ? low : x > high ? high : x) & 255u) | (u32(y < low ? low : y > high ? high : y) & 255u) << 8;
}
// With the clamp bit integer adds and subtracts saturate.
template <class D, class A, class B, class L>
Handler saturated(L) {
    return &valu2<Fn<L, false>, D, A, B>;
}
i32 sat32(i64 x) { return x < -2147483648ll ? i32(0x80000000u) : x > 2147483647ll ? 0x7fffffff : i32(x); }
}  // namespace

Handler saturating(const Row &row) {
    const std::string_view name = row.name;
    if (name == "v_add_u32") return saturated<U32, U32, U32>(MOON_XY(x + y < x ? ~0u : x + y));
    if (name == "v_sub_u32") return saturated<U32, U32, U32>(MOON_XY(x < y ? 0u : x - y));
    if (name == "v_subrev_u32") return saturated<U32, U32, U32>(MOON_XY(y < x ? 0u : y - x));
    if (name == "v_add_i32") return saturated<I32, I32, I32>(MOON_XY(sat32(i64(x) + y)));
    if (name == "v_sub_i32") return saturated<I32, I32, I32>(MOON_XY(sat32(i64(x) - y)));
    if (name == "v_add_u16") return saturated<U16, U16, U16>(MOON_XY(u32(x) + y > 65535 ? 65535 : x + y));
    if (name == "v_sub_u16") return saturated<U16, U16, U16>(MOON_XY(x < y ? 0 : x - y));
    if (name == "v_add_i16") return saturated<I16, I16, I16>(MOON_XY(sat_i16(i32(x) + y)));
    if (name == "v_sub_i16") return saturated<I16, I16, I16>(MOON_XY(sat_i16(i32(x) - y)));
    return nullptr;
}

extern const Row kIntRows[] = {
    v1<U32, U32>(Enc::VOP1, 1, "v_mov_b32", MOON_X(x)),
    v1<U64, U64>(Enc::VOP1, 56, "v_mov_b64", MOON_X(x)),
    v1<U32, U32>(Enc::VOP1, 43, "v_not_b32", MOON_X(~x)),
    v1<U32, U32>(Enc::VOP1, 44, "v_bfrev_b32", MOON_X(reverse(x))),
    v1<U32, U32>(Enc::VOP1, 45, "v_ffbh_u32", MOON_X(first_high(x))),
    v1<U32, U32>(Enc::VOP1, 46, "v_ffbl_b32", MOON_X(first_low(x))),
    v1<U32, U32>(Enc::VOP1, 47, "v_ffbh_i32", MOON_X(first_sign_change(x))),
    v1<U32, U32>(Enc::VOP1, 79, "v_sat_pk_u8_i16", MOON_X(sat_pk_u8(x))),
    v1<U32, U32>(Enc::VOP1, 82, "v_accvgpr_mov_b32", MOON_X(x), NO_SUFFIX),
    v1<U32, U32>(Enc::VOP1, 88, "v_prng_b32", MOON_X(x << 1 ^ (x >> 31 ? 197u : 0u)), 0, GFX950),

    v2<I32, U32, U32>(Enc::VOP2, 6, "v_mul_i32_i24", MOON_XY(i32(u32(i24(x)) * u32(i24(y))))),
    v2<I32, U32, U32>(Enc::VOP2, 7, "v_mul_hi_i32_i24", MOON_XY(i32((i64(i24(x)) * i24(y)) >> 32))),
    v2<U32, U32, U32>(Enc::VOP2, 8, "v_mul_u32_u24", MOON_XY(u24(x) * u24(y))),
    v2<U32, U32, U32>(Enc::VOP2, 9, "v_mul_hi_u32_u24", MOON_XY(u32((u64(u24(x)) * u24(y)) >> 32))),
    v2<I32, I32, I32>(Enc::VOP2, 12, "v_min_i32", MOON_XY(lo(x, y))),
    v2<I32, I32, I32>(Enc::VOP2, 13, "v_max_i32", MOON_XY(hi(x, y))),
    v2<U32, U32, U32>(Enc::VOP2, 14, "v_min_u32", MOON_XY(lo(x, y))),
    v2<U32, U32, U32>(Enc::VOP2, 15, "v_max_u32", MOON_XY(hi(x, y))),
    v2<U32, U32, U32>(Enc::VOP2, 16, "v_lshrrev_b32", MOON_XY(y >> (x & 31))),
    v2<I32, U32, I32>(Enc::VOP2, 17, "v_ashrrev_i32", MOON_XY(y >> (x & 31))),
    v2<U32, U32, U32>(Enc::VOP2, 18, "v_lshlrev_b32", MOON_XY(y << (x & 31))),
    v2<U32, U32, U32>(Enc::VOP2, 19, "v_and_b32", MOON_XY(x &y)),
    v2<U32, U32, U32>(Enc::VOP2, 20, "v_or_b32", MOON_XY(x | y)),
    v2<U32, U32, U32>(Enc::VOP2, 21, "v_xor_b32", MOON_XY(x ^ y)),
    v2<U32, U32, U32>(Enc::VOP2, 61, "v_xnor_b32", MOON_XY(~(x ^ y))),
    v2<U32, U32, U32>(Enc::VOP2, 52, "v_add_u32", MOON_XY(x + y)),
    v2<U32, U32, U32>(Enc::VOP2, 53, "v_sub_u32", MOON_XY(x - y)),
    v2<U32, U32, U32>(Enc::VOP2, 54, "v_subrev_u32", MOON_XY(y - x)),
    v2<U16, U16, U16>(Enc::VOP2, 38, "v_add_u16", MOON_XY(x + y)),
    v2<U16, U16, U16>(Enc::VOP2, 39, "v_sub_u16", MOON_XY(x - y)),
    v2<U16, U16, U16>(Enc::VOP2, 40, "v_subrev_u16", MOON_XY(y - x)),
    v2<U16, U16, U16>(Enc::VOP2, 41, "v_mul_lo_u16", MOON_XY(u32(x) * y)),
    v2<U16, U16, U16>(Enc::VOP2, 42, "v_lshlrev_b16", MOON_XY(u32(y) << (x & 15))),
    v2<U16, U16, U16>(Enc::VOP2, 43, "v_lshrrev_b16", MOON_XY(y >> (x & 15))),
    v2<I16, U16, I16>(Enc::VOP2, 44, "v_ashrrev_i16", MOON_XY(y >> (x & 15))),
    v2<U16, U16, U16>(Enc::VOP2, 47, "v_max_u16", MOON_XY(hi(x, y))),
    v2<I16, I16, I16>(Enc::VOP2, 48, "v_max_i16", MOON_XY(hi(x, y))),
    v2<U16, U16, U16>(Enc::VOP2, 49, "v_min_u16", MOON_XY(lo(x, y))),
    v2<I16, I16, I16>(Enc::VOP2, 50, "v_min_i16", MOON_XY(lo(x, y))),

    v3<I32, U32, U32, I32>(Enc::VOP3, 450, "v_mad_i32_i24", MOON_XYZ(i32(u32(i24(x)) * u32(i24(y)) + u32(z)))),
    v3<U32, U32, U32, U32>(Enc::VOP3, 451, "v_mad_u32_u24", MOON_XYZ(u24(x) * u24(y) + z)),
    v3<U32, U32, U32, U32>(Enc::VOP3, 456, "v_bfe_u32", MOON_XYZ(bfe_u(x, y, z))),
    v3<I32, U32, U32, U32>(Enc::VOP3, 457, "v_bfe_i32", MOON_XYZ(bfe_i(x, y, z))),
    v3<U32, U32, U32, U32>(Enc::VOP3, 458, "v_bfi_b32", MOON_XYZ((x & y) | (~x & z))),
    v3<U32, U32, U32, U32>(Enc::VOP3, 461, "v_lerp_u8", MOON_XYZ(lerp_u8(x, y, z))),
    v3<U32, U32, U32, U32>(Enc::VOP3, 462, "v_alignbit_b32", MOON_XYZ(u32((u64(x) << 32 | y) >> (z & 31)))),
    v3<U32, U32, U32, U32>(Enc::VOP3, 463, "v_alignbyte_b32", MOON_XYZ(u32((u64(x) << 32 | y) >> (8 * (z & 3))))),
    v3<I32, I32, I32, I32>(Enc::VOP3, 465, "v_min3_i32", MOON_XYZ(lo(lo(x, y), z))),
    v3<U32, U32, U32, U32>(Enc::VOP3, 466, "v_min3_u32", MOON_XYZ(lo(lo(x, y), z))),
    v3<I32, I32, I32, I32>(Enc::VOP3, 468, "v_max3_i32", MOON_XYZ(hi(hi(x, y), z))),
    v3<U32, U32, U32, U32>(Enc::VOP3, 469, "v_max3_u32", MOON_XYZ(hi(hi(x, y), z))),
    v3<I32, I32, I32, I32>(Enc::VOP3, 471, "v_med3_i32", MOON_XYZ(med(x, y, z))),
    v3<U32, U32, U32, U32>(Enc::VOP3, 472, "v_med3_u32", MOON_XYZ(med(x, y, z))),
    v3<U32, U32, U32, U32>(Enc::VOP3, 473, "v_sad_u8", MOON_XYZ(sad_u8(x, y) + z)),
    v3<U32, U32, U32, U32>(Enc::VOP3, 474, "v_sad_hi_u8", MOON_XYZ((sad_u8(x, y) << 16) + z)),
    v3<U32, U32, U32, U32>(Enc::VOP3, 475, "v_sad_u16",
                           MOON_XYZ(absdiff(x & 0xffff, y & 0xffff) + absdiff(x >> 16, y >> 16) + z)),
    v3<U32, U32, U32, U32>(Enc::VOP3, 476, "v_sad_u32", MOON_XYZ(absdiff(x, y) + z)),
    v3<U32, U32, U32, U32>(Enc::VOP3, 484, "v_msad_u8", MOON_XYZ(msad_u8(x, y) + z)),
    perm_row(),
    v3<U16, U16, U16, U16>(Enc::VOP3, 491, "v_mad_legacy_u16", MOON_XYZ(u32(x) * y + z)),
    v3<I16, I16, I16, I16>(Enc::VOP3, 492, "v_mad_legacy_i16", MOON_XYZ(i32(x) * y + z)),
    v3<U16, U16, U16, U16>(Enc::VOP3, 516, "v_mad_u16", MOON_XYZ(u32(x) * y + z), PRESERVES_HI),
    v3<I16, I16, I16, I16>(Enc::VOP3, 517, "v_mad_i16", MOON_XYZ(i32(x) * y + z), PRESERVES_HI),
    v3<U32, U16, U16, U32>(Enc::VOP3, 497, "v_mad_u32_u16", MOON_XYZ(u32(x) * y + z)),
    v3<I32, I16, I16, I32>(Enc::VOP3, 498, "v_mad_i32_i16", MOON_XYZ(i32(u32(i32(x) * y) + u32(z)))),
    v3<U32, U32, U32, U32>(Enc::VOP3, 499, "v_xad_u32", MOON_XYZ((x ^ y) + z)),
    v3<I16, I16, I16, I16>(Enc::VOP3, 501, "v_min3_i16", MOON_XYZ(lo(lo(x, y), z)), PRESERVES_HI),
    v3<U16, U16, U16, U16>(Enc::VOP3, 502, "v_min3_u16", MOON_XYZ(lo(lo(x, y), z)), PRESERVES_HI),
    v3<I16, I16, I16, I16>(Enc::VOP3, 504, "v_max3_i16", MOON_XYZ(hi(hi(x, y), z)), PRESERVES_HI),
    v3<U16, U16, U16, U16>(Enc::VOP3, 505, "v_max3_u16", MOON_XYZ(hi(hi(x, y), z)), PRESERVES_HI),
    v3<I16, I16, I16, I16>(Enc::VOP3, 507, "v_med3_i16", MOON_XYZ(med(x, y, z)), PRESERVES_HI),
    v3<U16, U16, U16, U16>(Enc::VOP3, 508, "v_med3_u16", MOON_XYZ(med(x, y, z)), PRESERVES_HI),
    v3<U32, U32, U32, U32>(Enc::VOP3, 509, "v_lshl_add_u32", MOON_XYZ((x << (y & 31)) + z)),
    v3<U32, U32, U32, U32>(Enc::VOP3, 510, "v_add_lshl_u32", MOON_XYZ((x + y) << (z & 31))),
    v3<U32, U32, U32, U32>(Enc::VOP3, 511, "v_add3_u32", MOON_XYZ(x + y + z)),
    v3<U32, U32, U32, U32>(Enc::VOP3, 512, "v_lshl_or_b32", MOON_XYZ((x << (y & 31)) | z)),
    v3<U32, U32, U32, U32>(Enc::VOP3, 513, "v_and_or_b32", MOON_XYZ((x & y) | z)),
    v3<U32, U32, U32, U32>(Enc::VOP3, 514, "v_or3_b32", MOON_XYZ(x | y | z)),
    v3<U64, U64, U32, U64>(Enc::VOP3, 520, "v_lshl_add_u64", MOON_XYZ((x << (y & 7)) + z)),
    v3<U32, I32, I32, U32>(Enc::VOP3, 613, "v_ashr_pk_i8_i32", MOON_XYZ(ashr_pk(x, y, z, -128, 127)), 0, GFX950),
    v3<U32, I32, I32, U32>(Enc::VOP3, 614, "v_ashr_pk_u8_i32", MOON_XYZ(ashr_pk(x, y, z, 0, 255)), 0, GFX950),

    v2<U32, U32, U32>(Enc::VOP3, 645, "v_mul_lo_u32", MOON_XY(x *y)),
    v2<U32, U32, U32>(Enc::VOP3, 646, "v_mul_hi_u32", MOON_XY(u32((u64(x) * y) >> 32))),
    v2<I32, I32, I32>(Enc::VOP3, 647, "v_mul_hi_i32", MOON_XY(i32((i64(x) * y) >> 32))),
    v2<U32, U32, U32>(Enc::VOP3, 651, "v_bcnt_u32_b32", MOON_XY(u32(__builtin_popcount(x)) + y)),
    v2<U64, U32, U64>(Enc::VOP3, 655, "v_lshlrev_b64", MOON_XY(y << (x & 63))),
    v2<U64, U32, U64>(Enc::VOP3, 656, "v_lshrrev_b64", MOON_XY(y >> (x & 63))),
    v2<I64, U32, I64>(Enc::VOP3, 657, "v_ashrrev_i64", MOON_XY(y >> (x & 63))),
    v2<U32, U32, U32>(Enc::VOP3, 659, "v_bfm_b32", MOON_XY(((1u << (x & 31)) - 1) << (y & 31))),
    v2<U32, U32, U32>(Enc::VOP3, 663, "v_cvt_pk_u16_u32", MOON_XY(sat_u16(x) | u32(sat_u16(y)) << 16)),
    v2<U32, I32, I32>(Enc::VOP3, 664, "v_cvt_pk_i16_i32", MOON_XY(sat_i16(x) | u32(sat_i16(y)) << 16)),
    v2<I32, I32, I32>(Enc::VOP3, 668, "v_add_i32", MOON_XY(i32(u32(x) + u32(y)))),
    v2<I32, I32, I32>(Enc::VOP3, 669, "v_sub_i32", MOON_XY(i32(u32(x) - u32(y)))),
    v2<I16, I16, I16>(Enc::VOP3, 670, "v_add_i16", MOON_XY(x + y)),
    v2<I16, I16, I16>(Enc::VOP3, 671, "v_sub_i16", MOON_XY(x - y)),
    v2<U32, U16, U16>(Enc::VOP3, 672, "v_pack_b32_f16", MOON_XY(x | u32(y) << 16)),
    {nullptr, Enc::VOP1, 0, 0, Class::OTHER, Ty::NONE, {Ty::NONE, Ty::NONE, Ty::NONE}, 0, nullptr, 0, 0, 0, 0}};

}  // namespace moon
