// General bf16 attention forward, head dim 128: every mode, correct before fast.
//
// It serves whatever the tuned kernels do not: any lengths and strides, GQA, causal, per-batch key lengths, packed
// sequences, LSE, any scale. The same source builds for gfx942 and gfx950.
//
// One workgroup: 256 threads, 4 waves, 128 query rows of one head; a wave owns 32 rows in two 16-row tiles.
//
//   all waves   | K(n), V(n) global -> LDS | barrier | S = K Q^T | softmax | O += V^T P^T | barrier | next n
//
// S and O are held transposed: D of an MFMA has the query in its column (lane % 16) and four keys or head dims in its
// rows (4 * (lane / 16) + r). So a lane owns a whole query row with three others, and S leaves the first matrix product
// in just the layout in which the second wants P.
//
//   registers a lane    Q 2 x 8 x 2, O 2 x 8 x 4, S 2 x 4 x 4, m and l 2 x 2
//   LDS                 K [64 keys][136] bf16 17,408 B, V^T [128 dims][72] bf16 18,432 B
//                       (pitches padded so that neighbouring rows start on other banks)

#include "../common/device.h"
#include "../common/rounding.h"

namespace moon {
namespace {

constexpr i32 kHeadDim = 128;
constexpr i32 kThreads = 256;
constexpr i32 kTiles = 2;  // 16-row query tiles of a wave
constexpr i32 kRowsPerWave = 16 * kTiles;
constexpr i32 kRows = kThreads / kWavefront * kRowsPerWave;  // query rows of a workgroup
constexpr i32 kKeys = 64;                                    // keys of a tile
constexpr i32 kKeyBlocks = kKeys / 16;
constexpr i32 kDimBlocks = kHeadDim / 16;
constexpr i32 kPitchK = kHeadDim + 8;
constexpr i32 kPitchV = kKeys + 8;
constexpr i32 kNoDiagonal = 0x3FFFFFFF;

// Rows may start at any even byte: strides are the caller's.
struct __attribute__((packed, aligned(2))) Unaligned4 {
    u16x4 value;
};

__device__ __forceinline__ u16x4 load4(const u16 *p) { return reinterpret_cast<const Unaligned4 *>(p)->value; }

__device__ __forceinline__ f32x4 mfma(bf16x4 a, bf16x4 b, f32x4 c) {
    return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, c, 0, 0, 0);
}

// Every wave's LDS accesses before it are done for the others behind it; the compiler adds the waits.
__device__ __forceinline__ void workgroup_barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
}

__device__ __forceinline__ f32 from_lane(f32 x, i32 lane) {
    return __builtin_bit_cast(f32, __builtin_amdgcn_ds_bpermute(4 * lane, __builtin_bit_cast(i32, x)));
}

// The four lanes of a query row are lane, lane ^ 16, lane ^ 32, lane ^ 48.
__device__ __forceinline__ f32 row_max(f32 x, i32 lane) {
    x = __builtin_fmaxf(x, from_lane(x, lane ^ 16));
    return __builtin_fmaxf(x, from_lane(x, lane ^ 32));
}

__device__ __forceinline__ f32 row_sum(f32 x, i32 lane) {
    x += from_lane(x, lane ^ 16);
    return x + from_lane(x, lane ^ 32);
}

// What one workgroup works on: pointers at its first row, its lengths.
struct Block {
    const u16 *q, *k, *v;
    u16 *o;
    f32 *lse;      // null: not wanted
    i32 rows;      // query rows here, 1..kRows
    i32 keys;      // valid keys of this sequence
    i32 diagonal;  // row r sees keys < r + diagonal
};

