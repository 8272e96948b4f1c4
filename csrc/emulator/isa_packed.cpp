// Rows: VOP3P packed arithmetic and dot products. Each half has its own selects and signs.
#include "fpmath.h"
#include "valu.h"

namespace moon {

namespace {

// Source k's two 16-bit halves after op_sel, op_sel_hi and the sign bits (signs only for float types).
void halves(Wave &w, const Op &op, int k, u16 (*out)[2], bool signs) {
    const Operand &o = op.src[k];
    u32 one[kLanes];
    const u32 *p;
    if (o.kind == Kind::VGPR) {
        p = w.v[o.index];
    } else {
        u32 x = read_s32(w, o);
        for (int i = 0; i < kLanes; i++) one[i] = x;
        p = one;
    }
    int lo = op.opsel >> k & 1 ? 16 : 0, hi = op.opsel_hi >> k & 1 ? 16 : 0;
    u16 nlo = signs && (op.neg >> k & 1) ? 0x8000 : 0, nhi = signs && (op.neg_hi >> k & 1) ? 0x8000 : 0;
    for (int i = 0; i < kLanes; i++) {
        out[i][0] = u16(p[i] >> lo) ^ nlo;
        out[i][1] = u16(p[i] >> hi) ^ nhi;
    }
}

template <class F, int N, bool FLOAT>
void packed16(Wave &w, const Op &op) {
    u16 s[3][kLanes][2];
    for (int k = 0; k < N; k++) halves(w, op, k, s[k], FLOAT);
    u32 *d = result(w, op);
    for (int i = 0; i < kLanes; i++) {
        u16 r[2];
        for (int h = 0; h < 2; h++) r[h] = F::f(w, op, s[0][i][h], s[1][i][h], N > 2 ? s[2][i][h] : u16(0));
        d[i] = r[0] | u32(r[1]) << 16;
    }
    finish(w, op, d, 1);
}

double h2d(const Wave &w, u16 h) {
    if (w.flush64_in && !(h & 0x7c00)) h &= 0x8000;
    return f16_to_f32(h);
}
u16 d2h(const Wave &w, const Op &op, double x) {
    if (op.clamp) x = x != x ? (w.dx10_clamp ? 0.0 : x) : x < 0 ? 0.0 : x > 1 ? 1.0 : x;
    u16 h = f64_to_f16(x, (w.mode >> 2) & 3);
    return w.flush64_out && !(h & 0x7c00) ? u16(h & 0x8000) : h;
}
i32 clamp16(const Op &op, i32 x, bool sign) {
    if (!op.clamp) return x;
    return sign ? (x < -32768 ? -32768 : x > 32767 ? 32767 : x) : (x < 0 ? 0 : x > 65535 ? 65535 : x);
}

#define MOON_PK(NAME, ...)                                               \
    struct NAME {                                                        \
        static u16 f(const Wave &w, const Op &op, u16 x, u16 y, u16 z) { \
            (void)w, (void)op, (void)z;                                  \
            return u16(__VA_ARGS__);                                     \
        }                                                                \
    };
MOON_PK(MadI16, clamp16(op, i32(i16(x)) * i16(y) + i16(z), true))
MOON_PK(MadU16, op.clamp &&u64(x) * y + z > 65535 ? 65535 : u32(x) * y + z)
MOON_PK(MulLo, u32(x) * y)
MOON_PK(AddI16, clamp16(op, i32(i16(x)) + i16(y), true))
MOON_PK(SubI16, clamp16(op, i32(i16(x)) - i16(y), true))
MOON_PK(AddU16, clamp16(op, i32(x) + y, false))
MOON_PK(SubU16, clamp16(op, i32(x) - y, false))
MOON_PK(Lshl, u32(y) << (x & 15))
MOON_PK(Lshr, y >> (x & 15))
MOON_PK(Ashr, i16(y) >> (x & 15))
MOON_PK(MaxI16, i16(x) > i16(y) ? x : y)
MOON_PK(MinI16, i16(x) < i16(y) ? x : y)
MOON_PK(MaxU16, x > y ? x : y)
MOON_PK(MinU16, x < y ? x : y)
MOON_PK(FmaF16, d2h(w, op, std::fma(h2d(w, x), h2d(w, y), h2d(w, z))))
MOON_PK(AddF16, d2h(w, op, h2d(w, x) + h2d(w, y)))
MOON_PK(MulF16, d2h(w, op, h2d(w, x) * h2d(w, y)))
MOON_PK(MinF16, d2h(w, op, min_f64(h2d(w, x), h2d(w, y), w.ieee)))
MOON_PK(MaxF16, d2h(w, op, max_f64(h2d(w, x), h2d(w, y), w.ieee)))
double nan_first(double x, double y, double r) { return x != x ? x : y != y ? y : r; }
MOON_PK(Min3F16, d2h(w, op,
                     nan_first(nan_first(h2d(w, x), h2d(w, y), 0) + h2d(w, z), 0,
                               min_f64(min_f64(h2d(w, x), h2d(w, y), false), h2d(w, z), false))))
MOON_PK(Max3F16, d2h(w, op,
                     nan_first(nan_first(h2d(w, x), h2d(w, y), 0) + h2d(w, z), 0,
                               max_f64(max_f64(h2d(w, x), h2d(w, y), false), h2d(w, z), false))))

// Packed fp32: source k gives a register pair; op_sel chooses the low result's register, op_sel_hi the high one's.
const u32 *pair_half(Wave &w, const Op &op, int k, bool high, u32 *t) {
    const Operand &o = op.src[k];
    bool second = high ? op.opsel_hi >> k & 1 : op.opsel >> k & 1;
    bool neg = high ? op.neg_hi >> k & 1 : op.neg >> k & 1;
    u32 sign = neg ? 0x80000000u : 0;
    if (o.kind == Kind::VGPR) {
        const u32 *p = w.v[o.index + (second ? 1 : 0)];
        if (!neg) return p;
        for (int i = 0; i < kLanes; i++) t[i] = p[i] ^ sign;
        return t;
    }
    u32 x = o.kind == Kind::SGPR                                 ? w.s[o.index + (second ? 1 : 0)]
            : second && o.kind == Kind::CONST && o.ty == Ty::B64 ? o.value_hi
                                                                 : read_s32(w, o);
    for (int i = 0; i < kLanes; i++) t[i] = x ^ sign;
    return t;
}

enum class Pk { FMA, MUL, ADD };
template <Pk KIND>
void packed32(Wave &w, const Op &op) {
    alignas(64) u32 t[3][kLanes], r[2][kLanes];
    for (int h = 0; h < 2; h++) {
        const u32 *a = pair_half(w, op, 0, h, t[0]), *b = pair_half(w, op, 1, h, t[1]);
        const u32 *c = KIND == Pk::FMA ? pair_half(w, op, 2, h, t[2]) : b;
        auto compute = [](float x, float y, float z) {
            (void)z;
            return KIND == Pk::FMA ? __builtin_fmaf(x, y, z) : KIND == Pk::MUL ? x * y : x + y;
        };
        if (w.flush32) {
            const bool in = w.flush32_in, out = w.flush32_out;
            MOON_LANES {
                float x = as_f32(a[i]), y = as_f32(b[i]), z = as_f32(c[i]);
                x = in ? flushed<F32>(x) : x, y = in ? flushed<F32>(y) : y, z = in ? flushed<F32>(z) : z;
                float q = compute(x, y, z);
                r[h][i] = as_u32(out ? flushed<F32>(q) : q);
            }
        } else {
            MOON_LANES r[h][i] = as_u32(compute(as_f32(a[i]), as_f32(b[i]), as_f32(c[i])));
        }
        if (any_nan_f32(r[h])) settle_nan_f32(r[h], a, b, c);
        if (op.clamp)
            for (int i = 0; i < kLanes; i++) {
                float x = as_f32(r[h][i]);
                r[h][i] = as_u32(x != x ? (w.dx10_clamp ? 0.0f : x) : x <= 0 ? 0.0f : x > 1 ? 1.0f : x);
            }
    }
    u32 *d = w.v[op.dst];
    if (w.exec() == ~0ull) {
        std::memcpy(d, r, sizeof(r));
        return;
    }
    const u32 *m = w.exec_lanes();
    for (int i = 0; i < kLanes; i++) {
        d[i] = (r[0][i] & m[i]) | (d[i] & ~m[i]);
        d[i + kLanes] = (r[1][i] & m[i]) | (d[i + kLanes] & ~m[i]);
    }
}

// v_pk_mov_b32: the low result takes src0's register by op_sel, the high one src1's.
void pk_mov(Wave &w, const Op &op) {
    alignas(64) u32 t[2][kLanes], r[2][kLanes];
    std::memcpy(r[0], pair_half(w, op, 0, false, t[0]), sizeof(r[0]));
    Op high = op;
    high.opsel_hi = op.opsel;
    high.neg_hi = op.neg;
    std::memcpy(r[1], pair_half(w, high, 1, true, t[1]), sizeof(r[1]));
    std::memcpy(w.out, r, sizeof(r));
    finish_slow(w, op, 2);
}

// v_mad_mix: each source is f32, or one half as f16 where op_sel_hi says so; neg_hi is abs here.
template <int DEST>
void mad_mix(Wave &w, const Op &op) {
    u32 s[3][kLanes];
    for (int k = 0; k < 3; k++) {
        const Operand &o = op.src[k];
        for (int i = 0; i < kLanes; i++) {
            u32 x = o.kind == Kind::VGPR ? w.v[o.index][i] : read_s32(w, o);
            if (op.opsel_hi >> k & 1) x = as_u32(f16_to_f32(u16(op.opsel >> k & 1 ? x >> 16 : x)));
            if (op.neg_hi >> k & 1) x &= 0x7fffffffu;
            if (op.neg >> k & 1) x ^= 0x80000000u;
            s[k][i] = x;
        }
    }
    u32 *old = w.v[op.dst];
    for (int i = 0; i < kLanes; i++) {
        float r = __builtin_fmaf(as_f32(s[0][i]), as_f32(s[1][i]), as_f32(s[2][i]));
        if (op.clamp) r = r != r ? 0.0f : r < 0 ? 0.0f : r > 1 ? 1.0f : r;
        if (DEST == 0)
            w.out[i] = as_u32(r);
        else if (DEST == 1)
            w.out[i] = (old[i] & 0xffff0000u) | f64_to_f16(r);
        else
            w.out[i] = (old[i] & 0xffffu) | u32(f64_to_f16(r)) << 16;
    }
    Op plain = op;
    plain.clamp = 0, plain.opsel = 0;
    finish_slow(w, plain, 1);
}

// Dot products accumulate in fp32 (each product exact, added in order) or in wrapping integers.
template <class F, bool FLOAT>
void dot16(Wave &w, const Op &op) {
    u16 a[kLanes][2], b[kLanes][2];
    halves(w, op, 0, a, FLOAT);
    halves(w, op, 1, b, FLOAT);
    const Operand &o = op.src[2];
    for (int i = 0; i < kLanes; i++) {
        u32 c = o.kind == Kind::VGPR ? w.v[o.index][i] : read_s32(w, o);
        if (FLOAT && (op.neg >> 2 & 1)) c ^= 0x80000000u;
        w.out[i] = F::f(a[i], b[i], c);
    }
    finish_slow(w, op, 1);
}
struct DotBf16 {
    static u32 f(const u16 *a, const u16 *b, u32 c) {
        return as_u32(__builtin_fmaf(bf16_to_f32(a[1]), bf16_to_f32(b[1]),
                                     __builtin_fmaf(bf16_to_f32(a[0]), bf16_to_f32(b[0]), as_f32(c))));
    }
};
struct DotF16 {
    static u32 f(const u16 *a, const u16 *b, u32 c) {
        return as_u32(__builtin_fmaf(f16_to_f32(a[1]), f16_to_f32(b[1]),
                                     __builtin_fmaf(f16_to_f32(a[0]), f16_to_f32(b[0]), as_f32(c))));
    }
};
struct DotI16 {
    static u32 f(const u16 *a, const u16 *b, u32 c) {
        return u32(i32(i16(a[0])) * i16(b[0])) + u32(i32(i16(a[1])) * i16(b[1])) + c;
    }
};
struct DotU16 {
    static u32 f(const u16 *a, const u16 *b, u32 c) { return u32(a[0]) * b[0] + u32(a[1]) * b[1] + c; }
};
template <bool SIGNED, int BITS>
void dot_small(Wave &w, const Op &op) {
    auto part = [](u32 x, int k) {
        return SIGNED ? i64(i32(x << (32 - BITS - k)) >> (32 - BITS)) : i64((x >> k) & ((1u << BITS) - 1));
    };
    for (int i = 0; i < kLanes; i++) {
        u32 s[3];
        for (int k = 0; k < 3; k++)
            s[k] = op.src[k].kind == Kind::VGPR ? w.v[op.src[k].index][i] : read_s32(w, op.src[k]);
        i64 r = SIGNED ? i64(i32(s[2])) : i64(s[2]);
        for (int k = 0; k < 32; k += BITS) r += part(s[0], k) * part(s[1], k);
        if (op.clamp)
            r = SIGNED ? (r < -2147483648ll  ? -2147483648ll
                          : r > 2147483647ll ? 2147483647ll
                                             : r)
                       : (r > 4294967295ll ? 4294967295ll : r);
        w.out[i] = u32(r);
    }
    Op plain = op;
    plain.clamp = 0;
    finish_slow(w, plain, 1);
}

constexpr Ty N = Ty::NONE, P = Ty::PK16, H = Ty::PKF16, B32 = Ty::B32, F2 = Ty::PKF32;
constexpr Row pk(u16 op, const char *name, Ty dst, Ty a, Ty b, Ty c, Handler run, u8 arch = BOTH) {
    return {name, Enc::VOP3P, op, arch, Class::VALU, dst, {a, b, c}, 0, run, 0, 0, 0, 0};
}

}  // namespace

extern const Row kPackedRows[] = {pk(0, "v_pk_mad_i16", P, P, P, P, packed16<MadI16, 3, false>),
                                  pk(1, "v_pk_mul_lo_u16", P, P, P, N, packed16<MulLo, 2, false>),
                                  pk(2, "v_pk_add_i16", P, P, P, N, packed16<AddI16, 2, false>),
                                  pk(3, "v_pk_sub_i16", P, P, P, N, packed16<SubI16, 2, false>),
                                  pk(4, "v_pk_lshlrev_b16", P, P, P, N, packed16<Lshl, 2, false>),
                                  pk(5, "v_pk_lshrrev_b16", P, P, P, N, packed16<Lshr, 2, false>),
                                  pk(6, "v_pk_ashrrev_i16", P, P, P, N, packed16<Ashr, 2, false>),
                                  pk(7, "v_pk_max_i16", P, P, P, N, packed16<MaxI16, 2, false>),
                                  pk(8, "v_pk_min_i16", P, P, P, N, packed16<MinI16, 2, false>),
                                  pk(9, "v_pk_mad_u16", P, P, P, P, packed16<MadU16, 3, false>),
                                  pk(10, "v_pk_add_u16", P, P, P, N, packed16<AddU16, 2, false>),
                                  pk(11, "v_pk_sub_u16", P, P, P, N, packed16<SubU16, 2, false>),
                                  pk(12, "v_pk_max_u16", P, P, P, N, packed16<MaxU16, 2, false>),
                                  pk(13, "v_pk_min_u16", P, P, P, N, packed16<MinU16, 2, false>),
                                  pk(14, "v_pk_fma_f16", H, H, H, H, packed16<FmaF16, 3, true>),
                                  pk(15, "v_pk_add_f16", H, H, H, N, packed16<AddF16, 2, true>),
                                  pk(16, "v_pk_mul_f16", H, H, H, N, packed16<MulF16, 2, true>),
                                  pk(17, "v_pk_min_f16", H, H, H, N, packed16<MinF16, 2, true>),
                                  pk(18, "v_pk_max_f16", H, H, H, N, packed16<MaxF16, 2, true>),
                                  pk(27, "v_pk_minimum3_f16", H, H, H, H, packed16<Min3F16, 3, true>, GFX950),
                                  pk(28, "v_pk_maximum3_f16", H, H, H, H, packed16<Max3F16, 3, true>, GFX950),
                                  pk(26, "v_dot2_f32_bf16", Ty::F32, P, P, Ty::F32, dot16<DotBf16, true>, GFX950),
                                  pk(32, "v_fma_mix_f32", Ty::F32, Ty::F32, Ty::F32, Ty::F32, mad_mix<0>),
                                  pk(33, "v_fma_mixlo_f16", Ty::B32, Ty::F32, Ty::F32, Ty::F32, mad_mix<1>),
                                  pk(34, "v_fma_mixhi_f16", Ty::B32, Ty::F32, Ty::F32, Ty::F32, mad_mix<2>),
                                  pk(35, "v_dot2_f32_f16", Ty::F32, H, H, Ty::F32, dot16<DotF16, true>),
                                  pk(38, "v_dot2_i32_i16", B32, P, P, B32, dot16<DotI16, false>),
                                  pk(39, "v_dot2_u32_u16", B32, P, P, B32, dot16<DotU16, false>),
                                  pk(40, "v_dot4_i32_i8", B32, B32, B32, B32, dot_small<true, 8>),
                                  pk(41, "v_dot4_u32_u8", B32, B32, B32, B32, dot_small<false, 8>),
                                  pk(42, "v_dot8_i32_i4", B32, B32, B32, B32, dot_small<true, 4>),
                                  pk(43, "v_dot8_u32_u4", B32, B32, B32, B32, dot_small<false, 4>),
                                  pk(48, "v_pk_fma_f32", F2, F2, F2, F2, packed32<Pk::FMA>),
                                  pk(49, "v_pk_mul_f32", F2, F2, F2, N, packed32<Pk::MUL>),
                                  pk(50, "v_pk_add_f32", F2, F2, F2, N, packed32<Pk::ADD>),
                                  pk(51, "v_pk_mov_b32", Ty::B64, Ty::B64, Ty::B64, N, pk_mov),
                                  {nullptr, Enc::VOP1, 0, 0, Class::OTHER, N, {N, N, N}, 0, nullptr, 0, 0, 0, 0}};

}  // namespace moon
