// A multiprocessor for tests, as far as the sm_90a kernels see one: each thread is a fiber, run until it must wait.
//
// Matrix instructions and copies are done at once, so what overlaps on hardware does not here: this shows what a kernel
// computes and that nobody waits for ever, not that nothing races.
#pragma once

#include <ucontext.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

namespace machine {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;

constexpr u32 kSharedBytes = 227 * 1024;
constexpr u32 kBlockShift = 20;  // a remote address: block + 1 above, the address below

struct Barrier {
    int count = 0, pending = 0;
    long bytes = 0;
    u32 phase = 0;
    void settle() {
        if (pending == 0 && bytes == 0) {
            phase++;
            pending = count;
        }
    }
};

// Where a number of threads meet, again and again.
struct Meeting {
    int arrived = 0;
    u32 turn = 0;
};

// What the lanes of a warp show each other. Two boards in turn: nobody writes a board that somebody still reads.
struct Warp {
    u32 words[2][32][8];
    Meeting meeting;
};

// A warpgroup's matrix instruction needs all its threads, so it is done when the last of them has issued it.
struct Warpgroup {
    u32 threads_at[4096] = {};  // that have issued as many groups, modulo the array
    u32 all = 0;                // groups that all threads have issued
    void issue(u32 group) {
        threads_at[group % 4096]++;
        while (threads_at[(all + 1) % 4096] == 128) threads_at[++all % 4096] = 0;
    }
};

struct Block {
    u32 index = 0, rank = 0, threads = 0;
    std::vector<u8> shared = std::vector<u8>(kSharedBytes, 0xFF);
    std::vector<Barrier> barriers = std::vector<Barrier>(kSharedBytes / 8);
    std::vector<Warp> warps;
    Meeting named[16];
    std::vector<Warpgroup> warpgroups;
};

struct Cluster {
    std::vector<Block> blocks;
    Meeting meeting;
    u32 grid = 0;
};

struct Fiber {
    ucontext_t context;
    std::unique_ptr<u8[]> stack;
    Cluster *cluster;
    Block *block;
    u32 thread, turn = 0;  // of the warp's boards
    u32 products = 0;      // groups of matrix instructions that it has issued
    bool done = false;
    std::function<bool()> ready;  // empty: it can run
    const char *waits_for = "";
    u32 what = 0;
};

extern Fiber *self;

// Lets the others run until `ready`.
void wait_until(std::function<bool()> ready, const char *what_for, u32 what);

inline void meet(Meeting &at, int size) {
    const u32 turn = at.turn;
    if (++at.arrived == size) {
        at.arrived = 0;
        at.turn++;
        return;
    }
    wait_until([&at, turn] { return at.turn != turn; }, "others", (u32)size);
}

// Shows `count` words to the warp and returns all lanes' words.
inline const u32 (*show(const u32 *words, int count))[8] {
    Warp &warp = self->block->warps[self->thread / 32];
    const u32 board = self->turn++ % 2;
    std::memcpy(warp.words[board][self->thread % 32], words, 4 * (size_t)count);
    meet(warp.meeting, 32);
    return warp.words[board];
}

inline u8 *at(u32 address) { return self->block->shared.data() + address; }
inline Block &block_of(u32 address) {
    const u32 named = address >> kBlockShift;
    return named ? self->cluster->blocks[named - 1] : *self->block;
}
inline Barrier &barrier_at(u32 address) {
    return block_of(address).barriers[(address & ((1u << kBlockShift) - 1)) / 8];
}

// The 128-byte swizzle.
inline u32 swizzled(u32 address) { return address ^ (address >> 7 & 7) << 4; }

inline float widened(u16 word) {
    const u32 bits = (u32)word << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
inline float element(u32 address) {
    u16 word;
    std::memcpy(&word, at(address), 2);
    return widened(word);
}

// A tensor map as the tests' driver encodes it.
struct Map {
    uint64_t address, magic, dims[4], strides[3], box[4], unused[3];
};
static_assert(sizeof(Map) == 128, "as long as a real one");

// Runs `blocks` blocks in clusters of `cluster`. Returns whether all came to their end.
bool run(const std::function<void()> &kernel, u32 blocks, u32 cluster, u32 threads);

}  // namespace machine
