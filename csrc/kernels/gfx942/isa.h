// gfx942 instructions that the tuned kernel chooses itself, one to a function, each with the debts of its user.
//
// Inline assembly is opaque to the compiler's hazard pass, so whoever calls a wrapper owes the waits and wait states
// that stand at it; `settle_*` pay them. Loads that the compiler issues are waited for by the compiler, wrappers
// included. Everything volatile keeps its order among everything volatile: the operand rings stay as they are written.
#pragma once

#include "../common/device.h"

namespace moon {

// Address spaces, so that uniform loads stay scalar and nothing becomes a flat access.
#define MOON_GLOBAL __attribute__((address_space(1)))
#define MOON_CONSTANT __attribute__((address_space(4)))
#define MOON_LDS __attribute__((address_space(3)))

// D += A B, 16 x 16 x 16 bf16; D is the accumulator's own register.
//   owes  VALU result to A, B, C: 2 wait states; D to a VALU or memory read, or a VALU overwriting D: 7 wait states.
__device__ __forceinline__ void mfma(f32x4 &d, u32x2 a, u32x2 b) {
    asm volatile("v_mfma_f32_16x16x16_bf16 %0, %1, %2, %0" : "+v"(d) : "v"(a), "v"(b));
}

// D = A B: the accumulator starts at zero without an instruction that clears it. Owes what mfma owes.
__device__ __forceinline__ void mfma_from_zero(f32x4 &d, u32x2 a, u32x2 b) {
    asm volatile("v_mfma_f32_16x16x16_bf16 %0, %1, %2, 0" : "=&v"(d) : "v"(a), "v"(b));
}

// max(a, b) and max(a, b, c): a NaN operand loses. As C++ they would get a canonicalizing instruction each.
__device__ __forceinline__ f32 max2(f32 a, f32 b) {
    f32 r;
    asm volatile("v_max_f32 %0, %1, %2" : "=v"(r) : "v"(a), "v"(b));
    return r;
}

__device__ __forceinline__ f32 max3(f32 a, f32 b, f32 c) {
    f32 r;
    asm volatile("v_max3_f32 %0, %1, %2, %3" : "=v"(r) : "v"(a), "v"(b), "v"(c));
    return r;
}

// 2^x, denormals flushed.
__device__ __forceinline__ f32 exp2(f32 x) { return __builtin_amdgcn_exp2f(x); }

// The value of x in the lane of byte address `lane4`, four times its number.
__device__ __forceinline__ f32 from_lane(f32 x, u32 lane4) {
    return __builtin_bit_cast(f32, __builtin_amdgcn_ds_bpermute((i32)lane4, __builtin_bit_cast(i32, x)));
}

__device__ __forceinline__ bool any_lane(bool x) { return __builtin_amdgcn_ballot_w64(x) != 0; }

// Nothing moves across: neither memory accesses nor instructions.
__device__ __forceinline__ void barrier() {
    asm volatile("" ::: "memory");
    __builtin_amdgcn_sched_barrier(0);
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_sched_barrier(0);
    asm volatile("" ::: "memory");
}

// At most N of this wave's vector memory operations are still under way; loads into LDS count.
template <i32 N>
__device__ __forceinline__ void wait_memory() {
    asm volatile("s_waitcnt vmcnt(%0)" ::"n"(N) : "memory");
}

// This wave's LDS reads are done; whoever waits for a barrier may overwrite what they read.
__device__ __forceinline__ void wait_lds() { asm volatile("s_waitcnt lgkmcnt(0)" ::: "memory"); }

template <i32 Priority>
__device__ __forceinline__ void set_priority() {
    __builtin_amdgcn_s_setprio(Priority);
}

// The value is opaque from here on: the compiler keeps one register and adds immediates to it, where it would else keep
// a register for every sum.
__device__ __forceinline__ void opaque(u32 &x) { asm volatile("" : "+v"(x)); }

// A wave-uniform constant of which the compiler knows no more than that it is one value.
__device__ __forceinline__ u32 unforeseen(u32 x) {
    asm volatile("" : "+s"(x));
    return x;
}

// The value exists here: its computation cannot sink to a later phase, where its inputs would stay alive.
__device__ __forceinline__ void pin(f32 &x) { asm volatile("" : "+v"(x)); }

// D of the matrix instructions before it may be read or overwritten behind it: 8 wait states.
__device__ __forceinline__ void settle_mfma(f32x4 (&x)[3][4]) {
    asm volatile("s_nop 7"
                 : "+v"(x[0][0]), "+v"(x[0][1]), "+v"(x[0][2]), "+v"(x[0][3]), "+v"(x[1][0]), "+v"(x[1][1]),
                   "+v"(x[1][2]), "+v"(x[1][3]), "+v"(x[2][0]), "+v"(x[2][1]), "+v"(x[2][2]), "+v"(x[2][3]));
}

__device__ __forceinline__ void settle_mfma(f32x4 (&x)[8]) {
    asm volatile("s_nop 7"
                 : "+v"(x[0]), "+v"(x[1]), "+v"(x[2]), "+v"(x[3]), "+v"(x[4]), "+v"(x[5]), "+v"(x[6]), "+v"(x[7]));
}

// As above for an operand: nothing computed with `x` comes before the 8 wait states.
__device__ __forceinline__ void settle_mfma_before(f32 (&x)[3]) {
    asm volatile("s_nop 7" : "+v"(x[0]), "+v"(x[1]), "+v"(x[2]));
}

// VALU results may be operands of matrix instructions behind it: 2 wait states.
__device__ __forceinline__ void settle_valu(u32x2 (&x)[3][4]) {
    asm volatile("s_nop 1"
                 : "+v"(x[0][0]), "+v"(x[0][1]), "+v"(x[0][2]), "+v"(x[0][3]), "+v"(x[1][0]), "+v"(x[1][1]),
                   "+v"(x[1][2]), "+v"(x[1][3]), "+v"(x[2][0]), "+v"(x[2][1]), "+v"(x[2][2]), "+v"(x[2][3]));
}

__device__ __forceinline__ void settle_valu(f32x4 (&x)[8]) {
    asm volatile("s_nop 1"
                 : "+v"(x[0]), "+v"(x[1]), "+v"(x[2]), "+v"(x[3]), "+v"(x[4]), "+v"(x[5]), "+v"(x[6]), "+v"(x[7]));
}

// A raw buffer over all memory from `base` on: addresses are kept in bounds by whoever makes the offsets.
__device__ __forceinline__ __amdgpu_buffer_rsrc_t buffer(const MOON_GLOBAL char *base) {
    return __builtin_amdgcn_make_buffer_rsrc((void *)base, 0, -1, 0x00027000);
}

}  // namespace moon
