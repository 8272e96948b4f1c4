// Merges the parts of split row blocks: O = sum of 2^(m_i - M) O_i over sum of 2^(m_i - M) l_i, M the highest m_i.
//
// One workgroup: 32 rows of a split block, 8 threads a row, 16 head dims a thread. The grid has kRows / 32 workgroups a
// split block.

#include "layout.h"

namespace moon {
namespace {

constexpr i32 kMergeThreads = 256;
constexpr i32 kThreadsPerRow = 8;
constexpr i32 kMergeRows = kMergeThreads / kThreadsPerRow;
constexpr u32 kGroupsPerBlock = kRows / kMergeRows;
constexpr i32 kDims = kHeadDim / kThreadsPerRow;

// Rows without a key have sum 0, and a reference that means nothing: they weigh nothing. A NaN sum keeps its weight.
__device__ __forceinline__ f32 weight(const Partial &part, i32 row, f32 highest) {
    return part.sum[row] == 0 ? 0.0f : __builtin_amdgcn_exp2f(part.reference[row] - highest);
}

__device__ __forceinline__ void merge(const Cdna4Args &a) {
    const u32 index = __builtin_amdgcn_workgroup_id_x(), split = index / kGroupsPerBlock;
    const i32 parts = a.num_splits;
    const Work work = find_work(a, (u32)a.first_split + split, 0, 1);

    const i32 thread = (i32)__builtin_amdgcn_workitem_id_x();
    const i32 row = (i32)(index % kGroupsPerBlock) * kMergeRows + thread / kThreadsPerRow;
    const i32 dim = thread % kThreadsPerRow * kDims;
    if (row >= work.rows) return;

    const Partial *partials = reinterpret_cast<const Partial *>(a.workspace) + (i64)split * parts;
    f32 highest = -__builtin_inff();
    for (i32 i = 0; i < parts; i++) {
        if (partials[i].sum[row] != 0) highest = __builtin_fmaxf(highest, partials[i].reference[row]);
    }
    f32 sum = 0, o[kDims] = {};
    for (i32 i = 0; i < parts; i++) {
        const f32 w = weight(partials[i], row, highest);
        sum += w == 0 ? 0.0f : w * partials[i].sum[row];
#pragma unroll
        for (i32 d = 0; d < kDims; d++) o[d] += w * partials[i].o[row][dim + d];
    }

    const i64 row_q = work.row0_q + work.first_row + row;
    if (a.lse && dim == 0) {
        f32 *lse = reinterpret_cast<f32 *>(a.lse) + work.batch * a.lse_stride_batch + work.head * a.lse_stride_head;
        lse[row_q] = sum == 0 ? -__builtin_inff() : (highest + __builtin_amdgcn_logf(sum)) * kLn2;
    }
    const f32 inverse = sum == 0 ? 0.0f : __builtin_amdgcn_rcpf(sum);
    u16 *out = reinterpret_cast<u16 *>(a.o) + work.batch * a.o_stride_batch + work.head * a.o_stride_head +
               row_q * a.o_stride_row + dim;
#pragma unroll
    for (i32 d = 0; d < kDims; d += 4) {
        bf16_quad rounded;
#pragma unroll
        for (i32 r = 0; r < 4; r++) rounded[r] = (__bf16)(o[d + r] * inverse);
        *reinterpret_cast<bf16_quad *>(out + d) = rounded;
    }
}

}  // namespace
}  // namespace moon

extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(256, 256))) void moon_attention_cdna4_merge(
    moon::Cdna4Args) {
    moon::merge(moon::load_arguments());
}
