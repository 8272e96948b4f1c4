// Process-wide options, from the environment and moonEmuSetOption.
#pragma once
#include "types.h"
#include <string>

namespace moon {

struct Options {
    bool exact_mma = false;
    bool checks = false;
    bool counts = false;
    int order = 0;    // 0 forward, 1 reverse, 2 random, 3 interleaved
    u64 quantum = 0;  // interleaved: instructions a turn
    u64 seed = 0;
    int threads = 0;          // 0: all cores
    u64 budget = 0;           // wave-instructions a launch may take; 0: no limit
    std::string trace;        // path prefix
    u64 trace_workgroup = 0;  // which one is traced, counted along x first
    int cu_count = 0;         // 0: the device's own
};

bool set_option(const char *key, const char *value);  // false: unknown key or value
Options options();
std::string accepted(const std::string &key);  // the values of an option, or, for an unknown key, the options

}  // namespace moon
