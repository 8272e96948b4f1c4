// Where checks, counts and traces hook into execution.
#include "instrument.h"
#include "checks.h"
#include "counts.h"

namespace moon {

namespace {

bool traced(const Launch &l, const Workgroup &g) {
    u64 index = g.id[0] + u64(l.grid[0]) * (g.id[1] + u64(l.grid[1]) * g.id[2]);
    return !l.options.trace.empty() && index == l.options.trace_workgroup;
}

u32 index_of(const Wave &w, const Op &op) { return u32(&op - w.launch->program->ops.data()); }

}  // namespace

bool instrumented(const Launch &l) { return l.options.checks || l.options.counts || !l.options.trace.empty(); }

WorkerState *instrument_worker(Launch &l) {
    auto *s = new WorkerState;
    s->launch = &l;
    s->checks = l.options.checks;
    s->hits.resize(l.program->ops.size());
    if (l.options.counts) {
        s->count = new CountState;
        s->count->ops.resize(l.program->ops.size());
    }
    return s;
}

void instrument_group(Workgroup &g, Launch &l, WorkerState *s) {
    if (s->checks) {
        s->waves.assign(g.waves.size(), CheckState());
        s->shadow.dwords.assign((g.lds.size() + 3) / 4, LdsDword());
    }
    for (Wave *w : g.waves) {
        w->worker = s;
        w->trace = nullptr;
        if (s->checks) {
            CheckState &c = s->waves[size_t(w->id)];
            w->check = &c;
            c.written[0] = ~0ull;
            // The registers that the hardware fills: those are no longer poison. A system SGPR may hold any value, so
            // that the descriptor's count decides.
            u32 n = l.kernel->rsrc2 >> 1 & 31;
            for (int d = 0; d < 4; d++) n += l.kernel->rsrc2 >> (7 + d) & 1;
            for (u32 i = 0; i < n; i++) c.swritten[i] = true;
        }
        if (traced(l, g)) w->trace = trace_open(*w, l.options.trace);
    }
}

void instrument_before(Wave &w, const Op &op) {
    WorkerState &s = *w.worker;
    u32 index = index_of(w, op);
    w.mem.mask = w.mem.mask2 = 0;
    w.mem.second = false;
    if (s.checks && op.row) checks_before(s, w, op, w.launch->program->uses[index], index);
}

void instrument_after(Wave &w, const Op &op) {
    WorkerState &s = *w.worker;
    u32 index = index_of(w, op);
    const OpUse &u = w.launch->program->uses[index];
    if (s.checks && op.row) checks_after(s, w, op, u, index);
    if (s.count) count_op(*s.count, w, u, index);
    if (w.trace) trace_op(w.trace, w, u, index);
}

void instrument_barrier(Workgroup &g, Launch &l) {
    (void)l;
    for (Wave *w : g.waves)
        if (w->check) {
            w->check->vm_at_barrier = w->check->vm_closed;
            w->check->lds_at_barrier = w->check->lds_closed;
        }
}

void instrument_group_end(Workgroup &g, Launch &l) {
    WorkerState &s = *g.waves[0]->worker;
    if (s.checks && !l.stop) {
        const Wave *least = g.waves[0], *most = g.waves[0];
        for (const Wave *w : g.waves) {
            least = w->barriers < least->barriers ? w : least;
            most = w->barriers > most->barriers ? w : most;
        }
        u32 at = u32(least->pc - 1 - l.program->ops.data());
        if (least->barriers != most->barriers && first_hit(s, at, Check::BARRIER_MISMATCH))
            report(s, *const_cast<Wave *>(least), at, Check::BARRIER_MISMATCH, "error", "barrier",
                   "wavefront " + std::to_string(least->id) + " ended after " + std::to_string(least->barriers) +
                       " barriers, wavefront " + std::to_string(most->id) + " after " + std::to_string(most->barriers));
    }
    bool wrote = false, good = true;
    for (Wave *w : g.waves)
        if (w->trace) {
            good &= trace_close(w->trace);
            w->trace = nullptr;
            wrote = true;
        }
    if (!wrote) return;
    good &= trace_table(l, l.options.trace + ".json");
    if (!good) {
        std::lock_guard<std::mutex> hold(l.lock);
        l.stop = true;
        if (!l.error) {
            l.error = 1;
            l.message = "kernel " + l.kernel->name + ": the trace cannot be written under " + l.options.trace;
        }
    }
}

void instrument_merge(Launch &l, WorkerState *s) {
    std::lock_guard<std::mutex> hold(l.lock);
    std::vector<u64> repeats;
    for (Finding f : s->findings.list()) {
        f.count = 0;
        for (size_t i = 0; i < l.program->ops.size(); i++)
            if (l.program->ops[i].address == f.address) {
                // Every hit of this check at this instruction; the soft wait states are told apart by severity.
                for (size_t k = 0; k < size_t(Check::COUNT); k++)
                    if (f.kind == check_name(k) &&
                        (Check(k) == Check::WAIT_STATES_SOFT) == (f.kind == "wait-states" && f.severity == "warning"))
                        f.count = s->hits[i][k];
            }
        l.findings.add(f);
    }
    if (s->count) {
        if (!l.counts) {
            l.counts = std::make_shared<CountState>();
            l.counts->ops.resize(s->count->ops.size());
        }
        for (size_t i = 0; i < s->count->ops.size(); i++) {
            OpCount &a = l.counts->ops[i];
            const OpCount &b = s->count->ops[i];
            a.executed += b.executed, a.lds_bytes += b.lds_bytes, a.lds_cycles += b.lds_cycles,
                a.lds_ideal += b.lds_ideal;
            a.global_bytes += b.global_bytes, a.lines += b.lines;
        }
    }
    delete s->count;
    delete s;
}

void report_finding(Wave &w, const Op &op, const char *kind, const char *severity, const std::string &where,
                    const std::string &detail) {
    Finding f;
    char name[96];
    mnemonic(op, name, sizeof(name));
    f.kind = kind, f.severity = severity, f.where = where, f.detail = detail, f.mnemonic = name, f.address = op.address,
    f.wave = w.id;
    for (int d = 0; d < 3; d++) f.group[d] = w.group->id[d];
    std::lock_guard<std::mutex> hold(w.launch->lock);
    w.launch->findings.add(f);
}

}  // namespace moon
