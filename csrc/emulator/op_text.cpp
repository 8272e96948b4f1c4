// Operands as text, in the assembler's spelling where it is short.
#include "program.h"
#include <cstdio>

namespace moon {

namespace {

std::string format(const char *f, long long a) {
    char buf[64];
    snprintf(buf, sizeof(buf), f, a);
    return buf;
}
std::string range(const char *file, u32 first, u32 n) {
    if (n <= 1) return std::string(file) + std::to_string(first);
    return std::string(file) + "[" + std::to_string(first) + ":" + std::to_string(first + n - 1) + "]";
}
std::string vector_reg(u32 index, u32 n) { return index < 256 ? range("v", index, n) : range("a", index - 256, n); }
std::string scalar_reg(u32 index, u32 n) {
    if (index == kVcc) return n > 1 ? "vcc" : "vcc_lo";
    if (index == kVcc + 1u) return "vcc_hi";
    if (index == kM0) return "m0";
    if (index == kExec) return n > 1 ? "exec" : "exec_lo";
    if (index == kExec + 1u) return "exec_hi";
    if (index >= 108 && index < 124) return range("ttmp", index - 108, n);
    return range("s", index, n);
}
std::string operand(const Op &op, int k) {
    const Operand &o = op.src[k];
    std::string t;
    u32 n = o.dwords;
    switch (o.kind) {
        case Kind::VGPR: t = vector_reg(o.index, n); break;
        case Kind::SGPR: t = scalar_reg(o.index, n); break;
        case Kind::CONST: {
            i32 v = i32(o.value);
            t = v >= -16 && v <= 64 ? std::to_string(v) : format("0x%llx", o.ty == Ty::F64 ? o.value_hi : o.value);
            break;
        }
        case Kind::SPECIAL:
            t = o.index == 251   ? "src_vccz"
                : o.index == 252 ? "src_execz"
                : o.index == 253 ? "src_scc"
                                 : "src_aperture";
            break;
        default: return "";
    }
    bool packed = op.row->enc == Enc::VOP3P;
    if (!packed && (op.abs >> k & 1)) t = "|" + t + "|";
    return (op.neg >> k & 1) ? "-" + t : t;
}
void add(std::string *out, const std::string &s) {
    if (s.empty()) return;
    if (!out->empty()) *out += ", ";
    *out += s;
}
std::string bits(const char *name, u32 v, int n) {
    std::string r = std::string(" ") + name + ":[";
    for (int i = 0; i < n; i++) r += std::string(i ? "," : "") + char('0' + (v >> i & 1));
    return r + "]";
}
std::string waits(u32 k) {
    u32 vm = (k & 15) | (k >> 14 & 3) << 4, exp = k >> 4 & 7, lgkm = k >> 8 & 15;
    std::string r;
    auto one = [&](const char *n, u32 v) {
        r += (r.empty() ? "" : " ") + std::string(n) + "(" + std::to_string(v) + ")";
    };
    if (vm != 63) one("vmcnt", vm);
    if (exp != 7) one("expcnt", exp);
    if (lgkm != 15) one("lgkmcnt", lgkm);
    return r;
}
std::string memory_text(const Op &op) {
    const Row &r = *op.row;
    std::string t;
    u32 n = r.a >= 4 ? r.a / 4u : 1;
    bool store = r.flags & STORE, atomic = r.flags & ATOMIC;
    if (r.enc == Enc::SMEM) {
        if (r.a == 0) return "";
        add(&t, scalar_reg(op.sdst, n));
        add(&t, operand(op, 0));
        add(&t, op.src[1].kind != Kind::NONE ? operand(op, 1) : format("0x%llx", op.imm));
        return t;
    }
    if (r.enc == Enc::DS) {
        bool two = r.run && std::string(r.name).find('2') != std::string::npos &&
                   (std::string(r.name).find("read2") != std::string::npos ||
                    std::string(r.name).find("write2") != std::string::npos);
        bool lane = std::string(r.name).find("permute") != std::string::npos;
        if (!store || lane || (atomic && r.d)) add(&t, vector_reg(op.dst, two ? 2 * n : n));
        add(&t, vector_reg(op.addr, 1));
        if (store || atomic) add(&t, vector_reg(op.data, n));
        if (store && two) add(&t, vector_reg(op.data1, n));
        if (two) return t + format(" offset0:%lld", op.imm & 255) + format(" offset1:%lld", op.imm >> 8 & 255);
        return op.imm ? t + format(" offset:%lld", op.imm) : t;
    }
    if (r.a == 0) return "";
    if (!op.lds && (!store || r.enc == Enc::MUBUF) && !(atomic && !op.sc0 && r.enc != Enc::MUBUF))
        add(&t, vector_reg(r.enc == Enc::MUBUF ? op.data : op.dst, n));
    if (r.enc == Enc::MUBUF) {
        add(&t, op.addr == kNoReg ? "off" : vector_reg(op.addr, op.offen && op.idxen ? 2 : 1));
        add(&t, scalar_reg(op.src[0].index, 4));
        add(&t, operand(op, 1));
        t += op.idxen ? " idxen" : "";
        t += op.offen ? " offen" : "";
    } else {
        add(&t, op.addr == kNoReg ? "off" : vector_reg(op.addr, r.enc == Enc::SCRATCH || op.saddr ? 1 : 2));
        if (store || atomic) add(&t, vector_reg(op.data, n));
        if (r.enc != Enc::FLAT) add(&t, op.saddr ? scalar_reg(op.src[0].index, r.enc == Enc::SCRATCH ? 1 : 2) : "off");
    }
    if (op.imm) t += format(" offset:%lld", op.imm);
    t += op.sc0 ? " sc0" : "";
    t += op.nt ? " nt" : "";
    t += op.sc1 ? " sc1" : "";
    return op.lds && r.enc == Enc::MUBUF ? t + " lds" : t;
}

}  // namespace

std::string op_text(const Op &op) {
    if (!op.row) return "";
    const Row &r = *op.row;
    std::string t;
    switch (r.enc) {
        case Enc::SOPP:
            if (r.cls == Class::WAIT) return waits(u32(op.imm));
            if (r.cls == Class::BRANCH) return op.imm || r.op == 2 ? format("%lld", i16(op.imm)) : "";
            return r.cls == Class::BARRIER ? "" : std::to_string(op.imm);
        case Enc::SOPK:
            add(&t, scalar_reg(op.sdst, u32(op.dst_dwords)));
            add(&t, format("0x%llx", op.imm & 0xffff));
            return t;
        case Enc::DS:
        case Enc::FLAT:
        case Enc::GLOBAL:
        case Enc::SCRATCH:
        case Enc::MUBUF:
        case Enc::SMEM: return memory_text(op);
        default: break;
    }
    bool scalar = r.enc == Enc::SOP1 || r.enc == Enc::SOP2 || r.enc == Enc::SOPC;
    if (scalar ? r.dst != Ty::NONE : (r.flags & SCALAR_DST) != 0)
        add(&t, scalar_reg(op.sdst, u32(op.dst_dwords)));
    else if (r.dst != Ty::NONE)
        add(&t, vector_reg(op.dst, op.dst_dwords));
    if (r.flags & SDST) add(&t, scalar_reg(op.sdst, 2));
    bool tied = (r.flags & READS_DST) && !(r.flags & SMFMAC);
    for (int k = 0; k < 3; k++)
        if (!(tied && k == 2 && !(r.flags & LITERAL_K))) add(&t, operand(op, k));
    if (r.enc == Enc::VOP3P) {
        int n = r.src[2] == Ty::NONE ? 2 : 3;
        u32 all = (1u << n) - 1;
        if (op.opsel) t += bits("op_sel", op.opsel, n);
        if ((op.opsel_hi & all) != all) t += bits("op_sel_hi", op.opsel_hi, n);
        if (op.neg_hi) t += bits("neg_hi", op.neg_hi, n);
    } else if (op.opsel && r.enc != Enc::MAI) {
        t += bits("op_sel", op.opsel, 4);
    }
    if (op.clamp) t += " clamp";
    if (op.omod) t += op.omod == 1 ? " mul:2" : op.omod == 2 ? " mul:4" : " div:2";
    if (op.suffix == 3) t += format(" sdwa:0x%llx", op.ext);
    if (op.suffix == 4) t += format(" dpp:0x%llx", op.ext >> 8);
    if (op.cbsz) t += format(" cbsz:%lld", op.cbsz);
    if (op.abid) t += format(" abid:%lld", op.abid);
    if (op.blgp) t += format(" blgp:%lld", op.blgp);
    return t;
}

}  // namespace moon
