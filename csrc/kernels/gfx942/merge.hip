// The merge of split workgroups: fp32 partials of one query block's parts into its rows. Half a wave takes a row.

#include "../common/device.h"
#include "output.h"

namespace moon {
namespace {

struct Cdna3MergeArgs {
#define MOON_ARG(type, name) type name;
#include "../common/cdna3_merge_args.def"
#undef MOON_ARG
};

constexpr i32 kThreadsPerRow = kHeadDim / 4;
constexpr i32 kMergeThreads = 256;
constexpr i32 kRowsPerMerge = kMergeThreads / kThreadsPerRow;

template <Rounding mode>
__device__ __forceinline__ void merge(const Cdna3MergeArgs &a) {
    const u32 index = __builtin_amdgcn_workgroup_id_x(), thread = __builtin_amdgcn_workitem_id_x();
    const u32 merges_per_block = kRows / kRowsPerMerge, blocks_per_head = ((u32)a.seqlen_q + kRows - 1) / kRows;
    const u32 split_block = index / merges_per_block, block = (u32)a.whole_blocks + split_block;
    const i32 row_in_block = (i32)((index % merges_per_block) * kRowsPerMerge + thread / kThreadsPerRow);
    const i32 row = (i32)(block % blocks_per_head) * kRows + row_in_block, part = (i32)(thread % kThreadsPerRow);
    if (row >= a.seqlen_q) return;

    // A split launch has at most some ten thousand workgroups: 32 bits number their rows.
    const u32 first = split_block * (u32)a.num_splits * kRows + (u32)row_in_block;
    const MOON_GLOBAL f32 *stats = reinterpret_cast<const MOON_GLOBAL f32 *>(a.partial_stats) + 2 * (u64)first;
    const MOON_GLOBAL f32x4 *partial =
        reinterpret_cast<const MOON_GLOBAL f32x4 *>(a.partial_o) + kThreadsPerRow * (u64)first + part;
    f32 reference = -kMaxF32;
    for (i32 i = 0; i < a.num_splits; i++) {
        const i64 at = 2 * (i64)i * kRows;
        if (stats[at + 1] != 0) reference = __builtin_fmaxf(reference, stats[at]);
    }
    f32 sum = 0;
    f32x4 o = {0, 0, 0, 0};
    for (i32 i = 0; i < a.num_splits; i++) {
        const i64 at = 2 * (i64)i * kRows;
        const f32 part_sum = stats[at + 1];
        if (part_sum == 0) continue;  // saw no key: its O was not written
        const f32 weight = exp2(stats[at] - reference);
        sum += part_sum * weight;
        o += partial[(i64)i * kRows * kThreadsPerRow] * weight;
    }

    const u32 head_index = block / blocks_per_head;
    const i32 head = (i32)(head_index % (u32)a.num_heads), batch = (i32)(head_index / (u32)a.num_heads);
    if (a.lse && part == 0) {
        MOON_GLOBAL f32 *lse = reinterpret_cast<MOON_GLOBAL f32 *>(a.lse);
        lse[batch * a.lse_stride_batch + head * a.lse_stride_head + row] = log_sum(-reference, sum);
    }
    MOON_GLOBAL u16 *out = reinterpret_cast<MOON_GLOBAL u16 *>(a.o) + batch * a.o_stride_batch +
                           head * a.o_stride_head + (i64)row_offset(row, a.o_stride_row) + 4 * part;
    reinterpret_cast<MOON_GLOBAL Words2 *>(out)->value = round_four<mode>(o * reciprocal(sum));
}

}  // namespace
}  // namespace moon

#define MOON_KERNEL(mode)                                                             \
    extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(256, 256))) void \
    moon_attention_cdna3_merge_##mode(moon::Cdna3MergeArgs args) {                    \
        moon::merge<moon::Rounding::mode>(args);                                      \
    }

MOON_KERNEL(rtne)
MOON_KERNEL(rtna)
MOON_KERNEL(rtz)
