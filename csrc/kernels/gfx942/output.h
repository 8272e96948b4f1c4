// How rows leave the workgroup: divided and rounded, or as fp32 partials for the merge.
#pragma once

#include "../common/rounding.h"
#include "isa.h"
#include "layout.h"

namespace moon {

__device__ __forceinline__ f32 row_total(f32 x, u32 lane4) {
    x += from_lane(x, lane4 ^ 64);
    return x + from_lane(x, lane4 ^ 128);
}

// Natural log of the row's sum of exponentials; `shift` is minus its reference in log2 units.
__device__ __forceinline__ f32 log_sum(f32 shift, f32 sum) {
    return sum == 0 ? -__builtin_inff() : (__builtin_amdgcn_logf(sum) - shift) * kLn2;
}

// AITER's rule: times the approximate reciprocal; a row that saw no key is zero.
__device__ __forceinline__ f32 reciprocal(f32 sum) { return sum == 0 ? 0.0f : __builtin_amdgcn_rcpf(sum); }

template <Rounding mode>
__device__ __forceinline__ u32x2 round_four(f32x4 x) {
    return u32x2{pack_high_halves(round_output<mode>(x[0]), round_output<mode>(x[1])),
                 pack_high_halves(round_output<mode>(x[2]), round_output<mode>(x[3]))};
}

// Outputs are multiples of 4 B apart, whatever the strides.
struct __attribute__((packed, aligned(4))) Words2 {
    u32x2 value;
};

// 16 query rows, each in four lanes. `sum`: of this lane's keys.
template <Rounding mode>
__device__ __forceinline__ void store_rows(const Cdna3Args &a, const Work &work, const f32x4 (&o)[kChunks], f32 shift,
                                           f32 sum, i32 first_row, Lane lane) {
    sum = row_total(sum, lane.lane4);
    const i32 row = first_row + (i32)lane.column();
    if (row >= work.rows) return;
    if (work.partial_o) {
        if (lane.group() == 0) {
            work.partial_stats[2 * row] = -shift;
            work.partial_stats[2 * row + 1] = sum;
        }
        MOON_GLOBAL f32x4 *out = reinterpret_cast<MOON_GLOBAL f32x4 *>(work.partial_o + row * kHeadDim) + lane.group();
#pragma unroll
        for (i32 c = 0; c < kChunks; c++) out[4 * c] = o[c];
        return;
    }
    if (work.lse && lane.group() == 0) work.lse[row] = log_sum(shift, sum);
    const f32 inverse = reciprocal(sum);
    Global *out = work.o + row_offset(row, 2 * a.o_stride_row) + 8 * lane.group();
#pragma unroll
    for (i32 c = 0; c < kChunks; c++)
        reinterpret_cast<MOON_GLOBAL Words2 *>(out + 32 * c)->value = round_four<mode>(o[c] * inverse);
}

// Rows that see no key: zeros and -Inf, or a partial that weighs nothing.
__device__ __forceinline__ void store_nothing(const Cdna3Args &a, const Work &work, u32 thread) {
    if (work.partial_o) {
        for (i32 i = (i32)thread; i < work.rows; i += kThreads) {
            work.partial_stats[2 * i] = -kMaxF32;
            work.partial_stats[2 * i + 1] = 0;
        }
        return;
    }
    for (i32 i = (i32)thread; i < work.rows * (kHeadDim / 4); i += kThreads) {
        const i32 row = i / (kHeadDim / 4), part = i % (kHeadDim / 4);
        reinterpret_cast<MOON_GLOBAL Words2 *>(work.o + row_offset(row, 2 * a.o_stride_row) + 8 * part)->value =
            u32x2{0, 0};
        if (work.lse && part == 0) work.lse[row] = -__builtin_inff();
    }
}

}  // namespace moon
