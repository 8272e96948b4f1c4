// K and V from memory to LDS: which bytes the next loads of a wave bring.
//
// Step j fills ring slot j mod 4 with V of tile j and K of tile j + 1 (tiles counted from the part's first); step -1
// brings K of tile 0 alone. A wave loads 8 rows of each by four loads of 16 bytes a lane. The buffer resource moves
// with the tile, so that no offset ever exceeds a tile and 64-bit addresses cost two scalar adds; its range ends at the
// part's last key, beyond which LDS gets zeros: P is 0 there, and 0 times whatever lies in memory must be 0.
#pragma once

#include "layout.h"

namespace moon {

constexpr i32 kRangeAndFormat = 0x00027000;  // raw buffer, 32-bit data

// One of K and V. All but the lane offsets is wave-uniform.
struct Stream {
    u64 base;   // dense: the wave's rows of the next tile; paged: of a page
    u32 range;  // bytes from base that may be read
    u32 row_bytes;
    u32 tile_bytes;  // dense
    u32 page_bytes;  // paged
    u32 lane_offset[2];

    __device__ __forceinline__ i32x4 resource(u64 address) const {
        return i32x4{(i32)address, (i32)(address >> 32), (i32)range, kRangeAndFormat};
    }

    // `keys_left`: keys of the part from the wave's first row of the tile on; may be negative.
    __device__ __forceinline__ void limit(i32 keys_left) {
        keys_left = keys_left > kKeys ? kKeys : keys_left;
        range = keys_left > 0 ? (u32)keys_left * row_bytes : 0;
    }
};

// The pages of a paged cache. `row` is the wave's first row of the next step's V tile.
struct Pages {
    const i32 *table;  // of the batch entry
    i32 shift;         // log2 of the keys of a page
    u32 row, last_row;
    i32 page_k, page_v;

    __device__ __forceinline__ u32 table_offset(u32 at) const {
        at = at < last_row ? at : last_row;  // a tile past the end reads a page that exists, and nothing of it
        return at >> shift << 2;
    }
    __device__ __forceinline__ u32 row_in_page(u32 at) const { return at & ((1u << shift) - 1); }
};

template <bool paged>
struct Loads {
    Stream k, v;
    Pages pages;
    u32 lds_k, lds_v;  // where this wave's first slab lies in a slot
    i32 keys_left;     // of the part, from the wave's first row of its first tile on
    u32 slot;          // LDS offset of the next step's slot
    i32x4 resource_k, resource_v;

    // Ask for the next step's pages; the answer is there after `set_up`'s wait.
    __device__ __forceinline__ void look_up() {
        if constexpr (paged) {
            pages.page_v = scalar_load(pages.table, pages.table_offset(pages.row));
            pages.page_k = scalar_load(pages.table, pages.table_offset(pages.row + kKeys));
        }
    }

    // Resources of the next step.
    __device__ __forceinline__ void set_up() {
        u64 at_k = k.base, at_v = v.base;
        if constexpr (paged) {
            wait_scalar_loads(pages.page_v, pages.page_k);
            at_v += (u64)(u32)pages.page_v * v.page_bytes + (u64)(pages.row_in_page(pages.row) * v.row_bytes);
            at_k += (u64)(u32)pages.page_k * k.page_bytes + (u64)(pages.row_in_page(pages.row + kKeys) * k.row_bytes);
            pages.row += kKeys;
        } else {
            k.base += k.tile_bytes;
            v.base += v.tile_bytes;
        }
        resource_k = k.resource(at_k);
        resource_v = v.resource(at_v);
    }

    // Before the set-up of a step that may reach past the part's last key. `step` counts from the part's first.
    __device__ __forceinline__ void limit(i32 step) {
        v.limit(keys_left - step * kKeys);
        k.limit(keys_left - (step + 1) * kKeys);
    }

    // The step's four loads: their LDS destination, and the loads themselves, one instruction apart at least.
    __device__ __forceinline__ void aim(i32 j) const {
        set_lds_destination(slot, j < 2 ? lds_k + j * kSlabPitchK : lds_v + (j - 2) * kSlabPitchV);
    }
    __device__ __forceinline__ void issue(i32 j) const {
        if (j < 2) load_to_lds(resource_k, k.lane_offset[j]);
        if (j >= 2) load_to_lds(resource_v, v.lane_offset[j - 2]);
    }
    __device__ __forceinline__ void next_slot() { slot = slot == kLastSlot ? 0 : slot + kSlotBytes; }

    // The first `count` loads of a step, one after the other: before the loop. The next step is set up after it.
    __device__ __forceinline__ void bring(i32 step, i32 count) {
        look_up();
        limit(step);
        set_up();
#pragma unroll
        for (i32 j = 0; j < count; j++) {
            aim(j);
            asm volatile("s_nop 0");
            issue(j);
        }
        next_slot();
    }
};

constexpr i32 kLoadsPerStep = 4;  // of a wave: two of K, two of V

}  // namespace moon
