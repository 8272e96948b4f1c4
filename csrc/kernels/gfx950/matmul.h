// The matrix block: O += V^T P^T of one tile, then S = K Q^T of the next.
//
// PV comes first, so that P dies before S exists: in the other order 24 registers spill. Each fragment read from LDS
// feeds three matrix instructions, one a query tile. Fragments are read kDepth - 1 ahead; the fences keep that order,
// from which the compiler derives exact waits.
#pragma once

#include "layout.h"

namespace moon {

constexpr i32 kFragmentsV = 16;               // 2 halves of 32 keys x 8 dim blocks
constexpr i32 kFragments = kFragmentsV + 16;  // 4 chunks of 32 dims x 4 key blocks
constexpr i32 kDepth = 5;                     // fragments in registers

using FragmentRing = bf16x8[kDepth];

// Fragment `f` of the slot at which the lane's addresses point: one read of K, or two of V, each half of it.
__device__ __forceinline__ bf16_quad read_half(i32 f, i32 half, u32 address_v) {
    const i32 key_block = f / kDimBlocks * 2 + half, d = f % kDimBlocks;
    return lds_read_transposed(address_v + immediate_v(key_block, d));
}

__device__ __forceinline__ bf16x8 join(bf16_quad low, bf16_quad high) {
    return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
}

__device__ __forceinline__ bf16x8 read_key_fragment(i32 f, u32 address_k) {
    const i32 chunk = (f - kFragmentsV) / kKeyBlocks, b = f % kKeyBlocks;
    return lds_read(address_k + immediate_k(b, chunk));
}

__device__ __forceinline__ bf16x8 read_fragment(i32 f, u32 address_k, u32 address_v) {
    if (f < kFragmentsV) return join(read_half(f, 0, address_v), read_half(f, 1, address_v));
    return read_key_fragment(f, address_k);
}

// One of the fragment's three products, of query tile `t`.
__device__ __forceinline__ void multiply_tile(Wave &w, i32 f, i32 t, bf16x8 fragment) {
    if (f < kFragmentsV) {
        const bf16x8 low = __builtin_shufflevector(w.p[t], w.p[t], 0, 1, 2, 3, 4, 5, 6, 7);
        const bf16x8 high = __builtin_shufflevector(w.p[t], w.p[t], 8, 9, 10, 11, 12, 13, 14, 15);
        f32x4 &o = w.o[t][f % kDimBlocks];
        o = mfma(fragment, f < kDimBlocks ? low : high, o);
    } else {
        const i32 chunk = (f - kFragmentsV) / kKeyBlocks;
        f32x4 &s = w.s[t][f % kKeyBlocks];
        s = chunk == 0 ? mfma_zero(fragment, w.q[t][0]) : mfma(fragment, w.q[t][chunk], s);
    }
    fence();
}

// The first kDepth - 1 fragments from `first` on.
__device__ __forceinline__ void fill_ring(FragmentRing &ring, i32 first, u32 address_k, u32 address_v) {
#pragma unroll
    for (i32 f = first; f < first + kDepth - 1; f++) ring[f % kDepth] = read_fragment(f, address_k, address_v);
}

// The products of fragments `first` to `end` - 1; `beside(f)` is issued behind those of fragment f. A wave issues three
// other instructions between two matrix instructions at no cost, so none of the gaps gets more: a fragment's two reads
// stand behind its first and second product, `beside` and the wait for the next fragment behind the third.
template <class Beside>
__device__ __forceinline__ void multiply(Wave &w, i32 first, i32 end, FragmentRing &ring, u32 address_k, u32 address_v,
                                         Beside &&beside) {
#pragma unroll
    for (i32 f = first; f < end; f++) {
        const i32 ahead = f + kDepth - 1;
        const bf16x8 fragment = ring[f % kDepth];
        bf16x8 &next = ring[ahead % kDepth];
        multiply_tile(w, f, 0, fragment);
        bf16_quad low;
        if (ahead < kFragmentsV) low = read_half(ahead, 0, address_v);
        if (ahead >= kFragmentsV && ahead < kFragments) next = read_key_fragment(ahead, address_k);
        fence();
        multiply_tile(w, f, 1, fragment);
        if (ahead < kFragmentsV) next = join(low, read_half(ahead, 1, address_v));
        fence();
        multiply_tile(w, f, 2, fragment);
        beside(f);
        fence();
    }
}

// S holds nothing that is needed; without a word the compiler would keep the exponents beside P and spill.
__device__ __forceinline__ void forget_scores(Wave &w) {
#pragma unroll
    for (i32 t = 0; t < kTiles; t++) {
#pragma unroll
        for (i32 b = 0; b < kKeyBlocks; b++) asm volatile("" : "=v"(w.s[t][b]));
    }
}

// Row sums of the rounded P, on the matrix core: 48 additions a lane become three instructions.
__device__ __forceinline__ void sum_rows(Wave &w) {
#pragma unroll
    for (i32 t = 0; t < kTiles; t++) w.row_sum[t] = smfmac(w.ones, w.p[t], w.row_sum[t], w.sparse_index);
}

}  // namespace moon
