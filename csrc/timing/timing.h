// A timing model of one compute unit: what the machine code of one workgroup implies, given a set of constants.
//
// It replays the instructions that each wavefront executed in the emulator. Nothing is computed; only when an
// instruction may issue and how long it holds which unit. What is not modelled: instruction fetch, VGPR banks,
// contention beyond the L1, clocks and power.
#pragma once

#include <cstdint>

extern "C" {

// What an instruction occupies. One instruction per category and SIMD turn; VALU, transcendental, packed and matrix
// instructions share the vector issue port.
enum MoonTimingClass : uint8_t {
    kValu,
    kTranscendental,
    kPacked,  // v_pk_* on fp32
    kMfma,
    kScalar,
    kScalarLoad,
    kLdsRead,
    kLdsWrite,
    kVectorLoad,
    kVectorStore,
    kLdsDma,  // global memory to LDS
    kBranch,
    kBarrier,
    kWaitcnt,
    kNop,
    kSetprio,
    kOther,
    kClasses,
};

// Consecutive vector registers; AGPRs start at 256.
struct MoonTimingRange {
    uint16_t first, count;
};

// An instruction as it stands in the code.
struct MoonTimingInstruction {
    MoonTimingClass kind;
    uint8_t reads;           // used entries of `read`
    int16_t vmcnt, lgkmcnt;  // s_waitcnt: outstanding operations allowed; -1: that counter is not waited on
    uint16_t immediate;      // s_nop count, s_setprio level
    uint16_t matrix_cycles;  // cycles in the matrix pipe
    uint16_t dwords;         // LDS writes: dwords a lane
    MoonTimingRange read[4];
    MoonTimingRange accumulator;  // matrix instructions: SrcC
    MoonTimingRange write;
};

// An instruction as a wavefront executed it.
struct MoonTimingRecord {
    uint32_t instruction;
    uint32_t first_line;  // into the wave's lines
    uint16_t lines;       // touched 128-byte lines of global memory
    uint16_t lds_bytes;   // bytes moved by an LDS instruction
    uint16_t lds_conflict_cycles;
    uint16_t taken;  // 1: a branch that was taken
};

struct MoonTimingWave {
    const MoonTimingRecord *records;
    const uint32_t *lines;
    uint64_t count;
};

// Cycles, unless said otherwise. The uncertain ones span the ensemble.
struct MoonTimingConstants {
    int32_t valu;                 // vector port held by a VALU instruction
    int32_t transcendental;       // by a transcendental
    int32_t mfma_port;            // by a matrix instruction
    int32_t mfma_overlaps_valu;   // 0: the port is held for the whole matrix instruction
    int32_t packed_beside_mfma;   // 0: packed fp32 waits for an idle matrix pipe
    int32_t mfma_result;          // after the pipe: result readable by others than an identical accumulator
    int32_t mfma_accumulate;      // after the pipe: readable as the identical accumulator
    int32_t valu_result;          // VALU result readable by the next vector instruction
    int32_t lds_bytes_per_cycle;  // of the compute unit; each SIMD pair has half
    int32_t lds_latency;
    int32_t l1_bytes_per_cycle;
    int32_t l1_hit_latency;
    int32_t l2_latency;  // first touch of a line
    int32_t l1_lines;    // capacity in 128-byte lines, least recently used goes
    int32_t barrier;     // after the last wave arrived
    int32_t branch_taken;
    int32_t scalar_load_latency;
};

// Why a wave did not issue, in SIMD turns of 4 cycles.
enum MoonTimingStall : uint8_t {
    kIssued,
    kStallPort,    // the vector port was held by the partner or by itself
    kStallMatrix,  // the matrix pipe was busy
    kStallResult,  // a matrix or vector result was not ready
    kStallVm,      // s_waitcnt vmcnt
    kStallLgkm,    // s_waitcnt lgkmcnt
    kStallBarrier,
    kStallCategory,  // the partner took the category or the turn
    kStallNop,       // s_nop, taken branches
    kStallDone,      // the wave has ended
    kStalls,
};

struct MoonTimingResult {
    uint64_t cycles;          // until the last wave ended
    uint64_t matrix_busy[4];  // per SIMD
    uint64_t port_busy[4];    // vector port, per SIMD
    uint64_t lds_busy[2];     // per SIMD pair
    uint64_t l1_busy;
    uint64_t stalls[16][kStalls];  // per wave
};

// Replay `wave_count` waves (at most 16; wave w runs on SIMD w % 4). `issue`, if not null, receives for each wave and
// record the cycle of issue, wave after wave. Returns 0, or 1 for bad arguments, 2 if no wave can make progress.
int moon_timing_run(const MoonTimingInstruction *instructions, uint64_t instruction_count, const MoonTimingWave *waves,
                    uint32_t wave_count, const MoonTimingConstants *constants, MoonTimingResult *result,
                    uint64_t *issue);
}