__device__ __forceinline__ bool find_block(const ForwardArgs &a, Block &block) {
    const u32 blocks_per_head = ((u32)a.seqlen_q + kRows - 1) / kRows;
    const u32 index = __builtin_amdgcn_workgroup_id_x(), head_index = index / blocks_per_head;
    const i32 first_row = (i32)(index % blocks_per_head) * kRows;
    const i32 head = (i32)(head_index % (u32)a.num_heads), batch = (i32)(head_index / (u32)a.num_heads);
    const i32 head_kv = head / (a.num_heads / a.num_heads_kv);

    i64 row0_q = 0, row0_k = 0;
    i32 seqlen_q = a.seqlen_q;
    block.keys = a.seqlen_k;
    if (a.cu_seqlens_q) {
        const i32 *cu = reinterpret_cast<const i32 *>(a.cu_seqlens_q);
        row0_q = cu[batch];
        seqlen_q = cu[batch + 1] - cu[batch];
    }
    if (a.cu_seqlens_k) {
        const i32 *cu = reinterpret_cast<const i32 *>(a.cu_seqlens_k);
        row0_k = cu[batch];
        block.keys = cu[batch + 1] - cu[batch];
    }
    if (a.seqlens_k) {
        const i32 valid = reinterpret_cast<const i32 *>(a.seqlens_k)[batch];
        block.keys = valid < block.keys ? valid : block.keys;
    }
    if (first_row >= seqlen_q) return false;
    block.rows = seqlen_q - first_row < kRows ? seqlen_q - first_row : kRows;
    block.diagonal = a.causal ? first_row + block.keys - seqlen_q + 1 : kNoDiagonal;

    const i64 row_q = row0_q + first_row;
    const u16 *q = reinterpret_cast<const u16 *>(a.q), *k = reinterpret_cast<const u16 *>(a.k);
    const u16 *v = reinterpret_cast<const u16 *>(a.v);
    block.q = q + batch * a.q_stride_batch + head * a.q_stride_head + row_q * a.q_stride_row;
    block.k = k + batch * a.k_stride_batch + head_kv * a.k_stride_head + row0_k * a.k_stride_row;
    block.v = v + batch * a.v_stride_batch + head_kv * a.v_stride_head + row0_k * a.v_stride_row;
    block.o = reinterpret_cast<u16 *>(a.o) + batch * a.o_stride_batch + head * a.o_stride_head + row_q * a.o_stride_row;
    f32 *lse = reinterpret_cast<f32 *>(a.lse);
    block.lse = lse ? lse + batch * a.lse_stride_batch + head * a.lse_stride_head + row_q : nullptr;
    return true;
}

// K as it is: thread t brings 4 dims of row t / 32, eight rows a step.
__device__ __forceinline__ void stage_k(u16 *lds, const u16 *k, i64 stride, i32 first_key, i32 keys, i32 tid) {
    const i32 dim = 4 * (tid % 32);
#pragma unroll
    for (i32 step = 0; step < 8; step++) {
        const i32 row = step * 8 + tid / 32;
        i32 key = first_key + row;
        key = key < keys ? key : keys - 1;  // in bounds; the score is masked later
        *reinterpret_cast<u16x4 *>(lds + row * kPitchK + dim) = load4(k + key * stride + dim);
    }
}

// V transposed: a thread brings 4 x 4 elements (keys x dims), twice, and writes each dim's four keys together.
// Keys past the end are zero: their P is 0, and 0 times whatever lies there must be 0.
__device__ __forceinline__ void stage_v(u16 *lds, const u16 *v, i64 stride, i32 first_key, i32 keys, i32 tid) {
    const i32 dim = 4 * (tid % 32);
#pragma unroll
    for (i32 step = 0; step < 2; step++) {
        const i32 row = 4 * (step * 8 + tid / 32);
        u16x4 x[4];
#pragma unroll
        for (i32 j = 0; j < 4; j++) {
            const i32 key = first_key + row + j;
            const u16x4 loaded = load4(v + (key < keys ? key : keys - 1) * stride + dim);
            x[j] = key < keys ? loaded : (u16x4)(0);
        }
#pragma unroll
        for (i32 d = 0; d < 4; d++) {
            *reinterpret_cast<u16x4 *>(lds + (dim + d) * kPitchV + row) = u16x4{x[0][d], x[1][d], x[2][d], x[3][d]};
        }
    }
}

