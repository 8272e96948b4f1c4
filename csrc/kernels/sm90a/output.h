// The end of a work item: O and the log-sum-exp to their tensors, or a part's results to the workspace.
#pragma once

#include "softmax.h"

namespace moon {

// `row`: this thread's first row in the sequence; it stores that and the one 8 below.
MOON_DEVICE void store(const Rows &r, const Sm90aArgs &a, const Work &work, i32 row) {
    const u32 column = thread_id() % 4 * 2;
    const f32 sum[2] = {quad_sum(r.sum[0]), quad_sum(r.sum[1])};
    if (work.part >= 0) {
        Partial *partial = reinterpret_cast<Partial *>(a.workspace) + work.part;
#pragma unroll
        for (i32 i = 0; i < 2; i++) {
            const i32 at = row + 8 * i - work.first_row;
#pragma unroll
            for (i32 j = 0; j < kOutputs / 4; j++) {
                partial->o[at][8 * j + column] = r.o[4 * j + 2 * i];
                partial->o[at][8 * j + column + 1] = r.o[4 * j + 2 * i + 1];
            }
            if (column == 0) {
                partial->sum[at] = sum[i];
                partial->reference[at] = r.reference[i];
            }
        }
        return;
    }
    u16 *o = reinterpret_cast<u16 *>(a.o) + work.map_batch * a.o_stride_batch + work.head * a.o_stride_head + column;
    f32 *lse = reinterpret_cast<f32 *>(a.lse) + work.batch * a.lse_stride_batch + work.head * a.lse_stride_head;
#pragma unroll
    for (i32 i = 0; i < 2; i++) {
        if (row + 8 * i >= work.rows) continue;
        const i64 at = (i64)work.row0_q + row + 8 * i;
        const f32 inverse = sum[i] == 0 ? 0.0f : reciprocal(sum[i]);
#pragma unroll
        for (i32 j = 0; j < kOutputs / 4; j++) {
            const u32 pair = pack_bf16(r.o[4 * j + 2 * i] * inverse, r.o[4 * j + 2 * i + 1] * inverse);
            // Nothing times what stands in V may be NaN.
            *reinterpret_cast<u32 *>(o + at * a.o_stride_row + 8 * j) = sum[i] == 0 ? 0 : pair;
        }
        if (a.lse && column == 0) {
            lse[at] = sum[i] == 0 ? -kInfinity : (r.reference[i] + log2(sum[i])) * kLn2;
        }
    }
}

}  // namespace moon
