// Small integer and float helpers that every part of the emulator shares. Nothing here depends on the host's FP
// settings.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace moon {

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using i8 = int8_t;
using i16 = int16_t;
using i32 = int32_t;
using i64 = int64_t;

constexpr int kLanes = 64;

template <class To, class From>
inline To bits_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "bits_cast needs equal sizes");
    To to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
}

inline float as_f32(u32 x) { return bits_cast<float>(x); }
inline u32 as_u32(float x) { return bits_cast<u32>(x); }
inline double as_f64(u64 x) { return bits_cast<double>(x); }
inline u64 as_u64(double x) { return bits_cast<u64>(x); }

inline i64 sign_extend(u64 value, int width) { return i64(value << (64 - width)) >> (64 - width); }

inline int popcount(u64 x) { return __builtin_popcountll(x); }
inline int lowest(u64 x) { return __builtin_ctzll(x); }  // x != 0

// IEEE binary16 to binary32, exact (signalling NaNs keep their payload).
inline float f16_to_f32(u16 h) {
    u32 sign = u32(h & 0x8000u) << 16, exp = (h >> 10) & 31, man = h & 0x3ffu;
    if (exp == 31) return as_f32(sign | 0x7f800000u | (man << 13));
    if (exp != 0) return as_f32(sign | ((exp + 112) << 23) | (man << 13));
    float magnitude = float(man) * 5.9604644775390625e-08f;  // 2^-24
    return as_f32(as_u32(magnitude) | sign);
}

// binary64 to binary16, rounding as MODE's two bits say (0 nearest even, 1 +inf, 2 -inf, 3 zero).
inline u16 f64_to_f16(double value, int round = 0) {
    u64 b = as_u64(value);
    u16 sign = u16((b >> 48) & 0x8000u);
    u64 man = b & 0xfffffffffffffull;
    int exp = int((b >> 52) & 0x7ff);
    if (exp == 0x7ff) return man ? u16(sign | 0x7c00u | 0x200u | (man >> 42)) : u16(sign | 0x7c00u);
    if ((b << 1) == 0) return sign;
    int e = exp - 1023;
    if (exp != 0) man |= 1ull << 52;
    int drop = e < -14 ? 42 + (-14 - e) : 42;  // bits below the last kept one
    u64 kept, rest, half;
    if (drop > 60) {
        kept = 0, rest = 1, half = 2;
    } else {
        kept = man >> drop, rest = man & ((1ull << drop) - 1), half = 1ull << (drop - 1);
    }
    bool up = round == 0   ? rest > half || (rest == half && (kept & 1))
              : round == 1 ? rest && !sign
              : round == 2 ? rest && sign
                           : false;
    kept += up;
    u64 out = e < -14 ? kept : (u64(e + 14) << 10) + kept;  // the implicit bit adds the last exponent step
    if (out >= 0x7c00u)
        return (round == 0 || (round == 1 && !sign) || (round == 2 && sign)) ? u16(sign | 0x7c00u)
                                                                             : u16(sign | 0x7bffu);
    return u16(sign | out);
}

inline float bf16_to_f32(u16 h) { return as_f32(u32(h) << 16); }

// binary32 to bfloat16, nearest even, NaNs quieted.
inline u16 f32_to_bf16(float value) {
    u32 b = as_u32(value);
    if ((b & 0x7fffffffu) > 0x7f800000u) return u16((b >> 16) | 0x40u);
    return u16((b + 0x7fffu + ((b >> 16) & 1)) >> 16);
}

}  // namespace moon
