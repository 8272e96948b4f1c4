// One launch: its arguments, what it may touch, and what it found.
#pragma once
#include "findings.h"
#include "options.h"
#include "program.h"
#include <mutex>

namespace moon {

struct Range {
    u64 lo = 0, hi = 0;
    bool writable = true;
};

struct Device {
    const char *arch;       // "gfx942"
    const char *full_arch;  // "gfx942:sramecc+:xnack-"
    const char *name;
    int cus, xcds, clock_khz, memory_clock_khz;
    u32 lds_bytes;
    u64 memory;
};

struct CountState;

struct Launch {
    std::shared_ptr<Program> program;
    const Kernel *kernel = nullptr;
    const Device *device = nullptr;
    Options options;
    u32 grid[3] = {1, 1, 1}, block[3] = {1, 1, 1};
    u32 dynamic_lds = 0;
    u64 kernarg = 0;  // address of the packed arguments
    u32 kernarg_size = 0;
    std::vector<Range> ranges;  // sorted; everything the kernel may touch

    std::mutex lock;  // guards what follows
    int error = 0;
    std::string message;
    Findings findings;
    std::shared_ptr<CountState> counts;
    std::atomic<bool> stop{false};
    std::atomic<u64> next_group{0}, executed{0};
    double seconds = 0;

    u64 groups() const { return u64(grid[0]) * grid[1] * grid[2]; }
    u32 threads() const { return block[0] * block[1] * block[2]; }
};

// Runs every workgroup; returns a HIP error code, with launch.message filled on failure.
int run_launch(Launch &launch);

}  // namespace moon
