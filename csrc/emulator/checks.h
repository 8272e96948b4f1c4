// The state behind the checks: what is still on its way to registers and LDS, what was ever written, and how long ago
// the units that need wait states ran.
#pragma once
#include "instrument.h"
#include <array>
#include <deque>

namespace moon {

enum class Check : u8 {
    MISSING_WAITCNT,
    LDS_RACE,
    UNINITIALISED_REGISTER,
    UNINITIALISED_LDS,
    LDS_OUT_OF_BOUNDS,
    BARRIER_MISMATCH,
    MFMA_WAIT_STATES,
    WAIT_STATES,
    WAIT_STATES_SOFT,  // those that shipped kernels break: reported as warnings
    COUNT
};

enum class Queue : u8 { VM, LGKM };

// One issued memory instruction that a wait counter stands for.
struct InFlight {
    u32 seq = 0;      // in its queue
    u32 lds_seq = 0;  // LGKM: number among the wave's LDS instructions; 0 for scalar loads
    u32 op = 0;
    bool scalar = false;
    RegRange dst;  // VGPRs, or SGPRs of a scalar load
};

struct CheckState {
    std::deque<InFlight> vm, lgkm;
    u32 vm_issued = 0, vm_closed = 0;  // sequence numbers
    u32 lds_issued = 0, lds_closed = 0;
    u32 lgkm_issued = 0;
    u32 scalar_outstanding = 0;
    u32 vm_at_barrier = 0, lds_at_barrier = 0;  // closed when the last barrier was passed

    // Registers on their way, by queue.
    u8 pending[kVgprs] = {};
    u32 pending_seq[2][kVgprs] = {};
    u32 pending_op[kVgprs] = {};
    u32 pending_count = 0;
    u8 spending[kSgprs] = {};
    u32 spending_seq[kSgprs] = {}, spending_op[kSgprs] = {};
    u32 spending_count = 0;

    u64 written[kVgprs] = {};  // lanes
    std::array<bool, kSgprs> swritten{};

    // Wait states: the clock counts one an instruction, and s_nop's own number.
    u32 clock = 1000;
    u32 last_mfma = 0;
    u32 mfma_at[kVgprs] = {}, valu_at[kVgprs] = {}, trans_at[kVgprs] = {}, c_read_at[kVgprs] = {};
    u32 wide_store_at[kVgprs] = {};  // data of a store of more than 8 bytes
    u8 mfma_passes[kVgprs] = {}, c_passes[kVgprs] = {};
    RegRange mfma_dst[kVgprs];
    u32 valu_sgpr_at[kSgprs] = {}, salu_at[kSgprs] = {};
    u32 valu_exec_at = 0;
};

// Who touched each dword of LDS last. A wave's accesses are numbered by queue, so that "was it complete at the last
// barrier" is one comparison.
struct LdsDword {
    u32 write_seq = 0, read_seq = 0;
    u32 write_epoch = 0, read_epoch = 0;
    u32 write_op = 0, read_op = 0;
    i8 writer = -1, reader = -1;
    bool dma = false, written = false;
    u16 readers = 0;  // waves that read in read_epoch
};
struct LdsShadow {
    std::vector<LdsDword> dwords;
};

// A worker's own lists, merged at the end of the launch.
struct WorkerState {
    Launch *launch = nullptr;
    bool checks = false, counts = false;
    std::vector<CheckState> waves;
    LdsShadow shadow;
    std::vector<std::array<u32, size_t(Check::COUNT)>> hits;  // by op
    Findings findings;
    struct CountState *count = nullptr;
};

void checks_before(WorkerState &s, Wave &w, const Op &op, const OpUse &u, u32 index);
void checks_after(WorkerState &s, Wave &w, const Op &op, const OpUse &u, u32 index);
void checks_lds(WorkerState &s, Wave &w, const Op &op, const OpUse &u, u32 index);
void checks_hazards(WorkerState &s, Wave &w, const Op &op, const OpUse &u, u32 index);
void report(WorkerState &s, Wave &w, u32 op, Check c, const char *severity, const std::string &where,
            const std::string &detail);
// True the first time at this instruction; otherwise only counts.
inline bool first_hit(WorkerState &s, u32 op, Check c) { return s.hits[op][size_t(c)]++ == 0; }
const char *check_name(size_t c);
std::string register_name(u32 vgpr);
std::string op_at_text(const WorkerState &s, u32 op);

}  // namespace moon
