// Wait counters and registers: anything that touches a register or LDS byte still on its way is an error, as is reading
// what was never written.
#include "checks.h"
#include <cstdio>

namespace moon {

const char *check_name(size_t c) {
    static const char *const names[] = {"missing-waitcnt",   "lds-race",          "uninitialised-register",
                                        "uninitialised-lds", "lds-out-of-bounds", "barrier-mismatch",
                                        "mfma-wait-states",  "wait-states",       "wait-states"};
    return names[c];
}

std::string register_name(u32 r) { return r < 256 ? "v" + std::to_string(r) : "a" + std::to_string(r - 256); }

std::string op_at_text(const WorkerState &s, u32 index) {
    const Op &op = s.launch->program->ops[index];
    char name[96], text[160];
    mnemonic(op, name, sizeof(name));
    snprintf(text, sizeof(text), "%s at 0x%x", name, op.address);
    return text;
}

void report(WorkerState &s, Wave &w, u32 index, Check c, const char *severity, const std::string &where,
            const std::string &detail) {
    const Op &op = s.launch->program->ops[index];
    Finding f;
    char name[96];
    mnemonic(op, name, sizeof(name));
    f.kind = check_name(size_t(c)), f.severity = severity, f.where = where, f.detail = detail, f.mnemonic = name;
    f.address = op.address, f.wave = w.id;
    for (int d = 0; d < 3; d++) f.group[d] = w.group->id[d];
    s.findings.add(f);
}

namespace {

void mark_pending(CheckState &c, const InFlight &f, Queue q) {
    for (u32 r = f.dst.first; r < u32(f.dst.first) + f.dst.count; r++) {
        if (f.scalar) {
            if (r >= kSgprs) break;
            if (!c.spending[r]) c.spending_count++;
            c.spending[r] = 1, c.spending_seq[r] = f.seq, c.spending_op[r] = f.op;
        } else {
            if (r >= kVgprs) break;
            if (!c.pending[r]) c.pending_count++;
            c.pending[r] |= u8(1 << int(q));
            c.pending_seq[int(q)][r] = f.seq, c.pending_op[r] = f.op;
        }
    }
}

void clear_pending(CheckState &c, const InFlight &f, Queue q) {
    for (u32 r = f.dst.first; r < u32(f.dst.first) + f.dst.count; r++) {
        if (f.scalar) {
            if (r < kSgprs && c.spending[r] && c.spending_seq[r] == f.seq) c.spending[r] = 0, c.spending_count--;
        } else if (r < kVgprs && (c.pending[r] >> int(q) & 1) && c.pending_seq[int(q)][r] == f.seq) {
            c.pending[r] &= u8(~(1 << int(q)));
            if (!c.pending[r]) c.pending_count--;
        }
    }
}

void close_vm(CheckState &c, size_t keep) {
    while (c.vm.size() > keep) {
        clear_pending(c, c.vm.front(), Queue::VM);
        c.vm_closed = c.vm.front().seq;
        c.vm.pop_front();
    }
}

// LDS instructions complete in order; scalar loads in any. With scalar loads outstanding, only what must have completed
// whichever came first is known to be there.
void close_lgkm(CheckState &c, size_t keep) {
    if (c.lgkm.size() <= keep) return;
    size_t completed = c.lgkm.size() - keep;
    size_t certain = keep == 0                          ? c.lgkm.size()
                     : completed > c.scalar_outstanding ? completed - c.scalar_outstanding
                                                        : 0;
    for (auto it = c.lgkm.begin(); it != c.lgkm.end() && certain > 0;) {
        if (it->scalar && keep != 0) {
            ++it;
            continue;
        }
        clear_pending(c, *it, Queue::LGKM);
        if (it->scalar)
            c.scalar_outstanding--;
        else
            c.lds_closed = it->lds_seq;
        it = c.lgkm.erase(it);
        certain--;
    }
}

void check_pending(WorkerState &s, Wave &w, const OpUse &u, u32 index) {
    CheckState &c = *w.check;
    auto vector = [&](const RegRange &r, bool write) {
        for (u32 i = r.first; i < u32(r.first) + r.count && i < kVgprs; i++) {
            if (!c.pending[i]) continue;
            // A later load may overwrite the target of an earlier one of the same kind: they return in order.
            bool vm = u.kind == OpKind::VMEM_LOAD, lds = u.kind == OpKind::LDS_READ || u.kind == OpKind::LDS_OTHER;
            if (write && ((vm && c.pending[i] == 1) || (lds && c.pending[i] == 2))) continue;
            if (first_hit(s, index, Check::MISSING_WAITCNT))
                report(s, w, index, Check::MISSING_WAITCNT, "error", register_name(i),
                       std::string(write ? "overwrites" : "reads") + " a register that " +
                           op_at_text(s, c.pending_op[i]) + " has not delivered: no " +
                           (c.pending[i] & 1 ? "vmcnt" : "lgkmcnt") + " wait covers it");
            return;
        }
    };
    if (c.pending_count) {
        for (int k = 0; k < u.vreads; k++) vector(u.vread[k], false);
        for (int k = 0; k < u.vwrites; k++) vector(u.vwrite[k], true);
    }
    if (!c.spending_count) return;
    auto scalar = [&](const RegRange &r, bool write) {
        for (u32 i = r.first; i < u32(r.first) + r.count && i < kSgprs; i++) {
            if (!c.spending[i]) continue;
            if (first_hit(s, index, Check::MISSING_WAITCNT))
                report(s, w, index, Check::MISSING_WAITCNT, "error", "s" + std::to_string(i),
                       std::string(write ? "overwrites" : "reads") + " a register that " +
                           op_at_text(s, c.spending_op[i]) + " has not delivered: no lgkmcnt(0) follows it");
            return;
        }
    };
    for (int k = 0; k < u.sreads; k++) scalar(u.sread[k], false);
    for (int k = 0; k < u.swrites; k++) scalar(u.swrite[k], true);
}

// Compilers leave the high half of a 64-bit addend undefined where they use the low half of the sum alone.
bool high_half_undefined(const CheckState &c, const OpUse &u) {
    if (u.wide_addend < 0) return false;
    const RegRange &r = u.vread[u.wide_addend];
    return r.count == 2 && r.first + 1u < kVgprs && c.written[r.first + 1] == 0;
}

void check_written(WorkerState &s, Wave &w, const OpUse &u, u32 index) {
    CheckState &c = *w.check;
    const bool open = high_half_undefined(c, u);
    u64 lanes = u.exec_free ? ~0ull : w.exec();
    if (u.lane_read) lanes = 0;  // one lane, chosen at run time
    for (int k = 0; k < u.vreads; k++)
        for (u32 i = u.vread[k].first; i < u32(u.vread[k].first) + u.vread[k].count && i < kVgprs; i++) {
            u64 missing = lanes & ~c.written[i];
            if (!missing || (open && k == u.wide_addend && i == u32(u.vread[k].first) + 1)) continue;
            if (first_hit(s, index, Check::UNINITIALISED_REGISTER)) {
                bool all = c.written[i] == 0;
                report(s, w, index, Check::UNINITIALISED_REGISTER, all ? "error" : "warning", register_name(i),
                       all ? "reads a register that was never written"
                           : "reads lane " + std::to_string(lowest(missing)) +
                                 " of a register that was written in other lanes only");
            }
            return;
        }
    for (int k = 0; k < u.sreads; k++)
        for (u32 i = u.sread[k].first; i < u32(u.sread[k].first) + u.sread[k].count && i < 102; i++)
            if (!c.swritten[i]) {
                if (first_hit(s, index, Check::UNINITIALISED_REGISTER))
                    report(s, w, index, Check::UNINITIALISED_REGISTER, "error", "s" + std::to_string(i),
                           "reads a register that was never written");
                return;
            }
}

}  // namespace

void checks_before(WorkerState &s, Wave &w, const Op &op, const OpUse &u, u32 index) {
    CheckState &c = *w.check;
    if (u.kind == OpKind::WAITCNT) {
        if (u.vmcnt >= 0) close_vm(c, size_t(u.vmcnt));
        if (u.lgkmcnt >= 0) close_lgkm(c, size_t(u.lgkmcnt));
    } else if (c.pending_count | c.spending_count) {
        check_pending(s, w, u, index);
    }
    check_written(s, w, u, index);
    checks_hazards(s, w, op, u, index);
    u64 lanes = u.exec_free ? ~0ull : w.exec();
    const bool open = high_half_undefined(c, u);
    for (int k = 0; k < u.vwrites; k++)
        for (u32 i = u.vwrite[k].first; i < u32(u.vwrite[k].first) + u.vwrite[k].count && i < kVgprs; i++)
            c.written[i] |= lanes;
    if (open && u.vwrites) c.written[u.vwrite[0].first + 1] = 0;
    for (int k = 0; k < u.swrites; k++)
        for (u32 i = u.swrite[k].first; i < u32(u.swrite[k].first) + u.swrite[k].count && i < kSgprs; i++)
            c.swritten[i] = true;
}

void checks_after(WorkerState &s, Wave &w, const Op &op, const OpUse &u, u32 index) {
    CheckState &c = *w.check;
    InFlight f;
    f.op = index;
    if (u.vwrites) f.dst = u.vwrite[0];
    bool lds_kind = u.kind == OpKind::LDS_READ || u.kind == OpKind::LDS_WRITE || u.kind == OpKind::LDS_OTHER;
    if (lds_kind || u.kind == OpKind::SMEM || u.flat) {
        f.seq = ++c.lgkm_issued;
        f.scalar = u.kind == OpKind::SMEM;
        if (f.scalar) {
            f.dst = u.swrites ? u.swrite[0] : RegRange{};
            c.scalar_outstanding++;
        } else {
            f.lds_seq = ++c.lds_issued;
        }
        c.lgkm.push_back(f);
        mark_pending(c, f, Queue::LGKM);
        // The counter saturates at 15: issue stalls until it can count again.
        while (c.lgkm.size() > 15 && c.scalar_outstanding == 0) close_lgkm(c, 15);
    }
    if (u.kind == OpKind::VMEM_LOAD || u.kind == OpKind::VMEM_STORE || u.kind == OpKind::VMEM_LDS) {
        f.seq = ++c.vm_issued;
        f.scalar = false;
        f.lds_seq = 0;
        c.vm.push_back(f);
        mark_pending(c, f, Queue::VM);
        if (c.vm.size() > 63) close_vm(c, 63);
    }
    // A direct-to-LDS load whose lanes are all out of range touches no memory, yet writes zeros to LDS.
    if (u.kind == OpKind::VMEM_LDS ? w.mem.mask2 != 0 : w.mem.mask && w.mem.lds) checks_lds(s, w, op, u, index);
}

}  // namespace moon
