// The softmax of one warpgroup's 64 rows, without a maximum per tile.
//
// A row's exponents are taken against a reference that is set from its first tile and stays. What shows that it went
// stale is what is computed anyway: the tile's sum of exponents. As long as that is less than all that this thread
// summed before, no key of the tile can hold more than a part of the row, and the reference is good: exponents have
// fp32's range, and P in bf16 too. Else the warp looks closer, which is rare (2 % of tiles for N(0,1) and 8192
// keys), and makes a key that dominates its row the new reference: its P is then 1 exactly, as under an exact maximum,
// so that its rounding error, the only one that averaging does not hide, is none.
//
// A row without a key so far has sum 0 and reference 0, and any tile makes the warp look.
#pragma once

#include "layout.h"

namespace moon {

// A key that weighs more than this part of its row becomes the reference, and a tile sum is suspect from as much as the
// sum before on: both times `doubt`, which is 1 for the first tiles, where much dominates for a while, and 1/2 later.
constexpr f32 kDominant = 0.25f;
constexpr i32 kEarlyTiles = 8;
constexpr f32 kLateDoubt = 0.5f;
// A tile sum that is as large is suspect whatever was summed before: scores that rise slowly and for long, no key ever
// dominating, would else take the sums beyond fp32. A key makes a new reference from a 32nd of it on, so that one of
// the 20 keys of such a sum does.
constexpr f32 kStale = 0x1p60f;
// Tile sums above this are not trusted: some of their exponents may be infinite, or have no reciprocal.
constexpr f32 kLost = 0x1p100f;

// One thread's share of a warpgroup's state: two rows, lane / 4 of its warp's 16 and 8 below.
struct Rows {
    f32 sum[2];        // of P over this thread's columns
    f32 tile_sum[2];   // the same, of this tile alone
    f32 reference[2];  // log2 units
    f32 o[kOutputs];   // O, not divided
};

template <typename Shape>
struct Tile : Rows {
    static constexpr i32 count = Shape::keys / 2;
    f32 s[count];      // S, then P unrounded; columns 8 j + 2 (lane % 4) + 0, 1 in elements 4 j + 0, 1 (+ 2: below)
    u32 p[count / 2];  // P rounded, as the A operand of the second product
};

MOON_DEVICE f32 quad_max(f32 x) {
    x = max(x, shuffle_xor(x, 1));
    return max(x, shuffle_xor(x, 2));
}
MOON_DEVICE f32 quad_sum(f32 x) {
    x += shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
}

// Largest element of s in each of the two rows.
template <typename Shape>
MOON_DEVICE void row_max(const Tile<Shape> &r, f32 (&largest)[2]) {
#pragma unroll
    for (i32 row = 0; row < 2; row++) {
        f32 even = r.s[2 * row], odd = r.s[2 * row + 1];
#pragma unroll
        for (i32 j = 1; j < r.count / 4; j++) {
            even = max(even, r.s[4 * j + 2 * row]);
            odd = max(odd, r.s[4 * j + 2 * row + 1]);
        }
        largest[row] = quad_max(max(even, odd));
    }
}

// s becomes P, and tile_sum its sums.
template <typename Shape>
MOON_DEVICE void exponentiate(Tile<Shape> &r, f32 scale_log2) {
#pragma unroll
    for (i32 row = 0; row < 2; row++) {
        f32 even = 0, odd = 0;
#pragma unroll
        for (i32 j = 0; j < r.count / 4; j++) {
            f32 &a = r.s[4 * j + 2 * row], &b = r.s[4 * j + 2 * row + 1];
            a = exp2(fma(a, scale_log2, -r.reference[row]));
            b = exp2(fma(b, scale_log2, -r.reference[row]));
            even += a;
            odd += b;
        }
        r.tile_sum[row] = even + odd;
    }
}

// Hides the keys of a tile that are beyond the last one, or beyond what this thread's rows may see.
template <typename Shape>
MOON_DEVICE void mask(Tile<Shape> &r, const Note &note, i32 tile) {
    const i32 left = note.work.keys - tile * Shape::keys;
    i32 limit0 = left, limit1 = left;
    if (Shape::causal) {
        limit0 = at_most(left, row_of(note) + 1 + left - note.work.rows);
        limit1 = at_most(left, row_of(note) + 9 + left - note.work.rows);
    }
    const u32 lane = thread_id() % 32;
#pragma unroll
    for (i32 i = 0; i < r.count; i++) {
        const i32 column = i / 4 * 8 + (i32)(lane % 4) * 2 + i % 2;
        if (column >= (i % 4 < 2 ? limit0 : limit1)) r.s[i] = -kInfinity;
    }
}

// References from a tile's scores for rows that have summed nothing yet.
template <typename Shape>
MOON_DEVICE void set_references(Tile<Shape> &r, f32 scale_log2) {
    f32 largest[2];
    row_max(r, largest);
#pragma unroll
    for (i32 row = 0; row < 2; row++) {
        if (r.sum[row] == 0) r.reference[row] = largest[row] == -kInfinity ? 0.0f : largest[row] * scale_log2;
    }
}

// Whether some row of the warp has summed nothing yet. Spreads the sums, so that a row's four threads agree on it.
MOON_DEVICE bool any_unset(Rows &r) {
    r.sum[0] = 0.25f * quad_sum(r.sum[0]);
    r.sum[1] = 0.25f * quad_sum(r.sum[1]);
    return any_lane(r.sum[0] == 0 || r.sum[1] == 0);
}

// Whether some row of the warp must look closer at its tile. False for NaN: that row is lost whatever is done.
// Under a causal mask `set_references` comes before, so that a row without a sum has no key here either.
template <typename Shape>
MOON_DEVICE bool is_suspect(const Rows &r, f32 doubt) {
    const f32 much[2] = {min(doubt * r.sum[0], kStale), min(doubt * r.sum[1], kStale)};
    if (Shape::causal) return any_lane(r.tile_sum[0] > much[0] || r.tile_sum[1] > much[1]);
    return any_lane(r.tile_sum[0] >= much[0] || r.tile_sum[1] >= much[1]);
}

// Takes the tile's sums in and rounds P.
template <typename Shape>
MOON_DEVICE void accept(Tile<Shape> &r) {
    r.sum[0] += r.tile_sum[0];
    r.sum[1] += r.tile_sum[1];
#pragma unroll
    for (i32 i = 0; i < r.count / 2; i++) r.p[i] = pack_bf16(r.s[2 * i], r.s[2 * i + 1]);
}

// The first tile's sums, spread evenly over the four threads of a row: what each compares with later.
template <typename Shape>
MOON_DEVICE void accept_first(Tile<Shape> &r) {
    accept(r);
    r.sum[0] = 0.25f * quad_sum(r.sum[0]);
    r.sum[1] = 0.25f * quad_sum(r.sum[1]);
}

// --- the closer look -------------------------------------------------------------------------------------------------

MOON_DEVICE u32 load_pair(const u16 *from) { return *reinterpret_cast<const u32 *>(from); }

// Scores of this warp's 16 rows against tile `tile`, once more and from global memory: the exponents overflowed, or
// there was no reference.
template <typename Shape>
MOON_DEVICE void compute_scores_again(Tile<Shape> &r, const Sm90aArgs &a, u32 note_address, i32 tile) {
    const Note note = read_note(note_address);
    const Work &work = note.work;
    const i32 row = row_of(note);
    const u32 lane = thread_id() % 32;
    const u16 *q = reinterpret_cast<const u16 *>(a.q) + work.map_batch * a.q_stride_batch +
                   work.head * a.q_stride_head + (i64)work.row0_q * a.q_stride_row + lane % 4 * 2;
    const u16 *k = reinterpret_cast<const u16 *>(a.k) + work.map_batch * a.k_stride_batch +
                   work.head_kv * a.k_stride_head + (i64)work.row0_k * a.k_stride_row + lane % 4 * 2;
    q += at_most(row, work.rows - 1) * a.q_stride_row;
    const i64 below = (i64)(at_most(row + 8, work.rows - 1) - at_most(row, work.rows - 1)) * a.q_stride_row;
    // Q again for every eight keys, so that one pointer into K is enough: registers are short, this path is not taken.
#pragma unroll
    for (i32 j = 0; j < Shape::keys / 8; j++) {
        f32 *scores = r.s + 4 * j;
        scores[0] = scores[1] = scores[2] = scores[3] = 0;
        const u16 *at = k + at_most(tile * Shape::keys + 8 * j + (i32)lane / 4, work.keys - 1) * a.k_stride_row;
#pragma unroll 1
        for (i32 dim = 0; dim < kHeadDim; dim += 16) {
            const u32 qa[4] = {load_pair(q + dim), load_pair(q + below + dim), load_pair(q + dim + 8),
                               load_pair(q + below + dim + 8)};
            mma_warp(scores, qa, load_pair(at + dim), load_pair(at + dim + 8));
        }
    }
    mask<Shape>(r, note, tile);
}

// New references where keys of this tile dominate; P, the tile's sums, the sums and O follow. A warp's own matter, so
// no instruction of the warpgroup but the wait for its product in flight, which accumulates into O.
template <typename Shape>
MOON_DEVICE void look_closer(Tile<Shape> &r, const Sm90aArgs &a, u32 note_address, i32 tile, f32 scale_log2,
                             f32 doubt) {
    f32 sum[2], factor[2] = {1, 1}, largest[2];
    bool lost = false;
#pragma unroll
    for (i32 i = 0; i < 2; i++) {
        sum[i] = quad_sum(r.sum[i]);
        lost |= r.tile_sum[i] > kLost || (!Shape::causal && sum[i] == 0);
    }
    // Each branch waits and scales on its own: ptxas must see that O is not touched before its product is done.
    const auto scale_output = [&] {
#pragma unroll
        for (i32 i = 0; i < kOutputs; i++) r.o[i] *= factor[i % 4 / 2];
    };
    if (any_lane(lost)) {
        mma_wait<0>(r.o);
        compute_scores_again<Shape>(r, a, note_address, tile);
        row_max(r, largest);
#pragma unroll
        for (i32 i = 0; i < 2; i++) {
            const f32 candidate = largest[i] * scale_log2;
            if (sum[i] == 0) {
                if (candidate > -kInfinity) r.reference[i] = candidate;
            } else if (candidate > r.reference[i]) {
                factor[i] = exp2(r.reference[i] - candidate);
                r.reference[i] = candidate;
            }
        }
        scale_output();
        exponentiate(r, scale_log2);
    } else {
        row_max(r, largest);
#pragma unroll
        for (i32 i = 0; i < 2; i++) {
            if (largest[i] > min(doubt * kDominant * sum[i], kStale / 32)) {
                factor[i] = reciprocal(largest[i]);
                r.reference[i] += log2(largest[i]);
            }
        }
        if (any_lane(factor[0] != 1 || factor[1] != 1)) {
            mma_wait<0>(r.o);
            r.tile_sum[0] *= factor[0];
            r.tile_sum[1] *= factor[1];
#pragma unroll
            for (i32 i = 0; i < r.count; i++) r.s[i] *= factor[i % 4 / 2];
            scale_output();
        }
    }
    r.sum[0] = 0.25f * factor[0] * sum[0];
    r.sum[1] = 0.25f * factor[1] * sum[1];
}

}  // namespace moon
