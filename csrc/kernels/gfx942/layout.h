// Who owns what: sizes, the LDS map, and what one workgroup works on.
//
//   LDS, bytes      0 .. 16,512   K, even tiles       32,768 .. 49,280   K, odd tiles
//              16,512 .. 28,800   Q of group A        49,280 .. 61,568   Q of group B      (its third tile, 6 of 8
//              chunks)
//
// A K tile is 16 slabs of 1032 B. Slab r holds the keys r, r + 16, r + 32, r + 48 of the tile as they lie in memory,
// 256 B each; the 8 B of padding put equal dims of the 16 slabs on different banks. So one register addresses all of a
// lane's reads.
#pragma once

#include "../common/device.h"
#include "isa.h"

namespace moon {

struct Cdna3Args {
#define MOON_ARG(type, name) type name;
#include "../common/cdna3_args.def"
#undef MOON_ARG
};

constexpr i32 kHeadDim = 128;
constexpr i32 kThreads = 512;
constexpr i32 kWavesPerGroup = 4;
constexpr i32 kTiles = 3;  // 16-row query tiles of a wave
constexpr i32 kRowsPerWave = 16 * kTiles;
constexpr i32 kRows = kThreads / kWavefront * kRowsPerWave;  // query rows of a workgroup
constexpr i32 kKeys = 64;                                    // keys of a K or V tile
constexpr i32 kKeyBlocks = kKeys / 16;
constexpr i32 kChunks = kHeadDim / 16;  // head dims in matrix-instruction depths
constexpr i32 kRowBytes = 2 * kHeadDim;
constexpr i32 kValueTileBytes = kKeys * kRowBytes;
constexpr i32 kNoDiagonal = 0x3FFFFFFF;  // every row sees every key

constexpr u32 kSlabBytes = 4 * kRowBytes + 8;
constexpr u32 kKeyTileBytes = 16 * kSlabBytes;
constexpr u32 kKeyToggle = 32768;                // the address bit that tells the two K tiles apart
constexpr i32 kPairsInLds = 3;                   // chunk pairs of the third Q tile that lie in LDS
constexpr u32 kQueryBytes = kPairsInLds * 1024;  // of a wave
constexpr u32 kLdsBytes = kKeyToggle + kKeyTileBytes + kWavesPerGroup * kQueryBytes;
static_assert(kKeyTileBytes + kWavesPerGroup * kQueryBytes <= kKeyToggle && kLdsBytes <= 65536, "LDS map");

using Lds = MOON_LDS char;
using Global = MOON_GLOBAL char;

// A lane's place. Matrix operands: row or column lane % 16, depth 4 * (lane / 16) + j.
struct Lane {
    u32 lane4;  // 4 * lane
    __device__ __forceinline__ u32 column() const { return (lane4 >> 2) & 15; }
    __device__ __forceinline__ u32 group() const { return lane4 >> 6; }
    // Byte in a 32-byte chunk of head dims of the lane's four: groups take dims 0-3, 8-11, 4-7, 12-15. That is the
    // order in which AITER's 32x32x8 matrix instructions, fed by 16-byte loads, add them up.
    __device__ __forceinline__ u32 dims() const { return ((lane4 >> 7) & 1) * 8 + ((lane4 >> 6) & 1) * 16; }
};

// One workgroup's work; the same in all of its lanes. Tiles are counted from the part's first.
struct Work {
    const Global *q, *k, *values;  // at the first query row, at the first key, at the first V tile
    Global *o;
    MOON_GLOBAL f32 *lse;        // null: not wanted
    MOON_GLOBAL f32 *partial_o;  // null: not split
    MOON_GLOBAL f32 *partial_stats;
    i32 rows;         // query rows, 1..kRows
    i32 keys;         // keys from the part's first to the sequence's last
    i32 tiles;        // 0: no key is seen
    i32 masked_from;  // first tile of which some row does not see every key
    i32 diagonal;     // row r sees the keys below r + diagonal
};

// row * stride in 64 bits. Left to the compiler, the product's upper half becomes a multiply-add that reads a register
// nobody wrote; harmless, but no check could then tell it from a mistake.
__device__ __forceinline__ u64 row_offset(i32 row, i64 stride) {
    u32 upper = (u32)row * (u32)((u64)stride >> 32);
    opaque(upper);
    return (u64)(u32)row * (u32)stride + ((u64)upper << 32);
}

// Consecutive workgroups go to consecutive dies. Give each die a run of consecutive blocks, so that the blocks that
// read the same K and V share an L2.
__device__ __forceinline__ u32 gather_by_die(u32 index, u32 count, u32 dies) {
    const u32 die = index % dies, slot = index / dies, each = count / dies, more = count % dies;
    return die * each + (die < more ? die : more) + slot;
}

// False: the workgroup has no rows.
__device__ __forceinline__ bool find_work(const Cdna3Args &a, Work &work) {
    const u32 blocks_per_head = ((u32)a.seqlen_q + kRows - 1) / kRows;
    const u32 index = __builtin_amdgcn_workgroup_id_x(), whole = (u32)a.whole_blocks;
    u32 block, part = 0, partial = 0;
    const bool split = index >= whole;
    if (split) {
        partial = gather_by_die(index - whole, (u32)a.workgroups - whole, (u32)a.xcds);
        block = whole + partial / (u32)a.num_splits;
        part = partial % (u32)a.num_splits;
    } else {
        block = gather_by_die(index, whole, (u32)a.xcds);
    }
    const u32 head_index = block / blocks_per_head;
    u32 row_block = block % blocks_per_head;
    if (a.causal) row_block = blocks_per_head - 1 - row_block;  // the longest first
    const i32 first_row = (i32)row_block * kRows;
    const i32 head = (i32)(head_index % (u32)a.num_heads), batch = (i32)(head_index / (u32)a.num_heads);
    const i32 head_kv = head / (a.num_heads / a.num_heads_kv);

    i64 row0_q = 0, row0_k = 0;
    i32 seqlen_q = a.seqlen_q, keys = a.seqlen_k;
    if (a.cu_seqlens_q) {
        const MOON_CONSTANT i32 *cu = reinterpret_cast<const MOON_CONSTANT i32 *>(a.cu_seqlens_q);
        row0_q = cu[batch];
        seqlen_q = cu[batch + 1] - cu[batch];
    }
    if (a.cu_seqlens_k) {
        const MOON_CONSTANT i32 *cu = reinterpret_cast<const MOON_CONSTANT i32 *>(a.cu_seqlens_k);
        row0_k = cu[batch];
        const i32 packed = cu[batch + 1] - cu[batch];
        keys = packed < keys ? packed : keys;
    }
    if (a.seqlens_k) {
        const i32 valid = reinterpret_cast<const MOON_CONSTANT i32 *>(a.seqlens_k)[batch];
        keys = valid < keys ? valid : keys;
    }
    if (first_row >= seqlen_q) return false;
    work.rows = seqlen_q - first_row < kRows ? seqlen_q - first_row : kRows;

    // Keys that the last and the first row here see; only the part's own are counted from here on.
    const i32 first_tile = (i32)part * a.split_tiles, first_key = first_tile * kKeys;
    work.diagonal = (a.causal ? first_row + keys - seqlen_q + 1 : kNoDiagonal) - first_key;
    work.keys = keys - first_key;
    const i32 last = work.rows - 1 + work.diagonal, all = work.diagonal > 0 ? work.diagonal : 0;
    const i32 end = last < work.keys ? last : work.keys;
    const i32 unmasked = all < work.keys ? all : work.keys;
    const i32 tiles = end > 0 ? (i32)(((u32)end + kKeys - 1) / kKeys) : 0;
    work.tiles = split && tiles > a.split_tiles ? a.split_tiles : tiles;
    work.masked_from = unmasked > 0 ? unmasked / kKeys : 0;

    const i64 row_q = row0_q + first_row, row_k = row0_k + first_key;
    const i64 tiles_per_head = ((u32)a.seqlen_k + kKeys - 1) / kKeys;
    const i64 value_tile = ((i64)batch * a.num_heads_kv + head_kv) * tiles_per_head + first_tile;
    work.q = reinterpret_cast<const Global *>(a.q) +
             2 * (batch * a.q_stride_batch + head * a.q_stride_head + row_q * a.q_stride_row);
    work.k = reinterpret_cast<const Global *>(a.k) +
             2 * (batch * a.k_stride_batch + head_kv * a.k_stride_head + row_k * a.k_stride_row);
    work.o = reinterpret_cast<Global *>(a.o) +
             2 * (batch * a.o_stride_batch + head * a.o_stride_head + row_q * a.o_stride_row);
    work.values = reinterpret_cast<const Global *>(a.value_tiles) + value_tile * kValueTileBytes;
    MOON_GLOBAL f32 *lse = reinterpret_cast<MOON_GLOBAL f32 *>(a.lse);
    work.lse = lse ? lse + batch * a.lse_stride_batch + head * a.lse_stride_head + row_q : nullptr;
    work.partial_o =
        split ? reinterpret_cast<MOON_GLOBAL f32 *>(a.partial_o) + (i64)partial * kRows * kHeadDim : nullptr;
    work.partial_stats =
        split ? reinterpret_cast<MOON_GLOBAL f32 *>(a.partial_stats) + (i64)partial * kRows * 2 : nullptr;
    return true;
}

}  // namespace moon
