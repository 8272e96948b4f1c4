// SDWA and DPP.
#include "sdwa_dpp.h"
#include "valu.h"

namespace moon {

namespace {
constexpr u16 kRow0 = kVgprs, kRow1 = kVgprs + 2, kRowD = kVgprs + 4;

void copy_source(Wave &w, const Op &op, int k, u16 row) {
    const Operand &o = op.src[k];
    int n = o.dwords > 1 ? 2 : 1;
    for (int d = 0; d < n; d++) {
        u32 *t = w.v[row + d];
        if (o.kind == Kind::VGPR) {
            std::memcpy(t, w.v[o.index + d], sizeof(w.v[0]));
        } else {
            u32 x = o.kind == Kind::SGPR ? w.s[o.index + d] : read_s32(w, o);
            for (int i = 0; i < kLanes; i++) t[i] = x;
        }
    }
}

// Selects: 0-3 bytes, 4-5 words, 6 the dword.
void select(u32 *row, u32 sel, bool sext) {
    if (sel >= 6) return;
    int width = sel < 4 ? 8 : 16, shift = sel < 4 ? int(8 * sel) : int(16 * (sel - 4));
    for (int i = 0; i < kLanes; i++) {
        u32 x = row[i] >> shift;
        row[i] = sext ? u32(sign_extend(x, width)) : x & ((1u << width) - 1);
    }
}

// The lane that lane i reads under a DPP control, or -1.
int dpp_lane(u32 ctrl, int i) {
    int row = i & ~15, n = i & 15, k = int(ctrl & 15);
    if (ctrl < 0x100) return (i & ~3) | int(ctrl >> (2 * (i & 3)) & 3);
    if (ctrl >= 0x101 && ctrl <= 0x10f) return n + k < 16 ? row + n + k : -1;
    if (ctrl >= 0x111 && ctrl <= 0x11f) return n - k >= 0 ? row + n - k : -1;
    if (ctrl >= 0x121 && ctrl <= 0x12f) return row + ((n - k) & 15);
    switch (ctrl) {
        case 0x130: return i + 1 < kLanes ? i + 1 : -1;
        case 0x134: return (i + 1) & 63;
        case 0x138: return i - 1;
        case 0x13c: return (i - 1) & 63;
        case 0x140: return row + 15 - n;
        case 0x141: return (i & ~7) + 7 - (i & 7);
        case 0x142: return row >= 16 ? row - 1 : -1;
        case 0x143: return i >= 32 ? 31 : -1;
        default: return ctrl >= 0x150 && ctrl <= 0x15f ? row + k : -1;
    }
}
}  // namespace

void prepare_inner(Op &in, bool sdwa, u32 ext) {
    in.src[0].kind = Kind::VGPR;
    in.src[0].index = kRow0;
    if (sdwa) {
        if (in.row->src[1] != Ty::NONE) {
            in.src[1].kind = Kind::VGPR;
            in.src[1].index = kRow1;
        }
        if (in.row->enc != Enc::VOPC) {
            in.clamp = u8(ext >> 13 & 1);
            in.omod = u8(ext >> 14 & 3);
            in.dst = kRowD;
        }
        in.neg = u8((ext >> 20 & 1) | (ext >> 28 & 1) << 1);
        in.abs = u8((ext >> 21 & 1) | (ext >> 29 & 1) << 1);
    } else {
        in.neg = u8((ext >> 20 & 1) | (ext >> 22 & 1) << 1);
        in.abs = u8((ext >> 21 & 1) | (ext >> 23 & 1) << 1);
    }
    in.mods = in.neg | in.abs;
    in.plain = !(in.omod | in.clamp);
}

void run_sdwa(Wave &w, const Op &op) {
    const Op &in = *op.inner;
    u32 x = op.ext;
    copy_source(w, op, 0, kRow0);
    select(w.v[kRow0], x >> 16 & 7, x >> 19 & 1);
    if (op.row->src[1] != Ty::NONE) {
        copy_source(w, op, 1, kRow1);
        select(w.v[kRow1], x >> 24 & 7, x >> 27 & 1);
    }
    if (!in.run) {
        fault(w, op, 719, "not modelled");
        return;
    }
    if (op.row->enc == Enc::VOPC) {
        in.run(w, in);
        return;
    }
    std::memcpy(w.v[kRowD], w.v[op.dst], sizeof(w.v[0]));
    in.run(w, in);
    u32 sel = x >> 8 & 7, unused = x >> 11 & 3;
    const u32 *m = w.exec_lanes();
    u32 *d = w.v[op.dst];
    for (int i = 0; i < kLanes; i++) {
        u32 r = w.v[kRowD][i];
        if (sel < 6) {
            int width = sel < 4 ? 8 : 16, shift = sel < 4 ? int(8 * sel) : int(16 * (sel - 4));
            u32 mask = (width == 8 ? 0xffu : 0xffffu) << shift, field = (r << shift) & mask;
            if (unused == 2)
                r = (d[i] & ~mask) | field;
            else if (unused == 1)
                r = u32(sign_extend(r, width)) << shift;
            else
                r = field;
        }
        d[i] = (r & m[i]) | (d[i] & ~m[i]);
    }
}

void run_dpp(Wave &w, const Op &op) {
    u32 ctrl = op.ext >> 8 & 511, banks = op.ext >> 24 & 15, rows = op.ext >> 28;
    bool zero = op.ext >> 19 & 1;  // bound_ctrl: lanes without a source read 0
    u64 e = w.exec(), on = 0;
    copy_source(w, op, 0, kRow1);
    int n = op.src[0].dwords > 1 ? 2 : 1;
    for (int i = 0; i < kLanes; i++) {
        int from = dpp_lane(ctrl, i);
        bool valid = from >= 0 && (e >> from & 1);
        bool enabled = (rows >> (i / 16) & 1) && (banks >> ((i & 15) / 4) & 1);
        for (int d = 0; d < n; d++) w.v[kRow0 + d][i] = valid ? w.v[kRow1 + d][from] : 0;
        on |= u64(enabled && (valid || zero)) << i;
    }
    if (!op.inner->run) {
        fault(w, op, 719, "not modelled");
        return;
    }
    w.set_s64(kExec, e & on);
    op.inner->run(w, *op.inner);
    if (!(op.row->flags & WRITES_EXEC)) w.set_s64(kExec, e);
}

}  // namespace moon
