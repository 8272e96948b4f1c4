// The slow halves of the vector ALU frame: scalar and modified sources, masked and clamped results.
#include "valu.h"

namespace moon {

void Wave::refresh_lanes(u64 e) {
    expand_mask(e, lanes);
    lanes_exec = e;
}

void Wave::set_mode(u32 m) {
    mode = m;
    u32 single = (m >> 4) & 3, other = (m >> 6) & 3;  // bit 0: denormal inputs kept, bit 1: denormal outputs kept
    flush32_in = !(single & 1), flush32_out = !(single & 2), flush32 = flush32_in || flush32_out;
    flush64_in = !(other & 1), flush64_out = !(other & 2), flush64 = flush64_in || flush64_out;
    dx10_clamp = (m >> 8) & 1;
    ieee = (m >> 9) & 1;
    rounding = (m & 15) != 0;
}

namespace {

void broadcast(u32 *out, u32 value) {
    for (int i = 0; i < kLanes; i++) out[i] = value;
}

// neg and abs of source k on its sign bits.
void modify(u32 *rows, Ty ty, bool neg, bool abs) {
    u32 *p = rows;
    u32 bit = 0x80000000u;
    if (ty == Ty::F64)
        p = rows + kLanes;
    else if (ty == Ty::F16 || ty == Ty::BF16)
        bit = 0x8000u;
    else if (ty != Ty::F32)
        return;
    for (int i = 0; i < kLanes; i++) {
        u32 x = p[i];
        x = abs ? x & ~bit : x;
        p[i] = neg ? x ^ bit : x;
    }
}

}  // namespace

const u32 *fetch_slow(Wave &w, const Op &op, int k) {
    const Operand &o = op.src[k];
    u32 *t = w.tmp[k];
    const u32 *p;
    int n = o.dwords > 2 ? 2 : o.dwords;
    switch (o.kind) {
        case Kind::VGPR: p = w.v[o.index]; break;
        case Kind::CONST: p = o.row; break;
        case Kind::SGPR:
            broadcast(t, w.s[o.index]);
            if (n > 1) broadcast(t + kLanes, w.s[o.index + 1]);
            p = t;
            break;
        default:
            broadcast(t, read_special(w, o.index));
            if (n > 1) broadcast(t + kLanes, 0);
            p = t;
    }
    bool neg = op.neg >> k & 1, abs = op.abs >> k & 1, high = op.opsel >> k & 1;
    if (!neg && !abs && !high) return p;
    if (p != t) std::memcpy(t, p, size_t(n) * kLanes * 4);
    if (high && (o.ty == Ty::F16 || o.ty == Ty::B16 || o.ty == Ty::BF16))
        for (int i = 0; i < kLanes; i++) t[i] >>= 16;
    if (neg || abs) modify(t, o.ty, neg, abs);
    return t;
}

namespace {

template <class T>
T scaled(T x, int omod, bool clamp, bool dx10) {
    if (omod == 1)
        x *= 2;
    else if (omod == 2)
        x *= 4;
    else if (omod == 3)
        x /= 2;
    if (clamp) {
        if (x != x) return dx10 ? T(0) : x;
        x = x < 0 ? T(0) : x > 1 ? T(1) : x;
        if (x == 0) x = T(0);  // -0 clamps to +0
    }
    return x;
}

// Output modifiers are ignored in IEEE mode and where denormal results are kept.
void clamp_result(Wave &w, const Op &op) {
    Ty ty = op.row->dst;
    bool off = w.ieee || (ty == Ty::F32 ? !w.flush32_out : !w.flush64_out);
    int omod = off ? 0 : op.omod;
    for (int i = 0; i < kLanes; i++) {
        if (ty == Ty::F32)
            w.out[i] = as_u32(scaled(as_f32(w.out[i]), omod, op.clamp, w.dx10_clamp));
        else if (ty == Ty::F16)
            w.out[i] = f64_to_f16(scaled(double(f16_to_f32(u16(w.out[i]))), omod, op.clamp, w.dx10_clamp));
        else if (ty == Ty::F64)
            F64::put(w.out, i, scaled(F64::get(w.out, i), omod, op.clamp, w.dx10_clamp));
    }
}

}  // namespace

void finish_slow(Wave &w, const Op &op, int dwords) {
    if (op.omod | op.clamp) clamp_result(w, op);
    u32 *d = w.v[op.dst];
    const u32 *m = w.exec_lanes();
    bool half = (op.opsel & 8) || (op.row->flags & PRESERVES_HI);
    if (half && (op.row->dst == Ty::B16 || op.row->dst == Ty::F16)) {
        bool high = op.opsel & 8;
        for (int i = 0; i < kLanes; i++) {
            u32 r = high ? (d[i] & 0xffffu) | w.out[i] << 16 : (d[i] & 0xffff0000u) | (w.out[i] & 0xffffu);
            d[i] = (r & m[i]) | (d[i] & ~m[i]);
        }
        return;
    }
    for (int k = 0; k < dwords; k++) {
        u32 *row = d + k * kLanes;
        const u32 *r = w.out + k * kLanes;
        MOON_LANES row[i] = (r[i] & m[i]) | (row[i] & ~m[i]);
    }
}

void settle_nan_f32(u32 *d, const u32 *a, const u32 *b, const u32 *c) {
    auto nan = [](u32 x) { return (x & 0x7fffffffu) > 0x7f800000u; };
    for (int i = 0; i < kLanes; i++)
        if (nan(d[i]))
            d[i] = nan(a[i])   ? a[i] | 0x400000u
                   : nan(b[i]) ? b[i] | 0x400000u
                   : nan(c[i]) ? c[i] | 0x400000u
                               : 0x7fc00000u;
}

u32 read_special(const Wave &w, u32 index) {
    switch (index) {
        case 235:  // SHARED_BASE, SHARED_LIMIT, PRIVATE_BASE, PRIVATE_LIMIT: the high dword of the apertures
            return 0x00010000u;
        case 236: return 0xffffffffu;
        case 237: return 0x00020000u;
        case 238: return 0xffffffffu;
        case 251: return w.s64(kVcc) == 0;
        case 252: return w.exec() == 0;
        case 253: return w.scc;
        default: return 0;
    }
}

}  // namespace moon
