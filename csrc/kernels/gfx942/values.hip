// The V pre-pass: V into the order in which the attention kernel's lanes load it, so that one 16-byte load a lane is
// two matrix operands. A workgroup rewrites one tile of 64 keys, 16 KiB.
//
// Fragment (half h, chunk c) of a tile is 1 KiB, 16 B a lane: dim 16 c + lane % 16 of the keys k and k + 16, where
// k = 32 h + 4 (lane / 16) + 0..3. A thread takes two dims of eight keys, which is two lanes' 16 bytes: a wave reads
// whole rows and writes whole 256-byte runs, and the transposition is eight byte permutes in registers.
//
// Keys past the end become zero: their P is zero, and zero times whatever lies there must be zero.

#include "../common/device.h"
#include "isa.h"

namespace moon {
namespace {

struct Cdna3ValuesArgs {
#define MOON_ARG(type, name) type name;
#include "../common/cdna3_values_args.def"
#undef MOON_ARG
};

constexpr i32 kTileKeys = 64;
constexpr i32 kTileBytes = 16384;
constexpr i32 kGroups = kTileKeys / 8;  // of eight keys
constexpr i32 kWaves = 4;

// Rows may start at any even byte: strides are the caller's.
struct __attribute__((packed, aligned(2))) Dims2 {
    u32 value;
};

__device__ __forceinline__ void rewrite_tile(const Cdna3ValuesArgs &a) {
    const u32 tiles = ((u32)a.seqlen_k + kTileKeys - 1) / kTileKeys;
    const u32 index = __builtin_amdgcn_workgroup_id_x(), tile = index % tiles, head_index = index / tiles;
    const i32 head = (i32)(head_index % (u32)a.num_heads_kv), batch = (i32)(head_index / (u32)a.num_heads_kv);
    i64 row0 = 0;
    i32 keys = a.seqlen_k;
    if (a.cu_seqlens_k) {
        const MOON_CONSTANT i32 *cu = reinterpret_cast<const MOON_CONSTANT i32 *>(a.cu_seqlens_k);
        row0 = cu[batch];
        const i32 packed = cu[batch + 1] - cu[batch];
        keys = packed < keys ? packed : keys;
    }
    if (a.seqlens_k) {
        const i32 valid = reinterpret_cast<const MOON_CONSTANT i32 *>(a.seqlens_k)[batch];
        keys = valid < keys ? valid : keys;
    }
    const i32 first_key = (i32)tile * kTileKeys;
    if (first_key >= keys) return;

    const u32 thread = __builtin_amdgcn_workitem_id_x(), lane = thread % kWavefront;
    const i32 wave = (i32)__builtin_amdgcn_readfirstlane(thread / kWavefront);
    const MOON_GLOBAL u16 *v = reinterpret_cast<const MOON_GLOBAL u16 *>(a.v) + batch * a.v_stride_batch +
                               head * a.v_stride_head + (row0 + first_key) * a.v_stride_row;
    MOON_GLOBAL char *out = reinterpret_cast<MOON_GLOBAL char *>(a.value_tiles) + (i64)index * kTileBytes;
#pragma unroll
    for (i32 step = 0; step < kGroups / kWaves; step++) {
        const i32 half = step, group = wave;  // a wave does one lane group of either half
        const i32 key0 = 32 * half + 4 * group;
        u32 x[8];
#pragma unroll
        for (i32 j = 0; j < 8; j++) {
            const i32 key = key0 + j % 4 + 16 * (j / 4);
            x[j] = 0;
            if (first_key + key < keys) {
                x[j] = reinterpret_cast<const MOON_GLOBAL Dims2 *>(v + key * a.v_stride_row + 2 * lane)->value;
            }
        }
        u32x4 even, odd;
#pragma unroll
        for (i32 i = 0; i < 4; i++) {
            even[i] = __builtin_amdgcn_perm(x[2 * i + 1], x[2 * i], 0x05040100u);
            odd[i] = __builtin_amdgcn_perm(x[2 * i + 1], x[2 * i], 0x07060302u);
        }
        MOON_GLOBAL u32x4 *to =
            reinterpret_cast<MOON_GLOBAL u32x4 *>(out + 8192 * half + 1024 * (lane / 8)) + 16 * group + 2 * (lane % 8);
        to[0] = even;
        to[1] = odd;
    }
}

}  // namespace
}  // namespace moon

extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(256, 256))) void moon_attention_cdna3_values(
    moon::Cdna3ValuesArgs args) {
    moon::rewrite_tile(args);
}
