// The ring of K and V tiles: who fills a slot, who waits for it, who gives it back.
//
// In a cluster of two every tile goes to both blocks: each block's loader brings one half of 64 dims to both. A slot is
// full when both halves are there, and empty when all warpgroups of the cluster have given it back.
// Order of a work item with tiles e - 1 .. b, top down:  K(e-1)  K(e-2) V(e-1)  K(e-3) V(e-2)  ...  K(b) V(b+1)  V(b)
#pragma once

#include "layout.h"

namespace moon {

struct Ring {
    u32 shared;  // address of the block's shared memory
    u32 slot, parity;

    MOON_DEVICE u32 tile() const { return shared + kRingOffset + slot * kSlotBytes; }
    MOON_DEVICE u32 full() const { return shared + kFullOffset + slot * 8; }
    MOON_DEVICE u32 empty() const { return shared + kEmptyOffset + slot * 8; }
    MOON_DEVICE void wait_full() const { barrier_wait(full(), parity); }
    MOON_DEVICE void wait_empty() const { barrier_wait(empty(), parity ^ 1); }
    MOON_DEVICE void advance() {
        if (++slot == kSlots) {
            slot = 0;
            parity ^= 1;
        }
    }
};

// A warpgroup's items: their notes, and whether their Q is there.
struct Items {
    u32 shared;
    u32 group;  // of the block's three
    u32 turn;   // of two notes

    MOON_DEVICE u32 query() const { return shared + group * kQueryBytes; }
    MOON_DEVICE u32 note() const { return shared + kNoteOffset + (2 * group + turn) * kNoteBytes; }
    MOON_DEVICE u32 full() const { return shared + kQueryFullOffset + group * 8; }
    MOON_DEVICE u32 empty() const { return shared + kQueryEmptyOffset + group * 8; }
    MOON_DEVICE void wait_full() const { barrier_wait(full(), turn); }
    MOON_DEVICE void wait_empty() const { barrier_wait(empty(), turn ^ 1); }
    MOON_DEVICE void advance() { turn ^= 1; }
};

// One thread of a block.
template <typename Shape>
MOON_DEVICE void init_barriers(u32 shared) {
    for (u32 i = 0; i < kSlots; i++) {
        barrier_init(shared + kFullOffset + i * 8, 1);
        barrier_init(shared + kEmptyOffset + i * 8, kConsumers * Shape::cluster);
    }
    for (u32 i = 0; i < kConsumers; i++) {
        barrier_init(shared + kQueryFullOffset + i * 8, 1);
        barrier_init(shared + kQueryEmptyOffset + i * 8, 1);
    }
    barrier_init_fence();
}

// --- consumers -------------------------------------------------------------------------------------------------------

// A warpgroup gives a slot back to every block of the cluster, its first warps one each. Only after all four warps are
// through with it: a finished matrix instruction of the warpgroup says so, or `warpgroup_sync`. `to`: this thread's
// `release_address`.
MOON_DEVICE void release(u32 to, u32 slot) {
    if (to) barrier_arrive_remote(to + slot * 8);
}
template <typename Shape>
MOON_DEVICE u32 release_address(u32 shared, u32 thread) {
    return thread % 32 == 0 && thread < 32 * Shape::cluster ? address_in_block(shared + kEmptyOffset, thread / 32) : 0;
}

// Lets `tiles` tiles pass that none of this warpgroup's rows sees.
MOON_DEVICE void pass(Ring &ring, i32 tiles, u32 group, u32 release_to) {
#pragma unroll 1
    for (i32 i = 0; i < tiles; i++) {
        ring.wait_full();
        // A warp that lags a whole turn of the ring would wait for a parity that has come and gone.
        warpgroup_sync(1 + group);
        release(release_to, ring.slot);
        ring.advance();
    }
}

// --- producers -------------------------------------------------------------------------------------------------------

template <typename Shape>
MOON_DEVICE void load_tile(Ring &ring, u32 rank, const tensor_map *map, i32 tile, const Work &work) {
    ring.wait_empty();
    barrier_expect(ring.full(), 2 * Shape::tile_half);
    const i32 row = work.row0_k + tile * Shape::keys;
    if (Shape::cluster == 1) {
        copy_tile(ring.tile(), map, ring.full(), 0, row, work.head_kv, work.map_batch);
        copy_tile(ring.tile() + Shape::tile_half, map, ring.full(), 64, row, work.head_kv, work.map_batch);
    } else {
        copy_tile_to(ring.tile() + rank * Shape::tile_half, map, ring.full(), (i32)rank * 64, row, work.head_kv,
                     work.map_batch, (1 << Shape::cluster) - 1);
    }
    ring.advance();
}

// One thread of each block.
template <typename Shape>
MOON_DEVICE void load_keys_and_values(const Sm90aArgs &a, u32 shared, u32 rank) {
    Ring ring = {shared, 0, 0};
    const i32 items = work_items<Shape>(a), clusters = (i32)grid_blocks() / Shape::cluster;
#pragma unroll 1
    for (i32 item = (i32)block_id() / Shape::cluster; item < items; item += clusters) {
        const Work work = find_work<Shape>(a, item);
        if (is_void(work) || work.begin == work.end) continue;
        load_tile<Shape>(ring, rank, &a.k_map, work.end - 1, work);
#pragma unroll 1
        for (i32 tile = work.end - 2; tile >= work.begin; tile--) {
            load_tile<Shape>(ring, rank, &a.k_map, tile, work);
            load_tile<Shape>(ring, rank, &a.v_map, tile + 1, work);
        }
        load_tile<Shape>(ring, rank, &a.v_map, work.begin, work);
    }
}

// One thread for each warpgroup of the block: its notes and its Q. A note is written over when its item's Q was given
// back one item ago, so after all of the warpgroup has read it for the last time.
template <typename Shape>
MOON_DEVICE void load_queries(const Sm90aArgs &a, u32 shared, u32 rank, u32 group) {
    Items it = {shared, group, 0};
    const i32 items = work_items<Shape>(a), clusters = (i32)grid_blocks() / Shape::cluster;
#pragma unroll 1
    for (i32 item = (i32)block_id() / Shape::cluster; item < items; item += clusters) {
        const Work work = find_work<Shape>(a, item);
        const Note note = note_of<Shape>(work, rank, group);
        it.wait_empty();
        write_note(it.note(), note);
        if (note.tiles > 0) {
            const i32 row = work.row0_q + note.group_row;
            barrier_expect(it.full(), kQueryBytes);
            copy_tile(it.query(), &a.q_map, it.full(), 0, row, work.head, work.map_batch);
            copy_tile(it.query() + kQueryHalf, &a.q_map, it.full(), 64, row, work.head, work.map_batch);
        } else {
            barrier_arrive(it.full());
        }
        it.advance();
    }
}

}  // namespace moon