// S = K Q^T of one 64-key tile. K is read once for the wave's query tiles.
__device__ __forceinline__ void multiply_qk(f32x4 (&s)[kTiles][kKeyBlocks], const bf16x4 (&q)[kTiles][kDimBlocks],
                                            const u16 *lds, i32 column, i32 group) {
#pragma unroll
    for (i32 b = 0; b < kKeyBlocks; b++) {
#pragma unroll
        for (i32 t = 0; t < kTiles; t++) s[t][b] = f32x4{0, 0, 0, 0};
#pragma unroll
        for (i32 c = 0; c < kDimBlocks; c++) {
            const u16 *at = lds + (16 * b + column) * kPitchK + 16 * c + 4 * group;
            const bf16x4 k = *reinterpret_cast<const bf16x4 *>(at);
#pragma unroll
            for (i32 t = 0; t < kTiles; t++) s[t][b] = mfma(k, q[t][c], s[t][b]);
        }
    }
}

// O += V^T P^T of one 64-key tile.
__device__ __forceinline__ void multiply_pv(f32x4 (&o)[kTiles][kDimBlocks], const bf16x4 (&p)[kTiles][kKeyBlocks],
                                            const u16 *lds, i32 column, i32 group) {
#pragma unroll
    for (i32 c = 0; c < kDimBlocks; c++) {
#pragma unroll
        for (i32 b = 0; b < kKeyBlocks; b++) {
            const u16 *at = lds + (16 * c + column) * kPitchV + 16 * b + 4 * group;
            const bf16x4 v = *reinterpret_cast<const bf16x4 *>(at);
#pragma unroll
            for (i32 t = 0; t < kTiles; t++) o[t][c] = mfma(v, p[t][b], o[t][c]);
        }
    }
}

// S of one query tile to P; moves the running maximum and rescales what was summed under the old one.
// `seen`: keys of this tile, counted from its first, that the lane's row sees.
template <Rounding mode>
__device__ __forceinline__ void softmax(f32x4 (&s)[kKeyBlocks], bf16x4 (&p)[kKeyBlocks], f32x4 (&o)[kDimBlocks], f32 &m,
                                        f32 &l, i32 seen, f32 scale_log2, i32 lane) {
    const i32 group = lane / 16;
    // Scores in log2 units first: correct for either sign of the scale.
    f32 highest = -kMaxF32;
#pragma unroll
    for (i32 b = 0; b < kKeyBlocks; b++) {
#pragma unroll
        for (i32 r = 0; r < 4; r++) {
            const bool masked = 16 * b + 4 * group + r >= seen;
            s[b][r] = masked ? -__builtin_inff() : s[b][r] * scale_log2;
            highest = __builtin_fmaxf(highest, s[b][r]);
        }
    }
    const f32 m_new = __builtin_fmaxf(m, row_max(highest, lane));
    const f32 alpha = __builtin_amdgcn_exp2f(m - m_new);
    m = m_new;
    l *= alpha;
#pragma unroll
    for (i32 c = 0; c < kDimBlocks; c++) o[c] *= alpha;
#pragma unroll
    for (i32 b = 0; b < kKeyBlocks; b++) {
        f32 e[4];
#pragma unroll
        for (i32 r = 0; r < 4; r++) {
            e[r] = __builtin_amdgcn_exp2f(s[b][r] - m_new);
            l += e[r];  // unrounded, so that a NaN score makes the row sum and with it the whole row NaN
        }
        const u32x2 packed = {pack_high_halves(round_bits<mode>(e[0]), round_bits<mode>(e[1])),
                              pack_high_halves(round_bits<mode>(e[2]), round_bits<mode>(e[3]))};
        p[b] = __builtin_bit_cast(bf16x4, packed);
    }
}

