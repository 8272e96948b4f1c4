// The PTX instructions that the Hopper kernels use, one function each, and the few names that let the sources build
// with a bare clang (no CUDA headers) and with nvcc alike. This clang takes the cluster's size and drops it: the build
// writes it into the PTX, as csrc/build/targets.py says.
#pragma once

#include "../common/types.h"

#ifndef __CUDACC__
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define __cluster_dims__(...) __attribute__((cluster_dims(__VA_ARGS__)))
#define __grid_constant__ __attribute__((grid_constant))
#endif
#define MOON_DEVICE __device__ inline __attribute__((always_inline))

namespace moon {

// --- where am I ------------------------------------------------------------------------------------------------------

// volatile: read again where needed rather than kept.
#define MOON_SPECIAL_REGISTER(function, name)                 \
    MOON_DEVICE u32 function() {                              \
        u32 value;                                            \
        asm volatile("mov.u32 %0, %" name ";" : "=r"(value)); \
        return value;                                         \
    }
MOON_SPECIAL_REGISTER(thread_id, "%tid.x")
MOON_SPECIAL_REGISTER(block_id, "%ctaid.x")
MOON_SPECIAL_REGISTER(grid_blocks, "%nctaid.x")
MOON_SPECIAL_REGISTER(cluster_rank, "%cluster_ctarank")
#undef MOON_SPECIAL_REGISTER

// --- arithmetic ------------------------------------------------------------------------------------------------------

MOON_DEVICE f32 exp2(f32 x) {
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
MOON_DEVICE f32 log2(f32 x) {
    f32 y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
MOON_DEVICE f32 reciprocal(f32 x) {
    f32 y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
MOON_DEVICE f32 fma(f32 a, f32 b, f32 c) {
    f32 d;
    asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(d) : "f"(a), "f"(b), "f"(c));
    return d;
}
// NaN loses, as in IEEE maxNum.
MOON_DEVICE f32 max(f32 a, f32 b) {
    f32 c;
    asm("max.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}
MOON_DEVICE f32 min(f32 a, f32 b) {
    f32 c;
    asm("min.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}
MOON_DEVICE u32 pack_bf16(f32 low, f32 high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// --- warps -----------------------------------------------------------------------------------------------------------

MOON_DEVICE f32 shuffle_xor(f32 x, i32 mask) {
    f32 y;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=f"(y) : "f"(x), "r"(mask));
    return y;
}
MOON_DEVICE u32 uniform(u32 x) {
    u32 y;
    asm volatile("shfl.sync.idx.b32 %0, %1, 0, 31, 0xffffffff;" : "=r"(y) : "r"(x));
    return y;
}
MOON_DEVICE bool any_lane(bool condition) {
    i32 result;
    asm volatile(
        "{\n.reg .pred p, q;\nsetp.ne.b32 p, %1, 0;\nvote.sync.any.pred q, p, 0xffffffff;\nselp.b32 %0, 1, 0, q;\n}"
        : "=r"(result)
        : "r"((i32)condition));
    return result != 0;
}
template <i32 registers>
MOON_DEVICE void raise_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}
template <i32 registers>
MOON_DEVICE void lower_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

// --- barriers --------------------------------------------------------------------------------------------------------

MOON_DEVICE void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
MOON_DEVICE void barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}
MOON_DEVICE void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Where `address` is in block `block` of the cluster, and an arrival at such an address.
MOON_DEVICE u32 address_in_block(u32 address, u32 block) {
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
    return there;
}
MOON_DEVICE void barrier_arrive_remote(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
MOON_DEVICE void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
MOON_DEVICE void barrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra out;\nbra again;\nout:\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}
MOON_DEVICE void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
MOON_DEVICE void warp_sync() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }
// The 128 threads of one warpgroup meet; `id` 1..15.
MOON_DEVICE void warpgroup_sync(u32 id) { asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory"); }
// What this thread wrote to shared memory becomes visible to matrix instructions and copies.
MOON_DEVICE void async_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// --- memory ----------------------------------------------------------------------------------------------------------

MOON_DEVICE u32 shared_address(const void *pointer) {
    u32 address;
    asm("{\n.reg .u64 there;\ncvta.to.shared.u64 there, %1;\ncvt.u32.u64 %0, there;\n}" : "=r"(address) : "l"(pointer));
    return address;
}
MOON_DEVICE void store_shared(u32 address, const i32 *words) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]), "r"(words[1]), "r"(words[2]),
                 "r"(words[3])
                 : "memory");
}
MOON_DEVICE void load_shared(i32 *words, u32 address) {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
}
MOON_DEVICE void store_shared_zero(u32 address) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(address), "r"(0) : "memory");
}
// Four 8 x 8 matrices of bf16 pairs, as accumulators hold them, to rows of 16 bytes: `address` is this lane's row.
MOON_DEVICE void store_matrices(u32 address, const u32 (&x)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x[0]),
                 "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}
