// The two matrix products of a 64-key tile and how their operands travel.
//
//   S^T[key][row] = K Q^T     A: K from LDS, 16 keys x 16 dims, B: Q from registers (tile 2: from LDS)
//   O^T[dim][row] += V^T P^T  A: V from L1, transposed by the pre-pass, B: P as the softmax left it
//
// Both hold queries in columns, so a lane has four keys (or dims) of one query row, and D of the first is B of the
// second. A ring slot is refilled right after its last use; its depth times six matrix instructions is the latency it
// covers.
#pragma once

#include "isa.h"
#include "layout.h"

namespace moon {

constexpr i32 kValueRing = 8;  // 16 B a lane each: two key blocks x 16 dims
constexpr i32 kKeyRing = 4;    // 16 B a lane each: 16 keys x two chunks of dims
constexpr i32 kPairs = kChunks / 2;
constexpr i32 kTail = 1;    // steps behind the barrier that ends a matrix phase
constexpr i32 kSteps = 16;  // of either product: 6 matrix instructions for the wave's three query tiles

// Pairs of operands come by one 16-byte load.
__device__ __forceinline__ u32x2 first(u32x4 pair) { return pair.xy; }
__device__ __forceinline__ u32x2 second(u32x4 pair) { return pair.zw; }

struct Queries {
    u32x2 tile[2][kChunks];
    u32x4 last;   // chunks 6 and 7 of tile 2
    Lds *in_lds;  // chunk pairs 0..2 of tile 2
};

struct KeyRing {
    u32x4 slot[kKeyRing];
    u32x4 query[2];  // chunk pairs of the third query tile
    u32 address;     // LDS byte of the lane's first read in the current K tile
};

struct ValueRing {
    u32x4 slot[kValueRing];
    const Global *tile;  // the current V tile
    u32 offset;          // 16 * lane
};

// K on its way from memory to LDS: a wave brings the slabs 2w and 2w + 1, a row of 256 B each load.
struct KeyLoader {
    const Global *tile;  // first key of the next tile to load
    i32 keys;            // from there to the end
    u32 lds;             // where it goes: bytes from the K buffers' start
    u32 row[8];          // byte offsets of the wave's rows in a tile
    u32 wave, row_bytes;
    i64 tile_bytes;

    __device__ __forceinline__ void init(const Work &work, i64 stride_row, u32 w) {
        tile = work.k;
        keys = work.keys;
        wave = w;
        lds = 2 * w * kSlabBytes;
        row_bytes = (u32)(2 * stride_row);
        tile_bytes = 2 * kKeys * stride_row;
        for_rows(kKeys);
    }

    // Rows past the end are the last one over again: in bounds, and masked by the softmax.
    __device__ __forceinline__ void for_rows(i32 count) {
#pragma unroll
        for (i32 i = 0; i < 8; i++) {
            const i32 key = (i32)(2 * wave) + i / 4 + 16 * (i % 4);
            row[i] = (u32)(key < count ? key : count - 1) * row_bytes;
        }
    }

