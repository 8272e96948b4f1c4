// bf16 attention forward for Hopper (sm_90a), head dim 128, built for the least energy per FLOP.
//
// Dense, cross and causal, GQA, packed sequences, key lengths per batch entry, optional LSE; fp32 inside, nearest-even
// P and O. Rows of 16-byte aligned elements at any stride that a tensor map takes.
//
// A cluster is two blocks of 192 query rows that share each K/V tile of 80 keys: a byte fetched from L2 serves 384
// rows. A block: warpgroup 0 loads, warpgroups 1 to 3 compute 64 rows each. Clusters stay and take the next item.
// (Smaller grids: clusters of one block. Short key axes: tiles of 64 keys.)
//
//   loader           K(1)  V(0)        K(2)  V(1)        K(3)  V(2)        ...  up to six ahead
//
//   tensor cores     S = Q K(t)  | O += P(t-1) V(t-1)  | other warpgroups |  S = Q K(t+1) | O += P(t) V(t) ...
//   a warpgroup      wait S .... | exponents and sums of t, look if one is   | wait O, P(t) | wait S ...
//                    K(t) back   | suspect                                  | V(t-1) back
//
//   registers a thread   O 64, S 40, P 20, sums 4, references 2; 152 at most (loaders 56)
//   shared memory        Q 48 KiB, ring of six tiles 120 KiB, O 51 KiB, notes, 18 barriers: 225,808 B

#include "output.h"
#include "pipeline.h"
#include "softmax.h"

namespace moon {
namespace {

// One thread of a warpgroup that computes.
struct Consumer {
    Ring ring;
    Items items;
    u32 release_to;  // see `release_address`

