// Merges the parts of split row blocks: O = sum of 2^(m_i - M) O_i over sum of 2^(m_i - M) l_i, M the highest m_i.
//
// One block: 32 rows of a split row block, 8 threads a row, 16 head dims a thread; kRows / 32 blocks a row block.

#include "layout.h"

namespace moon {
namespace {

constexpr i32 kMergeThreads = 256;
constexpr i32 kThreadsPerRow = 8;
constexpr i32 kMergeRows = kMergeThreads / kThreadsPerRow;
constexpr i32 kBlocksPerItem = kRows / kMergeRows;
constexpr i32 kDims = kHeadDim / kThreadsPerRow;

// Rows without a key have sum 0 and a reference that means nothing: they weigh nothing. A NaN sum keeps its weight.
MOON_DEVICE f32 weight(const Partial &part, i32 row, f32 highest) {
    return part.sum[row] == 0 ? 0.0f : exp2(part.reference[row] - highest);
}

template <bool causal>
MOON_DEVICE void merge(const Sm90aArgs &a) {
    const i32 split = (i32)block_id() / kBlocksPerItem, parts = a.num_splits;
    // The whole row block: its first part's work, but for the keys.
    const Work work = find_work<causal>(a, a.first_split + split * parts);
    const i32 thread = (i32)thread_id();
    const i32 row = (i32)block_id() % kBlocksPerItem * kMergeRows + thread / kThreadsPerRow;
    const i32 dim = thread % kThreadsPerRow * kDims;
    if (work.first_row + row >= work.rows) return;

    const Partial *partials = reinterpret_cast<const Partial *>(a.workspace) + (i64)split * parts;
    f32 highest = -kInfinity;
    for (i32 i = 0; i < parts; i++) {
        if (partials[i].sum[row] != 0) highest = max(highest, partials[i].reference[row]);
    }
    f32 sum = 0, o[kDims] = {};
    for (i32 i = 0; i < parts; i++) {
        const f32 w = weight(partials[i], row, highest);
        if (partials[i].sum[row] == 0) continue;
        sum += w * partials[i].sum[row];
#pragma unroll
        for (i32 d = 0; d < kDims; d++) o[d] = fma(w, partials[i].o[row][dim + d], o[d]);
    }
    const i64 at = (i64)work.row0_q + work.first_row + row;
    if (a.lse && dim == 0) {
        f32 *lse = reinterpret_cast<f32 *>(a.lse) + work.batch * a.lse_stride_batch + work.head * a.lse_stride_head;
        lse[at] = sum == 0 ? -kInfinity : (highest + log2(sum)) * kLn2;
    }
    const f32 inverse = sum == 0 ? 0.0f : reciprocal(sum);
    u16 *out = reinterpret_cast<u16 *>(a.o) + work.map_batch * a.o_stride_batch + work.head * a.o_stride_head +
               at * a.o_stride_row + dim;
#pragma unroll
    for (i32 d = 0; d < kDims; d += 2) {
        *reinterpret_cast<u32 *>(out + d) = pack_bf16(o[d] * inverse, o[d + 1] * inverse);
    }
}

}  // namespace
}  // namespace moon

extern "C" {
__global__ void __launch_bounds__(256) moon_attention_sm90a_merge(const __grid_constant__ moon::Sm90aArgs args) {
    args.causal ? moon::merge<true>(args) : moon::merge<false>(args);
}
}
