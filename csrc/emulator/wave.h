// The state of a wavefront and of the workgroup it belongs to.
#pragma once
#include "isa.h"
#include <atomic>
#include <memory>
#include <string>
#include <vector>

namespace moon {

constexpr int kVgprs = 512;   // 256 architectural, then 256 accumulation registers
constexpr int kTempRows = 8;  // rows after them that DPP and SDWA use
constexpr int kSgprs = 128;   // by encoding number: 106 VCC, 124 M0, 126 EXEC
constexpr u16 kVcc = 106, kM0 = 124, kExec = 126;
constexpr u16 kNoReg = 0xffff;

enum class Stop : u8 { RUN, BARRIER, END, YIELD, FAULT };

// What the last memory instruction touched; checks, counts and traces read it after the instruction ran.
struct MemAccess {
    u64 mask = 0;      // lanes that accessed memory
    u32 bytes = 0;     // a lane
    bool lds = false;  // addr holds LDS byte addresses
    bool write = false;
    bool second = false;  // addr2 is valid too (ds_read2, ds_write2; LDS side of a direct-to-LDS load)
    u32 bytes2 = 0;
    u64 mask2 = 0;
    u64 addr[kLanes];
    u64 addr2[kLanes];
};

struct Program;
struct Launch;
struct Workgroup;
struct CheckState;
struct TraceState;

struct alignas(64) Wave {
    u32 v[kVgprs + kTempRows][kLanes];
    u32 tmp[3][2 * kLanes];  // broadcast or modified sources
    u32 out[2 * kLanes];     // results before they are masked into the destination
    u32 lanes[kLanes];       // EXEC as a mask per lane, valid for lanes_exec
    u64 lanes_exec = ~0ull;
    u32 s[kSgprs + 16];  // room for a range that starts at the last ones
    bool scc = false;
    const Op *pc = nullptr;
    Stop stop = Stop::RUN;

    // MODE, from the kernel descriptor and s_setreg
    u32 mode = 0;
    bool flush32 = false, flush32_in = false, flush32_out = false;
    bool flush64 = false, flush64_in = false, flush64_out = false;  // f16 and f64
    bool ieee = true, dx10_clamp = true;
    bool rounding = false;  // any rounding mode but nearest even

    Launch *launch = nullptr;
    Workgroup *group = nullptr;
    int id = 0;  // in the workgroup
    u64 executed = 0;
    u32 barriers = 0;
    u64 range_lo = 1, range_hi = 0;  // the allocation that the last access hit
    bool range_write = false;
    std::vector<u8> scratch;  // private segment, lane by lane
    u32 scratch_bytes = 0;    // a lane
    MemAccess mem;
    CheckState *check = nullptr;
    struct WorkerState *worker = nullptr;
    TraceState *trace = nullptr;

    u64 exec() const { return s[kExec] | u64(s[kExec + 1]) << 32; }
    u64 s64(u32 i) const { return s[i] | u64(s[i + 1]) << 32; }
    void set_s64(u32 i, u64 x) {
        s[i] = u32(x);
        s[i + 1] = u32(x >> 32);
    }
    void set_mode(u32 m);
    const u32 *exec_lanes() {
        u64 e = exec();
        if (e != lanes_exec) refresh_lanes(e);
        return lanes;
    }
    void refresh_lanes(u64 e);
};

// Scalar reads of any source: registers, constants, VCCZ, EXECZ, SCC.
u32 read_special(const Wave &w, u32 index);
inline u32 read_s32(const Wave &w, const Operand &o) {
    if (o.kind == Kind::SGPR) return w.s[o.index];
    if (o.kind == Kind::CONST) return o.value;
    return read_special(w, o.index);
}
inline u64 read_s64(const Wave &w, const Operand &o) {
    if (o.kind == Kind::SGPR) return w.s64(o.index);
    if (o.kind == Kind::CONST) return o.value | u64(o.value_hi) << 32;
    return read_special(w, o.index);
}

// Stops the wave and the launch; the first fault of a launch wins.
void fault(Wave &w, const Op &op, int error, const char *format, ...) __attribute__((format(printf, 4, 5)));

struct Workgroup {
    u32 id[3] = {0, 0, 0};
    u32 lds_bytes = 0;  // declared
    std::vector<u8> lds;
    std::vector<Wave *> waves;
    struct LdsShadow *shadow = nullptr;
    u32 epoch = 0;  // barriers passed
};

}  // namespace moon
