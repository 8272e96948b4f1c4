// The softmax of one tile: S to P against a reference maximum that moves rarely.
//
// A row keeps a reference, at first 16 (log2 units) above the first tile's maximum, that moves only when a score passes
// it by more than 8: then to 16 above the new maximum. So P stays below 2^8, and on a common tile no lane needs
// another's maximum: each tests its own 48 scores, one ballot asks whether any row must move. The arithmetic is exact
// in either case; P and O merely share a factor that the division by the row sum removes.
//
// VALU issue slots of a common tile (an exponential takes two): 48 multiply-adds, 24 maxima, 1 compare, 96 for 48
// exponentials, 24 packs, and 2 additions for the next block's LDS addresses: 195.
#pragma once

#include "layout.h"

namespace moon {

constexpr f32 kThreshold = 8;  // log2 units above the reference that make it move
constexpr f32 kHeadroom = 16;  // how far above the maximum it is put

__device__ __forceinline__ f32 tile_max(const f32x4 (&s)[kKeyBlocks]) {
    f32 highest = s[0][0];
#pragma unroll
    for (i32 j = 1; j < 16; j++) highest = __builtin_fmaxf(highest, s[j / 4][j % 4]);
    return row_max(highest);
}

// Out of line: some row of the wave passed its reference by more than the threshold. S holds exponents.
__device__ __forceinline__ void move_references(Wave &w) {
#pragma unroll
    for (i32 t = 0; t < kTiles; t++) {
        const f32 highest = tile_max(w.s[t]);
        const f32 move = highest > kThreshold ? highest + kHeadroom : 0.0f;
        const f32 factor = __builtin_amdgcn_exp2f(-move);
        w.minus_reference[t] -= move;
#pragma unroll
        for (i32 b = 0; b < kKeyBlocks; b++) w.s[t][b] -= move;
#pragma unroll
        for (i32 d = 0; d < kDimBlocks; d++) w.o[t][d] *= factor;
        w.row_sum[t] *= factor;
    }
}

// Scores that the row does not see become -inf after scaling. `keys`, `diagonal`: of the wave's first row, from the
// tile's first key on. The fences keep the compiler from holding all comparisons' results at once.
__device__ __forceinline__ void mask(Wave &w, i32 keys, i32 diagonal, f32 scale_log2) {
    const u32 lane = lane_id();
    const i32 first_key = (i32)(lane / 16) * 4, column = (i32)(lane % 16);
    const f32 unseen = scale_log2 < 0 ? __builtin_inff() : -__builtin_inff();
#pragma unroll
    for (i32 t = 0; t < kTiles; t++) {
        i32 seen = diagonal + 16 * t + column;
        seen = (seen < keys ? seen : keys) - first_key;
#pragma unroll
        for (i32 b = 0; b < kKeyBlocks; b++) {
#pragma unroll
            for (i32 r = 0; r < 4; r++) {
                w.s[t][b][r] = 16 * b + r >= seen ? unseen : w.s[t][b][r];
                fence();
            }
        }
    }
}

// Rows that have summed nothing yet take their reference from this tile's maximum. True if some row still has none:
// it has seen nothing but -inf.
__device__ __forceinline__ bool set_references(Wave &w, f32 scale_log2) {
    bool unset = false;
#pragma unroll
    for (i32 t = 0; t < kTiles; t++) {
        f32x4 scaled[kKeyBlocks];
#pragma unroll
        for (i32 b = 0; b < kKeyBlocks; b++) scaled[b] = w.s[t][b] * scale_log2;
        const f32 highest = tile_max(scaled);
        const bool fresh = w.row_sum[t][0] + w.row_sum[t][1] == 0, nothing = highest == -__builtin_inff();
        w.minus_reference[t] = fresh ? (nothing ? 0.0f : -(highest + kHeadroom)) : w.minus_reference[t];
        unset |= fresh && nothing;
        fence();
    }
    return any_lane(unset);
}

// `between` is issued among the exponentials: the next block's scalar set-up, its LDS addresses and first reads.
template <class Between>
__device__ __forceinline__ void softmax(Wave &w, f32 scale_log2, Between &&between) {
    fence();
    f32 highest;
#pragma unroll
    for (i32 b = 0; b < kKeyBlocks; b++) {
#pragma unroll
        for (i32 t = 0; t < kTiles; t++) {
            f32x4 &s = w.s[t][b];
#pragma unroll
            for (i32 r = 0; r < 4; r++) s[r] = __builtin_fmaf(s[r], scale_log2, w.minus_reference[t]);
            if (b == 0 && t == 0) {
                highest = __builtin_fmaxf(s[0], s[1]);
            } else {
                highest = __builtin_fmaxf(__builtin_fmaxf(highest, s[0]), s[1]);
            }
            highest = __builtin_fmaxf(__builtin_fmaxf(highest, s[2]), s[3]);
        }
    }
    if (__builtin_expect(any_lane(highest > kThreshold), 0)) move_references(w);

    fence();
    between();
#pragma unroll
    for (i32 t = 0; t < kTiles; t++) {
#pragma unroll
        for (i32 j = 0; j < 16; j++) w.s[t][j / 4][j % 4] = __builtin_amdgcn_exp2f(w.s[t][j / 4][j % 4]);
    }
    // An exponential and a scalar instruction fit in the window that a matrix instruction of the other wave leaves.
    constexpr i32 kTranscendental = 0x400, kLdsRead = 0x100, kScalar = 0x4;
#pragma unroll
    for (i32 j = 0; j < 4; j++) {
        __builtin_amdgcn_sched_group_barrier(kTranscendental, 1, 0);
        __builtin_amdgcn_sched_group_barrier(kLdsRead, 1, 0);
    }
#pragma unroll
    for (i32 j = 0; j < 40; j++) {
        __builtin_amdgcn_sched_group_barrier(kTranscendental, 1, 0);
        __builtin_amdgcn_sched_group_barrier(kScalar, 1, 0);
    }

    fence();
#pragma unroll
    for (i32 t = 0; t < kTiles; t++) {
#pragma unroll
        for (i32 j = 0; j < 16; j++) w.p[t][j] = (__bf16)w.s[t][j / 4][j % 4];
    }
    fence();
}

}  // namespace moon