    // Starts the loads of the next tile, if there is one. They are done after wait_memory and, for other waves, a
    // barrier.
    __device__ __forceinline__ void load(Lds *base, u32 lane4) {
        if (keys > 0) {
            if (keys < kKeys) for_rows(keys);
            const __amdgpu_buffer_rsrc_t source = buffer(tile);
#pragma unroll
            for (i32 i = 0; i < 8; i++) {
                Lds *to = base + lds + (i / 4) * kSlabBytes + (i % 4) * kRowBytes;
                __builtin_amdgcn_raw_ptr_buffer_load_lds(source, to, 4, lane4, row[i], 0, 0);
            }
        }
        keys -= kKeys;
        tile += tile_bytes;
        lds ^= kKeyToggle;
    }
};

// A lane's four dims of every chunk of its row in the three query tiles; rows past the end repeat the last.
__device__ __forceinline__ void load_queries(Queries &q, const Work &work, i64 stride_row, i32 first_row, Lane lane) {
#pragma unroll
    for (i32 t = 0; t < kTiles; t++) {
        i32 row = first_row + 16 * t + (i32)lane.column();
        row = row < work.rows ? row : work.rows - 1;
        const Global *from = work.q + row_offset(row, 2 * stride_row) + lane.dims();
        u32x2 chunk[kChunks];
#pragma unroll
        for (i32 c = 0; c < kChunks; c++) {
            struct __attribute__((packed, aligned(4))) Words {
                u32x2 value;
            };
            chunk[c] = reinterpret_cast<const MOON_GLOBAL Words *>(from + 32 * c)->value;
        }
        if (t < 2) {
#pragma unroll
            for (i32 c = 0; c < kChunks; c++) q.tile[t][c] = chunk[c];
        } else {
#pragma unroll
            for (i32 x = 0; x < kPairs; x++) {
                const u32x4 pair = {chunk[2 * x].x, chunk[2 * x].y, chunk[2 * x + 1].x, chunk[2 * x + 1].y};
                if (x < kPairsInLds)
                    reinterpret_cast<MOON_LDS u32x4 *>(q.in_lds)[64 * x] = pair;
                else
                    q.last = pair;
            }
        }
    }
}

__device__ __forceinline__ u32x4 read_key(Lds *base, const KeyRing &ring, i32 step) {
    const MOON_LDS u32x2 *at =
        reinterpret_cast<const MOON_LDS u32x2 *>(base + ring.address + (step % 4) * kRowBytes + (step / 4) * 64);
    const u32x2 even = at[0], odd = at[4];
    return u32x4{even.x, even.y, odd.x, odd.y};
}

__device__ __forceinline__ u32x4 read_query(const Queries &q, i32 pair) {
    return reinterpret_cast<const MOON_LDS u32x4 *>(q.in_lds)[64 * pair];
}

// One of the kKeyRing reads that must precede multiply_qk.
__device__ __forceinline__ void prefetch_key(KeyRing &ring, const Queries &q, Lds *base, i32 step) {
    if (step == 0) ring.query[0] = read_query(q, 0);
    ring.slot[step] = read_key(base, ring, step);
}

// S = K Q^T. Steps: chunk pairs outside, key blocks inside, so that a chunk's accumulators are four apart. The barrier
// that ends the matrix phase stands before the last kTail steps, when all of the tile's reads are done: the other group
// takes over the matrix cores while they still work.
__device__ __forceinline__ void multiply_qk(f32x4 (&s)[kTiles][kKeyBlocks], const Queries &q, KeyRing &ring,
                                            Lds *base) {
#pragma unroll
    for (i32 step = 0; step < kSteps; step++) {
        if (step == kSteps - kTail) {
            wait_lds();
            barrier();
        }
        const i32 x = step / 4, b = step % 4;
        const u32x4 k = ring.slot[step % kKeyRing], q2 = x < kPairsInLds ? ring.query[x & 1] : q.last;
        if (x == 0) {
            mfma_from_zero(s[0][b], first(k), q.tile[0][0]);
            mfma_from_zero(s[1][b], first(k), q.tile[1][0]);
            mfma_from_zero(s[2][b], first(k), first(q2));
        } else {
            mfma(s[0][b], first(k), q.tile[0][2 * x]);
            mfma(s[1][b], first(k), q.tile[1][2 * x]);
            mfma(s[2][b], first(k), first(q2));
        }
        mfma(s[0][b], second(k), q.tile[0][2 * x + 1]);
        mfma(s[1][b], second(k), q.tile[1][2 * x + 1]);
        mfma(s[2][b], second(k), second(q2));
        if (step + kKeyRing < kSteps) ring.slot[step % kKeyRing] = read_key(base, ring, step + kKeyRing);
        if (b == 0 && x + 1 < kPairsInLds) ring.query[(x + 1) & 1] = read_query(q, x + 1);
    }
}

// V fragments lie in the order of use: half a tile's 32 keys by all dims, then the other half.
__device__ __forceinline__ u32x4 load_value(const ValueRing &ring, i32 step) {
    return __builtin_amdgcn_raw_buffer_load_b128(buffer(ring.tile), ring.offset + (step % 4) * 1024, (step / 4) * 4096,
                                                 0);
}

// One of the kValueRing loads that must precede multiply_pv.
__device__ __forceinline__ void prefetch_value(ValueRing &ring, i32 step) {
    if (step == 0) opaque(ring.offset);
    ring.slot[step] = load_value(ring, step);
}

// O += V^T P^T over the tile's first 32 keys, then the last 32; `between` runs between the halves, `after(step)` after
// a step's matrix instructions.
template <class Between, class After>
__device__ __forceinline__ void multiply_pv(f32x4 (&o)[kTiles][kChunks], const u32x2 (&p)[kTiles][kKeyBlocks],
                                            ValueRing &ring, Between between, After after) {
    opaque(ring.offset);
#pragma unroll
    for (i32 step = 0; step < kSteps; step++) {
        const i32 c = step % kChunks, half = step / kChunks;
        const u32x4 v = ring.slot[step % kValueRing];
        if (step == kChunks) between();
#pragma unroll
        for (i32 t = 0; t < kTiles; t++) mfma(o[t][c], first(v), p[t][2 * half]);
#pragma unroll
        for (i32 t = 0; t < kTiles; t++) mfma(o[t][c], second(v), p[t][2 * half + 1]);
        if (step + kValueRing < kSteps) ring.slot[step % kValueRing] = load_value(ring, step + kValueRing);
        after(step);
    }
    ring.tile += kValueTileBytes;
}

}  // namespace moon
