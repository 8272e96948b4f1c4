// bf16 attention forward for CDNA4 (gfx950), head dim 128, built for the least energy per FLOP.
//
// Dense and causal, GQA, packed sequences, key lengths per batch entry, paged K and V, optional LSE; fp32 inside,
// nearest-even P and O. Rows of 16-byte aligned elements; whatever else comes goes to the general kernel.
//
// A workgroup: 8 waves, 384 query rows of one head; a wave owns 48 rows in three 16-row tiles. Waves w and w + 4 share
// a SIMD and are half a 64-key tile apart, so that one's softmax issues in the gaps of the other's matrix instructions:
//
//              barrier i                        barrier i + 1                    barrier i + 2
//   group A    | softmax i       matrix i + 1   | softmax i + 1   matrix i + 2   |
//   group B    | matrix i        softmax i      | matrix i + 1    softmax i + 1  |
//   A reads    |                 slot i         |                 slot i + 1     |
//   B reads    | slot i - 1                     | slot i                         |
//   loads fill | slot i + 2 (all eight waves)   | slot i + 3                     |     slots mod 4
//
// matrix i + 1 is O += P(i) V(i), then S(i + 1) = Q K(i + 1): slot i holds just these two tiles. A barrier waits for
// all loads but those issued since the one before it.
//
//   a lane's registers    O 96, Q 48, S 48 (P 24 of them, later), row sums 12, fragments 20, ones 4, references 3,
//                         load offsets 4, LDS addresses 4, sparse index 1; the rest are temporaries
//   LDS                   four slots of K 17,408 B and V 16,896 B: 137,216 B

#include "loads.h"
#include "matmul.h"
#include "softmax.h"

