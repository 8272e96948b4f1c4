// Rows: program flow, waits, barriers and hardware registers.
#include "program.h"
#include "wave.h"

namespace moon {

namespace {

constexpr Row flow(u16 op, const char *name, Class c, u32 flags, Handler run) {
    return {name, Enc::SOPP, op, BOTH, c, Ty::NONE, {Ty::NONE, Ty::NONE, Ty::NONE}, flags, run, 0, 0, 0, 0};
}
constexpr Row other1(u16 op, const char *name, Ty dst, Ty a, u32 flags, Handler run) {
    return {name, Enc::SOP1, op, BOTH, Class::SALU, dst, {a, Ty::NONE, Ty::NONE}, flags, run, 0, 0, 0, 0};
}
constexpr Row hw(u16 op, const char *name, Ty dst, u32 flags, Handler run) {
    return {name, Enc::SOPK, op, BOTH, Class::SALU, dst, {Ty::NONE, Ty::NONE, Ty::NONE}, flags, run, 0, 0, 0, 0};
}

// Program counter: code addresses are where the image lies in memory.
void jump(Wave &w, const Op &op, u64 address) {
    const Op *t = op_at(w, address);
    if (!t) {
        fault(w, op, 719, "jump to 0x%llx, which is not the start of an instruction", (unsigned long long)address);
        return;
    }
    w.pc = t;
}
void getpc(Wave &w, const Op &op) { w.set_s64(op.sdst, code_address(w, op) + op.size); }
void setpc(Wave &w, const Op &op) { jump(w, op, read_s64(w, op.src[0])); }
void swappc(Wave &w, const Op &op) {
    u64 to = read_s64(w, op.src[0]);
    w.set_s64(op.sdst, code_address(w, op) + op.size);
    jump(w, op, to);
}
void call(Wave &w, const Op &op) {
    w.set_s64(op.sdst, code_address(w, op) + op.size);
    jump(w, op, code_address(w, op) + op.size + u64(i64(op.imm) * 4));
}

inline void take(Wave &w, const Op &op) {
    const Op *t = op_index(w, op.target);
    if (!t) {
        fault(w, op, 719, "branch to something that is not an instruction");
        return;
    }
    w.pc = t;
}
void branch(Wave &w, const Op &op) { take(w, op); }
void scc0(Wave &w, const Op &op) {
    if (!w.scc) take(w, op);
}
void scc1(Wave &w, const Op &op) {
    if (w.scc) take(w, op);
}
void vccz(Wave &w, const Op &op) {
    if (!w.s64(kVcc)) take(w, op);
}
void vccnz(Wave &w, const Op &op) {
    if (w.s64(kVcc)) take(w, op);
}
void execz(Wave &w, const Op &op) {
    if (!w.exec()) take(w, op);
}
void execnz(Wave &w, const Op &op) {
    if (w.exec()) take(w, op);
}
void nothing(Wave &, const Op &) {}
void endpgm(Wave &w, const Op &) { w.stop = Stop::END; }
void barrier(Wave &w, const Op &) { w.stop = Stop::BARRIER; }
void yield(Wave &w, const Op &) { w.stop = Stop::YIELD; }
void trap(Wave &w, const Op &op) { fault(w, op, 719, "s_trap %d: the kernel asked to abort", op.imm & 0xff); }

// Hardware registers: 1 MODE, 2 STATUS, 4 HW_ID, 20 XCC_ID; simm16 is id, offset << 6, (size - 1) << 11.
u32 hw_register(const Wave &w, u32 id) {
    switch (id) {
        case 1: return w.mode;
        case 2: return u32(w.scc) | u32(w.exec() == 0) << 9 | u32(w.s64(kVcc) == 0) << 10;
        case 4: return u32(w.id) / 4 | (u32(w.id) % 4) << 4;  // the slot of a SIMD, the SIMD
        case 20: return xcc_id(w);
        default: return 0;
    }
}
void getreg(Wave &w, const Op &op) {
    u32 k = u32(op.imm), off = (k >> 6) & 31, width = ((k >> 11) & 31) + 1;
    u32 x = hw_register(w, k & 63) >> off;
    w.s[op.sdst] = width == 32 ? x : x & ((1u << width) - 1);
}
void set_hw(Wave &w, u32 k, u32 value) {
    u32 off = (k >> 6) & 31, width = ((k >> 11) & 31) + 1;
    if ((k & 63) != 1) return;  // the others are read-only or without effect here
    u32 mask = (width == 32 ? ~0u : (1u << width) - 1) << off;
    w.set_mode((w.mode & ~mask) | ((value << off) & mask));
}
void setreg(Wave &w, const Op &op) { set_hw(w, u32(op.imm), w.s[op.sdst]); }
void setreg_imm(Wave &w, const Op &op) { set_hw(w, u32(op.imm), op.words[1]); }

constexpr Ty N = Ty::NONE, B32 = Ty::B32, B64 = Ty::B64;

}  // namespace

extern const Row kFlowRows[] = {other1(28, "s_getpc_b64", B64, N, 0, getpc),
                                other1(29, "s_setpc_b64", N, B64, 0, setpc),
                                other1(30, "s_swappc_b64", B64, B64, 0, swappc),
                                hw(17, "s_getreg_b32", B32, 0, getreg),
                                hw(18, "s_setreg_b32", N, READS_DST, setreg),
                                hw(20, "s_setreg_imm32_b32", N, LITERAL_K, setreg_imm),
                                {"s_call_b64", Enc::SOPK, 21, BOTH, Class::BRANCH, B64, {N, N, N}, 0, call, 0, 0, 0, 0},
                                flow(0, "s_nop", Class::NOP, 0, nothing),
                                flow(1, "s_endpgm", Class::BRANCH, 0, endpgm),
                                flow(2, "s_branch", Class::BRANCH, 0, branch),
                                flow(3, "s_wakeup", Class::OTHER, 0, nothing),
                                flow(4, "s_cbranch_scc0", Class::BRANCH, READS_SCC, scc0),
                                flow(5, "s_cbranch_scc1", Class::BRANCH, READS_SCC, scc1),
                                flow(6, "s_cbranch_vccz", Class::BRANCH, 0, vccz),
                                flow(7, "s_cbranch_vccnz", Class::BRANCH, 0, vccnz),
                                flow(8, "s_cbranch_execz", Class::BRANCH, 0, execz),
                                flow(9, "s_cbranch_execnz", Class::BRANCH, 0, execnz),
                                flow(10, "s_barrier", Class::BARRIER, 0, barrier),
                                flow(11, "s_setkill", Class::OTHER, 0, nothing),
                                flow(12, "s_waitcnt", Class::WAIT, 0, nothing),
                                flow(13, "s_sethalt", Class::OTHER, 0, nothing),
                                flow(14, "s_sleep", Class::OTHER, 0, yield),
                                flow(15, "s_setprio", Class::OTHER, 0, nothing),
                                flow(16, "s_sendmsg", Class::OTHER, 0, nothing),
                                flow(18, "s_trap", Class::OTHER, 0, trap),
                                flow(19, "s_icache_inv", Class::OTHER, 0, nothing),
                                flow(20, "s_incperflevel", Class::OTHER, 0, nothing),
                                flow(21, "s_decperflevel", Class::OTHER, 0, nothing),
                                flow(22, "s_ttracedata", Class::OTHER, 0, nothing),
                                flow(27, "s_endpgm_saved", Class::BRANCH, 0, endpgm),
                                flow(31, "s_set_valu_coexec_mode", Class::OTHER, 0, nothing),
                                {nullptr, Enc::VOP1, 0, 0, Class::OTHER, N, {N, N, N}, 0, nullptr, 0, 0, 0, 0}};

}  // namespace moon
