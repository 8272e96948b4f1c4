// Instrumentation: for now nothing but findings.
#include "instrument.h"

namespace moon {

struct CheckState {};
struct LdsShadow {};
struct CountState {};
struct WorkerState {};

bool instrumented(const Launch &) { return false; }
void instrument_group(Workgroup &, Launch &) {}
void instrument_wave(Wave &) {}
void instrument_before(Wave &, const Op &) {}
void instrument_after(Wave &, const Op &) {}
void instrument_barrier(Workgroup &, Launch &) {}
void instrument_group_end(Workgroup &, Launch &) {}
WorkerState *instrument_worker(Launch &) { return nullptr; }
void instrument_merge(Launch &, WorkerState *) {}

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

#include "report.h"
namespace moon {
std::string counts_json(const Launch &) { return ""; }
}  // namespace moon
