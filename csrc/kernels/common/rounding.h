// fp32 to bf16 by AITER's three rules. The rounded value is in the high half of the returned word; callers pack two.
//
//   rtne  u + 0x7FFF + bit16(u)   nearest, ties to even
//   rtna  u + 0x8000              nearest, ties away from zero
//   rtz   u                       truncate
#pragma once

#include "device.h"

namespace moon {

enum class Rounding { rtne, rtna, rtz };

template <Rounding mode>
__device__ __forceinline__ u32 round_bits(f32 x) {
    const u32 u = __builtin_bit_cast(u32, x);
    if constexpr (mode == Rounding::rtne) return u + 0x7FFFu + ((u >> 16) & 1u);
    if constexpr (mode == Rounding::rtna) return u + 0x8000u;
    return u;
}

// As round_bits, with the output's NaN rule: the nearest modes give the one NaN 0x7FFF, rtz keeps the payload's high
// half.
template <Rounding mode>
__device__ __forceinline__ u32 round_output(f32 x) {
    if constexpr (mode == Rounding::rtz) return round_bits<mode>(x);
    return x != x ? 0x7FFF0000u : round_bits<mode>(x);
}

// Two rounded words to one dword: `low` in bits 0-15.
__device__ __forceinline__ u32 pack_high_halves(u32 low, u32 high) {
    return __builtin_amdgcn_perm(high, low, 0x07060302u);
}

}  // namespace moon
