// Deriving an instruction's register use from its decoded form.
#include "mfma.h"
#include "op_use.h"
#include <cstring>

namespace moon {

const char *kind_name(OpKind k) {
    static const char *const names[] = {"valu",     "trans",     "mfma",      "smfmac",    "salu",       "smem",
                                        "lds_read", "lds_write", "lds_other", "vmem_load", "vmem_store", "vmem_lds",
                                        "branch",   "barrier",   "waitcnt",   "nop",       "setprio",    "other"};
    return k < OpKind::COUNT ? names[int(k)] : "other";
}

namespace {

struct Builder {
    OpUse &u;
    void vread(u32 first, u32 n) {
        if (n && u.vreads < 5 && first < kVgprs) u.vread[u.vreads++] = {u16(first), u16(n)};
    }
    void vwrite(u32 first, u32 n) {
        if (n && u.vwrites < 2 && first < kVgprs) u.vwrite[u.vwrites++] = {u16(first), u16(n)};
    }
    void sread(u32 first, u32 n) {
        if (n && u.sreads < 6) u.sread[u.sreads++] = {u16(first), u16(n)};
    }
    void swrite(u32 first, u32 n) {
        if (n && u.swrites < 3) u.swrite[u.swrites++] = {u16(first), u16(n)};
    }
    void source(const Operand &o) {
        if (o.kind == Kind::VGPR)
            vread(o.index, o.dwords);
        else if (o.kind == Kind::SGPR)
            sread(o.index, o.dwords);
        else if (o.kind == Kind::SPECIAL && o.index == 251)
            sread(kVcc, 2);
        else if (o.kind == Kind::SPECIAL && o.index == 252)
            sread(kExec, 2);
    }
};

u8 passes_of(const Row &r) {
    if (r.flags & SMFMAC) return r.a == 32 ? 8 : 4;
    if (r.a == 0) return std::strstr(r.name, "32x32") ? 16 : 8;  // known by name only
    bool f32 = r.d == MA_F32;
    if (r.a == 4) return 2;
    if (r.a == 16) return r.c > 1 || f32 ? 8 : 4;
    return r.c > 1 || f32 ? 16 : 8;
}

void memory_use(const Op &op, OpUse *u, Builder &b) {
    const Row &r = *op.row;
    bool store = r.flags & STORE, atomic = r.flags & ATOMIC;
    u32 n = r.a >= 4 ? r.a / 4u : 1;
    if (r.enc == Enc::SMEM) {
        u->kind = OpKind::SMEM;
        for (const Operand &o : op.src) b.source(o);
        b.swrite(op.sdst, op.dst_dwords);
        return;
    }
    if (r.enc == Enc::DS) {
        const bool lane = std::strstr(r.name, "permute") || std::strstr(r.name, "swizzle");
        const bool two = std::strstr(r.name, "read2") || std::strstr(r.name, "write2");
        if (r.a == 0) return;
        b.vread(op.addr, 1);
        u->kind = lane || atomic ? OpKind::LDS_OTHER : store ? OpKind::LDS_WRITE : OpKind::LDS_READ;
        if (store || atomic) b.vread(op.data, n);
        if ((store && two) || (atomic && r.c == 1)) b.vread(op.data1, n);  // 1: compare and swap
        if (lane || (!store && !atomic) || (atomic && r.d)) b.vwrite(op.dst, two ? 2 * n : n);
        return;
    }
    u->kind = store || atomic ? OpKind::VMEM_STORE : op.lds ? OpKind::VMEM_LDS : OpKind::VMEM_LOAD;
    u->flat = r.enc == Enc::FLAT;
    if (r.a == 0) {  // cache control: counted by vmcnt, no registers
        u->kind = OpKind::VMEM_STORE;
        return;
    }
    for (const Operand &o : op.src) b.source(o);
    if (op.addr != kNoReg) {
        bool wide =
            r.enc == Enc::FLAT || (r.enc == Enc::GLOBAL && !op.saddr) || (r.enc == Enc::MUBUF && op.offen && op.idxen);
        b.vread(op.addr, wide ? 2 : 1);
    }
    if (store || atomic) b.vread(op.data, atomic && r.c == 1 ? 2 * n : n);
    if (op.lds) b.sread(kM0, 1);
    if ((!store && !atomic && !op.lds) || (atomic && op.sc0)) b.vwrite(r.enc == Enc::MUBUF ? op.data : op.dst, n);
}

bool packed_f32(const Row &r) {
    for (const char *name : {"v_pk_fma_f32", "v_pk_mul_f32", "v_pk_add_f32"})
        if (std::strcmp(r.name, name) == 0) return true;
    return false;
}

bool adds_64_bits(const Row &r) {
    for (const char *name : {"v_mad_u64_u32", "v_mad_i64_i32", "v_lshl_add_u64"})
        if (std::strcmp(r.name, name) == 0) return true;
    return false;
}

}  // namespace

OpUse describe_use(const Op &op, u8 arch) {
    (void)arch;
    OpUse u;
    if (!op.row) return u;
    const Row &r = *op.row;
    Builder b{u};
    switch (r.enc) {
        case Enc::SMEM:
        case Enc::DS:
        case Enc::FLAT:
        case Enc::GLOBAL:
        case Enc::SCRATCH:
        case Enc::MUBUF: memory_use(op, &u, b); return u;
        case Enc::SOPP:
            u.kind = r.cls == Class::BRANCH    ? OpKind::BRANCH
                     : r.cls == Class::BARRIER ? OpKind::BARRIER
                     : r.cls == Class::WAIT    ? OpKind::WAITCNT
                     : r.cls == Class::NOP     ? OpKind::NOP
                     : r.op == 15              ? OpKind::SETPRIO
                                               : OpKind::OTHER;
            if (u.kind == OpKind::NOP) u.nop = u16((op.imm & 15) + 1);
            if (u.kind == OpKind::WAITCNT) {
                i16 vm = i16((op.imm & 15) | (op.imm >> 14 & 3) << 4), lgkm = i16(op.imm >> 8 & 15);
                u.vmcnt = vm == 63 ? i16(-1) : vm;
                u.lgkmcnt = lgkm == 15 ? i16(-1) : lgkm;
            }
            if (r.op == 6 || r.op == 7) b.sread(kVcc, 2);
            if (r.op == 8 || r.op == 9) b.sread(kExec, 2);
            return u;
        case Enc::SOP1:
        case Enc::SOP2:
        case Enc::SOPC:
        case Enc::SOPK:
            u.kind = r.cls == Class::BRANCH ? OpKind::BRANCH : OpKind::SALU;
            for (const Operand &o : op.src) b.source(o);
            if (r.flags & READS_DST) b.sread(op.sdst, r.enc == Enc::SOPK ? 1u : u32(op.dst_dwords));
            if (r.dst != Ty::NONE) b.swrite(op.sdst, u32(op.dst_dwords));
            if (r.flags & WRITES_EXEC) {
                b.sread(kExec, 2);
                b.swrite(kExec, 2);
            }
            return u;
        default: break;
    }
    // Vector ALU and matrix cores.
    u.exec_free = r.flags & IGNORES_EXEC;
    u.kind = r.cls == Class::MFMA    ? (r.flags & SMFMAC ? OpKind::SMFMAC : OpKind::MFMA)
             : r.cls == Class::TRANS ? OpKind::TRANS
                                     : OpKind::VALU;
    u.valu = r.cls != Class::MFMA;
    u.trans = r.cls == Class::TRANS;
    u.div_fmas = std::strncmp(r.name, "v_div_fmas", 10) == 0;
    u.dpp = op.suffix == 4;
    u.lane_read = r.flags & SCALAR_DST;
    u.permlane_swap = std::strncmp(r.name, "v_permlane", 10) == 0;
    if (r.cls == Class::MFMA) u.passes = passes_of(r);
    for (int k = 0; k < 3; k++) {
        if (r.cls == Class::MFMA && k == 2 && !(r.flags & SMFMAC) && op.src[2].kind == Kind::VGPR)
            u.accumulator = i8(u.vreads);
        if (k == 2 && adds_64_bits(r) && op.src[2].kind == Kind::VGPR) u.wide_addend = i8(u.vreads);
        // Packed fp32: both results may take the same half of the pair, and the other half is then not read.
        const Operand &o = op.src[k];
        const bool low = op.opsel >> k & 1, high = op.opsel_hi >> k & 1;
        if (packed_f32(r) && o.kind == Kind::VGPR && low == high)
            b.vread(o.index + (low ? 1 : 0), 1);
        else
            b.source(o);
    }
    u32 n = u32(op.dst_dwords);
    if (r.flags & SMFMAC) u.accumulator = i8(u.vreads);
    const bool sdwa_keeps = op.suffix == 3 && (op.ext >> 11 & 3) == 2 && (op.ext >> 8 & 7) < 6;
    if (((r.flags & READS_DST) && !(r.enc == Enc::VOP2 && r.src[2] != Ty::NONE)) || (r.flags & PRESERVES_HI) ||
        (op.opsel & 8 && (r.dst == Ty::B16 || r.dst == Ty::F16)) || sdwa_keeps)
        b.vread(op.dst, n);
    if (r.dst != Ty::NONE) b.vwrite(op.dst, n);
    if ((r.flags & WRITES_SRC0) && op.src[0].kind == Kind::VGPR) b.vwrite(op.src[0].index, 1);
    if (r.flags & READS_VCC) b.sread(kVcc, 2);
    if (r.flags & SDST) b.swrite(op.sdst, 2);
    if (r.flags & SCALAR_DST) b.swrite(op.sdst, 1);
    if (r.flags & WRITES_EXEC) b.swrite(kExec, 2);
    return u;
}

}  // namespace moon