namespace moon {
namespace {

enum Group { kGroupA, kGroupB };

constexpr i32 kAhead = kSlots - 2;                      // steps that are loaded before the loop starts
constexpr i32 kPending = (kSlots - 3) * kLoadsPerStep;  // loads that a barrier leaves in flight

// What a wave's loop needs to know beside its registers. All wave-uniform.
struct Span {
    i32 tiles;           // that some row of the wave sees
    i32 all_tiles;       // that some row of the workgroup sees
    i32 keys, diagonal;  // of the wave's first row, from the part's first key on
    i32 first_masked;    // first tile in which some row of the wave does not see some key
    f32 scale_log2;
};

// Tiles that need more than the common path: the first, masked ones, and those whose step may reach past the last key.
// Returns the next such tile.
template <Group group, bool paged>
__device__ __forceinline__ i32 rare_tile(Wave &w, Loads<paged> &loads, const Span &span, i32 i) {
    mfma_wait_states();
    const i32 step = i + kAhead + group;
    loads.limit(step);
    if (i >= span.first_masked) mask(w, span.keys - i * kKeys, span.diagonal - i * kKeys, span.scale_log2);
    fence();
    bool unset = i == 0;
#pragma unroll
    for (i32 t = 0; t < kTiles; t++) unset |= any_lane(w.row_sum[t][0] + w.row_sum[t][1] == 0);
    if (unset) unset = set_references(w, span.scale_log2);

    const i32 first_limited = loads.keys_left / kKeys - kAhead - group - 1;
    const i32 edge = span.first_masked < first_limited ? span.first_masked : first_limited;
    return unset || i + 1 > edge ? i + 1 : edge;
}

template <Group group, bool paged>
__device__ __forceinline__ void run(Wave &w, Loads<paged> &loads, const Span &span, u32 lane_k, u32 lane_v) {
    const auto nothing = [](i32) {};
    FragmentRing ring;

    if constexpr (group == kGroupB) {
        wait_and_meet<kPending>();
        loads.bring(kAhead, kLoadsPerStep);
    }
    forget_scores(w);
    if (span.tiles > 0) {
        fill_ring(ring, kFragmentsV, lane_k + kLastSlot, 0);
        multiply(w, kFragmentsV, kFragments, ring, lane_k + kLastSlot, 0, nothing);
        if constexpr (group == kGroupA) wait_and_meet<kPending>();
    }

    i32 rare = 0;
    u32 read_slot = 0;
#pragma unroll 1
    for (i32 i = 0; i < span.tiles; i++) {
        u32 address_k, address_v;
        loads.look_up();
        if (__builtin_expect(i == rare, 0)) rare = rare_tile<group>(w, loads, span, i);
        softmax(w, span.scale_log2, [&] {
            address_k = lane_k + read_slot;
            address_v = lane_v + read_slot;
            fill_ring(ring, 0, address_k, address_v);
            loads.set_up();
            read_slot = read_slot == kLastSlot ? 0 : read_slot + kSlotBytes;
        });
        sum_rows(w);
        fence();
        if constexpr (group == kGroupB) wait_and_meet<kPending>();
        __builtin_amdgcn_s_setprio(1);
        multiply(w, 0, kFragmentsV, ring, address_k, address_v, [&](i32 f) {
            if (f > 0 && f <= kLoadsPerStep) loads.issue(f - 1);
            if (f < kLoadsPerStep) loads.aim(f);
            if (f > kLoadsPerStep && f <= kLoadsPerStep + kAdvances) loads.advance(f - kLoadsPerStep - 1);
        });
        forget_scores(w);
        i32 tiles_left = span.tiles - 1 - i;
        opaque_scalar(tiles_left);  // or the loop would be turned into one with its exit here, and spill
        if (__builtin_expect(tiles_left > 0, 1)) {
            multiply(w, kFragmentsV, kFragments, ring, address_k, address_v, [&](i32 f) {
                // As soon as the last fragment is in registers: group B need not wait for its products.
                if (group == kGroupA && f == kFragments - 2) wait_for_lds_and_meet<kPending>();
            });
        }
        __builtin_amdgcn_s_setprio(0);
    }
    // The wave's rows see no more, or there are none; the others still need its share of the loads. The wait: fragments
    // were read ahead for a product that is not made, and their slot will be filled again.
    asm volatile("s_waitcnt lgkmcnt(0)" ::: "memory");
    for (i32 i = span.tiles; i < span.all_tiles; i++) {
        wait_and_meet<kPending>();
        loads.bring(i + kAhead + group, kLoadsPerStep);
    }
    if constexpr (group == kGroupA) wait_and_meet<kPending>();
}

// `first`: the head's first row in the sequence or in page 0; `row`: the wave's first row of the tile of step -1.
template <bool paged>
__device__ __forceinline__ void start_stream(Stream &s, u64 first, i64 stride_batch, i64 stride_row, i64 row,
                                             u32 lane_offset) {
    s.row_bytes = (u32)stride_row * kElement;
    s.tile_bytes = kKeys * s.row_bytes;
    s.page_bytes = (u32)stride_batch * kElement;
    s.base = uniform(first);
    if constexpr (!paged) s.at = uniform(first + (u64)(row * stride_row) * kElement);
    s.lane_offset[0] = lane_offset;
    s.lane_offset[1] = lane_offset + s.row_bytes;
}

// Points the streams at the part's keys and asks for K of the first tile.
template <bool paged>
__device__ __forceinline__ void start_loads(Loads<paged> &loads, const Cdna4Args &a, const Work &work, i32 wave) {
    const u32 lane = lane_id();
    const i32 head_kv = work.head / (a.num_heads / a.num_heads_kv);
    const i32 first_row = work.first_tile * kKeys + first_loaded_row(wave);
    const i64 batch = paged ? 0 : work.batch, row = work.row0_k + first_row;
    const u64 k = a.k + (u64)(batch * a.k_stride_batch + head_kv * a.k_stride_head) * kElement;
    const u64 v = a.v + (u64)(batch * a.v_stride_batch + head_kv * a.v_stride_head) * kElement;
    const u32 source_k = lane_source_k(lane, (u32)a.k_stride_row * kElement);
    const u32 source_v = lane_source_v(lane, (u32)a.v_stride_row * kElement);
    start_stream<paged>(loads.k, k, a.k_stride_batch, a.k_stride_row, row, source_k);
    start_stream<paged>(loads.v, v, a.v_stride_batch, a.v_stride_row, row - kKeys, source_v);
    if constexpr (paged) {
        const u64 entry = (u64)(work.batch * a.block_table_stride) * sizeof(i32);
        loads.table = reinterpret_cast<const i32 *>(uniform(a.block_table + entry));
        loads.page_shift = a.page_shift;
        loads.last_row = work.keys > 0 ? work.keys - 1 : 0;
        loads.row = (u32)(first_row - kKeys);
        loads.find_rows();
    }

    const i32 end = (work.first_tile + work.tiles) * kKeys;  // keys past the part's last tile are not fetched
    loads.keys_left = (work.keys < end ? work.keys : end) - first_row;
    loads.lds_k = 2 * wave * kSlabPitchK;
    loads.lds_v = kOffsetV + 2 * wave * kSlabPitchV;
    loads.slot = kLastSlot;
    asm volatile("s_nop 4");  // pays the debt of the first load: a readfirstlane may have made its resource
    loads.bring(-1, 2);
}

__device__ __forceinline__ void start_wave(Wave &w, const Cdna4Args &a, const Work &work, i32 wave) {
    const u32 lane = lane_id();
    const i32 column = (i32)(lane % 16), group = (i32)(lane / 16);
    const u64 base = a.q + (u64)(work.batch * a.q_stride_batch + work.head * a.q_stride_head) * kElement;
#pragma unroll
    for (i32 t = 0; t < kTiles; t++) {
        i32 row = wave * kRowsPerWave + 16 * t + column;
        row = row < work.rows ? row : work.rows - 1;  // in bounds; never stored
        const u64 at = base + (u64)((work.row0_q + work.first_row + row) * a.q_stride_row) * kElement + 16 * group;
#pragma unroll
        for (i32 c = 0; c < 4; c++) w.q[t][c] = *reinterpret_cast<const bf16x8 *>(at + 64 * c);
#pragma unroll
        for (i32 d = 0; d < kDimBlocks; d++) w.o[t][d] = f32x4{0, 0, 0, 0};
        w.row_sum[t] = f32x4{0, 0, 0, 0};
        w.minus_reference[t] = 0;
    }
    i32x4 ones = {0x3F803F80, 0x3F803F80, 0x3F803F80, 0x3F803F80};
    asm volatile("" : "+v"(ones));  // else the compiler makes them anew in the loop
    w.ones = __builtin_bit_cast(bf16x8, ones);
    w.sparse_index = column % 2 ? (i32)0xEEEEEEEE : 0x44444444;
}

// Where a workgroup's rows go, found before the loop and kept: a few scalar registers are free.
struct Output {
    u64 o;           // the block's first row, or its partial
    u64 lse;         // of the block's first row; null: not wanted
    i64 row_stride;  // of o, bytes
    i32 rows;
    i32 split;
};

__device__ __forceinline__ Output find_output(const Cdna4Args &a, const Work &work) {
    const i64 first_row = work.row0_q + work.first_row;
    Output output;
    output.rows = work.rows;
    output.split = work.partial >= 0;
    output.row_stride = a.o_stride_row * (i64)kElement;
    output.o = a.o + (u64)(work.batch * a.o_stride_batch + work.head * a.o_stride_head) * kElement +
               (u64)(first_row * output.row_stride);
    const i64 lse_at = work.batch * a.lse_stride_batch + work.head * a.lse_stride_head + first_row;
    output.lse = a.lse ? a.lse + (u64)lse_at * sizeof(f32) : 0;
    if (output.split) output.o = a.workspace + (u64)work.partial * sizeof(Partial);
    output.o = uniform(output.o);
    output.lse = uniform(output.lse);
    return output;
}

// O divided by the row sum, and LSE. A row that saw no key gives zeros and -inf; a NaN score makes its row NaN.
__device__ __forceinline__ void store_rows(const Wave &w, const Output &output, i32 wave) {
    const u32 lane = lane_id();
    const i32 column = (i32)(lane % 16), group = (i32)(lane / 16);
    f32 *lse = reinterpret_cast<f32 *>(output.lse);
#pragma unroll
    for (i32 t = 0; t < kTiles; t++) {
        const i32 row = wave * kRowsPerWave + 16 * t + column;
        if (row >= output.rows) continue;
        const f32 sum = w.row_sum[t][0] + w.row_sum[t][1];
        const f32 inverse = sum == 0 ? 0.0f : __builtin_amdgcn_rcpf(sum);
        if (lse && group == 0) {
            const f32 log2_sum = __builtin_amdgcn_logf(sum) - w.minus_reference[t];
            lse[row] = sum == 0 ? -__builtin_inff() : log2_sum * kLn2;
        }
        const u64 at = output.o + (u64)(row * output.row_stride) + 8 * group;
#pragma unroll
        for (i32 d = 0; d < kDimBlocks; d++) {
            bf16_quad rounded;
#pragma unroll
            for (i32 r = 0; r < 4; r++) rounded[r] = (__bf16)(w.o[t][d][r] * inverse);
            *reinterpret_cast<bf16_quad *>(at + 32 * d) = rounded;
        }
    }
}

// A split part's rows, for the merge.
__device__ __forceinline__ void store_partial(const Wave &w, const Output &output, i32 wave) {
    const u32 lane = lane_id();
    const i32 column = (i32)(lane % 16), group = (i32)(lane / 16);
    Partial &partial = *reinterpret_cast<Partial *>(output.o);
#pragma unroll
    for (i32 t = 0; t < kTiles; t++) {
        const i32 row = wave * kRowsPerWave + 16 * t + column;
        if (row >= output.rows) continue;
        if (group == 0) {
            partial.sum[row] = w.row_sum[t][0] + w.row_sum[t][1];
            partial.reference[row] = -w.minus_reference[t];
        }
#pragma unroll
        for (i32 d = 0; d < kDimBlocks; d++) {
            *reinterpret_cast<f32x4 *>(&partial.o[row][16 * d + 4 * group]) = w.o[t][d];
        }
    }
}

template <bool paged>
__device__ __forceinline__ void attention() {
    __shared__ static u8 lds[kLdsBytes];
    asm volatile("" ::"v"((MOON_LDS u8 *)lds));  // the only LDS object: it lies at 0, and asm alone uses it

    const Cdna4Args a = load_arguments();
    const i32 wave = uniform((i32)__builtin_amdgcn_workitem_id_x() / kWavefront);

    Wave w;
    Loads<paged> loads;
    Span span;
    Output output;
    {
        const Work work = find_work(a, __builtin_amdgcn_workgroup_id_x());
        if (work.rows <= 0) return;
        start_loads(loads, a, work, wave);
        start_wave(w, a, work, wave);
        output = find_output(a, work);
        span.all_tiles = work.tiles;
        span.keys = work.keys - work.first_tile * kKeys;
        span.diagonal = work.diagonal + wave * kRowsPerWave - work.first_tile * kKeys;
        const i32 seen = span.keys < span.diagonal ? span.keys : span.diagonal;
        span.first_masked = seen > 0 ? seen / kKeys : 0;
        const i32 last_row_sees = span.diagonal + kRowsPerWave - 1;
        i32 seen_by_any = span.keys < last_row_sees ? span.keys : last_row_sees;
        seen_by_any = wave * kRowsPerWave < work.rows ? seen_by_any : 0;
        span.tiles = seen_by_any > 0 ? (seen_by_any + kKeys - 1) / kKeys : 0;
        span.tiles = span.tiles < work.tiles ? span.tiles : work.tiles;
        // A scale of 0 would make NaN of masked scores: take one that makes 0 of all others.
        span.scale_log2 = a.softmax_scale == 0 ? 1e-37f : a.softmax_scale * kLog2E;
    }
    const u32 lane = lane_id();
    const u32 lane_k = lane_address_k(lane), lane_v = lane_address_v(lane);
    wait_and_meet<0>();
    // The compiler must not wait for Q later: it would wait for the loads that follow, too.
#pragma unroll
    for (i32 t = 0; t < kTiles; t++) {
#pragma unroll
        for (i32 c = 0; c < 4; c++) asm volatile("" : "+v"(w.q[t][c]));
    }
#pragma unroll
    for (i32 step = 0; step < kAhead; step++) loads.bring(step, kLoadsPerStep);
    if (wave < kWaves / 2) {
        run<kGroupA>(w, loads, span, lane_k, lane_v);
    } else {
        run<kGroupB>(w, loads, span, lane_k, lane_v);
    }

    asm volatile("s_waitcnt vmcnt(0)" ::: "memory");  // no load may reach LDS that is another workgroup's by then
    mfma_wait_states();
    if (output.split) {
        store_partial(w, output, wave);
    } else {
        store_rows(w, output, wave);
    }
}

}  // namespace
}  // namespace moon

#define MOON_KERNEL(name, paged)                                                                              \
    extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(512, 512))) void name(moon::Cdna4Args) { \
        moon::attention<paged>();                                                                             \
    }

MOON_KERNEL(moon_attention_cdna4, false)
MOON_KERNEL(moon_attention_cdna4_paged, true)
