// Who owns what: which rows a cluster, a block, a warpgroup and a thread compute, and where tiles lie in shared memory.
#pragma once

#include "isa.h"

namespace moon {

// The argument struct: one list, shared with the build's manifest.
struct Sm90aArgs {
#define MOON_ARG(type, name) type name;
#include "../common/sm90a_args.def"
#undef MOON_ARG
};

constexpr i32 kHeadDim = 128;
constexpr i32 kConsumers = 3;   // warpgroups of a block that compute; one more loads
constexpr i32 kGroupRows = 64;  // query rows of a warpgroup
constexpr i32 kBlockRows = kConsumers * kGroupRows;
constexpr i32 kOutputs = kHeadDim / 2;  // fp32 of O that a thread holds
constexpr i32 kWarpgroup = 128;
constexpr f32 kLn2 = 0.6931471805599453f;
constexpr f32 kLog2E = 1.4426950408889634f;
constexpr f32 kInfinity = __builtin_inff();

// 152 x 384 + 56 x 128 are the 65,536 registers of a multiprocessor.
constexpr i32 kConsumerRegisters = 152;
constexpr i32 kProducerRegisters = 56;

// --- shared memory ---------------------------------------------------------------------------------------------------
// Q: a 16 KiB tile a warpgroup. O: a tile a warpgroup on its way out, rows 16 bytes apart so that they start on other
// banks. K and V: a ring of six slots, one tile each. Tiles of Q, K and V lie as two halves of 64 dims, rows of 128
// bytes, eight rows swizzled among themselves; a half of K or V is what one block of a cluster of two loads for both.
// Behind them the barriers, 8 bytes each, and each computing warpgroup's notes: of this item and the next.

constexpr u32 kSwizzleBytes = 1024;
constexpr u32 kQueryHalf = kGroupRows * 128;
constexpr u32 kQueryBytes = 2 * kQueryHalf;
constexpr i32 kMostKeys = 80;
constexpr u32 kSlotBytes = 2 * kMostKeys * 128;
constexpr u32 kOutputPitch = 2 * kHeadDim + 16;
constexpr u32 kOutputBytes = kGroupRows * kOutputPitch;
constexpr u32 kSlots = 6;
constexpr u32 kNoteBytes = 64;
constexpr u32 kRingOffset = kConsumers * kQueryBytes;
constexpr u32 kOutputOffset = kRingOffset + kSlots * kSlotBytes;
constexpr u32 kNoteOffset = kOutputOffset + kConsumers * kOutputBytes;
constexpr u32 kFullOffset = kNoteOffset + 2 * kConsumers * kNoteBytes;
constexpr u32 kEmptyOffset = kFullOffset + kSlots * 8;
constexpr u32 kQueryFullOffset = kEmptyOffset + kSlots * 8;
constexpr u32 kQueryEmptyOffset = kQueryFullOffset + kConsumers * 8;
constexpr u32 kSharedBytes = kQueryEmptyOffset + kConsumers * 8 + kSwizzleBytes;  // the last: room to align
static_assert(kSharedBytes == 225808, "the manifest's dynamic_shared of these kernels; see csrc/build/targets.py");
static_assert(kNoteOffset % 16 == 0, "notes are read 16 bytes at a time");

// What the kernels differ in: blocks that share each tile of K and V (one, for small grids, or two), keys of a tile
// (80, or 64 for short key axes that these divide better), and the mask.
template <i32 blocks, i32 keys_of_tile, bool is_causal>
struct ShapeOf {
    static constexpr i32 keys = keys_of_tile;
    static constexpr u32 tile_half = keys * 128;  // bytes of 64 dims
    static_assert(keys <= kMostKeys && tile_half % kSwizzleBytes == 0, "a tile starts where the swizzle does");
    static constexpr i32 cluster = blocks;
    static constexpr i32 rows = blocks * kBlockRows;  // of a work item
    static constexpr bool causal = is_causal;
};

// --- work ------------------------------------------------------------------------------------------------------------

// What a cluster computes at a time: up to `Shape::rows` query rows of one head against a part of its keys.
struct Work {
    i32 batch, head, head_kv;
    i32 map_batch;  // in the tensor maps: packed sequences are one batch entry
    i32 first_row;  // of the item, in its sequence
    i32 rows;       // of the sequence; none of the item's may be there
    i32 row0_q;     // the sequence's first row in a packed tensor
    i32 row0_k;
    i32 keys;   // of the sequence
    i32 begin;  // the part's tiles: [begin, end)
    i32 end;
    i32 part;  // where its partial results go, < 0: it is whole
};

MOON_DEVICE i32 at_most(i32 a, i32 b) { return a < b ? a : b; }
MOON_DEVICE i32 at_least(i32 a, i32 b) { return a > b ? a : b; }
template <typename Shape>
MOON_DEVICE i32 tiles_of(i32 keys) {
    return (keys + Shape::keys - 1) / Shape::keys;
}

// One past the last tile that row `row` of the sequence sees under the causal mask.
template <typename Shape>
MOON_DEVICE i32 causal_end(const Work &work, i32 row) {
    return at_least(0, at_most(tiles_of<Shape>(work.keys), tiles_of<Shape>(row + 1 + work.keys - work.rows)));
}

template <typename Shape>
MOON_DEVICE i32 row_blocks(const Sm90aArgs &a) {
    return (a.seqlen_q + Shape::rows - 1) / Shape::rows;
}
template <typename Shape>
MOON_DEVICE i32 work_items(const Sm90aArgs &a) {
    const i32 blocks = row_blocks<Shape>(a) * a.num_heads * a.batch;
    return a.first_split + (blocks - a.first_split) * a.num_splits;
}

template <typename Shape>
MOON_DEVICE Work find_work(const Sm90aArgs &a, i32 item) {
    Work work;
    i32 block = item, part = 0, parts = 1;
    work.part = -1;
    if (item >= a.first_split && a.num_splits > 1) {
        work.part = item - a.first_split;
        parts = a.num_splits;
        block = a.first_split + work.part / parts;
        part = work.part % parts;
    }
    i32 row_block, head_and_batch;
    if (Shape::causal) {  // the longest blocks of all heads first
        const i32 heads = a.num_heads * a.batch;
        row_block = row_blocks<Shape>(a) - 1 - block / heads;
        head_and_batch = block % heads;
    } else {  // neighbours share K and V
        row_block = block % row_blocks<Shape>(a);
        head_and_batch = block / row_blocks<Shape>(a);
    }
    work.batch = head_and_batch / a.num_heads;
    work.head = head_and_batch % a.num_heads;
    work.head_kv = work.head / (a.num_heads / a.num_heads_kv);
    work.first_row = row_block * Shape::rows;
    work.rows = a.seqlen_q;
    work.keys = a.seqlen_k;
    work.row0_q = work.row0_k = 0;
    work.map_batch = a.cu_seqlens_q ? 0 : work.batch;
    const auto *seqlens_k = reinterpret_cast<const i32 *>(a.seqlens_k);
    const auto *cu_seqlens_q = reinterpret_cast<const i32 *>(a.cu_seqlens_q);
    const auto *cu_seqlens_k = reinterpret_cast<const i32 *>(a.cu_seqlens_k);
    if (cu_seqlens_q) {
        work.row0_q = cu_seqlens_q[work.batch];
        work.rows = cu_seqlens_q[work.batch + 1] - work.row0_q;
    }
    if (cu_seqlens_k) {
        work.row0_k = cu_seqlens_k[work.batch];
        work.keys = at_most(work.keys, cu_seqlens_k[work.batch + 1] - work.row0_k);
    }
    if (seqlens_k) work.keys = at_least(0, at_most(work.keys, seqlens_k[work.batch]));

    i32 tiles = tiles_of<Shape>(work.keys);
    if (Shape::causal) tiles = causal_end<Shape>(work, at_most(work.first_row + Shape::rows, work.rows) - 1);
    work.begin = (i32)((i64)tiles * part / parts);
    work.end = (i32)((i64)tiles * (part + 1) / parts);
    return work;
}

// No row of the item is in its sequence.
MOON_DEVICE bool is_void(const Work &work) { return work.first_row >= work.rows; }

// What a warpgroup needs to know of its item, computed by the thread that loads its Q. It waits in shared memory, as no
// register is free for it while tiles are computed.
struct Note {
    Work work;
    i32 group_row;  // the warpgroup's first row in the sequence
    i32 tiles;      // of the item's that this warpgroup computes: the last ones
    i32 skipped;    // and those that pass it by
    i32 unused;
};
static_assert(sizeof(Note) == kNoteBytes, "read and written 16 bytes at a time");

template <typename Shape>
MOON_DEVICE Note note_of(const Work &work, u32 rank, u32 group) {
    Note note;
    note.work = work;
    note.group_row = work.first_row + (i32)(rank * kBlockRows + group * kGroupRows);
    note.unused = 0;
    const i32 all = is_void(work) ? 0 : work.end - work.begin;
    note.tiles = all;
    if (Shape::causal) {
        const i32 last_row = at_most(note.group_row + kGroupRows, work.rows) - 1;
        note.tiles = at_least(0, at_most(work.end, causal_end<Shape>(work, last_row)) - work.begin);
    }
    if (note.group_row >= work.rows) note.tiles = 0;
    note.skipped = all - note.tiles;
    return note;
}

// This thread's first row in the sequence; its other one is 8 below.
MOON_DEVICE i32 row_of(const Note &note) {
    const u32 thread = thread_id() % kWarpgroup;
    return note.group_row + (i32)(thread / 32 * 16 + thread % 32 / 4);
}

MOON_DEVICE void write_note(u32 address, const Note &note) {
    const i32 *words = reinterpret_cast<const i32 *>(&note);
#pragma unroll
    for (u32 i = 0; i < kNoteBytes / 16; i++) store_shared(address + i * 16, words + 4 * i);
}
MOON_DEVICE Note read_note(u32 address) {
    Note note;
    i32 *words = reinterpret_cast<i32 *>(&note);
#pragma unroll
    for (u32 i = 0; i < kNoteBytes / 16; i++) load_shared(words + 4 * i, address + i * 16);
    return note;
}

// --- partial results -------------------------------------------------------------------------------------------------

// What one warpgroup leaves for the merge of a split row block's parts; in the order in which its threads hold it.
struct Partial {
    f32 o[kOutputs][kWarpgroup];   // not divided by the sum
    f32 sum[2][kWarpgroup];        // of this thread's columns
    f32 reference[2][kWarpgroup];  // log2 units
};
static_assert(sizeof(Partial) == 34816, "moon_diffusers/planning_sm90a.py sizes the workspace by it");

}  // namespace moon
