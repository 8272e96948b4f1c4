// Merges the parts of split row blocks: O = sum of 2^(m_i - M) O_i over sum of 2^(m_i - M) l_i, M the highest m_i.
//
// One block is one warpgroup's 64 rows of a split row block, its threads holding what that warpgroup's threads held.

#include "output.h"

namespace moon {
namespace {

template <typename Shape>
MOON_DEVICE void merge(const Sm90aArgs &a, const void *staging) {
    constexpr i32 groups = Shape::cluster * kConsumers;  // of a row block
    const i32 split = (i32)block_id() / groups, group = (i32)block_id() % groups;
    const i32 parts = a.num_splits, thread = (i32)thread_id();
    const Work work = find_work<Shape>(a, a.first_split + split * parts);
    const i32 group_row = work.first_row + group * kGroupRows;
    if (group_row >= work.rows) return;

    const Partial *partials = partial_of<Shape>(a, split * parts, (u32)group);
    Rows r;
    f32 highest[2] = {-kInfinity, -kInfinity};
    // A part without a key has sum 0 and a reference that means nothing. A NaN sum counts.
    for (i32 part = 0; part < parts; part++) {
#pragma unroll
        for (i32 i = 0; i < 2; i++) {
            const Partial &p = partials[part * groups];
            if (quad_sum(p.sum[i][thread]) != 0) highest[i] = max(highest[i], p.reference[i][thread]);
        }
    }
    for (i32 i = 0; i < kOutputs; i++) r.o[i] = 0;
    r.sum[0] = r.sum[1] = 0;
    for (i32 part = 0; part < parts; part++) {
        const Partial &p = partials[part * groups];
        f32 weight[2];
#pragma unroll
        for (i32 i = 0; i < 2; i++) {
            weight[i] = quad_sum(p.sum[i][thread]) == 0 ? 0.0f : exp2(p.reference[i][thread] - highest[i]);
            r.sum[i] = fma(weight[i], p.sum[i][thread], r.sum[i]);
        }
#pragma unroll
        for (i32 i = 0; i < kOutputs; i++) {
            if (weight[i % 4 / 2] != 0) r.o[i] = fma(weight[i % 4 / 2], p.o[i][thread], r.o[i]);
        }
    }
    r.reference[0] = highest[0];
    r.reference[1] = highest[1];
    store(r, a, work, group_row + thread / 32 * 16 + thread % 32 / 4, shared_address(staging));
    copy_out_wait();
}

}  // namespace
}  // namespace moon

extern "C" {
static __shared__ __attribute__((aligned(16))) unsigned char moon_staging[moon::kOutputBytes];

#define MOON_KERNEL(name, blocks, keys, causal)                                                 \
    __global__ void __launch_bounds__(128) name(const __grid_constant__ moon::Sm90aArgs args) { \
        moon::merge<moon::ShapeOf<blocks, keys, causal>>(args, moon_staging);                   \
    }
MOON_KERNEL(moon_attention_sm90a_merge, 2, 80, false)
MOON_KERNEL(moon_attention_sm90a_causal_merge, 2, 80, true)
MOON_KERNEL(moon_attention_sm90a_solo_merge, 1, 80, false)
MOON_KERNEL(moon_attention_sm90a_solo_causal_merge, 1, 80, true)
MOON_KERNEL(moon_attention_sm90a_short_merge, 1, 64, false)
}
