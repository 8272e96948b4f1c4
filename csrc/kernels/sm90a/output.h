// The end of a work item: O and the log-sum-exp to their tensors, or a part's results to the workspace.
#pragma once

#include "softmax.h"

namespace moon {

// O and the log-sum-exp to their tensors. `row`: this thread's first row in the sequence; the other is 8 below.
// `staging`: the warpgroup's output tile in shared memory, of which a warp uses its own 16 rows.
MOON_DEVICE void store(const Rows &r, const Sm90aArgs &a, const Work &work, i32 row, u32 staging) {
    const u32 lane = thread_id() % 32, warp = thread_id() % kWarpgroup / 32;
    const u32 rows = staging + warp * 16 * kOutputPitch;
    const f32 sum[2] = {quad_sum(r.sum[0]), quad_sum(r.sum[1])};
    const f32 inverse[2] = {sum[0] == 0 ? 0.0f : reciprocal(sum[0]), sum[1] == 0 ? 0.0f : reciprocal(sum[1])};
    copy_out_wait();
    warp_sync();
    const u32 at = rows + lane % 16 * kOutputPitch + lane / 16 * 16;
#pragma unroll
    for (i32 j = 0; j < kOutputs; j += 8) {
        u32 pairs[4];
#pragma unroll
        for (i32 i = 0; i < 4; i++) {
            const u32 pair = pack_bf16(r.o[j + 2 * i] * inverse[i % 2], r.o[j + 2 * i + 1] * inverse[i % 2]);
            pairs[i] = sum[i % 2] == 0 ? 0 : pair;  // nothing times what stands in V may be NaN
        }
        store_matrices(at + (u32)j * 4, pairs);
    }
    async_proxy_fence();
    warp_sync();
    const i32 first = row - (i32)lane / 4;  // the warp's
    if (lane < 16 && first + (i32)lane < work.rows) {
        u16 *o = reinterpret_cast<u16 *>(a.o) + work.map_batch * a.o_stride_batch + work.head * a.o_stride_head +
                 ((i64)work.row0_q + first + lane) * a.o_stride_row;
        copy_out(o, rows + lane * kOutputPitch, kHeadDim * 2);
    }
    copy_out_commit();
    if (a.lse && lane % 4 == 0) {
        f32 *lse = reinterpret_cast<f32 *>(a.lse) + work.batch * a.lse_stride_batch + work.head * a.lse_stride_head +
                   work.row0_q + row;
#pragma unroll
        for (i32 i = 0; i < 2; i++) {
            if (row + 8 * i >= work.rows) continue;
            lse[8 * i] = sum[i] == 0 ? -kInfinity : (r.reference[i] + log2(sum[i])) * kLn2;
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
