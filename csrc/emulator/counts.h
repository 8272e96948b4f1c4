// Counts by instruction address, and the memory geometry that counts and traces share.
#pragma once
#include "instrument.h"

namespace moon {

struct OpCount {
    u64 executed = 0, lds_bytes = 0, lds_cycles = 0, lds_ideal = 0, global_bytes = 0, lines = 0;
};
struct CountState {
    std::vector<OpCount> ops;
};

// Passes over the LDS banks that an access takes, and the fewest that its size allows.
struct BankCycles {
    u32 cycles = 0, ideal = 0, bytes = 0;
};
BankCycles lds_bank_cycles(const Wave &w, const OpUse &u);

// The distinct 128-byte lines of a global access, in order; returns how many (lines has room for 192).
u32 touched_lines(const Wave &w, u64 *lines);

void count_op(CountState &c, const Wave &w, const OpUse &u, u32 index);

// Traces: one file a wavefront of the chosen workgroup.
struct TraceState;
TraceState *trace_open(Wave &w, const std::string &prefix);
void trace_op(TraceState *t, const Wave &w, const OpUse &u, u32 index);
bool trace_close(TraceState *t);
bool trace_table(const Launch &l, const std::string &path);  // the static description of every instruction

}  // namespace moon
