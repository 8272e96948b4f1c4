// K and V from memory to LDS: which bytes the next loads of a wave bring.
//
// Step j fills ring slot j mod 4 with V of tile j and K of tile j + 1 (tiles counted from the part's first); step -1
// brings K of tile 0 alone. A wave loads 8 rows of each by four loads of 16 bytes a lane. The buffer resource moves
// with the tile, so that no offset ever exceeds a tile and 64-bit addresses cost two scalar adds; its range ends at the
// part's last key, beyond which LDS gets zeros: P is 0 there, and 0 times whatever lies in memory must be 0.
#pragma once

#include "layout.h"

namespace moon {

constexpr i32 kAdvances = 3;
constexpr i32 kRangeAndFormat = 0x00027000;  // raw buffer, 32-bit data

// One of K and V. All but the lane offsets is wave-uniform.
struct Stream {
    u64 at;     // the wave's first row of the next step's tile
    u32 range;  // bytes from there that may be read
    u32 row_bytes;
    u32 tile_bytes;      // dense: how far `at` moves with each step
    u32 lane_offset[2];  // of the step's two loads

    // Paged: `at` is found anew for each step.
    u64 base;  // the head's first row in page 0
    u32 page_bytes;
    u32 table_offset;    // of the next step's page in the block table
    u32 offset_in_page;  // of the wave's first row
    i32 page;

    __device__ __forceinline__ i32x4 resource() const {
        return i32x4{(i32)at, (i32)(at >> 32), (i32)range, kRangeAndFormat};
    }

    // `keys_left`: keys of the part from the wave's first row of the tile on; may be negative.
    __device__ __forceinline__ void limit(i32 keys_left) {
        keys_left = keys_left > kKeys ? kKeys : keys_left;
        range = keys_left > 0 ? (u32)keys_left * row_bytes : 0;
    }

    // Where row `row` of the sequence lies. Past `last_row` a page that exists is named, and nothing of it read.
    __device__ __forceinline__ void find(u32 row, u32 last_row, i32 page_shift) {
        table_offset = (row < last_row ? row : last_row) >> page_shift << 2;
        offset_in_page = (row & ((1u << page_shift) - 1)) * row_bytes;
    }
    __device__ __forceinline__ void enter_page() { at = base + (u64)(u32)page * page_bytes + offset_in_page; }
};

// The loads of one wave. A step is set up (paged: its pages looked up and entered), issued, and left behind by
// `advance`.
template <bool paged>
struct Loads {
    Stream k, v;
    u32 lds_k, lds_v;  // where this wave's first slab lies in a slot
    u32 slot;          // LDS offset of the next step's slot
    i32 keys_left;     // of the part, from the wave's first row of its first tile on

    const i32 *table;  // paged: the batch entry's pages
    i32 page_shift;    // log2 of the keys of a page
    u32 row;           // the wave's first row of the next step's V tile
    u32 last_row;      // of the sequence

    // Asks for the next step's pages; `set_up` waits for the answer.
    __device__ __forceinline__ void look_up() {
        if constexpr (paged) {
            v.page = scalar_load(table, v.table_offset);
            k.page = scalar_load(table, k.table_offset);
        }
    }

    __device__ __forceinline__ void set_up() {
        if constexpr (paged) {
            wait_scalar_loads(v.page, k.page);
            v.enter_page();
            k.enter_page();
        }
    }

    // Paged: where the next step's first rows lie.
    __device__ __forceinline__ void find_rows() {
        v.find(row, last_row, page_shift);
        k.find(row + kKeys, last_row, page_shift);
    }

    // Behind a step's loads: on to the next step, in kAdvances parts that fit between matrix instructions. Opaque, or
    // the compiler would do it in the next softmax.
    __device__ __forceinline__ void advance(i32 part) {
        if (part == 0) {
            slot = slot == kLastSlot ? 0 : slot + kSlotBytes;
            opaque_scalar(slot);
            if constexpr (paged) row += kKeys;
        } else {
            Stream &stream = part == 1 ? v : k;
            if constexpr (paged) {
                stream.find(part == 1 ? row : row + kKeys, last_row, page_shift);
                opaque_scalar(stream.table_offset);
                opaque_scalar(stream.offset_in_page);
            } else {
                stream.at += stream.tile_bytes;
                opaque_scalar(stream.at);
            }
        }
    }

    // Before a step that may reach past the part's last key. `step` counts from the part's first.
    __device__ __forceinline__ void limit(i32 step) {
        v.limit(keys_left - step * kKeys);
        k.limit(keys_left - (step + 1) * kKeys);
    }

    // The step's four loads: their LDS destination, and the loads themselves, one instruction apart at least.
    __device__ __forceinline__ void aim(i32 j) const {
        set_lds_destination(slot, j < 2 ? lds_k + j * kSlabPitchK : lds_v + (j - 2) * kSlabPitchV);
    }
    __device__ __forceinline__ void issue(i32 j) const {
        const Stream &stream = j < 2 ? k : v;
        load_to_lds(stream.resource(), stream.lane_offset[j % 2]);
    }

    // A whole step, or its first `count` loads: before the loop.
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
#pragma unroll
        for (i32 part = 0; part < kAdvances; part++) advance(part);
    }
};

constexpr i32 kLoadsPerStep = 4;  // of a wave: two of K, two of V

}  // namespace moon
