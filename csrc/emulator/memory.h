// Device memory: reserved lazily, so that large allocations cost nothing until touched, with inaccessible pages around
// each. A device address is the host address of the byte.
#pragma once
#include "launch.h"

namespace moon {

struct Allocation {
    u64 base = 0, size = 0;  // what the user asked for
    u64 mapped = 0, mapped_size = 0;
    int device = 0;
    bool writable = true;  // by kernels
    bool user = true;      // made by hipMalloc
};

// Null when the device's memory is exhausted.
void *memory_allocate(int device, u64 size, bool user, bool writable);
bool memory_free(void *p, bool user);
bool memory_find(u64 address, Allocation *out);
u64 memory_used(int device);
std::vector<Range> memory_ranges(int device);
// Gives whole pages back to the system and leaves zeros; the rest is filled by hand.
void memory_fill(void *p, int value, u64 size);

}  // namespace moon
