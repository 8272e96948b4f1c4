// Who owns what: which rows a workgroup, a wave and a lane compute, where K and V lie in LDS, and the wave's state.
#pragma once

#include "isa.h"

namespace moon {

// The argument struct: one list, shared with the build's manifest.
struct Cdna4Args {
#define MOON_ARG(type, name) type name;
#include "../common/cdna4_args.def"
#undef MOON_ARG
};

// All arguments at once into scalar registers: one wait for memory instead of one at each use.
__device__ __forceinline__ Cdna4Args load_arguments() {
    static_assert(sizeof(Cdna4Args) == 62 * sizeof(u32), "the words below are the arguments");
    const auto *from = (const MOON_CONSTANT u32 *)__builtin_amdgcn_kernarg_segment_ptr();
    u32x16 a = *reinterpret_cast<const MOON_CONSTANT u32x16 *>(from);
    u32x16 b = *reinterpret_cast<const MOON_CONSTANT u32x16 *>(from + 16);
    u32x16 c = *reinterpret_cast<const MOON_CONSTANT u32x16 *>(from + 32);
    u32x8 d = *reinterpret_cast<const MOON_CONSTANT u32x8 *>(from + 48);
    u32x4 e = *reinterpret_cast<const MOON_CONSTANT u32x4 *>(from + 56);
    u32x2 f = *reinterpret_cast<const MOON_CONSTANT u32x2 *>(from + 60);
    asm volatile("" : "+s"(a), "+s"(b), "+s"(c), "+s"(d), "+s"(e), "+s"(f));
    Cdna4Args args;
    __builtin_memcpy(&args, &a, 64);
    __builtin_memcpy(reinterpret_cast<u32 *>(&args) + 16, &b, 64);
    __builtin_memcpy(reinterpret_cast<u32 *>(&args) + 32, &c, 64);
    __builtin_memcpy(reinterpret_cast<u32 *>(&args) + 48, &d, 32);
    __builtin_memcpy(reinterpret_cast<u32 *>(&args) + 56, &e, 16);
    __builtin_memcpy(reinterpret_cast<u32 *>(&args) + 60, &f, 8);
    return args;
}

constexpr i32 kHeadDim = 128;
constexpr u32 kElement = 2;  // bytes
constexpr u32 kRowBytes = kHeadDim * kElement;
constexpr i32 kThreads = 512;
constexpr i32 kWaves = kThreads / kWavefront;  // waves 0-3 are group A, 4-7 group B
constexpr i32 kTiles = 3;                      // 16-row query tiles of a wave
constexpr i32 kRowsPerWave = 16 * kTiles;
constexpr i32 kRows = kWaves * kRowsPerWave;  // query rows of a workgroup: 384
constexpr i32 kKeys = 64;                     // keys of a tile
constexpr i32 kKeyBlocks = kKeys / 16;
constexpr i32 kDimBlocks = kHeadDim / 16;
constexpr i32 kNoDiagonal = 0x3FFFFFFF;

// --- LDS -------------------------------------------------------------------------------------------------------------
// A ring of four slots; slot p holds V of tile p and K of tile p + 1, which one matrix block reads together. (Three
// would do; the fourth gives every load one more tile of time and costs nothing.)
//
// A tile is 16 slabs. Slab 4a + b holds the rows 16a + b + {0, 4, 8, 12}, 256 bytes each: what one load of a wave
// brings, all of it from one page even when pages have 16 keys. Wave w brings slabs 2w and 2w + 1.
//
// The pitches start neighbouring slabs on other banks. In K the 16-byte chunks of sub-row j are permuted within each
// four: chunk 4c + g lies at 4c + (-g mod 4 ^ j). So each 16-lane pass of a read, K's and V's, touches every bank at
// most once, and every read of a tile is one lane address plus an immediate.

constexpr u32 kSlabs = 16;
constexpr u32 kSlabPitchK = 1024 + 64;
constexpr u32 kSlabPitchV = 1024 + 32;
constexpr u32 kOffsetV = kSlabs * kSlabPitchK;  // of V in a slot
constexpr u32 kSlotBytes = kOffsetV + kSlabs * kSlabPitchV;
constexpr u32 kSlots = 4;
constexpr u32 kLastSlot = (kSlots - 1) * kSlotBytes;
constexpr u32 kLdsBytes = kSlots * kSlotBytes;  // 137,216
static_assert(kLdsBytes <= 144384, "the LDS budget is 141 KiB");

// A wave loads rows first_loaded_row + e + {0, 4, 8, 12} of a tile with its load e = 0, 1.
__device__ __forceinline__ i32 first_loaded_row(i32 wave) { return 16 * (wave / 2) + 2 * (wave % 2); }

// Where this lane reads K: key lane % 16 of a 16-key block, dims 8 (lane / 16) of a 32-dim chunk.
__device__ __forceinline__ u32 lane_address_k(u32 lane) {
    const u32 key = lane % 16, group = lane / 16;
    return key % 4 * kSlabPitchK + key / 4 * kRowBytes + ((-group & 3) ^ (key / 4)) * 16;
}
constexpr u32 immediate_k(i32 key_block, i32 chunk) { return key_block * 4 * kSlabPitchK + chunk * 64; }

// Where this lane reads V: keys 4 (lane / 16) + 0..3 of a 16-key block, of which it brings key lane % 16 / 4.
__device__ __forceinline__ u32 lane_address_v(u32 lane) {
    const u32 key = lane % 16 / 4, group = lane / 16;
    return kOffsetV + key * kSlabPitchV + group * kRowBytes + lane % 4 * 8;
}
constexpr u32 immediate_v(i32 key_block, i32 dim_block) { return key_block * 4 * kSlabPitchV + dim_block * 32; }

// From where this lane loads, in bytes from the first of the wave's rows; the second load is one row on.
__device__ __forceinline__ u32 lane_source_k(u32 lane, u32 row_bytes) {
    const u32 row = lane / 16, place = lane % 16;
    return 4 * row * row_bytes + ((place & 12) | (-((place & 3) ^ row) & 3)) * 16;
}
__device__ __forceinline__ u32 lane_source_v(u32 lane, u32 row_bytes) {
    return lane / 16 * 4 * row_bytes + lane % 16 * 16;
}

// --- registers -------------------------------------------------------------------------------------------------------

// One wave's share. S and O are held transposed: a lane owns query row lane % 16 of each tile with the three lanes
// 16, 32 and 48 away; S leaves the first matrix product in the layout in which the second wants P.
struct Wave {
    f32x4 o[kTiles][kDimBlocks];  // dims 16 d + 4 (lane / 16) + 0..3
    f32x4 s[kTiles][kKeyBlocks];  // keys 16 b + 4 (lane / 16) + 0..3: scores, then exponents, then unrounded P
    bf16x16 p[kTiles];            // the same keys, rounded
    bf16x8 q[kTiles][4];          // dims 32 c + 8 (lane / 16) + 0..7
    f32x4 row_sum[kTiles];        // the sum of P is [0] + [1]
    f32 minus_reference[kTiles];  // minus the row's reference maximum, log2 units
    bf16x8 ones;                  // the row sum's A operand ...
    i32 sparse_index;             // ... and which two of four keys it takes: even rows 0, 1, odd rows 2, 3
};

// --- work ------------------------------------------------------------------------------------------------------------

// What a workgroup computes: up to 384 query rows of one head against one part of its keys.
struct Work {
    i32 batch, head;
    i32 first_row;  // in its sequence
    i32 rows;       // 1..kRows, or <= 0: nothing here
    i64 row0_q;     // the sequence's first row in a packed tensor
    i64 row0_k;
    i32 keys;        // of the sequence
    i32 diagonal;    // row r of the block sees keys < r + diagonal
    i32 first_tile;  // of the part, in the sequence
    i32 tiles;       // of the part
    i32 partial;     // number of the part among all partials in the workspace; -1: the block is not split
};

// Workgroup i runs on XCD i mod xcd_count. Dense: one head's blocks stay on an XCD, whose L2 then serves K and V to
// all. Causal: all heads' last blocks, which see the most keys, start first.
__device__ __forceinline__ void place_block(const Cdna4Args &a, u32 row_block, u32 blocks_per_head, Work &work) {
    const u32 heads = (u32)a.num_heads, all_heads = heads * (u32)a.batch;
    u32 head_index, block;
    if (a.causal) {
        head_index = row_block % all_heads;
        block = blocks_per_head - 1 - row_block / all_heads;
    } else {
        const u32 unsplit = (u32)a.first_split, xcds = (u32)a.xcd_count;
        if (row_block < unsplit) {
            const u32 xcd = row_block % xcds, share = unsplit / xcds, longer = unsplit % xcds;
            row_block = xcd * share + (xcd < longer ? xcd : longer) + row_block / xcds;
        }
        head_index = row_block / blocks_per_head;
        block = row_block % blocks_per_head;
    }
    work.head = (i32)(head_index % heads);
    work.batch = (i32)(head_index / heads);
    work.first_row = (i32)block * kRows;
}

// Row block `row_block`, its key part `part` of `parts`.
__device__ __forceinline__ Work find_work(const Cdna4Args &a, u32 row_block, i32 part, i32 parts) {
    Work work;
    const u32 blocks_per_head = ((u32)a.seqlen_q + kRows - 1) / kRows;
    place_block(a, row_block, blocks_per_head, work);

    work.row0_q = work.row0_k = 0;
    i32 seqlen_q = a.seqlen_q, keys = a.seqlen_k;
    if (a.cu_seqlens_q) {
        const MOON_CONSTANT i32 *cu = reinterpret_cast<const MOON_CONSTANT i32 *>(a.cu_seqlens_q);
        work.row0_q = cu[work.batch];
        seqlen_q = cu[work.batch + 1] - cu[work.batch];
    }
    if (a.cu_seqlens_k) {
        const MOON_CONSTANT i32 *cu = reinterpret_cast<const MOON_CONSTANT i32 *>(a.cu_seqlens_k);
        work.row0_k = cu[work.batch];
        keys = cu[work.batch + 1] - cu[work.batch];
    }
    if (a.seqlens_k) {
        const i32 valid = reinterpret_cast<const MOON_CONSTANT i32 *>(a.seqlens_k)[work.batch];
        keys = valid < keys ? valid : keys;
        keys = keys < 0 ? 0 : keys;
    }
    work.keys = keys;
    work.rows = seqlen_q - work.first_row < kRows ? seqlen_q - work.first_row : kRows;
    work.diagonal = a.causal ? work.first_row + keys - seqlen_q + 1 : kNoDiagonal;

    i32 seen = work.rows - 1 + work.diagonal;  // one past the last key that any row here sees
    seen = seen < keys ? seen : keys;
    const i32 tiles = seen > 0 ? (seen + kKeys - 1) / kKeys : 0;
    const i32 share = (i32)((u32)tiles / (u32)parts), longer = (i32)((u32)tiles % (u32)parts);  // the first are longer
    work.first_tile = share * part + (part < longer ? part : longer);
    work.tiles = share + (part < longer ? 1 : 0);
    return work;
}

// The work of workgroup `index` of the grid.
__device__ __forceinline__ Work find_work(const Cdna4Args &a, u32 index) {
    const u32 unsplit = (u32)a.first_split;
    if (index < unsplit) {
        Work work = find_work(a, index, 0, 1);
        work.partial = -1;
        return work;
    }
    const u32 parts = (u32)a.num_splits, split = (index - unsplit) / parts, part = (index - unsplit) % parts;
    Work work = find_work(a, unsplit + split, (i32)part, (i32)parts);
    work.partial = (i32)(index - unsplit);
    return work;
}

// A split part's results in the workspace: O not divided by the row sum, the row sum, the reference maximum.
struct Partial {
    f32 o[kRows][kHeadDim];
    f32 sum[kRows];
    f32 reference[kRows];  // log2 units
};

}  // namespace moon
