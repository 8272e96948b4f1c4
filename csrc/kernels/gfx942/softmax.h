// The softmax of one 64-key tile for a wave's three query tiles: S in, P out, running maximum and row sum moved on.
//
// A lane holds 16 scores of each of its three rows, S[t][b][r] for the key 16 b + 4 (lane / 16) + r; three other lanes
// hold the rest of the row. Two policies for the reference m that is subtracted before the exponential:
//
//   exact   m is the running maximum, moved every 32 keys: AITER's steps and so AITER's bits. O moves once more between
//           the halves of the second product where a maximum rises in the second 32 keys.
//   lazy    m moves, to the tile's maximum, when a key outweighs a quarter to half (a power of two) of what its row has
//           summed before, or passes m by 8 in log2 units. Its P is then exactly 1, as under a running maximum: the
//           rounding of a key that dominates is the one that averaging does not hide. A limit that was set from a
//           smaller sum asks too early: the sum is looked at again, and the limit moves instead.
//
// O moves before the second product. The common tile only finds that nothing rises; what follows a rise is behind
// wave-uniform branches.
#pragma once

#include "../common/rounding.h"
#include "isa.h"
#include "layout.h"

namespace moon {

enum class Rescale { exact, lazy };

constexpr i32 kLazyThreshold = 8;  // log2 units

// Per lane: its row of each of the three query tiles.
struct Rows {
    f32 limit[kTiles];       // a score above it may move the reference: m, or lazy m and the room that the sum leaves
    f32 shift[kTiles];       // -m in log2 units
    f32 shift_half[kTiles];  // exact: the same for the first 32 keys of this tile; equal to shift unless second_half
    f32 sum[kTiles];         // of P before it is rounded, this lane's keys
    f32 alpha[kTiles];       // what moves O on before the second product; of no meaning unless first_half
    f32 factor[kTiles];      // exact: what moves O and sum on between the halves; 1 unless second_half
    u32 first_half;          // 1 if some row of the wave moved its reference, else 0; uniform
    u32 second_half;         // exact: 1 if some row of the wave rose in the second 32 keys, else 0; uniform
};

// What the scale makes of the policy's constants.
struct Scale {
    f32 log2;     // softmax_scale * log2(e)
    f32 inverse;  // lazy: 1 in log2 units in units of the scores
    f32 lowest;   // where maxima start; lowest * log2 is finite
};

__device__ __forceinline__ Scale make_scale(f32 softmax_scale) {
    const f32 log2 = softmax_scale * kLog2E;
    return {log2, 1.0f / log2, log2 > 1.0f ? -kMaxF32 / log2 : -kMaxF32};
}

__device__ __forceinline__ void init_rows(Rows &rows, const Scale &scale) {
#pragma unroll
    for (i32 t = 0; t < kTiles; t++) {
        rows.limit[t] = scale.lowest;
        rows.shift[t] = rows.shift_half[t] = -(scale.lowest * scale.log2);
        rows.sum[t] = 0;
        rows.alpha[t] = rows.factor[t] = 1;
    }
    rows.first_half = rows.second_half = 0;
}

// Scores of keys that a row does not see become -Inf. `first_row`: the wave's first in the workgroup.
__device__ __forceinline__ void mask_scores(f32x4 (&s)[kTiles][kKeyBlocks], const Work &work, i32 tile, i32 first_row,
                                            Lane lane) {
    opaque(lane.lane4);  // else what follows is kept up to date in registers for every tile
#pragma unroll
    for (i32 t = 0; t < kTiles; t++) {
        const i32 diagonal = first_row + 16 * t + (i32)lane.column() + work.diagonal;
        const i32 seen = (diagonal < work.keys ? diagonal : work.keys) - tile * kKeys - 4 * (i32)lane.group();
#pragma unroll
        for (i32 b = 0; b < kKeyBlocks; b++) {
#pragma unroll
            for (i32 r = 0; r < 4; r++) s[t][b][r] = 16 * b + r < seen ? s[t][b][r] : -__builtin_inff();
            __builtin_amdgcn_sched_barrier(0);  // else all comparisons come first and spill their masks
        }
    }
}

// Maxima of the lane's scores per row: of the first 32 keys, and of all 64. The chains of the rows are interleaved.
__device__ __forceinline__ void find_maxima(const f32x4 (&s)[kTiles][kKeyBlocks], f32 (&half)[kTiles],
                                            f32 (&all)[kTiles]) {
#define MOON_EACH_ROW _Pragma("unroll") for (i32 t = 0; t < kTiles; t++)
    MOON_EACH_ROW half[t] = max3(s[t][0][0], s[t][0][1], s[t][0][2]);
    MOON_EACH_ROW half[t] = max3(half[t], s[t][0][3], s[t][1][0]);
    MOON_EACH_ROW half[t] = max3(half[t], s[t][1][1], s[t][1][2]);
    MOON_EACH_ROW half[t] = max2(half[t], s[t][1][3]);
    MOON_EACH_ROW all[t] = max3(half[t], s[t][2][0], s[t][2][1]);
    MOON_EACH_ROW all[t] = max3(all[t], s[t][2][2], s[t][2][3]);
    MOON_EACH_ROW all[t] = max3(all[t], s[t][3][0], s[t][3][1]);
    MOON_EACH_ROW all[t] = max3(all[t], s[t][3][2], s[t][3][3]);
}

// Of the four lanes of a row: the first N - Sums values become their maxima, the others their sums.
template <i32 Sums, i32 N>
__device__ __forceinline__ void spread(f32 (&x)[N], u32 lane4) {
#pragma unroll
    for (u32 distance = 16; distance <= 32; distance *= 2) {
        f32 other[N];
#pragma unroll
        for (i32 i = 0; i < N; i++) other[i] = from_lane(x[i], lane4 ^ (4 * distance));
#pragma unroll
        for (i32 i = 0; i < N; i++) x[i] = i < N - Sums ? max2(x[i], other[i]) : x[i] + other[i];
    }
}

// How far a score may pass its row's reference, in log2 units: up to between a quarter and half of the sum, and to 8.
// By the exponent alone, so that it never falls while the sum rises: see `raise`.
__device__ __forceinline__ f32 room(f32 sum) {
    const i32 exponent = (i32)(__builtin_bit_cast(u32, sum) >> 23) - 127;
    const i32 quarter = exponent - 1;
    return (f32)(quarter < 0 ? 0 : quarter < kLazyThreshold ? quarter : kLazyThreshold);
}

// O of the rows by their factors, where any of a query tile's rows has one.
__device__ __forceinline__ void scale_output(f32x4 (&o)[kTiles][kChunks], const f32 (&factor)[kTiles]) {
#pragma unroll
    for (i32 t = 0; t < kTiles; t++) {
        if (any_lane(factor[t] != 1.0f)) {
#pragma unroll
            for (i32 c = 0; c < kChunks; c++) o[t][c] *= factor[t];
            settle_valu(o[t]);
        }
    }
}

// Some row rose: new references, the sums moved on to them, and what O must be moved by.
template <Rescale policy>
__device__ __forceinline__ void raise(Rows &rows, const f32 (&half)[kTiles], const f32 (&all)[kTiles],
                                      const Scale &scale, u32 lane4) {
    if constexpr (policy == Rescale::exact) {
        f32 maxima[2 * kTiles];
        MOON_EACH_ROW maxima[t] = half[t], maxima[kTiles + t] = all[t];
        spread<0>(maxima, lane4);
        bool rises = false;
        MOON_EACH_ROW {
            const f32 m = rows.limit[t], m1 = max2(m, maxima[t]), m2 = max2(m1, maxima[kTiles + t]);
            rows.alpha[t] = exp2((m - m1) * scale.log2);
            rows.factor[t] = exp2((m1 - m2) * scale.log2);
            rows.shift_half[t] = -(m1 * scale.log2);
            rows.shift[t] = -(m2 * scale.log2);
            rows.limit[t] = m2;
            rises |= m2 > m1;
        }
        rows.second_half = any_lane(rises) ? 1 : 0;
        rows.first_half = unforeseen(1);  // else it is computed anew from the comparison, in every tile
        MOON_EACH_ROW rows.sum[t] *= rows.alpha[t];
    } else {
        f32 all_and_sum[2 * kTiles], shift[kTiles];
        MOON_EACH_ROW all_and_sum[t] = all[t], all_and_sum[kTiles + t] = rows.sum[t];
        spread<kTiles>(all_and_sum, lane4);
        bool moving = false, moving_o = false;
        MOON_EACH_ROW {
            // The row's own sum decides, whatever brought the wave here: its bits do not depend on other rows. For
            // limits never fall while the reference stays, so that a row that passes this one has passed the old one.
            const f32 m = all_and_sum[t], sum = all_and_sum[kTiles + t];
            const f32 limit = (room(sum) - rows.shift[t]) * scale.inverse;
            const bool moves = m > limit;
            shift[t] = moves ? -(m * scale.log2) : rows.shift[t];
            // The sum behind a move is not known yet: the next score above the reference asks again.
            rows.limit[t] = moves ? m : limit;
            moving |= moves;
            moving_o |= moves && sum != 0;  // else O is still 0
        }
        if (any_lane(moving)) {
            MOON_EACH_ROW {
                rows.alpha[t] = exp2(shift[t] - rows.shift[t]);
                rows.shift[t] = shift[t];
                rows.sum[t] *= rows.alpha[t];
            }
            rows.first_half = any_lane(moving_o) ? unforeseen(1) : 0;
        }
    }
}

// P of two key blocks: e^(s - m), rounded; the sum takes it unrounded, so that one NaN makes the whole row NaN. Eight
// exponentials stand in a row: each follows one of the partner's matrix instructions, whatever came before.
// `beside(i)`: issued behind the i-th eight.
template <Rounding mode, class Beside>
__device__ __forceinline__ void exponentials(f32x4 (&s)[kTiles][kKeyBlocks], u32x2 (&p)[kTiles][kKeyBlocks],
                                             f32 (&sum)[kTiles], const f32 (&shift)[kTiles], f32 scale_log2,
                                             i32 first_block, Beside beside) {
    MOON_EACH_ROW {
#pragma unroll
        for (i32 i = 0; i < 8; i++) {
            f32x4 &x = s[t][first_block + i / 4];
            x[i % 4] = __builtin_fmaf(x[i % 4], scale_log2, shift[t]);
        }
        __builtin_amdgcn_sched_barrier(0);
#pragma unroll
        for (i32 i = 0; i < 8; i++) {
            f32x4 &x = s[t][first_block + i / 4];
            x[i % 4] = exp2(x[i % 4]);
        }
        __builtin_amdgcn_sched_barrier(0);
#pragma unroll
        for (i32 b = first_block; b < first_block + 2; b++) {
            const f32x4 e = s[t][b];
#pragma unroll
            for (i32 r = 0; r < 4; r++) sum[t] += e[r];
            p[t][b] = u32x2{pack_high_halves(round_bits<mode>(e[0]), round_bits<mode>(e[1])),
                            pack_high_halves(round_bits<mode>(e[2]), round_bits<mode>(e[3]))};
        }
        __builtin_amdgcn_sched_barrier(0);
        beside(first_block / 2 * kTiles + t);
        __builtin_amdgcn_sched_barrier(0);
    }
}

// `beside(i)`, i from -1 to 5: issued before the exponentials and behind each sixth of them.
template <Rounding mode, Rescale policy, class Beside>
__device__ __forceinline__ void softmax(f32x4 (&s)[kTiles][kKeyBlocks], u32x2 (&p)[kTiles][kKeyBlocks], Rows &rows,
                                        const Scale &scale, u32 lane4, Beside beside) {
    f32 half[kTiles], all[kTiles];
    find_maxima(s, half, all);
    bool rises = false;
    MOON_EACH_ROW rises |= all[t] > rows.limit[t];
    if (any_lane(rises)) raise<policy>(rows, half, all, scale, lane4);

    __builtin_amdgcn_sched_barrier(0);
    beside(-1);
    exponentials<mode>(s, p, rows.sum, policy == Rescale::exact ? rows.shift_half : rows.shift, scale.log2, 0, beside);
    if constexpr (policy == Rescale::exact) {
        if (rows.second_half) {
            MOON_EACH_ROW {
                pin(rows.sum[t]);  // keeps the branch: the common tile does not multiply
                rows.sum[t] *= rows.factor[t];
            }
        }
    }
    exponentials<mode>(s, p, rows.sum, rows.shift, scale.log2, 2, beside);
    MOON_EACH_ROW pin(rows.sum[t]);
}

// Before the second product: O follows a maximum that rose. Not in the softmax, where the partner's matrix instructions
// would keep the packed multiplications waiting.
__device__ __forceinline__ void move_to_first_half(Rows &rows, f32x4 (&o)[kTiles][kChunks]) {
    if (rows.first_half) {
        scale_output(o, rows.alpha);
        rows.first_half = 0;
    }
}

// Between the halves of the second product: O follows a maximum that rose in the second.
__device__ __forceinline__ void move_to_second_half(Rows &rows, f32x4 (&o)[kTiles][kChunks]) {
    if (rows.second_half) {
        settle_mfma_before(rows.factor);
        scale_output(o, rows.factor);
        MOON_EACH_ROW {
            rows.factor[t] = 1;
            rows.shift_half[t] = rows.shift[t];
        }
        rows.second_half = 0;
    }
}
#undef MOON_EACH_ROW

}  // namespace moon
