// The few names of HIP device code that the kernels need, so that they build with a bare clang (no ROCm headers) and
// with ROCm's hipcc alike.
#pragma once

#include "types.h"

#ifndef __global__
#define __global__ __attribute__((global))
#endif
#ifndef __device__
#define __device__ __attribute__((device))
#endif
#ifndef __shared__
#define __shared__ __attribute__((shared))
#endif
#ifndef __forceinline__
#define __forceinline__ inline __attribute__((always_inline))
#endif

namespace moon {

using bf16x4 = short __attribute__((ext_vector_type(4)));
using u16x4 = u16 __attribute__((ext_vector_type(4)));
using u32x2 = u32 __attribute__((ext_vector_type(2)));
using u32x4 = u32 __attribute__((ext_vector_type(4)));
using f32x4 = f32 __attribute__((ext_vector_type(4)));

constexpr i32 kWavefront = 64;
constexpr f32 kLog2E = 1.4426950408889634f;
constexpr f32 kLn2 = 0.6931471805599453f;
constexpr f32 kMaxF32 = 3.4028234663852886e38f;

// The argument struct of the forward kernels: one list, shared with the build's manifest.
struct ForwardArgs {
#define MOON_ARG(type, name) type name;
#include "forward_args.def"
#undef MOON_ARG
};

}  // namespace moon