// O divided by the row sum, rounded and stored; LSE beside it. A row that saw no key gives zeros and -inf.
template <Rounding mode>
__device__ __forceinline__ void store_row(const Block &block, i64 stride, const f32x4 (&o)[kDimBlocks], f32 m, f32 sum,
                                          i32 row, i32 group) {
    const f32 inverse = sum == 0 ? 0.0f : 1.0f / sum;
    if (block.lse && group == 0) {
        block.lse[row] = sum == 0 ? -__builtin_inff() : (m + __builtin_amdgcn_logf(sum)) * kLn2;
    }
#pragma unroll
    for (i32 c = 0; c < kDimBlocks; c++) {
        const f32x4 x = o[c] * inverse;
        const u32x2 packed = {pack_high_halves(round_output<mode>(x[0]), round_output<mode>(x[1])),
                              pack_high_halves(round_output<mode>(x[2]), round_output<mode>(x[3]))};
        Unaligned4 *out = reinterpret_cast<Unaligned4 *>(block.o + row * stride + 16 * c + 4 * group);
        out->value = __builtin_bit_cast(u16x4, packed);
    }
}

template <Rounding mode>
__device__ __forceinline__ void attention(const ForwardArgs &a) {
    __shared__ static u16 lds_k[kKeys * kPitchK];
    __shared__ static u16 lds_v[kHeadDim * kPitchV];

    Block block;
    if (!find_block(a, block)) return;

    const i32 tid = __builtin_amdgcn_workitem_id_x();
    const i32 lane = tid % kWavefront, column = lane % 16, group = lane / 16;
    const i32 wave_row = tid / kWavefront * kRowsPerWave;
    const f32 scale_log2 = a.softmax_scale * kLog2E;

    bf16x4 q[kTiles][kDimBlocks];
    f32x4 o[kTiles][kDimBlocks];
    f32 m[kTiles], l[kTiles];
#pragma unroll
    for (i32 t = 0; t < kTiles; t++) {
        i32 row = wave_row + 16 * t + column;
        row = row < block.rows ? row : block.rows - 1;  // in bounds; never stored
#pragma unroll
        for (i32 c = 0; c < kDimBlocks; c++) {
            q[t][c] = __builtin_bit_cast(bf16x4, load4(block.q + row * a.q_stride_row + 16 * c + 4 * group));
            o[t][c] = f32x4{0, 0, 0, 0};
        }
        m[t] = -kMaxF32;
        l[t] = 0;
    }

    i32 end_key = block.rows - 1 + block.diagonal;  // one past the last key that any row here sees
    end_key = end_key < block.keys ? end_key : block.keys;

    for (i32 first_key = 0; first_key < end_key; first_key += kKeys) {
        stage_k(lds_k, block.k, a.k_stride_row, first_key, block.keys, tid);
        stage_v(lds_v, block.v, a.v_stride_row, first_key, block.keys, tid);
        workgroup_barrier();

        f32x4 s[kTiles][kKeyBlocks];
        bf16x4 p[kTiles][kKeyBlocks];
        multiply_qk(s, q, lds_k, column, group);
#pragma unroll
        for (i32 t = 0; t < kTiles; t++) {
            const i32 diagonal = wave_row + 16 * t + column + block.diagonal;
            const i32 seen = (diagonal < block.keys ? diagonal : block.keys) - first_key;
            softmax<mode>(s[t], p[t], o[t], m[t], l[t], seen, scale_log2, lane);
        }
        multiply_pv(o, p, lds_v, column, group);
        workgroup_barrier();
    }

#pragma unroll
    for (i32 t = 0; t < kTiles; t++) {
        const i32 row = wave_row + 16 * t + column;
        const f32 sum = row_sum(l[t], lane);
        if (row < block.rows) store_row<mode>(block, a.o_stride_row, o[t], m[t], sum, row, group);
    }
}

}  // namespace
}  // namespace moon

#define MOON_KERNEL(mode)                                                                                            \
    extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(256, 256))) void moon_attention_general_##mode( \
        moon::ForwardArgs args) {                                                                                    \
        moon::attention<moon::Rounding::mode>(args);                                                                 \
    }

MOON_KERNEL(rtne)
MOON_KERNEL(rtna)
MOON_KERNEL(rtz)