// Shared to global memory, 16-byte aligned; a thread's copies form groups.
MOON_DEVICE void copy_out(void *to, u32 from, u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
                 : "memory");
}
MOON_DEVICE void copy_out_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// This thread's copies no longer need their source.
MOON_DEVICE void copy_out_wait() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
// A box of a tensor map into this block's shared memory.
MOON_DEVICE void copy_tile(u32 to, const tensor_map *map, u32 barrier, i32 dim, i32 row, i32 head, i32 batch) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
        "[%2];" ::"r"(to),
        "l"(map), "r"(barrier), "r"(dim), "r"(row), "r"(head), "r"(batch)
        : "memory");
}
// The same to the same place of every block in `blocks`; each one's barrier at that place counts its bytes.
MOON_DEVICE void copy_tile_to(u32 to, const tensor_map *map, u32 barrier, i32 dim, i32 row, i32 head, i32 batch,
                              u16 blocks) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(dim), "r"(row), "r"(head), "r"(batch), "h"(blocks)
        : "memory");
}

// --- matrix instructions ---------------------------------------------------------------------------------------------
// An accumulator of a warpgroup: 64 rows by n columns; lane l of warp w holds rows 16 w + l / 4 (elements 4 j + 0, 1)
// and 8 below (4 j + 2, 3), columns 8 j + 2 (l % 4) + 0, 1.

// clang-format off
#define MOON_R8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define MOON_R32(d) MOON_R8(d, 0), MOON_R8(d, 8), MOON_R8(d, 16), MOON_R8(d, 24)
#define MOON_R40(d) MOON_R32(d), MOON_R8(d, 32)
#define MOON_R64(d) MOON_R40(d), MOON_R8(d, 40), MOON_R8(d, 48), MOON_R8(d, 56)
#define MOON_N32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define MOON_N40 MOON_N32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define MOON_N64 MOON_N40 ",%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
// clang-format on

MOON_DEVICE void mma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
MOON_DEVICE void mma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// The accumulators stay where they are until here, whatever the compiler would like.
MOON_DEVICE void keep(f32 (&d)[32]) { asm volatile("" : MOON_R32(d)::"memory"); }
MOON_DEVICE void keep(f32 (&d)[40]) { asm volatile("" : MOON_R40(d)::"memory"); }
MOON_DEVICE void keep(f32 (&d)[64]) { asm volatile("" : MOON_R64(d)::"memory"); }

// Waits until at most `groups` committed groups are in flight; `d` may be read after.
template <i32 groups>
MOON_DEVICE void mma_wait(f32 (&d)[32]) {
    asm volatile("wgmma.wait_group.sync.aligned %32;" : MOON_R32(d) : "n"(groups) : "memory");
}
template <i32 groups>
MOON_DEVICE void mma_wait(f32 (&d)[40]) {
    asm volatile("wgmma.wait_group.sync.aligned %40;" : MOON_R40(d) : "n"(groups) : "memory");
}
template <i32 groups>
MOON_DEVICE void mma_wait(f32 (&d)[64]) {
    asm volatile("wgmma.wait_group.sync.aligned %64;" : MOON_R64(d) : "n"(groups) : "memory");
}

// A shared-memory operand: 128-byte swizzle, eight rows every 1024 bytes. The low word is per tile.
constexpr u32 kDescriptorHigh = 1024 / 16 | 1u << 30;

// In a cluster a shared address carries the block's rank in its high bits.
MOON_DEVICE u32 descriptor_low(u32 address, u32 leading_bytes) {
    return (address & 0x3FFFF) / 16 | leading_bytes / 16 << 16;
}

// d (64 x 80, 64 x 64) = or += a (64 x 16, shared) times b (80 or 64 x 16, shared) transposed.
MOON_DEVICE void mma_scores(f32 (&d)[40], u32 a, u32 b, bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 da, db;\nmov.b64 da, {%40, %42};\nmov.b64 db, {%41, %42};\n"
        "setp.ne.b32 p, %43, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n80k16.f32.bf16.bf16 {" MOON_N40 "}, da, db, p, 1, 1, 0, 0;\n}"
        : MOON_R40(d)
        : "r"(a), "r"(b), "r"(kDescriptorHigh), "r"((i32)accumulate));
}
MOON_DEVICE void mma_scores(f32 (&d)[32], u32 a, u32 b, bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 da, db;\nmov.b64 da, {%32, %34};\nmov.b64 db, {%33, %34};\n"
        "setp.ne.b32 p, %35, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" MOON_N32 "}, da, db, p, 1, 1, 0, 0;\n}"
        : MOON_R32(d)
        : "r"(a), "r"(b), "r"(kDescriptorHigh), "r"((i32)accumulate));
}
// d (64 x 128) += a (64 x 16, registers) times b (16 x 128, shared).
MOON_DEVICE void mma_values(f32 (&d)[64], const u32 *a, u32 b) {
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 db;\nmov.b64 db, {%68, %69};\nsetp.eq.b32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" MOON_N64 "}, {%64, %65, %66, %67}, db, p, 1, 1, 1;\n}"
        : MOON_R64(d)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(kDescriptorHigh));
}
// One warp's own: d (16 x 8) += a (16 x 16) times b (16 x 8), all in registers; d as columns 8 j.. of the above.
MOON_DEVICE void mma_warp(f32 *d, const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace moon
