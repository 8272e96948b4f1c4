// What may accompany execution: checks, counts and traces. Off, the engine runs without a test per instruction.
#pragma once
#include "launch.h"

namespace moon {

struct CheckState;
struct LdsShadow;

bool instrumented(const Launch &l);
// Around a workgroup and each instruction.
struct WorkerState;
void instrument_group(Workgroup &g, Launch &l, WorkerState *s);
void instrument_before(Wave &w, const Op &op);
void instrument_after(Wave &w, const Op &op);
void instrument_barrier(Workgroup &g, Launch &l);  // every wave arrived
void instrument_group_end(Workgroup &g, Launch &l);

// A worker's share, merged into the launch when it is done.
WorkerState *instrument_worker(Launch &l);
void instrument_merge(Launch &l, WorkerState *s);

void report_finding(Wave &w, const Op &op, const char *kind, const char *severity, const std::string &where,
                    const std::string &detail);

}  // namespace moon
