// The types' short names, of every kernel and of the tests' host build of them.
#pragma once

namespace moon {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long;
using i32 = int;
using i64 = long;
using f32 = float;

// 128 bytes that CUDA's driver encodes.
struct alignas(64) tensor_map {
    u64 words[16];
};

}  // namespace moon
