// Rows: the scalar ALU.
#include "program.h"
#include "wave.h"
#include <cstdlib>

namespace moon {

namespace {

// Scalar operands: the type gives the width and how it is read and written.
struct S32 {
    using T = u32;
    static constexpr Ty ty = Ty::B32;
    static T get(const Wave &w, const Operand &o) { return read_s32(w, o); }
    static void put(Wave &w, u16 d, T x) { w.s[d] = x; }
};
struct SI32 {
    using T = i32;
    static constexpr Ty ty = Ty::B32;
    static T get(const Wave &w, const Operand &o) { return i32(read_s32(w, o)); }
    static void put(Wave &w, u16 d, T x) { w.s[d] = u32(x); }
};
struct S64 {
    using T = u64;
    static constexpr Ty ty = Ty::B64;
    static T get(const Wave &w, const Operand &o) { return read_s64(w, o); }
    static void put(Wave &w, u16 d, T x) { w.set_s64(d, x); }
};
struct SI64 {
    using T = i64;
    static constexpr Ty ty = Ty::B64;
    static T get(const Wave &w, const Operand &o) { return i64(read_s64(w, o)); }
    static void put(Wave &w, u16 d, T x) { w.set_s64(d, u64(x)); }
};

constexpr char kEmpty = 0;
template <class L>
const L &lambda() {
    return reinterpret_cast<const L &>(kEmpty);
}

// What happens to SCC: nothing, result != 0, or the lambda sets it itself.
enum class Scc { KEEP, NONZERO, OWN };
constexpr u32 scc_flags(Scc s) { return s == Scc::KEEP ? 0 : u32(WRITES_SCC); }

template <class L, class D, class A, Scc S>
void salu1(Wave &w, const Op &op) {
    typename D::T r = lambda<L>()(w, A::get(w, op.src[0]));
    D::put(w, op.sdst, r);
    if (S == Scc::NONZERO) w.scc = r != 0;
}
template <class L, class D, class A, class B, Scc S>
void salu2(Wave &w, const Op &op) {
    typename D::T r = lambda<L>()(w, A::get(w, op.src[0]), B::get(w, op.src[1]));
    D::put(w, op.sdst, r);
    if (S == Scc::NONZERO) w.scc = r != 0;
}
template <class L, class A, class B>
void scmp(Wave &w, const Op &op) {
    w.scc = lambda<L>()(w, A::get(w, op.src[0]), B::get(w, op.src[1]));
}

template <class D, class A, Scc S, class L>
constexpr Row s1(u16 op, const char *name, L, u32 flags = 0) {
    return {name,
            Enc::SOP1,
            op,
            BOTH,
            Class::SALU,
            D::ty,
            {A::ty, Ty::NONE, Ty::NONE},
            flags | scc_flags(S),
            &salu1<L, D, A, S>,
            0,
            0,
            0,
            0};
}
template <class D, class A, class B, Scc S, class L>
constexpr Row s2(u16 op, const char *name, L, u32 flags = 0) {
    return {name,
            Enc::SOP2,
            op,
            BOTH,
            Class::SALU,
            D::ty,
            {A::ty, B::ty, Ty::NONE},
            flags | scc_flags(S),
            &salu2<L, D, A, B, S>,
            0,
            0,
            0,
            0};
}
template <class A, class B, class L>
constexpr Row sc(u16 op, const char *name, L) {
    return {name,       Enc::SOPC,      op, BOTH, Class::SALU, Ty::NONE, {A::ty, B::ty, Ty::NONE},
            WRITES_SCC, &scmp<L, A, B>, 0,  0,    0,           0};
}
// SOPK: the register is both source and destination of addk and mulk.
template <class L>
void salu_k(Wave &w, const Op &op) {
    lambda<L>()(w, op, op.sdst, op.imm);
}
template <class L>
constexpr Row sk(u16 op, const char *name, Ty dst, u32 flags, L) {
    return {name, Enc::SOPK, op, BOTH, Class::SALU, dst, {Ty::NONE, Ty::NONE, Ty::NONE}, flags, &salu_k<L>, 0, 0, 0, 0};
}
constexpr Row other1(u16 op, const char *name, Ty dst, Ty a, u32 flags, Handler run) {
    return {name, Enc::SOP1, op, BOTH, Class::SALU, dst, {a, Ty::NONE, Ty::NONE}, flags, run, 0, 0, 0, 0};
}

#define MOON_S(...)         \
    [](Wave &w, auto x) {   \
        (void)w;            \
        return __VA_ARGS__; \
    }
#define MOON_SS(...)              \
    [](Wave &w, auto x, auto y) { \
        (void)w;                  \
        return __VA_ARGS__;       \
    }
#define MOON_K(...)                           \
    [](Wave &w, const Op &op, u16 d, i32 k) { \
        (void)op, (void)d, (void)k;           \
        __VA_ARGS__;                          \
    }

u32 add_carry(Wave &w, u32 x, u32 y, u32 c) {
    u64 r = u64(x) + y + c;
    w.scc = r >> 32;
    return u32(r);
}
u32 sub_borrow(Wave &w, u32 x, u32 y, u32 c) {
    u64 r = u64(x) - y - c;
    w.scc = (r >> 32) & 1;
    return u32(r);
}
i32 add_overflow(Wave &w, i32 x, i32 y) {
    i32 r;
    w.scc = __builtin_add_overflow(x, y, &r);
    return r;
}
i32 sub_overflow(Wave &w, i32 x, i32 y) {
    i32 r;
    w.scc = __builtin_sub_overflow(x, y, &r);
    return r;
}
template <class T>
T pick_min(Wave &w, T x, T y) {
    w.scc = x < y;
    return x < y ? x : y;
}
template <class T>
T pick_max(Wave &w, T x, T y) {
    w.scc = x > y;
    return x > y ? x : y;
}
u32 shl_add(Wave &w, u32 x, u32 y, int n) {
    u64 r = (u64(x) << n) + y;
    w.scc = r >> 32 != 0;
    return u32(r);
}
u64 bfe64(u64 x, u32 f, bool sign) {
    u32 off = f & 63, width = (f >> 16) & 127;
    if (width == 0) return 0;
    if (width > 64 - off) width = 64 - off;
    x >>= off;
    return sign ? u64(sign_extend(x, int(width))) : width == 64 ? x : x & ((1ull << width) - 1);
}
u32 bfe32(u32 x, u32 f, bool sign) {
    u32 off = f & 31, width = (f >> 16) & 127;
    if (width == 0) return 0;
    if (width > 32 - off) width = 32 - off;
    x >>= off;
    return sign ? u32(sign_extend(x, int(width))) : width == 32 ? x : x & ((1u << width) - 1);
}
u64 reverse64(u64 x) {
    u64 r = 0;
    for (int i = 0; i < 64; i++) r |= (x >> i & 1) << (63 - i);
    return r;
}
u64 quads(u64 x, int n, bool whole) {
    u64 r = 0;
    for (int i = 0; i < n; i += 4)
        if (x >> i & 15) r |= whole ? 15ull << i : 1ull << (i / 4);
    return r;
}
u64 replicate(u32 x) {
    u64 r = 0;
    for (int i = 0; i < 32; i++) r |= u64(x >> i & 1 ? 3 : 0) << (2 * i);
    return r;
}
u32 flbit_i32(u32 x) {
    u32 y = i32(x) < 0 ? ~x : x;
    return y ? u32(__builtin_clz(y)) : ~0u;
}
u32 flbit_i64(u64 x) {
    u64 y = i64(x) < 0 ? ~x : x;
    return y ? u32(__builtin_clzll(y)) : ~0u;
}

// *_saveexec: the old EXEC goes to the destination, the new one sets SCC.
template <class L>
void saveexec(Wave &w, const Op &op) {
    u64 x = read_s64(w, op.src[0]), e = w.exec();
    u64 r = lambda<L>()(x, e);
    w.set_s64(op.sdst, e);
    w.set_s64(kExec, r);
    w.scc = r != 0;
}
template <class L>
void wrexec(Wave &w, const Op &op) {
    u64 r = lambda<L>()(read_s64(w, op.src[0]), w.exec());
    w.set_s64(kExec, r);
    w.set_s64(op.sdst, r);
    w.scc = r != 0;
}
template <class L>
constexpr Row se(u16 op, const char *name, L) {
    return {name,
            Enc::SOP1,
            op,
            BOTH,
            Class::SALU,
            Ty::B64,
            {Ty::B64, Ty::NONE, Ty::NONE},
            WRITES_EXEC | WRITES_SCC,
            &saveexec<L>,
            0,
            0,
            0,
            0};
}
template <class L>
constexpr Row we(u16 op, const char *name, L) {
    return {name,
            Enc::SOP1,
            op,
            BOTH,
            Class::SALU,
            Ty::B64,
            {Ty::B64, Ty::NONE, Ty::NONE},
            WRITES_EXEC | WRITES_SCC,
            &wrexec<L>,
            0,
            0,
            0,
            0};
}

void cmov32(Wave &w, const Op &op) {
    if (w.scc) w.s[op.sdst] = read_s32(w, op.src[0]);
}
void cmov64(Wave &w, const Op &op) {
    if (w.scc) w.set_s64(op.sdst, read_s64(w, op.src[0]));
}
void bitset32(Wave &w, const Op &op) {
    u32 bit = 1u << (read_s32(w, op.src[0]) & 31);
    w.s[op.sdst] = op.row->op == 26 ? w.s[op.sdst] | bit : w.s[op.sdst] & ~bit;
}
void bitset64(Wave &w, const Op &op) {
    u64 bit = 1ull << (read_s32(w, op.src[0]) & 63), x = w.s64(op.sdst);
    w.set_s64(op.sdst, op.row->op == 27 ? x | bit : x & ~bit);
}
void movrels32(Wave &w, const Op &op) { w.s[op.sdst] = w.s[(op.src[0].index + w.s[kM0]) & 127]; }
void movreld32(Wave &w, const Op &op) { w.s[(op.sdst + w.s[kM0]) & 127] = read_s32(w, op.src[0]); }

constexpr Ty N = Ty::NONE, B32 = Ty::B32, B64 = Ty::B64;

}  // namespace

extern const Row kScalarRows[] = {
    s2<S32, S32, S32, Scc::OWN>(0, "s_add_u32", MOON_SS(add_carry(w, x, y, 0))),
    s2<S32, S32, S32, Scc::OWN>(1, "s_sub_u32", MOON_SS(sub_borrow(w, x, y, 0))),
    s2<SI32, SI32, SI32, Scc::OWN>(2, "s_add_i32", MOON_SS(add_overflow(w, x, y))),
    s2<SI32, SI32, SI32, Scc::OWN>(3, "s_sub_i32", MOON_SS(sub_overflow(w, x, y))),
    s2<S32, S32, S32, Scc::OWN>(4, "s_addc_u32", MOON_SS(add_carry(w, x, y, w.scc)), READS_SCC),
    s2<S32, S32, S32, Scc::OWN>(5, "s_subb_u32", MOON_SS(sub_borrow(w, x, y, w.scc)), READS_SCC),
    s2<SI32, SI32, SI32, Scc::OWN>(6, "s_min_i32", MOON_SS(pick_min(w, x, y))),
    s2<S32, S32, S32, Scc::OWN>(7, "s_min_u32", MOON_SS(pick_min(w, x, y))),
    s2<SI32, SI32, SI32, Scc::OWN>(8, "s_max_i32", MOON_SS(pick_max(w, x, y))),
    s2<S32, S32, S32, Scc::OWN>(9, "s_max_u32", MOON_SS(pick_max(w, x, y))),
    s2<S32, S32, S32, Scc::KEEP>(10, "s_cselect_b32", MOON_SS(w.scc ? x : y), READS_SCC),
    s2<S64, S64, S64, Scc::KEEP>(11, "s_cselect_b64", MOON_SS(w.scc ? x : y), READS_SCC),
    s2<S32, S32, S32, Scc::NONZERO>(12, "s_and_b32", MOON_SS(x &y)),
    s2<S64, S64, S64, Scc::NONZERO>(13, "s_and_b64", MOON_SS(x &y)),
    s2<S32, S32, S32, Scc::NONZERO>(14, "s_or_b32", MOON_SS(x | y)),
    s2<S64, S64, S64, Scc::NONZERO>(15, "s_or_b64", MOON_SS(x | y)),
    s2<S32, S32, S32, Scc::NONZERO>(16, "s_xor_b32", MOON_SS(x ^ y)),
    s2<S64, S64, S64, Scc::NONZERO>(17, "s_xor_b64", MOON_SS(x ^ y)),
    s2<S32, S32, S32, Scc::NONZERO>(18, "s_andn2_b32", MOON_SS(x & ~y)),
    s2<S64, S64, S64, Scc::NONZERO>(19, "s_andn2_b64", MOON_SS(x & ~y)),
    s2<S32, S32, S32, Scc::NONZERO>(20, "s_orn2_b32", MOON_SS(x | ~y)),
    s2<S64, S64, S64, Scc::NONZERO>(21, "s_orn2_b64", MOON_SS(x | ~y)),
    s2<S32, S32, S32, Scc::NONZERO>(22, "s_nand_b32", MOON_SS(~(x &y))),
    s2<S64, S64, S64, Scc::NONZERO>(23, "s_nand_b64", MOON_SS(~(x &y))),
    s2<S32, S32, S32, Scc::NONZERO>(24, "s_nor_b32", MOON_SS(~(x | y))),
    s2<S64, S64, S64, Scc::NONZERO>(25, "s_nor_b64", MOON_SS(~(x | y))),
    s2<S32, S32, S32, Scc::NONZERO>(26, "s_xnor_b32", MOON_SS(~(x ^ y))),
    s2<S64, S64, S64, Scc::NONZERO>(27, "s_xnor_b64", MOON_SS(~(x ^ y))),
    s2<S32, S32, S32, Scc::NONZERO>(28, "s_lshl_b32", MOON_SS(x << (y & 31))),
    s2<S64, S64, S32, Scc::NONZERO>(29, "s_lshl_b64", MOON_SS(x << (y & 63))),
    s2<S32, S32, S32, Scc::NONZERO>(30, "s_lshr_b32", MOON_SS(x >> (y & 31))),
    s2<S64, S64, S32, Scc::NONZERO>(31, "s_lshr_b64", MOON_SS(x >> (y & 63))),
    s2<SI32, SI32, S32, Scc::NONZERO>(32, "s_ashr_i32", MOON_SS(x >> (y & 31))),
    s2<SI64, SI64, S32, Scc::NONZERO>(33, "s_ashr_i64", MOON_SS(x >> (y & 63))),
    s2<S32, S32, S32, Scc::KEEP>(34, "s_bfm_b32", MOON_SS(((1u << (x & 31)) - 1) << (y & 31))),
    s2<S64, S32, S32, Scc::KEEP>(35, "s_bfm_b64", MOON_SS(((1ull << (x & 63)) - 1) << (y & 63))),
    s2<S32, S32, S32, Scc::KEEP>(36, "s_mul_i32", MOON_SS(x *y)),
    s2<S32, S32, S32, Scc::NONZERO>(37, "s_bfe_u32", MOON_SS(bfe32(x, y, false))),
    s2<S32, S32, S32, Scc::NONZERO>(38, "s_bfe_i32", MOON_SS(bfe32(x, y, true))),
    s2<S64, S64, S32, Scc::NONZERO>(39, "s_bfe_u64", MOON_SS(bfe64(x, y, false))),
    s2<S64, S64, S32, Scc::NONZERO>(40, "s_bfe_i64", MOON_SS(bfe64(x, y, true))),
    s2<SI32, SI32, SI32, Scc::NONZERO>(42, "s_absdiff_i32", MOON_SS(i32(x > y ? u32(x) - u32(y) : u32(y) - u32(x)))),
    s2<S32, S32, S32, Scc::KEEP>(44, "s_mul_hi_u32", MOON_SS(u32((u64(x) * y) >> 32))),
    s2<SI32, SI32, SI32, Scc::KEEP>(45, "s_mul_hi_i32", MOON_SS(i32((i64(x) * y) >> 32))),
    s2<S32, S32, S32, Scc::OWN>(46, "s_lshl1_add_u32", MOON_SS(shl_add(w, x, y, 1))),
    s2<S32, S32, S32, Scc::OWN>(47, "s_lshl2_add_u32", MOON_SS(shl_add(w, x, y, 2))),
    s2<S32, S32, S32, Scc::OWN>(48, "s_lshl3_add_u32", MOON_SS(shl_add(w, x, y, 3))),
    s2<S32, S32, S32, Scc::OWN>(49, "s_lshl4_add_u32", MOON_SS(shl_add(w, x, y, 4))),
    s2<S32, S32, S32, Scc::KEEP>(50, "s_pack_ll_b32_b16", MOON_SS((x & 0xffffu) | y << 16)),
    s2<S32, S32, S32, Scc::KEEP>(51, "s_pack_lh_b32_b16", MOON_SS((x & 0xffffu) | (y & 0xffff0000u))),
    s2<S32, S32, S32, Scc::KEEP>(52, "s_pack_hh_b32_b16", MOON_SS(x >> 16 | (y & 0xffff0000u))),

    s1<S32, S32, Scc::KEEP>(0, "s_mov_b32", MOON_S(x)),
    s1<S64, S64, Scc::KEEP>(1, "s_mov_b64", MOON_S(x)),
    other1(2, "s_cmov_b32", B32, B32, READS_SCC | READS_DST, cmov32),
    other1(3, "s_cmov_b64", B64, B64, READS_SCC | READS_DST, cmov64),
    s1<S32, S32, Scc::NONZERO>(4, "s_not_b32", MOON_S(~x)),
    s1<S64, S64, Scc::NONZERO>(5, "s_not_b64", MOON_S(~x)),
    s1<S32, S32, Scc::NONZERO>(6, "s_wqm_b32", MOON_S(u32(quads(x, 32, true)))),
    s1<S64, S64, Scc::NONZERO>(7, "s_wqm_b64", MOON_S(quads(x, 64, true))),
    s1<S32, S32, Scc::KEEP>(8, "s_brev_b32", MOON_S(u32(reverse64(x) >> 32))),
    s1<S64, S64, Scc::KEEP>(9, "s_brev_b64", MOON_S(reverse64(x))),
    s1<S32, S32, Scc::NONZERO>(10, "s_bcnt0_i32_b32", MOON_S(u32(32 - popcount(x)))),
    s1<S32, S64, Scc::NONZERO>(11, "s_bcnt0_i32_b64", MOON_S(u32(64 - popcount(x)))),
    s1<S32, S32, Scc::NONZERO>(12, "s_bcnt1_i32_b32", MOON_S(u32(popcount(x)))),
    s1<S32, S64, Scc::NONZERO>(13, "s_bcnt1_i32_b64", MOON_S(u32(popcount(x)))),
    s1<S32, S32, Scc::KEEP>(14, "s_ff0_i32_b32", MOON_S(~x ? u32(lowest(u32(~x))) : ~0u)),
    s1<S32, S64, Scc::KEEP>(15, "s_ff0_i32_b64", MOON_S(~x ? u32(lowest(~x)) : ~0u)),
    s1<S32, S32, Scc::KEEP>(16, "s_ff1_i32_b32", MOON_S(x ? u32(lowest(x)) : ~0u)),
    s1<S32, S64, Scc::KEEP>(17, "s_ff1_i32_b64", MOON_S(x ? u32(lowest(x)) : ~0u)),
    s1<S32, S32, Scc::KEEP>(18, "s_flbit_i32_b32", MOON_S(x ? u32(__builtin_clz(x)) : ~0u)),
    s1<S32, S64, Scc::KEEP>(19, "s_flbit_i32_b64", MOON_S(x ? u32(__builtin_clzll(x)) : ~0u)),
    s1<S32, S32, Scc::KEEP>(20, "s_flbit_i32", MOON_S(flbit_i32(x))),
    s1<S32, S64, Scc::KEEP>(21, "s_flbit_i32_i64", MOON_S(flbit_i64(x))),
    s1<S32, S32, Scc::KEEP>(22, "s_sext_i32_i8", MOON_S(u32(i32(i8(x))))),
    s1<S32, S32, Scc::KEEP>(23, "s_sext_i32_i16", MOON_S(u32(i32(i16(x))))),
    other1(24, "s_bitset0_b32", B32, B32, READS_DST, bitset32),
    other1(25, "s_bitset0_b64", B64, B32, READS_DST, bitset64),
    other1(26, "s_bitset1_b32", B32, B32, READS_DST, bitset32),
    other1(27, "s_bitset1_b64", B64, B32, READS_DST, bitset64),
    se(32, "s_and_saveexec_b64", [](u64 x, u64 e) { return x & e; }),
    se(33, "s_or_saveexec_b64", [](u64 x, u64 e) { return x | e; }),
    se(34, "s_xor_saveexec_b64", [](u64 x, u64 e) { return x ^ e; }),
    se(35, "s_andn2_saveexec_b64", [](u64 x, u64 e) { return x & ~e; }),
    se(36, "s_orn2_saveexec_b64", [](u64 x, u64 e) { return x | ~e; }),
    se(37, "s_nand_saveexec_b64", [](u64 x, u64 e) { return ~(x & e); }),
    se(38, "s_nor_saveexec_b64", [](u64 x, u64 e) { return ~(x | e); }),
    se(39, "s_xnor_saveexec_b64", [](u64 x, u64 e) { return ~(x ^ e); }),
    s1<S32, S32, Scc::NONZERO>(40, "s_quadmask_b32", MOON_S(u32(quads(x, 32, false)))),
    s1<S64, S64, Scc::NONZERO>(41, "s_quadmask_b64", MOON_S(quads(x, 64, false))),
    other1(42, "s_movrels_b32", B32, B32, 0, movrels32),
    other1(44, "s_movreld_b32", B32, B32, 0, movreld32),
    s1<SI32, SI32, Scc::NONZERO>(48, "s_abs_i32", MOON_S(x < 0 ? i32(0u - u32(x)) : x)),
    se(51, "s_andn1_saveexec_b64", [](u64 x, u64 e) { return ~x & e; }),
    se(52, "s_orn1_saveexec_b64", [](u64 x, u64 e) { return ~x | e; }),
    we(53, "s_andn1_wrexec_b64", [](u64 x, u64 e) { return ~x & e; }),
    we(54, "s_andn2_wrexec_b64", [](u64 x, u64 e) { return x & ~e; }),
    s1<S64, S32, Scc::KEEP>(55, "s_bitreplicate_b64_b32", MOON_S(replicate(x))),

    sc<SI32, SI32>(0, "s_cmp_eq_i32", MOON_SS(x == y)),
    sc<SI32, SI32>(1, "s_cmp_lg_i32", MOON_SS(x != y)),
    sc<SI32, SI32>(2, "s_cmp_gt_i32", MOON_SS(x > y)),
    sc<SI32, SI32>(3, "s_cmp_ge_i32", MOON_SS(x >= y)),
    sc<SI32, SI32>(4, "s_cmp_lt_i32", MOON_SS(x < y)),
    sc<SI32, SI32>(5, "s_cmp_le_i32", MOON_SS(x <= y)),
    sc<S32, S32>(6, "s_cmp_eq_u32", MOON_SS(x == y)),
    sc<S32, S32>(7, "s_cmp_lg_u32", MOON_SS(x != y)),
    sc<S32, S32>(8, "s_cmp_gt_u32", MOON_SS(x > y)),
    sc<S32, S32>(9, "s_cmp_ge_u32", MOON_SS(x >= y)),
    sc<S32, S32>(10, "s_cmp_lt_u32", MOON_SS(x < y)),
    sc<S32, S32>(11, "s_cmp_le_u32", MOON_SS(x <= y)),
    sc<S32, S32>(12, "s_bitcmp0_b32", MOON_SS(!(x >> (y & 31) & 1))),
    sc<S32, S32>(13, "s_bitcmp1_b32", MOON_SS((x >> (y & 31) & 1) != 0)),
    sc<S64, S32>(14, "s_bitcmp0_b64", MOON_SS(!(x >> (y & 63) & 1))),
    sc<S64, S32>(15, "s_bitcmp1_b64", MOON_SS((x >> (y & 63) & 1) != 0)),
    sc<S64, S64>(18, "s_cmp_eq_u64", MOON_SS(x == y)),
    sc<S64, S64>(19, "s_cmp_lg_u64", MOON_SS(x != y)),

    sk(0, "s_movk_i32", B32, 0, MOON_K(w.s[d] = u32(k))),
    sk(1, "s_cmovk_i32", B32, READS_SCC | READS_DST, MOON_K(if (w.scc) w.s[d] = u32(k))),
    sk(2, "s_cmpk_eq_i32", N, READS_DST | WRITES_SCC, MOON_K(w.scc = i32(w.s[d]) == k)),
    sk(3, "s_cmpk_lg_i32", N, READS_DST | WRITES_SCC, MOON_K(w.scc = i32(w.s[d]) != k)),
    sk(4, "s_cmpk_gt_i32", N, READS_DST | WRITES_SCC, MOON_K(w.scc = i32(w.s[d]) > k)),
    sk(5, "s_cmpk_ge_i32", N, READS_DST | WRITES_SCC, MOON_K(w.scc = i32(w.s[d]) >= k)),
    sk(6, "s_cmpk_lt_i32", N, READS_DST | WRITES_SCC, MOON_K(w.scc = i32(w.s[d]) < k)),
    sk(7, "s_cmpk_le_i32", N, READS_DST | WRITES_SCC, MOON_K(w.scc = i32(w.s[d]) <= k)),
    sk(8, "s_cmpk_eq_u32", N, READS_DST | WRITES_SCC, MOON_K(w.scc = w.s[d] == u16(k))),
    sk(9, "s_cmpk_lg_u32", N, READS_DST | WRITES_SCC, MOON_K(w.scc = w.s[d] != u16(k))),
    sk(10, "s_cmpk_gt_u32", N, READS_DST | WRITES_SCC, MOON_K(w.scc = w.s[d] > u16(k))),
    sk(11, "s_cmpk_ge_u32", N, READS_DST | WRITES_SCC, MOON_K(w.scc = w.s[d] >= u16(k))),
    sk(12, "s_cmpk_lt_u32", N, READS_DST | WRITES_SCC, MOON_K(w.scc = w.s[d] < u16(k))),
    sk(13, "s_cmpk_le_u32", N, READS_DST | WRITES_SCC, MOON_K(w.scc = w.s[d] <= u16(k))),
    sk(14, "s_addk_i32", B32, READS_DST | WRITES_SCC, MOON_K(w.s[d] = u32(add_overflow(w, i32(w.s[d]), k)))),
    sk(15, "s_mulk_i32", B32, READS_DST, MOON_K(w.s[d] = w.s[d] * u32(k))),

    {nullptr, Enc::VOP1, 0, 0, Class::OTHER, N, {N, N, N}, 0, nullptr, 0, 0, 0, 0}};

}  // namespace moon
