// The end of a work item: O and the log-sum-exp to their tensors, or a part's results to the workspace.
#pragma once

#include "softmax.h"

namespace moon {

// Four threads hold two columns of four 8-column groups each; after it, thread n of them holds all of group n.
MOON_DEVICE void transpose_quad(u32 (&x)[4], u32 lane) {
    const bool odd = lane & 1, high = lane & 2;
    // Elements whose index differs from the thread's in bit 0 change places with the neighbour's, then in bit 1.
    u32 a = exchange(odd ? x[0] : x[1], 1), b = exchange(odd ? x[2] : x[3], 1);
    (odd ? x[0] : x[1]) = a;
    (odd ? x[2] : x[3]) = b;
    a = exchange(high ? x[0] : x[2], 2), b = exchange(high ? x[1] : x[3], 2);
    (high ? x[0] : x[2]) = a;
    (high ? x[1] : x[3]) = b;
}

// O and the log-sum-exp to their tensors. `row`: this thread's first row in the sequence; the other is 8 below.
MOON_DEVICE void store(const Rows &r, const Sm90aArgs &a, const Work &work, i32 row) {
    const u32 lane = thread_id() % 32;
    u16 *o = reinterpret_cast<u16 *>(a.o) + work.map_batch * a.o_stride_batch + work.head * a.o_stride_head;
    f32 *lse = reinterpret_cast<f32 *>(a.lse) + work.batch * a.lse_stride_batch + work.head * a.lse_stride_head;
#pragma unroll
    for (i32 i = 0; i < 2; i++) {
        const i64 at = (i64)work.row0_q + row + 8 * i;
        const bool there = row + 8 * i < work.rows;
        const f32 sum = quad_sum(r.sum[i]);
        const f32 inverse = sum == 0 ? 0.0f : reciprocal(sum);
#pragma unroll
        for (i32 j = 0; j < kOutputs / 4; j += 4) {
            u32 quad[4];
#pragma unroll
            for (i32 n = 0; n < 4; n++) {
                const u32 pair = pack_bf16(r.o[4 * (j + n) + 2 * i] * inverse, r.o[4 * (j + n) + 2 * i + 1] * inverse);
                quad[n] = sum == 0 ? 0 : pair;  // nothing times what stands in V may be NaN
            }
            transpose_quad(quad, lane);
            if (there) store_global(o + at * a.o_stride_row + 8 * (j + (i32)(lane % 4)), quad);
        }
        if (a.lse && lane % 4 == 0 && there) {
            lse[at] = sum == 0 ? -kInfinity : (r.reference[i] + log2(sum)) * kLn2;
        }
    }
}

// --- parts -----------------------------------------------------------------------------------------------------------

// Where warpgroup `group` of an item (of all its blocks) leaves the results of part `part`.
template <typename Shape>
MOON_DEVICE Partial *partial_of(const Sm90aArgs &a, i32 part, u32 group) {
    return reinterpret_cast<Partial *>(a.workspace) + part * (Shape::cluster * kConsumers) + group;
}

MOON_DEVICE void store_partial(const Rows &r, Partial *partial) {
    const u32 thread = thread_id() % kWarpgroup;
#pragma unroll
    for (i32 i = 0; i < kOutputs; i++) partial->o[i][thread] = r.o[i];
#pragma unroll
    for (i32 i = 0; i < 2; i++) {
        partial->sum[i][thread] = r.sum[i];
        partial->reference[i][thread] = r.reference[i];
    }
}

}  // namespace moon
