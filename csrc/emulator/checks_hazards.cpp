// Wait states that the hardware does not insert by itself. Distances are counted as LLVM's hazard pass counts them: one
// a instruction in between, N + 1 for s_nop N. The table is in docs/emulator.md.
#include "checks.h"

namespace moon {

namespace {

struct Short {
    u32 have = 0, need = 0;
    explicit operator bool() const { return have < need; }
};
Short distance(u32 now, u32 then, u32 need) { return {then ? now - then - 1 : 1000u, need}; }

void warn(WorkerState &s, Wave &w, u32 index, Check c, const char *severity, const std::string &where, const char *what,
          Short d) {
    if (first_hit(s, index, c))
        report(s, w, index, c, severity, where,
               std::string(what) + ": " + std::to_string(d.have) + " wait states where " + std::to_string(d.need) +
                   " are needed");
}

template <class F>
void each(const RegRange *r, int n, F f) {
    for (int k = 0; k < n; k++)
        for (u32 i = r[k].first; i < u32(r[k].first) + r[k].count && i < kVgprs; i++)
            if (!f(i, k)) return;
}

// MFMA results and C operands that are still in the pipe.
void after_mfma(WorkerState &s, Wave &w, const OpUse &u, u32 index) {
    CheckState &c = *w.check;
    const u32 extra = s.launch->program->arch_bit == GFX950 ? 1 : 0, now = c.clock;
    const bool matrix = u.kind == OpKind::MFMA || u.kind == OpKind::SMFMAC;
    const bool memory = u.kind == OpKind::LDS_READ || u.kind == OpKind::LDS_WRITE || u.kind == OpKind::LDS_OTHER ||
                        u.kind == OpKind::VMEM_LOAD || u.kind == OpKind::VMEM_STORE || u.kind == OpKind::VMEM_LDS;
    if (!matrix && !u.valu && !memory) return;
    each(u.vread, u.vreads, [&](u32 r, int k) {
        if (!c.mfma_at[r]) return true;
        u32 p = c.mfma_passes[r];
        if (matrix && k == u.accumulator) {
            bool same = c.mfma_dst[r].first == u.vread[k].first && c.mfma_dst[r].count == u.vread[k].count;
            if (Short d = distance(now, c.mfma_at[r], same ? 0 : p + 1 + extra)) {
                warn(s, w, index, Check::MFMA_WAIT_STATES, "warning", register_name(r),
                     "an MFMA takes as C registers that overlap another's result", d);
                return false;
            }
        } else if (Short d = distance(now, c.mfma_at[r], p + 3 + extra)) {
            warn(s, w, index, Check::MFMA_WAIT_STATES, "warning", register_name(r), "reads an MFMA's result", d);
            return false;
        }
        return true;
    });
    if (!u.valu) return;
    each(u.vwrite, u.vwrites, [&](u32 r, int) {
        if (Short d = distance(now, c.mfma_at[r], c.mfma_at[r] ? c.mfma_passes[r] + 3 + extra : 0)) {
            warn(s, w, index, Check::MFMA_WAIT_STATES, "warning", register_name(r), "overwrites an MFMA's result", d);
            return false;
        }
        if (Short d = distance(now, c.c_read_at[r], c.c_read_at[r] ? c.c_passes[r] - 1u : 0)) {
            warn(s, w, index, Check::MFMA_WAIT_STATES, "warning", register_name(r),
                 "overwrites registers that an MFMA reads as C", d);
            return false;
        }
        return true;
    });
}

void after_valu(WorkerState &s, Wave &w, const OpUse &u, u32 index) {
    CheckState &c = *w.check;
    const u32 now = c.clock;
    const bool matrix = u.kind == OpKind::MFMA || u.kind == OpKind::SMFMAC;
    each(u.vread, u.vreads, [&](u32 r, int) {
        if (matrix) {
            if (Short d = distance(now, c.valu_at[r], 2)) {
                warn(s, w, index, Check::WAIT_STATES, "error", register_name(r), "an MFMA reads a VALU result", d);
                return false;
            }
        } else if (u.valu) {
            if (!u.trans)
                if (Short d = distance(now, c.trans_at[r], 1)) {
                    warn(s, w, index, Check::WAIT_STATES, "error", register_name(r), "reads a transcendental's result",
                         d);
                    return false;
                }
            u32 need = u.dpp || u.permlane_swap ? 2 : u.lane_read ? 1 : 0;
            if (Short d = distance(now, c.valu_at[r], need)) {
                // AITER's shipped gfx950 kernels leave one state before a permlane swap: a warning there
                warn(s, w, index, u.permlane_swap ? Check::WAIT_STATES_SOFT : Check::WAIT_STATES,
                     u.permlane_swap ? "warning" : "error", register_name(r), "reads a VALU result across lanes", d);
                return false;
            }
        }
        return true;
    });
    if (u.valu) {
        for (int k = 0; k < u.sreads; k++)
            for (u32 i = u.sread[k].first; i < u32(u.sread[k].first) + u.sread[k].count && i < kSgprs; i++)
                if (Short d = distance(now, c.valu_sgpr_at[i], u.div_fmas ? 4 : 2)) {
                    // AITER's masked tiles leave one state between a compare and its select: a warning.
                    warn(s, w, index, Check::WAIT_STATES_SOFT, "warning", "s" + std::to_string(i),
                         "VALU reads an SGPR or VCC that VALU wrote", d);
                    break;
                }
        if (u.lane_read)
            if (Short d = distance(now, c.valu_exec_at, 4))
                warn(s, w, index, Check::WAIT_STATES, "error", "exec", "a lane read follows a VALU write of EXEC", d);
        each(u.vwrite, u.vwrites, [&](u32 r, int) {
            if (Short d = distance(now, c.wide_store_at[r], 2)) {
                warn(s, w, index, Check::WAIT_STATES_SOFT, "warning", register_name(r),
                     "VALU overwrites the data of a store of more than 8 bytes", d);
                return false;
            }
            return true;
        });
    }
    if (matrix)
        if (Short d = distance(now, c.valu_exec_at, 4))
            warn(s, w, index, Check::WAIT_STATES, "error", "exec", "an MFMA follows a VALU write of EXEC", d);
    if (u.kind == OpKind::VMEM_LOAD || u.kind == OpKind::VMEM_STORE || u.kind == OpKind::VMEM_LDS) {
        for (int k = 0; k < u.sreads; k++)
            for (u32 i = u.sread[k].first; i < u32(u.sread[k].first) + u.sread[k].count && i < kSgprs; i++)
                if (Short d = distance(now, c.valu_sgpr_at[i], 5)) {
                    warn(s, w, index, Check::WAIT_STATES, "error", "s" + std::to_string(i),
                         "a memory instruction reads an SGPR that VALU wrote", d);
                    return;
                }
        if (u.kind == OpKind::VMEM_LDS)
            if (Short d = distance(now, c.salu_at[kM0], 1))
                // Every AITER kernel does this: a warning.
                warn(s, w, index, Check::WAIT_STATES_SOFT, "warning", "m0",
                     "a direct-to-LDS load follows a SALU write of M0", d);
    }
}

// A buffer instruction whose offset is an SGPR: it has issued its data before the next instruction can touch it.
bool scalar_offset(const OpUse &u) {
    bool buffer = false, single = false;
    for (int k = 0; k < u.sreads; k++) buffer |= u.sread[k].count == 4, single |= u.sread[k].count == 1;
    return buffer && single;
}

}  // namespace

void checks_hazards(WorkerState &s, Wave &w, const Op &op, const OpUse &u, u32 index) {
    CheckState &c = *w.check;
    const u32 now = c.clock;
    const bool matrix = u.kind == OpKind::MFMA || u.kind == OpKind::SMFMAC;
    if (c.last_mfma && now - c.last_mfma < 24) after_mfma(s, w, u, index);
    if (u.valu || matrix || op.row->cls == Class::VMEM) after_valu(s, w, u, index);
    if (matrix) {
        c.last_mfma = now;
        const RegRange d = u.vwrite[0];
        for (u32 i = d.first; i < u32(d.first) + d.count && i < kVgprs; i++)
            c.mfma_at[i] = now, c.mfma_passes[i] = u.passes, c.mfma_dst[i] = d, c.valu_at[i] = 0, c.trans_at[i] = 0;
        if (u.accumulator >= 0) {
            const RegRange a = u.vread[u.accumulator];
            for (u32 i = a.first; i < u32(a.first) + a.count && i < kVgprs; i++)
                c.c_read_at[i] = now, c.c_passes[i] = u.passes;
        }
    } else if (u.valu) {
        each(u.vwrite, u.vwrites, [&](u32 r, int) {
            c.valu_at[r] = now, c.mfma_at[r] = 0;
            c.trans_at[r] = u.trans ? now : 0;
            return true;
        });
        for (int k = 0; k < u.swrites; k++)
            for (u32 i = u.swrite[k].first; i < u32(u.swrite[k].first) + u.swrite[k].count && i < kSgprs; i++) {
                c.valu_sgpr_at[i] = now;
                if (i == kExec) c.valu_exec_at = now;
            }
    } else {
        if (u.kind == OpKind::VMEM_STORE && !scalar_offset(u))
            each(u.vread, u.vreads, [&](u32 r, int k) {
                if (u.vread[k].count > 2) c.wide_store_at[r] = now;
                return true;
            });
        each(u.vwrite, u.vwrites, [&](u32 r, int) {  // loads
            c.valu_at[r] = 0, c.mfma_at[r] = 0, c.trans_at[r] = 0;
            return true;
        });
        for (int k = 0; k < u.swrites; k++)
            for (u32 i = u.swrite[k].first; i < u32(u.swrite[k].first) + u.swrite[k].count && i < kSgprs; i++)
                c.salu_at[i] = now, c.valu_sgpr_at[i] = 0;
    }
    c.clock += u.nop ? u.nop : 1;
}

}  // namespace moon
