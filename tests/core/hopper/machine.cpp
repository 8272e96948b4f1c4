#include "machine.h"

#include <cstdio>
#include <mutex>

namespace machine {

Fiber *self = nullptr;

namespace {

constexpr size_t kStackBytes = 64 * 1024;
std::mutex one_launch;
ucontext_t scheduler;
const std::function<void()> *body = nullptr;

void enter() {
    (*body)();
    self->done = true;
    swapcontext(&self->context, &scheduler);
}

// All wait for each other: what for, once for each warp.
void report(const std::vector<Fiber> &fibers) {
    for (size_t i = 0; i < fibers.size(); i++) {
        const Fiber &fiber = fibers[i];
        if (fiber.done || (i % 32 && fiber.what == fibers[i - 1].what)) continue;
        std::fprintf(stderr, "block %u thread %u waits for %s %u\n", fiber.block->rank, fiber.thread, fiber.waits_for,
                     fiber.what);
    }
}

bool run_cluster(Cluster &cluster, u32 threads) {
    std::vector<Fiber> fibers(cluster.blocks.size() * threads);
    for (size_t i = 0; i < fibers.size(); i++) {
        Fiber &fiber = fibers[i];
        fiber.cluster = &cluster;
        fiber.block = &cluster.blocks[i / threads];
        fiber.thread = (u32)(i % threads);
        fiber.stack.reset(new u8[kStackBytes]);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = kStackBytes;
        makecontext(&fiber.context, enter, 0);
    }
    size_t left = fibers.size();
    while (left) {
        bool moved = false;
        for (Fiber &fiber : fibers) {
            if (fiber.done || (fiber.ready && !fiber.ready())) continue;
            fiber.ready = nullptr;
            self = &fiber;
            swapcontext(&scheduler, &fiber.context);
            left -= fiber.done;
            moved = true;
        }
        if (!moved) {
            report(fibers);
            return false;
        }
    }
    return true;
}

}  // namespace

void wait_until(std::function<bool()> ready, const char *what_for, u32 what) {
    if (ready()) return;
    self->waits_for = what_for;
    self->what = what;
    self->ready = std::move(ready);
    swapcontext(&self->context, &scheduler);
}

bool run(const std::function<void()> &kernel, u32 blocks, u32 cluster_size, u32 threads) {
    const std::lock_guard<std::mutex> lock(one_launch);
    body = &kernel;
    for (u32 first = 0; first < blocks; first += cluster_size) {
        Cluster cluster;
        cluster.grid = blocks;
        cluster.blocks.resize(cluster_size);
        for (u32 i = 0; i < cluster_size; i++) {
            Block &block = cluster.blocks[i];
            block.index = first + i;
            block.rank = i;
            block.threads = threads;
            block.warps.resize(threads / 32);
            block.warpgroups.resize(threads / 128);
        }
        if (!run_cluster(cluster, threads)) return false;
    }
    return true;
}

}  // namespace machine
