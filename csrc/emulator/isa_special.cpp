// Rows: vector instructions that do not fit the one-lane frame: masks, carries, lane exchange, division steps.
#include "fpmath.h"
#include "valu.h"

namespace moon {

namespace {

// The mask operand of cndmask and carries: VCC in VOP2, src2 in VOP3.
u64 mask_in(const Wave &w, const Op &op) { return op.src[2].kind == Kind::NONE ? w.s64(kVcc) : read_s64(w, op.src[2]); }

void cndmask(Wave &w, const Op &op) {
    const u32 *a = fetch(w, op, 0), *b = fetch(w, op, 1);
    alignas(64) u32 m[kLanes];
    expand_mask(mask_in(w, op), m);
    u32 *d = result(w, op);
    MOON_LANES d[i] = (b[i] & m[i]) | (a[i] & ~m[i]);
    finish(w, op, d, 1);
}

template <bool SUB, bool REV, bool CARRY>
void add_carry(Wave &w, const Op &op) {
    const u32 *a = fetch(w, op, 0), *b = fetch(w, op, 1);
    if (REV) std::swap(a, b);
    u64 in = CARRY ? mask_in(w, op) : 0;
    alignas(64) u32 out[kLanes];
    u32 *d = result(w, op);
    for (int i = 0; i < kLanes; i++) {
        u64 c = in >> i & 1;
        u64 r = SUB ? u64(a[i]) - b[i] - c : u64(a[i]) + b[i] + c;
        out[i] = u32(r >> 32) & 1u;
        d[i] = u32(r);
    }
    u64 carry = lane_mask(out);
    finish(w, op, d, 1);
    w.set_s64(op.sdst, carry & w.exec());
}

template <bool SIGNED>
void mad_64_32(Wave &w, const Op &op) {
    const u32 *a = fetch(w, op, 0), *b = fetch(w, op, 1), *c = fetch(w, op, 2);
    alignas(64) u32 out[kLanes];
    u32 *d = result(w, op);
    for (int i = 0; i < kLanes; i++) {
        u64 z = U64::get(c, i);
        u64 p = SIGNED ? u64(i64(i32(a[i])) * i32(b[i])) : u64(a[i]) * b[i];
        u64 r = p + z;
        out[i] = SIGNED ? (i64(p) >> 63) + (i64(z) >> 63) + i64(r < p) < 0 : r < p;
        U64::put(d, i, r);
    }
    u64 carry = lane_mask(out);
    finish(w, op, d, 2);
    w.set_s64(op.sdst, carry & w.exec());
}

void readfirstlane(Wave &w, const Op &op) {
    u64 e = w.exec();
    int lane = e ? lowest(e) : 0;
    w.s[op.sdst] = op.src[0].kind == Kind::VGPR ? w.v[op.src[0].index][lane] : read_s32(w, op.src[0]);
}
void readlane(Wave &w, const Op &op) {
    u32 lane = read_s32(w, op.src[1]) & 63;
    w.s[op.sdst] = op.src[0].kind == Kind::VGPR ? w.v[op.src[0].index][lane] : read_s32(w, op.src[0]);
}
void writelane(Wave &w, const Op &op) { w.v[op.dst][read_s32(w, op.src[1]) & 63] = read_s32(w, op.src[0]); }

template <bool HIGH>
void mbcnt(Wave &w, const Op &op) {
    const u32 *a = fetch(w, op, 0), *b = fetch(w, op, 1);
    u32 *d = result(w, op);
    for (int i = 0; i < kLanes; i++) {
        u64 below = (1ull << i) - 1;
        d[i] = b[i] + u32(__builtin_popcount(a[i] & u32(HIGH ? below >> 32 : below)));
    }
    finish(w, op, d, 1);
}

void nop(Wave &, const Op &) {}

void swap(Wave &w, const Op &op) {
    u32 *d = w.v[op.dst], *s = w.v[op.src[0].index];
    const u32 *m = w.exec_lanes();
    for (int i = 0; i < kLanes; i++) {
        u32 x = d[i], y = s[i];
        d[i] = (y & m[i]) | (x & ~m[i]);
        s[i] = (x & m[i]) | (y & ~m[i]);
    }
}

// permlane32_swap exchanges the source's lanes 0-31 with the destination's 32-63; permlane16_swap does so by 16 in each
// half.
template <int W>
void permlane_swap(Wave &w, const Op &op) {
    u32 *d = w.v[op.dst], *s = w.v[op.src[0].index];
    u64 e = w.exec();
    for (int base = 0; base < kLanes; base += 2 * W)
        for (int i = 0; i < W; i++) {
            int hi = base + W + i, lo = base + i;
            u32 x = d[hi], y = s[lo];
            if (e >> hi & 1) d[hi] = y;
            if (e >> lo & 1) s[lo] = x;
        }
}

template <class T>
void div_scale(Wave &w, const Op &op);
template <>
void div_scale<F32>(Wave &w, const Op &op) {
    const u32 *a = fetch(w, op, 0), *b = fetch(w, op, 1), *c = fetch(w, op, 2);
    alignas(64) u32 out[kLanes];
    u32 *d = result(w, op);
    for (int i = 0; i < kLanes; i++) {
        bool vcc;
        d[i] = as_u32(div_scale_f32(as_f32(a[i]), as_f32(b[i]), as_f32(c[i]), &vcc));
        out[i] = vcc;
    }
    u64 mask = lane_mask(out);
    finish(w, op, d, 1);
    w.set_s64(op.sdst, mask & w.exec());
}
template <>
void div_scale<F64>(Wave &w, const Op &op) {
    const u32 *a = fetch(w, op, 0), *b = fetch(w, op, 1), *c = fetch(w, op, 2);
    alignas(64) u32 out[kLanes];
    u32 *d = result(w, op);
    for (int i = 0; i < kLanes; i++) {
        bool vcc;
        F64::put(d, i, div_scale_f64(F64::get(a, i), F64::get(b, i), F64::get(c, i), &vcc));
        out[i] = vcc;
    }
    u64 mask = lane_mask(out);
    finish(w, op, d, 2);
    w.set_s64(op.sdst, mask & w.exec());
}
// The fused sum that undoes v_div_scale, rounded once. Its scale is 2^64 both ways: a large quotient had its divisor
// scaled up and is too small, a tiny one its dividend. (The manual's 2^32 would not undo that scale.)
float div_fmas(float a, float b, float c) {
    double p = double(a) * b, sum = p + c, rest = sum - p;
    double error = (p - (sum - rest)) + (c - rest);
    u64 bits;
    std::memcpy(&bits, &sum, sizeof(bits));
    // Round to odd, so that the rounding to float below is the only one.
    if (std::isfinite(sum) && error != 0 && (bits & 1) == 0) {
        bits += (error > 0) == (sum > 0) ? 1 : u64(-1);
        std::memcpy(&sum, &bits, sizeof(bits));
    }
    bool large = (as_u32(c) >> 23 & 0xff) > 127;
    return float(sum * (large ? 0x1p64 : 0x1p-64));
}
void div_fmas_f32(Wave &w, const Op &op) {
    const u32 *a = fetch(w, op, 0), *b = fetch(w, op, 1), *c = fetch(w, op, 2);
    u64 vcc = w.s64(kVcc);
    u32 *d = result(w, op);
    for (int i = 0; i < kLanes; i++) {
        float x = as_f32(a[i]), y = as_f32(b[i]), z = as_f32(c[i]);
        float r = vcc >> i & 1 ? div_fmas(x, y, z) : __builtin_fmaf(x, y, z);
        d[i] = as_u32(w.flush32_out ? flushed<F32>(r) : r);
    }
    finish(w, op, d, 1);
}
void div_fmas_f64(Wave &w, const Op &op) {
    const u32 *a = fetch(w, op, 0), *b = fetch(w, op, 1), *c = fetch(w, op, 2);
    u64 vcc = w.s64(kVcc);
    u32 *d = result(w, op);
    for (int i = 0; i < kLanes; i++) {
        double z = F64::get(c, i), r = std::fma(F64::get(a, i), F64::get(b, i), z);
        double scale = std::fabs(z) >= 2 ? 0x1p128 : 0x1p-128;
        F64::put(d, i, vcc >> i & 1 ? r * scale : r);
    }
    finish(w, op, d, 2);
}
// v_bitop3: the truth table sits in abs, opsel, omod and neg bits; the decoder leaves it in imm.
template <bool HALF>
void bitop3(Wave &w, const Op &op) {
    const u32 *a = fetch(w, op, 0), *b = fetch(w, op, 1), *c = fetch(w, op, 2);
    u32 *d = result(w, op);
    u32 t = u32(op.imm);
    for (int i = 0; i < kLanes; i++) {
        u32 r = 0, x = a[i], y = b[i], z = c[i];
        for (int k = 0; k < 8; k++)
            if (t >> k & 1) r |= (k & 4 ? x : ~x) & (k & 2 ? y : ~y) & (k & 1 ? z : ~z);
        d[i] = HALF ? r & 0xffffu : r;
    }
    finish(w, op, d, 1);
}

constexpr Row special(Enc e, u16 op, const char *name, Ty dst, Ty a, Ty b, Ty c, u32 flags, Handler run,
                      u8 arch = BOTH) {
    return {name, e, op, arch, Class::VALU, dst, {a, b, c}, flags, run, 0, 0, 0, 0};
}
constexpr Ty N = Ty::NONE, B32 = Ty::B32, B64 = Ty::B64, M = Ty::MASK64;

}  // namespace

extern const Row kSpecialRows[] = {
    special(Enc::VOP1, 0, "v_nop", N, N, N, N, NO_SUFFIX, nop),
    special(Enc::VOP1, 53, "v_clrexcp", N, N, N, N, 0, nop),
    special(Enc::VOP1, 2, "v_readfirstlane_b32", N, B32, N, N, NO_SUFFIX | SCALAR_DST, readfirstlane),
    special(Enc::VOP1, 81, "v_swap_b32", B32, B32, N, N, NO_SUFFIX | READS_DST | WRITES_SRC0, swap),
    special(Enc::VOP1, 89, "v_permlane16_swap_b32", B32, B32, N, N, READS_DST | WRITES_SRC0, permlane_swap<16>, GFX950),
    special(Enc::VOP1, 90, "v_permlane32_swap_b32", B32, B32, N, N, READS_DST | WRITES_SRC0, permlane_swap<32>, GFX950),
    special(Enc::VOP2, 0, "v_cndmask_b32", B32, Ty::F32, Ty::F32, M, CARRY_IN, cndmask),
    special(Enc::VOP2, 25, "v_add_co_u32", B32, B32, B32, N, SDST, add_carry<false, false, false>),
    special(Enc::VOP2, 26, "v_sub_co_u32", B32, B32, B32, N, SDST, add_carry<true, false, false>),
    special(Enc::VOP2, 27, "v_subrev_co_u32", B32, B32, B32, N, SDST, add_carry<true, true, false>),
    special(Enc::VOP2, 28, "v_addc_co_u32", B32, B32, B32, M, SDST | CARRY_IN, add_carry<false, false, true>),
    special(Enc::VOP2, 29, "v_subb_co_u32", B32, B32, B32, M, SDST | CARRY_IN, add_carry<true, false, true>),
    special(Enc::VOP2, 30, "v_subbrev_co_u32", B32, B32, B32, M, SDST | CARRY_IN, add_carry<true, true, true>),
    special(Enc::VOP3B, 480, "v_div_scale_f32", Ty::F32, Ty::F32, Ty::F32, Ty::F32, SDST, div_scale<F32>),
    special(Enc::VOP3B, 481, "v_div_scale_f64", Ty::F64, Ty::F64, Ty::F64, Ty::F64, SDST, div_scale<F64>),
    special(Enc::VOP3, 482, "v_div_fmas_f32", Ty::F32, Ty::F32, Ty::F32, Ty::F32, READS_VCC, div_fmas_f32),
    special(Enc::VOP3, 483, "v_div_fmas_f64", Ty::F64, Ty::F64, Ty::F64, Ty::F64, READS_VCC, div_fmas_f64),
    special(Enc::VOP3B, 488, "v_mad_u64_u32", B64, B32, B32, B64, SDST, mad_64_32<false>),
    special(Enc::VOP3B, 489, "v_mad_i64_i32", B64, B32, B32, B64, SDST, mad_64_32<true>),
    special(Enc::VOP3, 563, "v_bitop3_b16", Ty::B16, Ty::B16, Ty::B16, Ty::B16, 0, bitop3<true>, GFX950),
    special(Enc::VOP3, 564, "v_bitop3_b32", B32, B32, B32, B32, 0, bitop3<false>, GFX950),
    special(Enc::VOP3, 649, "v_readlane_b32", N, B32, B32, N, SCALAR_DST | IGNORES_EXEC, readlane),
    special(Enc::VOP3, 650, "v_writelane_b32", B32, B32, B32, N, READS_DST | IGNORES_EXEC, writelane),
    special(Enc::VOP3, 652, "v_mbcnt_lo_u32_b32", B32, B32, B32, N, 0, mbcnt<false>),
    special(Enc::VOP3, 653, "v_mbcnt_hi_u32_b32", B32, B32, B32, N, 0, mbcnt<true>),
    {nullptr, Enc::VOP1, 0, 0, Class::OTHER, N, {N, N, N}, 0, nullptr, 0, 0, 0, 0}};

}  // namespace moon
