// The frame that every vector ALU instruction runs in: fetching sources, the lane loop, masking by EXEC.
#pragma once
#include "wave.h"
#include <cmath>

namespace moon {

#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed"  // lane loops that call libm stay scalar
#define MOON_LANES _Pragma("clang loop vectorize(assume_safety)") for (int i = 0; i < kLanes; i++)
#else
#define MOON_LANES _Pragma("GCC ivdep") for (int i = 0; i < kLanes; i++)
#endif

// What may be flushed: FP says which denormal mode a type obeys (1: f32, 2: f16 and f64).
struct U32 {
    using T = u32;
    static constexpr Ty ty = Ty::B32;
    static constexpr int FP = 0, N = 1;
    static T get(const u32 *p, int i) { return p[i]; }
    static void put(u32 *p, int i, T x) { p[i] = x; }
};
struct I32 {
    using T = i32;
    static constexpr Ty ty = Ty::B32;
    static constexpr int FP = 0, N = 1;
    static T get(const u32 *p, int i) { return i32(p[i]); }
    static void put(u32 *p, int i, T x) { p[i] = u32(x); }
};
struct F32 {
    using T = float;
    static constexpr Ty ty = Ty::F32;
    static constexpr int FP = 1, N = 1;
    static T get(const u32 *p, int i) { return as_f32(p[i]); }
    static void put(u32 *p, int i, T x) { p[i] = as_u32(x); }
};
struct U64 {
    using T = u64;
    static constexpr Ty ty = Ty::B64;
    static constexpr int FP = 0, N = 2;
    static T get(const u32 *p, int i) { return p[i] | u64(p[i + kLanes]) << 32; }
    static void put(u32 *p, int i, T x) { p[i] = u32(x), p[i + kLanes] = u32(x >> 32); }
};
struct I64 {
    using T = i64;
    static constexpr Ty ty = Ty::B64;
    static constexpr int FP = 0, N = 2;
    static T get(const u32 *p, int i) { return i64(U64::get(p, i)); }
    static void put(u32 *p, int i, T x) { U64::put(p, i, u64(x)); }
};
struct F64 {
    using T = double;
    static constexpr Ty ty = Ty::F64;
    static constexpr int FP = 2, N = 2;
    static T get(const u32 *p, int i) { return as_f64(U64::get(p, i)); }
    static void put(u32 *p, int i, T x) { U64::put(p, i, as_u64(x)); }
};
struct U16 {
    using T = u16;
    static constexpr Ty ty = Ty::B16;
    static constexpr int FP = 0, N = 1;
    static T get(const u32 *p, int i) { return u16(p[i]); }
    static void put(u32 *p, int i, T x) { p[i] = x; }
};
struct I16 {
    using T = i16;
    static constexpr Ty ty = Ty::B16;
    static constexpr int FP = 0, N = 1;
    static T get(const u32 *p, int i) { return i16(p[i]); }
    static void put(u32 *p, int i, T x) { p[i] = u16(x); }
};
// The rounding of f16 results, MODE's two bits: nearest even unless the scheduler says otherwise for an instruction.
inline int &f16_rounding() {
    thread_local int mode = 0;
    return mode;
}
// f16 values travel as double, so that one rounding at the end is the only one.
struct F16 {
    using T = double;
    static constexpr Ty ty = Ty::F16;
    static constexpr int FP = 2, N = 1;
    static T get(const u32 *p, int i) { return f16_to_f32(u16(p[i])); }
    static void put(u32 *p, int i, T x) { p[i] = f64_to_f16(x, f16_rounding()); }
};

// Denormal flushing: sign-preserving zero.
template <class D>
inline typename D::T flushed(typename D::T x) {
    return x;
}
template <>
inline float flushed<F32>(float x) {
    u32 b = as_u32(x);
    return as_f32((b & 0x7f800000u) ? b : b & 0x80000000u);
}
template <>
inline double flushed<F64>(double x) {
    u64 b = as_u64(x);
    return as_f64((b & 0x7ff0000000000000ull) ? b : b & 0x8000000000000000ull);
}
template <>
inline double flushed<F16>(double x) {
    return std::fabs(x) < 6.103515625e-05 ? std::copysign(0.0, x) : x;
}

template <class D>
inline bool flush_in(const Wave &w) {
    return D::FP == 1 ? w.flush32_in : D::FP == 2 ? w.flush64_in : false;
}
template <class D>
inline bool flush_out(const Wave &w) {
    return D::FP == 1 ? w.flush32_out : D::FP == 2 ? w.flush64_out : false;
}

// Rows of a source, broadcast or modified into slot k's temporary when it is not plain registers.
const u32 *fetch_slow(Wave &w, const Op &op, int k);
inline const u32 *fetch(Wave &w, const Op &op, int k) {
    const Operand &o = op.src[k];
    if (!op.mods) {
        if (o.kind == Kind::VGPR) return w.v[o.index];
        if (o.kind == Kind::CONST) return o.row;
    }
    return fetch_slow(w, op, k);
}

// Where results go: straight into the registers when all lanes are on and nothing follows.
inline u32 *result(Wave &w, const Op &op) { return op.plain && w.exec() == ~0ull ? w.v[op.dst] : w.out; }
// Clamp, output modifiers, half selection and EXEC for results that were not written in place.
void finish_slow(Wave &w, const Op &op, int dwords);
inline void finish(Wave &w, const Op &op, const u32 *where, int dwords) {
    if (where == w.out) finish_slow(w, op, dwords);
}

// Arithmetic that produced a NaN: the first NaN operand quieted, else the default NaN 0x7fc00000, whatever the host
// gives.
void settle_nan_f32(u32 *d, const u32 *a, const u32 *b, const u32 *c);
inline bool any_nan_f32(const u32 *d) {
    u32 any = 0;
    for (int i = 0; i < kLanes; i++) any |= (d[i] & 0x7fffffffu) > 0x7f800000u;
    return any;
}

// A mask of the lanes whose word is non-zero.
inline u64 lane_mask(const u32 *m) {
#if defined(__clang__) && __has_builtin(__builtin_convertvector)
    typedef u32 v16 __attribute__((vector_size(64)));
    typedef bool b16 __attribute__((ext_vector_type(16)));
    u64 r = 0;
    for (int q = 0; q < 4; q++) {
        v16 x;
        std::memcpy(&x, m + 16 * q, 64);
        b16 b = __builtin_convertvector(x != 0, b16);
        u16 h;
        std::memcpy(&h, &b, 2);
        r |= u64(h) << (16 * q);
    }
    return r;
#else
    u64 r = 0;
    for (int i = 0; i < kLanes; i++) r |= u64(m[i] != 0) << i;
    return r;
#endif
}
inline void expand_mask(u64 mask, u32 *out) {
    u32 lo = u32(mask), hi = u32(mask >> 32);
    for (int i = 0; i < 32; i++) out[i] = 0u - ((lo >> i) & 1u);
    for (int i = 0; i < 32; i++) out[32 + i] = 0u - ((hi >> i) & 1u);
}

// fn::f(w, a[, b[, c]]) computes one lane. FLUSH is a copy of the loop that honours flushed denormals.
template <class Fn, class D, class A, bool FLUSH>
inline void loop1(Wave &w, const u32 *a, u32 *d) {
    const bool ia = FLUSH && flush_in<A>(w), od = FLUSH && flush_out<D>(w);
    MOON_LANES {
        typename A::T x = A::get(a, i);
        if (FLUSH && A::FP) x = ia ? flushed<A>(x) : x;
        typename D::T r = Fn::f(w, x);
        if (FLUSH && D::FP) r = od ? flushed<D>(r) : r;
        D::put(d, i, r);
    }
}
template <class Fn, class D, class A>
void valu1(Wave &w, const Op &op) {
    const u32 *a = fetch(w, op, 0);
    u32 *d = result(w, op);
    constexpr int fp = D::FP | A::FP;
    if (((fp & 1) && w.flush32) || ((fp & 2) && w.flush64))
        loop1<Fn, D, A, true>(w, a, d);
    else
        loop1<Fn, D, A, false>(w, a, d);
    if (Fn::arith && D::FP == 1 && A::FP == 1 && any_nan_f32(d)) settle_nan_f32(d, a, a, a);
    finish(w, op, d, D::N);
}

template <class Fn, class D, class A, class B, bool FLUSH>
inline void loop2(Wave &w, const u32 *a, const u32 *b, u32 *d) {
    const bool ia = FLUSH && flush_in<A>(w), ib = FLUSH && flush_in<B>(w), od = FLUSH && flush_out<D>(w);
    MOON_LANES {
        typename A::T x = A::get(a, i);
        typename B::T y = B::get(b, i);
        if (FLUSH && A::FP) x = ia ? flushed<A>(x) : x;
        if (FLUSH && B::FP) y = ib ? flushed<B>(y) : y;
        typename D::T r = Fn::f(w, x, y);
        if (FLUSH && D::FP) r = od ? flushed<D>(r) : r;
        D::put(d, i, r);
    }
}
template <class Fn, class D, class A, class B>
void valu2(Wave &w, const Op &op) {
    const u32 *a = fetch(w, op, 0), *b = fetch(w, op, 1);
    u32 *d = result(w, op);
    alignas(64) u32 keep[2][kLanes];
    constexpr bool settle = Fn::arith && D::FP == 1 && A::FP == 1 && B::FP == 1;
    constexpr int fp = D::FP | A::FP | B::FP;
    if (settle && (a == d || b == d)) {  // the NaN rule needs the operands afterwards
        std::memcpy(keep[0], a, sizeof(keep[0]));
        std::memcpy(keep[1], b, sizeof(keep[1]));
        a = keep[0], b = keep[1];
    }
    if (((fp & 1) && w.flush32) || ((fp & 2) && w.flush64))
        loop2<Fn, D, A, B, true>(w, a, b, d);
    else
        loop2<Fn, D, A, B, false>(w, a, b, d);
    if (settle && any_nan_f32(d)) settle_nan_f32(d, a, b, b);
    finish(w, op, d, D::N);
}

template <class Fn, class D, class A, class B, class C, bool FLUSH>
inline void loop3(Wave &w, const u32 *a, const u32 *b, const u32 *c, u32 *d) {
    const bool ia = FLUSH && flush_in<A>(w), ib = FLUSH && flush_in<B>(w), ic = FLUSH && flush_in<C>(w);
    const bool od = FLUSH && flush_out<D>(w);
    MOON_LANES {
        typename A::T x = A::get(a, i);
        typename B::T y = B::get(b, i);
        typename C::T z = C::get(c, i);
        if (FLUSH && A::FP) x = ia ? flushed<A>(x) : x;
        if (FLUSH && B::FP) y = ib ? flushed<B>(y) : y;
        if (FLUSH && C::FP) z = ic ? flushed<C>(z) : z;
        typename D::T r = Fn::f(w, x, y, z);
        if (FLUSH && D::FP) r = od ? flushed<D>(r) : r;
        D::put(d, i, r);
    }
}
template <class Fn, class D, class A, class B, class C>
void valu3(Wave &w, const Op &op) {
    const u32 *a = fetch(w, op, 0), *b = fetch(w, op, 1), *c = fetch(w, op, 2);
    u32 *d = result(w, op);
    alignas(64) u32 keep[3][kLanes];
    constexpr bool settle = Fn::arith && D::FP == 1 && A::FP == 1 && B::FP == 1 && C::FP == 1;
    constexpr int fp = D::FP | A::FP | B::FP | C::FP;
    if (settle && (a == d || b == d || c == d)) {
        std::memcpy(keep[0], a, sizeof(keep[0]));
        std::memcpy(keep[1], b, sizeof(keep[1]));
        std::memcpy(keep[2], c, sizeof(keep[2]));
        a = keep[0], b = keep[1], c = keep[2];
    }
    if (((fp & 1) && w.flush32) || ((fp & 2) && w.flush64))
        loop3<Fn, D, A, B, C, true>(w, a, b, c, d);
    else
        loop3<Fn, D, A, B, C, false>(w, a, b, c, d);
    if (settle && any_nan_f32(d)) settle_nan_f32(d, a, b, c);
    finish(w, op, d, D::N);
}

// Row makers: a row is its name, encoding number, types and a lambda that computes one lane. The `a` forms are
// arithmetic whose NaN results are settled by the rule above.
constexpr char kLambda = 0;
template <class L, bool ARITH>
struct Fn {
    static constexpr bool arith = ARITH;
    template <class... X>
    static inline auto f(const Wave &w, X... x) {
        return reinterpret_cast<const L &>(kLambda)(w, x...);
    }
};
template <class D, class A, class L>
constexpr Row v1(Enc e, u16 op, const char *name, L, u32 flags = 0, u8 arch = BOTH, Class c = Class::VALU) {
    return {name, e, op, arch, c, D::ty, {A::ty, Ty::NONE, Ty::NONE}, flags, &valu1<Fn<L, false>, D, A>, 0, 0, 0, 0};
}
template <class D, class A, class L>
constexpr Row a1(Enc e, u16 op, const char *name, L, u32 flags = 0, u8 arch = BOTH, Class c = Class::VALU) {
    return {name, e, op, arch, c, D::ty, {A::ty, Ty::NONE, Ty::NONE}, flags, &valu1<Fn<L, true>, D, A>, 0, 0, 0, 0};
}
template <class D, class A, class B, class L>
constexpr Row v2(Enc e, u16 op, const char *name, L, u32 flags = 0, u8 arch = BOTH) {
    return {name, e, op, arch, Class::VALU, D::ty, {A::ty, B::ty, Ty::NONE}, flags, &valu2<Fn<L, false>, D, A, B>,
            0,    0, 0,  0};
}
template <class D, class A, class B, class L>
constexpr Row a2(Enc e, u16 op, const char *name, L, u32 flags = 0, u8 arch = BOTH) {
    return {name, e, op, arch, Class::VALU, D::ty, {A::ty, B::ty, Ty::NONE}, flags, &valu2<Fn<L, true>, D, A, B>,
            0,    0, 0,  0};
}
template <class D, class A, class B, class C, class L>
constexpr Row v3(Enc e, u16 op, const char *name, L, u32 flags = 0, u8 arch = BOTH) {
    return {name, e, op, arch, Class::VALU, D::ty, {A::ty, B::ty, C::ty}, flags, &valu3<Fn<L, false>, D, A, B, C>,
            0,    0, 0,  0};
}
template <class D, class A, class B, class C, class L>
constexpr Row a3(Enc e, u16 op, const char *name, L, u32 flags = 0, u8 arch = BOTH) {
    return {name, e, op, arch, Class::VALU, D::ty, {A::ty, B::ty, C::ty}, flags, &valu3<Fn<L, true>, D, A, B, C>,
            0,    0, 0,  0};
}
// The lane function of one, two or three operands x, y, z.
#define MOON_X(...)             \
    [](const Wave &w, auto x) { \
        (void)w;                \
        return __VA_ARGS__;     \
    }
#define MOON_XY(...)                    \
    [](const Wave &w, auto x, auto y) { \
        (void)w, (void)x, (void)y;      \
        return __VA_ARGS__;             \
    }
#define MOON_XYZ(...)                           \
    [](const Wave &w, auto x, auto y, auto z) { \
        (void)w;                                \
        return __VA_ARGS__;                     \
    }

// Writes a lane mask to the instruction's SGPR pair; lanes that are off give 0.
inline void put_mask(Wave &w, const Op &op, u64 mask) {
    mask &= w.exec();
    w.set_s64(op.sdst, mask);
    if (op.row->flags & WRITES_EXEC) w.set_s64(kExec, mask);
}
template <class Fn, class A, class B>
void vcmp(Wave &w, const Op &op) {
    const u32 *a = fetch(w, op, 0), *b = fetch(w, op, 1);
    alignas(64) u32 m[kLanes];
    if ((A::FP == 1 && w.flush32_in) || (A::FP == 2 && w.flush64_in)) {
        MOON_LANES {
            typename B::T y = B::get(b, i);
            m[i] = Fn::f(w, flushed<A>(A::get(a, i)), B::FP ? flushed<B>(y) : y) ? 1u : 0u;
        }
    } else {
        MOON_LANES m[i] = Fn::f(w, A::get(a, i), B::get(b, i)) ? 1u : 0u;
    }
    put_mask(w, op, lane_mask(m));
}

template <class A, class B, class L>
constexpr Row vc(u16 op, const char *name, L, u32 flags = 0) {
    return {name,
            Enc::VOPC,
            op,
            BOTH,
            Class::VALU,
            Ty::NONE,
            {A::ty, B::ty, Ty::NONE},
            flags | SDST,
            &vcmp<Fn<L, false>, A, B>,
            0,
            0,
            0,
            0};
}

}  // namespace moon