    // Waits for the next tile of the ring and takes it: its slot.
    MOON_DEVICE u32 take() {
        ring.wait_full();
        const u32 slot = ring.slot;
        ring.advance();
        return slot;
    }
    MOON_DEVICE void give_back(u32 slot) const { release(release_to, slot); }
    MOON_DEVICE void let_pass(i32 tiles) { pass(ring, tiles, items.group, release_to); }
    // After the last product with Q, by all of the warpgroup: one thread speaks for it.
    MOON_DEVICE void give_back_query() const {
        if (thread_id() % kWarpgroup == 0) barrier_arrive(items.empty());
    }
    MOON_DEVICE u32 staging() const { return ring.shared + kOutputOffset + items.group * kOutputBytes; }
};

// S = Q K of the tile in `slot`.
template <typename Shape>
MOON_DEVICE void start_scores(Tile<Shape> &r, const Consumer &c, u32 slot) {
    const u32 query = descriptor_low(c.items.query(), 16);
    const u32 key = descriptor_low(c.ring.shared + kRingOffset, 16) + slot * (kSlotBytes / 16);
    keep(r.s);
    mma_fence();
#pragma unroll
    for (u32 k = 0; k < kHeadDim / 16; k++) {
        mma_scores(r.s, query + k / 4 * (kQueryHalf / 16) + k % 4 * 2,
                   key + k / 4 * (Shape::tile_half / 16) + k % 4 * 2, k != 0);
    }
    mma_commit();
}

// O += P V of the tile in `slot`.
template <typename Shape>
MOON_DEVICE void start_output(Tile<Shape> &r, const Consumer &c, u32 slot) {
    const u32 value = descriptor_low(c.ring.shared + kRingOffset, Shape::tile_half) + slot * (kSlotBytes / 16);
    keep(r.o);
    mma_fence();
#pragma unroll
    for (u32 k = 0; k < Shape::keys / 16; k++) mma_values(r.o, r.p + 4 * k, value + k * (16 * 128 / 16));
    mma_commit();
}

// Rows of a V tile beyond the last key hold whatever follows it in memory: a key length or a packed sequence ends where
// the tensor does not. P is 0 there, which NaN survives.
template <typename Shape>
MOON_DEVICE void clear_beyond(u32 tile, i32 keys, u32 group) {
    for (i32 i = keys * 8 + (i32)(thread_id() % kWarpgroup); i < Shape::keys * 8; i += kWarpgroup) {
        store_shared_zero(tile + (u32)i * 16);
        store_shared_zero(tile + Shape::tile_half + (u32)i * 16);
    }
    async_proxy_fence();
    warpgroup_sync(1 + group);
}

// The item's last `tiles` are computed; the others, which come first, pass by.
template <typename Shape>
MOON_DEVICE void attend(Tile<Shape> &r, Consumer &c, const Sm90aArgs &a, i32 begin, i32 tiles, i32 skipped) {
    const f32 scale_log2 = a.softmax_scale * kLog2E;
    i32 tile = begin + tiles - 1;
    const i32 settled = tile - kEarlyTiles;
    {
        const Note note = read_note(c.items.note());
        const i32 keys = note.work.keys - tile * Shape::keys;
        if (skipped > 0) c.let_pass(2 * skipped - 1);
        const u32 key_slot = c.take();
        start_scores(r, c, key_slot);
        mma_wait<0>(r.s);
        c.give_back(key_slot);
        if (Shape::causal || keys < Shape::keys) mask<Shape>(r, note, tile);
        set_references(r, scale_log2);
        exponentiate(r, scale_log2);
        accept_first(r);
        if (skipped > 0) c.let_pass(1);
        if (keys < Shape::keys && (a.seqlens_k || a.cu_seqlens_k)) {
            Ring value = c.ring;
            if (tiles > 1) value.advance();
            value.wait_full();
            clear_beyond<Shape>(value.tile(), keys, c.items.group);
        }
    }
    bool edge = Shape::causal;  // some row of the warp has seen no key yet; from then on, tiles need no mask
#pragma unroll 1
    while (tile > begin) {
        tile--;
        const u32 key_slot = c.take();
        start_scores(r, c, key_slot);
        const u32 value_slot = c.take();
        start_output(r, c, value_slot);
        mma_wait<1>(r.s);
        c.give_back(key_slot);
        if (Shape::causal && edge) {
            edge = any_unset(r);
            if (edge) {
                mask<Shape>(r, read_note(c.items.note()), tile);
                set_references(r, scale_log2);
            }
        }
        exponentiate(r, scale_log2);
        const f32 doubt = tile > settled ? 1.0f : kLateDoubt;
        if (is_suspect<Shape>(r, doubt)) look_closer<Shape>(r, a, c.items.note(), tile, scale_log2, doubt);
        mma_wait<0>(r.o);
        c.give_back(value_slot);
        accept(r);
    }
    c.give_back_query();
    const u32 value_slot = c.take();
    start_output(r, c, value_slot);
    mma_wait<0>(r.o);
    c.give_back(value_slot);
}

template <typename Shape>
MOON_DEVICE void consume(const Sm90aArgs &a, u32 shared, u32 rank, u32 group) {
    Consumer c = {{shared, 0, 0}, {shared, group, 0}, release_address<Shape>(shared, thread_id() % kWarpgroup)};
    Tile<Shape> r;
    const i32 clusters = (i32)grid_blocks() / Shape::cluster;
#pragma unroll 1
    for (i32 item = (i32)block_id() / Shape::cluster; item < work_items<Shape>(a); item += clusters) {
        c.items.wait_full();
        const Note note = read_note(c.items.note());
#pragma unroll
        for (i32 i = 0; i < kOutputs; i++) r.o[i] = 0;
        r.sum[0] = r.sum[1] = r.reference[0] = r.reference[1] = 0;
        if (note.tiles > 0) {
            attend<Shape>(r, c, a, note.work.begin, note.tiles, note.skipped);
        } else {
            warpgroup_sync(1 + group);
            c.give_back_query();
            c.let_pass(2 * note.skipped);
        }
        const Note again = read_note(c.items.note());
        c.items.advance();
        if (again.work.part >= 0) {
            store_partial(r, partial_of<Shape>(a, again.work.part, rank * kConsumers + group));
        } else if (again.group_row < again.work.rows) {
            store(r, a, again.work, row_of(again), c.staging());
        }
    }
    copy_out_wait();
}

template <typename Shape>
MOON_DEVICE void attention(const Sm90aArgs &a, const void *dynamic_shared) {
    const u32 shared = (shared_address(dynamic_shared) + kSwizzleBytes - 1) / kSwizzleBytes * kSwizzleBytes;
    const u32 rank = cluster_rank();
    const u32 thread = thread_id();
    const u32 warpgroup = uniform(thread / kWarpgroup);
    if (thread == 0) init_barriers<Shape>(shared);
    cluster_sync();
    if (warpgroup == 0) {
        lower_registers<kProducerRegisters>();
        if (thread == 0) load_keys_and_values<Shape>(a, shared, rank);
        if (thread % 32 == 0 && thread > 0) load_queries<Shape>(a, shared, rank, thread / 32 - 1);
    } else {
        raise_registers<kConsumerRegisters>();
        consume<Shape>(a, shared, rank, warpgroup - 1);
    }
    // Arrivals of the other block may still be under way to this one's shared memory.
    cluster_sync();
}

}  // namespace
}  // namespace moon

extern "C" {
extern __shared__ __attribute__((aligned(1024))) unsigned char moon_shared[];

#define MOON_KERNEL(name, blocks, keys, causal)                                  \
    __global__ void __launch_bounds__(512, 1) __cluster_dims__(blocks, 1, 1)     \
        name(const __grid_constant__ moon::Sm90aArgs args) {                     \
        moon::attention<moon::ShapeOf<blocks, keys, causal>>(args, moon_shared); \
    }
MOON_KERNEL(moon_attention_sm90a, 2, 80, false)
MOON_KERNEL(moon_attention_sm90a_causal, 2, 80, true)
MOON_KERNEL(moon_attention_sm90a_solo, 1, 80, false)
MOON_KERNEL(moon_attention_sm90a_solo_causal, 1, 80, true)
MOON_KERNEL(moon_attention_sm90a_short, 1, 64, false)
}
