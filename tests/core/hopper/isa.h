// What csrc/kernels/sm90a/isa.h offers, on the machine of machine.h: the kernels' other sources compile against either.
#pragma once

#include <cmath>

#include "../common/types.h"
#include "machine.h"

#define __global__
#define __device__
#define __shared__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define MOON_DEVICE inline

namespace moon {

MOON_DEVICE u32 thread_id() { return machine::self->thread; }
MOON_DEVICE u32 block_id() { return machine::self->block->index; }
MOON_DEVICE u32 grid_blocks() { return machine::self->cluster->grid; }
MOON_DEVICE u32 cluster_rank() { return machine::self->block->rank; }

MOON_DEVICE f32 flushed(f32 x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
MOON_DEVICE f32 exp2(f32 x) { return flushed(std::exp2(x)); }
MOON_DEVICE f32 log2(f32 x) { return std::log2(flushed(x)); }
MOON_DEVICE f32 reciprocal(f32 x) { return flushed(1 / flushed(x)); }
MOON_DEVICE f32 fma(f32 a, f32 b, f32 c) { return std::fma(a, b, c); }
MOON_DEVICE f32 max(f32 a, f32 b) { return std::fmax(a, b); }
MOON_DEVICE f32 min(f32 a, f32 b) { return std::fmin(a, b); }
MOON_DEVICE u32 rounded(f32 x) {
    u32 bits;
    std::memcpy(&bits, &x, 4);
    return x != x ? 0x7FFF : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}
MOON_DEVICE u32 pack_bf16(f32 low, f32 high) { return rounded(low) | rounded(high) << 16; }

MOON_DEVICE u32 shown(u32 x, u32 lane) { return machine::show(&x, 1)[lane][0]; }
MOON_DEVICE f32 shuffle_xor(f32 x, i32 mask) {
    u32 bits;
    std::memcpy(&bits, &x, 4);
    bits = shown(bits, thread_id() % 32 ^ (u32)mask);
    std::memcpy(&x, &bits, 4);
    return x;
}
MOON_DEVICE u32 uniform(u32 x) { return shown(x, 0); }
MOON_DEVICE bool any_lane(bool condition) {
    const u32 word = condition;
    const auto *all = machine::show(&word, 1);
    for (i32 lane = 0; lane < 32; lane++) {
        if (all[lane][0]) return true;
    }
    return false;
}
template <i32 registers>
MOON_DEVICE void raise_registers() {}
template <i32 registers>
MOON_DEVICE void lower_registers() {}

MOON_DEVICE void barrier_init(u32 barrier, u32 arrivals) {
    machine::barrier_at(barrier) = {(int)arrivals, (int)arrivals, 0, 0};
}
MOON_DEVICE void barrier_init_fence() {}
MOON_DEVICE void barrier_arrive(u32 barrier) {
    machine::Barrier &b = machine::barrier_at(barrier);
    b.pending--;
    b.settle();
}
MOON_DEVICE u32 address_in_block(u32 address, u32 block) { return address | (block + 1) << machine::kBlockShift; }
MOON_DEVICE void barrier_arrive_remote(u32 barrier) { barrier_arrive(barrier); }
MOON_DEVICE void barrier_expect(u32 barrier, u32 bytes) {
    machine::barrier_at(barrier).bytes += bytes;
    barrier_arrive(barrier);
}
MOON_DEVICE void barrier_wait(u32 barrier, u32 parity) {
    machine::Barrier &b = machine::barrier_at(barrier);
    machine::wait_until([&b, parity] { return b.phase % 2 != parity; }, "barrier", barrier);
}
MOON_DEVICE void cluster_sync() {
    machine::Cluster &cluster = *machine::self->cluster;
    machine::meet(cluster.meeting, (int)(cluster.blocks.size() * machine::self->block->threads));
}
MOON_DEVICE void warp_sync() { uniform(0); }
MOON_DEVICE void warpgroup_sync(u32 id) { machine::meet(machine::self->block->named[id], 128); }
MOON_DEVICE void async_proxy_fence() {}

// A kernel has one array of shared memory: it starts at 0.
MOON_DEVICE u32 shared_address(const void *) { return 0; }
MOON_DEVICE void store_shared(u32 address, const i32 *words) { std::memcpy(machine::at(address), words, 16); }
MOON_DEVICE void load_shared(i32 *words, u32 address) { std::memcpy(words, machine::at(address), 16); }
MOON_DEVICE void store_shared_zero(u32 address) { std::memset(machine::at(address), 0, 16); }
MOON_DEVICE void store_matrices(u32 address, const u32 (&x)[4]) {
    const auto *all = machine::show(&address, 1);
    const u32 lane = thread_id() % 32;
    for (u32 m = 0; m < 4; m++) std::memcpy(machine::at(all[8 * m + lane / 4][0] + lane % 4 * 4), &x[m], 4);
}
MOON_DEVICE void copy_out(void *to, u32 from, u32 bytes) { std::memcpy(to, machine::at(from), bytes); }
MOON_DEVICE void copy_out_commit() {}
MOON_DEVICE void copy_out_wait() {}

MOON_DEVICE void copy_tile_to(u32 to, const tensor_map *map, u32 barrier, i32 dim, i32 row, i32 head, i32 batch,
                              u16 blocks) {
    machine::Map m;
    std::memcpy(&m, map, sizeof m);
    for (u32 block = 0; block < machine::self->cluster->blocks.size(); block++) {
        if (!(blocks >> block & 1)) continue;
        machine::Block &there = machine::self->cluster->blocks[block];
        for (u64 r = 0; r < m.box[1]; r++) {
            for (u32 chunk = 0; chunk < 8; chunk++) {
                machine::u8 *place = there.shared.data() + machine::swizzled(to + (u32)r * 128 + chunk * 16);
                std::memset(place, 0, 16);
                if ((u64)row + r >= m.dims[1]) continue;
                std::memcpy(place,
                            reinterpret_cast<const machine::u8 *>(m.address) + ((u64)row + r) * m.strides[0] +
                                (u64)head * m.strides[1] + (u64)batch * m.strides[2] + (u64)dim * 2 + chunk * 16,
                            16);
            }
        }
        machine::Barrier &b = there.barriers[barrier / 8];
        b.bytes -= (long)m.box[1] * 128;
        b.settle();
    }
}
MOON_DEVICE void copy_tile(u32 to, const tensor_map *map, u32 barrier, i32 dim, i32 row, i32 head, i32 batch) {
    copy_tile_to(to, map, barrier, dim, row, head, batch, (u16)(1 << cluster_rank()));
}

MOON_DEVICE void mma_fence() {}
MOON_DEVICE void mma_commit() { machine::self->block->warpgroups[thread_id() / 128].issue(++machine::self->products); }
template <i32 n>
MOON_DEVICE void keep(f32 (&)[n]) {}
template <i32 groups, i32 n>
MOON_DEVICE void mma_wait(f32 (&)[n]) {
    const machine::Warpgroup &all = machine::self->block->warpgroups[thread_id() / 128];
    const u32 needed = machine::self->products - groups;
    machine::wait_until([&all, needed] { return (i32)(all.all - needed) >= 0; }, "products", needed);
}
constexpr u32 kDescriptorHigh = 0;
MOON_DEVICE u32 descriptor_low(u32 address, u32 leading_bytes) {
    return (address & 0x3FFFF) / 16 | leading_bytes / 16 << 16;
}
MOON_DEVICE u32 start_of(u32 descriptor) { return (descriptor & 0xFFFF) * 16; }
// Row `row` of an operand of 64 dims a row, from its descriptor's start.
MOON_DEVICE u32 row_start(u32 start, u32 row) { return start + row / 8 * 1024 + row % 8 * 128; }

template <i32 n>
MOON_DEVICE void mma_scores(f32 (&d)[n], u32 a, u32 b, bool accumulate) {
    const u32 lane = thread_id() % 32, warp = thread_id() % 128 / 32;
    f32 q[2][16];
    for (u32 i = 0; i < 2; i++) {
        const u32 from = row_start(start_of(a), warp * 16 + lane / 4 + 8 * i);
        for (u32 k = 0; k < 16; k++) q[i][k] = machine::element(machine::swizzled(from + 2 * k));
    }
    for (u32 j = 0; j < n / 4; j++) {
        for (u32 column = 0; column < 2; column++) {
            const u32 from = row_start(start_of(b), 8 * j + lane % 4 * 2 + column);
            f32 sum[2] = {};
            for (u32 k = 0; k < 16; k++) {
                const f32 key = machine::element(machine::swizzled(from + 2 * k));
                sum[0] += q[0][k] * key;
                sum[1] += q[1][k] * key;
            }
            for (u32 i = 0; i < 2; i++) {
                f32 &out = d[4 * j + 2 * i + column];
                out = (accumulate ? out : 0.0f) + sum[i];
            }
        }
    }
}
// Rows `lane / 4` and 8 below of an A operand that the warp holds in registers.
MOON_DEVICE void gather_rows(f32 (&rows)[2][16], const u32 *a) {
    const auto *all = machine::show(a, 4);
    const u32 first = thread_id() % 32 / 4 * 4;
    for (u32 i = 0; i < 2; i++) {
        for (u32 k = 0; k < 16; k++) {
            const u32 pair = all[first + k % 8 / 2][2 * (k / 8) + i];
            rows[i][k] = machine::widened((u16)(k % 2 ? pair >> 16 : pair));
        }
    }
}
MOON_DEVICE void mma_values(f32 (&d)[64], const u32 *a, u32 b) {
    f32 p[2][16];
    gather_rows(p, a);
    const u32 lane = thread_id() % 32, leading = (b >> 16) * 16;
    for (u32 k = 0; k < 16; k++) {
        const u32 from = row_start(start_of(b), k);
        for (u32 j = 0; j < 16; j++) {
            for (u32 column = 0; column < 2; column++) {
                const u32 dim = 8 * j + lane % 4 * 2 + column;
                const f32 value = machine::element(machine::swizzled(from + dim / 64 * leading + dim % 64 * 2));
                d[4 * j + column] += p[0][k] * value;
                d[4 * j + 2 + column] += p[1][k] * value;
            }
        }
    }
}
MOON_DEVICE void mma_warp(f32 *d, const u32 (&a)[4], u32 b0, u32 b1) {
    f32 rows[2][16];
    gather_rows(rows, a);
    const u32 both[2] = {b0, b1};
    const auto *all = machine::show(both, 2);
    for (u32 column = 0; column < 2; column++) {
        const u32 first = (thread_id() % 4 * 2 + column) * 4;
        for (u32 k = 0; k < 16; k++) {
            const u32 pair = all[first + k % 8 / 2][k / 8];
            const f32 value = machine::widened((u16)(k % 2 ? pair >> 16 : pair));
            d[column] += rows[0][k] * value;
            d[2 + column] += rows[1][k] * value;
        }
    }
}

}  // namespace moon
