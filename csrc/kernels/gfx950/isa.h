// The gfx950 instructions that the attention kernel names itself, one wrapper each, with what its caller owes.
//
// An asm body is opaque to the compiler: it neither waits for what a load in it brings nor keeps the wait states around
// it. Each wrapper says which of both is its caller's debt; the emulator's checks prove that every debt is paid.
#pragma once

#include "../common/device.h"

namespace moon {

using bf16x8 = __bf16 __attribute__((ext_vector_type(8)));
using bf16x16 = __bf16 __attribute__((ext_vector_type(16)));
using bf16_quad = __bf16 __attribute__((ext_vector_type(4)));
using u32x8 = u32 __attribute__((ext_vector_type(8)));
using u32x16 = u32 __attribute__((ext_vector_type(16)));
using i32x4 = i32 __attribute__((ext_vector_type(4)));

#define MOON_LDS __attribute__((address_space(3)))
#define MOON_CONSTANT __attribute__((address_space(4)))

// --- matrix core -----------------------------------------------------------------------------------------------------
// A: row lane % 16, k = 8 (lane / 16) + j. B: column lane % 16, same k. D: column lane % 16, row 4 (lane / 16) + r.

// D = A B + D. Debts: 8 wait states before anything but the same accumulation touches D; 2 between a VALU write of an
// operand and it.
__device__ __forceinline__ f32x4 mfma(bf16x8 a, bf16x8 b, f32x4 d) {
    asm("v_mfma_f32_16x16x32_bf16 %0, %1, %2, %0" : "+v"(d) : "v"(a), "v"(b));
    return d;
}

// D = A B. Debts: as mfma.
__device__ __forceinline__ f32x4 mfma_zero(bf16x8 a, bf16x8 b) {
    f32x4 d;
    asm("v_mfma_f32_16x16x32_bf16 %0, %1, %2, 0" : "=&v"(d) : "v"(a), "v"(b));
    return d;
}

// D += A B over 64 k, A 2:4-sparse: of every four k, `index` names the two that A holds. No debts: a builtin.
__device__ __forceinline__ f32x4 smfmac(bf16x8 a, bf16x16 b, f32x4 d, i32 index) {
    return __builtin_amdgcn_smfmac_f32_16x16x64_bf16(a, b, d, index, 0, 0);
}

// --- LDS -------------------------------------------------------------------------------------------------------------
// Addresses are bytes. No debts but the barrier: the compiler waits for what these bring.

// ds_read_b128: 8 elements.
__device__ __forceinline__ bf16x8 lds_read(u32 address) { return *reinterpret_cast<const MOON_LDS bf16x8 *>(address); }

// ds_read_b64_tr_b16: of the 4 x 16 block whose row k lies in the 8-byte pieces of lanes 4k .. 4k + 3 (of each 16),
// lane i gets column i.
__device__ __forceinline__ bf16_quad lds_read_transposed(u32 address) {
    return __builtin_amdgcn_ds_read_tr16_b64_v4bf16(reinterpret_cast<MOON_LDS bf16_quad *>(address));
}

// --- direct-to-LDS loads ---------------------------------------------------------------------------------------------

// M0 = base + offset. Debt: one instruction between it and the load that uses it.
__device__ __forceinline__ void set_lds_destination(u32 base, u32 offset) {
    asm volatile("s_add_u32 m0, %0, %1" ::"s"(base), "s"(offset) : "scc");
}

// 16 bytes a lane from resource + offset to LDS at M0 + 16 lane; lanes out of the resource's range write zeros.
// Debts: s_waitcnt vmcnt and a barrier before the LDS bytes are read; five wait states after a VALU (readfirstlane)
// wrote a word of the resource.
__device__ __forceinline__ void load_to_lds(i32x4 resource, u32 offset) {
    asm volatile("buffer_load_dwordx4 %0, %1, 0 offen lds" ::"v"(offset), "s"(resource));
}

// --- scalar loads ----------------------------------------------------------------------------------------------------

// Debt: wait_scalar_loads before anything, the compiler's own copies included, reads the result.
__device__ __forceinline__ i32 scalar_load(const i32 *base, u32 byte_offset) {
    i32 value;
    asm volatile("s_load_dword %0, %1, %2" : "=&s"(value) : "s"(base), "s"(byte_offset));
    return value;
}

__device__ __forceinline__ void wait_scalar_loads(i32 &a, i32 &b) {
    asm volatile("s_waitcnt lgkmcnt(0)" : "+s"(a), "+s"(b));
}

// --- order -----------------------------------------------------------------------------------------------------------

// Nothing moves across it, in the compiler. Emits nothing.
__device__ __forceinline__ void fence() { __builtin_amdgcn_sched_barrier(0); }

// All but the wave's last `pending` vector memory operations are done, then all waves meet.
template <i32 pending>
__device__ __forceinline__ void wait_and_meet() {
    asm volatile("s_waitcnt vmcnt(%0)\n\ts_barrier" ::"n"(pending) : "memory");
}

// The same, when LDS reads are under way whose bytes others may overwrite after the meeting.
template <i32 pending>
__device__ __forceinline__ void wait_for_lds_and_meet() {
    asm volatile("s_waitcnt vmcnt(%0) lgkmcnt(0)\n\ts_barrier" ::"n"(pending) : "memory");
}

// Pays the debt of an MFMA whose result is read next.
__device__ __forceinline__ void mfma_wait_states() { asm volatile("s_nop 7\n\ts_nop 0"); }

// A wave-uniform value in a scalar register.
__device__ __forceinline__ i32 uniform(i32 x) { return __builtin_amdgcn_readfirstlane(x); }
__device__ __forceinline__ u64 uniform(u64 x) {
    return (u64)(u32)uniform((i32)x) | (u64)(u32)uniform((i32)(x >> 32)) << 32;
}

// The compiler knows no more where the value came from, so it keeps it where it is instead of deriving it again.
template <class T>
__device__ __forceinline__ void opaque_scalar(T &x) {
    asm volatile("" : "+s"(x));
}

// --- lanes -----------------------------------------------------------------------------------------------------------

// The lane's number, computed where it is needed: volatile, so that no register keeps it across the loop.
__device__ __forceinline__ u32 lane_id() {
    u32 lane;
    asm volatile("v_mbcnt_lo_u32_b32 %0, -1, 0\n\tv_mbcnt_hi_u32_b32 %0, -1, %0" : "=&v"(lane));
    return lane;
}

// Maximum over the four lanes of a query row: lane, lane ^ 16, lane ^ 32, lane ^ 48.
__device__ __forceinline__ f32 row_max(f32 x) {
    const u32 bits = __builtin_bit_cast(u32, x);
    const auto half = __builtin_amdgcn_permlane32_swap(bits, bits, false, false);
    const f32 y = __builtin_fmaxf(__builtin_bit_cast(f32, (u32)half[0]), __builtin_bit_cast(f32, (u32)half[1]));
    const u32 bits_y = __builtin_bit_cast(u32, y);
    const auto quarter = __builtin_amdgcn_permlane16_swap(bits_y, bits_y, false, false);
    return __builtin_fmaxf(__builtin_bit_cast(f32, (u32)quarter[0]), __builtin_bit_cast(f32, (u32)quarter[1]));
}

__device__ __forceinline__ bool any_lane(bool x) { return __builtin_amdgcn_ballot_w64(x) != 0; }

}  // namespace moon
