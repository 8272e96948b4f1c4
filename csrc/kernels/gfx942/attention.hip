// bf16 attention forward for gfx942 (CDNA3), head dim 128: the schedule.
//
// A workgroup is eight waves in two groups of four. Both do the same; B runs half an iteration behind A, so that one
// group has the matrix cores while the other has the VALU. A wave owns 48 query rows, a workgroup 384, an iteration is
// 64 keys.
//
//            |         barrier           |         barrier           |         barrier
//   group A  | load K(n+1), V(n)         | PV(n)                     | load K(n+2), V(n+1)        ...
//            | softmax(n)                | QK(n+1)                   | softmax(n+1)
//   group B  | PV(n-1)                   | load K(n+2), V(n)         | PV(n)                      ...
//            | QK(n)                     | softmax(n)                | QK(n+1)
//
//   K        memory -> LDS, two tiles; each wave loads 8 of a tile's 64 rows, one softmax phase (B: two) before its use
//   V        workspace (transposed by the pre-pass) -> L1 -> registers, a ring of 8 fragments
//   Q        two tiles in registers, three quarters of the third in LDS
//   S, P, O  registers
//
//   VGPRs    O 96, Q 36, S or P 48, V ring 32 (softmax, PV), K ring 16 and Q ring 8 (end of PV to QK), rows 12 or 18,
//            addresses 4
//
// The loop is bottom-tested and its last tile peeled: an exit in mid-loop makes the compiler keep S, P and O twice.

#include "isa.h"
#include "layout.h"
#include "matmul.h"
#include "output.h"
#include "softmax.h"

namespace moon {
namespace {

template <Rounding mode, Rescale policy>
__device__ __forceinline__ void attention(const Cdna3Args &a) {
    __shared__ static u32x4 memory[kLdsBytes / 16];
    Lds *lds = (Lds *)memory;

    Work work;
    if (!find_work(a, work)) return;

    const u32 thread = __builtin_amdgcn_workitem_id_x();
    const u32 wave = __builtin_amdgcn_readfirstlane(thread / kWavefront);
    const bool group_b = wave >= kWavesPerGroup;
    const Lane lane{4 * (thread % kWavefront)};
    const i32 first_row = (i32)wave * kRowsPerWave;
    const Scale scale = make_scale(a.softmax_scale);

    if (work.tiles <= 0) return store_nothing(a, work, thread);

    Queries q;
    q.in_lds =
        lds + (group_b ? kKeyToggle : 0) + kKeyTileBytes + (wave % kWavesPerGroup) * kQueryBytes + 4 * lane.lane4;
    load_queries(q, work, a.q_stride_row, first_row, lane);

    KeyLoader loader;
    KeyRing keys;
    ValueRing values;
    f32x4 o[kTiles][kChunks], s[kTiles][kKeyBlocks];
    u32x2 p[kTiles][kKeyBlocks];
    Rows rows;
    loader.init(work, a.k_stride_row, wave);
    keys.address = lane.column() * kSlabBytes + lane.dims();
    values.tile = work.values;
    values.offset = 4 * lane.lane4;
#pragma unroll
    for (i32 t = 0; t < kTiles; t++) {
#pragma unroll
        for (i32 c = 0; c < kChunks; c++) o[t][c] = f32x4{0, 0, 0, 0};
    }
    init_rows(rows, scale);

    const auto softmax_phase = [&](i32 tile, bool last) __attribute__((always_inline)) {
        settle_mfma(s);
        if (!last) loader.load(lds, lane.lane4);
        __builtin_amdgcn_sched_barrier(0);
        if (tile >= work.masked_from) mask_scores(s, work, tile, first_row, lane);
        // V most of a phase before its use, so that even the first touch of a tile comes in time; two loads at a time,
        // so that the other group's loads find their way between them.
        softmax<mode, policy>(s, p, rows, scale, lane.lane4, [&](i32 i) __attribute__((always_inline)) {
            const i32 load = 2 * (i + 1);
            if (load < kValueRing) {
                prefetch_value(values, load);
                prefetch_value(values, load + 1);
            }
        });
        keys.address ^= kKeyToggle;
        __builtin_amdgcn_sched_barrier(0);
        wait_memory<kValueRing>();  // K is in LDS; V may still be on its way
        settle_valu(p);
        barrier();
    };
    const auto between_halves = [&]() __attribute__((always_inline)) {
        if constexpr (policy == Rescale::exact) move_to_second_half(rows, o);
    };

    loader.load(lds, lane.lane4);
    if (group_b) loader.load(lds, lane.lane4);
    __builtin_amdgcn_s_waitcnt(0);
    barrier();
    if (group_b) barrier();  // half an iteration behind
    set_priority<3>();
#pragma unroll
    for (i32 i = 0; i < kKeyRing; i++) prefetch_key(keys, q, lds, i);
    multiply_qk(s, q, keys, lds);
    set_priority<0>();

    const i32 last = work.tiles - 1;
    i32 tile = 0;
    if (last > 0) {
        do {
            softmax_phase(tile, false);
            set_priority<3>();
            move_to_first_half(rows, o);
            multiply_pv(o, p, values, between_halves, [&](i32 step) __attribute__((always_inline)) {
                const i32 i = step - (kSteps - 1 - kKeyRing);
                if (i >= 0 && i < kKeyRing) prefetch_key(keys, q, lds, i);
            });
            multiply_qk(s, q, keys, lds);
            set_priority<0>();
        } while (++tile < last);
    }
    softmax_phase(last, true);
    if (!group_b) barrier();  // B's first was one more
    set_priority<3>();
    move_to_first_half(rows, o);
    multiply_pv(o, p, values, between_halves, [](i32) {});

#pragma unroll
    for (i32 t = 0; t < kTiles; t++) {
        settle_mfma(o[t]);
        store_rows<mode>(a, work, o[t], rows.shift[t], rows.sum[t], first_row + 16 * t, lane);
    }
}

}  // namespace
}  // namespace moon

#define MOON_KERNEL(mode, policy)                                                                                \
    extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(512, 512), amdgpu_waves_per_eu(2, 2))) void \
    moon_attention_cdna3_##mode##_##policy(moon::Cdna3Args args) {                                               \
        moon::attention<moon::Rounding::mode, moon::Rescale::policy>(args);                                      \
    }

MOON_KERNEL(rtne, exact)
MOON_KERNEL(rtna, exact)
MOON_KERNEL(rtz, exact)
MOON_KERNEL(rtne, lazy)
MOON_KERNEL(rtna, lazy)
MOON_KERNEL(rtz, lazy)
