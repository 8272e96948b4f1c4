// Microbenchmarks of one compute unit: how long the instructions that the attention kernels live on hold their units.
//
// One workgroup of eight waves, two on each SIMD. A wave runs a stream twice in one piece, `kFew` and then `kMany`
// times the same few instructions, and reads the cycle counter before, between and behind. The difference of the two
// is free of what beginning and reading cost. Everything runs kPasses times and the last pass counts: by then code and
// data are in their caches. Each stream also computes something, so that whoever runs it can tell that it ran.
//
// Streams are plain assembly on fixed registers: what is measured is what is written here.

#include "../common/device.h"

namespace moon {
namespace {

struct MeasureArgs {
#define MOON_ARG(type, name) type name;
#include "../common/measure_args.def"
#undef MOON_ARG
};

constexpr i32 kPasses = 2;
constexpr i32 kWaves = 8;
constexpr u32 kLdsWords = 4096;
constexpr u32 kWalkWords = 32768;  // data: word at byte a holds a + 128, around 128 KiB: one line after the other
constexpr u32 kLineWords = 32;     // behind it: byte offsets within one line, likewise by 4

// What a wave reports. `time`: the counter before, between and behind the two pieces; zeros: it had no part.
struct Record {
    u64 time[3];
    u32 hardware_id, die;
    f32 value[kWavefront];
};

struct Place {
    u32 wave, lane;
    const MeasureArgs &args;
};

// Reads the counter when all that was asked for is there.
#define MOON_TIME(t) "s_waitcnt vmcnt(0) lgkmcnt(0)\n\ts_memtime %[" t "]\n\ts_waitcnt lgkmcnt(0)\n\t"
#define MOON_TIMED(few, many, body)                                                  \
    MOON_TIME("t0")                                                                  \
    ".rept " #few "\n\t" body ".endr\n\t" MOON_TIME("t1") ".rept " #many "\n\t" body \
                                                          ".endr\n\t" MOON_TIME("t2") "s_nop 7\n\ts_nop 7\n\t"
#define MOON_TIMES(t) [t0] "=&s"((t)[0]), [t1] "=&s"((t)[1]), [t2] "=&s"((t)[2])

// Operands of matrix instructions are ones: D grows by the depth with each.
#ifdef __gfx950__
#define MOON_MFMA(d, c) "v_mfma_f32_16x16x32_bf16 v[" d "], v[32:35], v[32:35], " c "\n\t"
#else
#define MOON_MFMA(d, c) "v_mfma_f32_16x16x16_bf16 v[" d "], v[32:33], v[32:33], " c "\n\t"
#endif
#define MOON_ADD_MFMA(d) MOON_MFMA(d, "v[" d "]")
#define MOON_FOUR_MFMAS(between) \
    MOON_ADD_MFMA("40:43")       \
    between MOON_ADD_MFMA("44:47") between MOON_ADD_MFMA("48:51") between MOON_ADD_MFMA("52:55") between
#define MOON_ONES \
    "v_mov_b32 v32, %[ones]\n\tv_mov_b32 v33, %[ones]\n\tv_mov_b32 v34, %[ones]\n\tv_mov_b32 v35, %[ones]\n\t"
#define MOON_NO_SUMS                                                                                       \
    "v_mov_b32 v40, 0\n\tv_mov_b32 v41, 0\n\tv_mov_b32 v42, 0\n\tv_mov_b32 v43, 0\n\tv_mov_b32 v44, 0\n\t" \
    "v_mov_b32 v45, 0\n\tv_mov_b32 v46, 0\n\tv_mov_b32 v47, 0\n\tv_mov_b32 v48, 0\n\tv_mov_b32 v49, 0\n\t" \
    "v_mov_b32 v50, 0\n\tv_mov_b32 v51, 0\n\tv_mov_b32 v52, 0\n\tv_mov_b32 v53, 0\n\tv_mov_b32 v54, 0\n\t" \
    "v_mov_b32 v55, 0\n\ts_nop 1\n\t"
#define MOON_START MOON_ONES MOON_NO_SUMS
// The last component of each: 16-cycle matrix instructions write it last.
#define MOON_SUM "v_add_f32 v43, v43, v47\n\tv_add_f32 v51, v51, v55\n\tv_add_f32 %[x], v43, v51\n\t"
#define MOON_MFMA_REGISTERS                                                                                         \
    "v32", "v33", "v34", "v35", "v40", "v41", "v42", "v43", "v44", "v45", "v46", "v47", "v48", "v49", "v50", "v51", \
        "v52", "v53", "v54", "v55"

constexpr u32 kOnes = 0x3F803F80;  // two bf16

// --- vector instructions ---------------------------------------------------------------------------------------------

#define MOON_FOUR_ADDS                                                                                      \
    "v_add_f32 v56, 1.0, v56\n\tv_add_f32 v57, 1.0, v57\n\tv_add_f32 v58, 1.0, v58\n\tv_add_f32 v59, 1.0, " \
    "v59\n\t"
#define MOON_FOUR_EXPS "v_exp_f32 v56, v60\n\tv_exp_f32 v57, v60\n\tv_exp_f32 v58, v60\n\tv_exp_f32 v59, v60\n\t"
#define MOON_TWO_PACKED "v_pk_mul_f32 v[56:57], v[60:61], v[60:61]\n\tv_pk_mul_f32 v[58:59], v[60:61], v[60:61]\n\t"
#define MOON_VALU_START                                                                                       \
    "v_mov_b32 v56, 0\n\tv_mov_b32 v57, 0\n\tv_mov_b32 v58, 0\n\tv_mov_b32 v59, 0\n\tv_mov_b32 v60, -1.0\n\t" \
    "v_mov_b32 v61, -1.0\n\t"
#define MOON_VALU_SUM "v_add_f32 v56, v56, v57\n\tv_add_f32 v58, v58, v59\n\tv_add_f32 %[x], v56, v58\n\t"
#define MOON_VALU_REGISTERS "v56", "v57", "v58", "v59", "v60", "v61"

#define MOON_VECTOR_STREAM(few, many, body)                                \
    asm volatile(MOON_VALU_START MOON_TIMED(few, many, body) MOON_VALU_SUM \
                 : MOON_TIMES(time), [x] "=v"(x)::MOON_VALU_REGISTERS);
#define MOON_MATRIX_STREAM(few, many, body, sum)                            \
    asm volatile(MOON_START MOON_VALU_START MOON_TIMED(few, many, body) sum \
                 : MOON_TIMES(time), [x] "=v"(x)                            \
                 : [ones] "v"(kOnes)                                        \
                 : MOON_MFMA_REGISTERS, MOON_VALU_REGISTERS);

// Defines a benchmark that wave 0 runs alone.
#define MOON_ALONE(name, text)                                                           \
    struct name {                                                                        \
        static __device__ __forceinline__ void run(const Place &at, u64 *time, f32 &x) { \
            if (at.wave == 0) {                                                          \
                text                                                                     \
            }                                                                            \
        }                                                                                \
    };

MOON_ALONE(valu, MOON_VECTOR_STREAM(16, 64, MOON_FOUR_ADDS))
MOON_ALONE(valu_chain, MOON_VECTOR_STREAM(64, 256, "v_add_f32 v56, 1.0, v56\n\t"))
MOON_ALONE(exp, MOON_VECTOR_STREAM(8, 32, MOON_FOUR_EXPS))
MOON_ALONE(packed, MOON_VECTOR_STREAM(16, 64, MOON_TWO_PACKED))
MOON_ALONE(branch, MOON_VECTOR_STREAM(16, 64, "s_branch 1\n\ts_nop 0\n\tv_add_f32 v56, 1.0, v56\n\t"))

// --- matrix instructions ---------------------------------------------------------------------------------------------

MOON_ALONE(mfma, MOON_MATRIX_STREAM(8, 32, MOON_FOUR_MFMAS(""), MOON_SUM))
MOON_ALONE(mfma_chain, MOON_MATRIX_STREAM(16, 64, MOON_ADD_MFMA("40:43"), MOON_SUM))
MOON_ALONE(mfma_valu, MOON_MATRIX_STREAM(8, 32, MOON_FOUR_MFMAS(MOON_FOUR_ADDS), MOON_SUM))
MOON_ALONE(mfma_packed,
           MOON_MATRIX_STREAM(8, 32, MOON_FOUR_MFMAS("v_pk_mul_f32 v[56:57], v[60:61], v[60:61]\n\t"), MOON_SUM))

// A vector instruction reads what a matrix instruction wrote, `wait` between them: less than the manual asks for. v56
// sums what was read, so a value that came too early shows. Four accumulators, so that none waits for itself.
#define MOON_READ(d, last, wait) MOON_ADD_MFMA(d) wait "v_add_f32 v56, v" last ", v56\n\t"
#define MOON_READER(name, wait)                                                                            \
    MOON_ALONE(name, MOON_MATRIX_STREAM(8, 32,                                                             \
                                        MOON_READ("40:43", "43", wait) MOON_READ("44:47", "47", wait)      \
                                            MOON_READ("48:51", "51", wait) MOON_READ("52:55", "55", wait), \
                                        MOON_VALU_SUM))
MOON_READER(mfma_read_0, "")
MOON_READER(mfma_read_1, "s_nop 0\n\t")
MOON_READER(mfma_read_2, "s_nop 1\n\t")
MOON_READER(mfma_read_3, "s_nop 2\n\t")
MOON_READER(mfma_read_4, "s_nop 3\n\t")
MOON_READER(mfma_read_5, "s_nop 4\n\t")
MOON_READER(mfma_read_6, "s_nop 5\n\t")
MOON_READER(mfma_read_7, "s_nop 6\n\t")
MOON_READER(mfma_read_8, "s_nop 7\n\t")

// Waves 0 to 3 run matrix instructions at priority 3, their partners on the same SIMDs something else at priority 0,
// for longer. A partner's times are of its whole stream.
#define MOON_BESIDE(name, few, many, partner)                                            \
    struct name {                                                                        \
        static __device__ __forceinline__ void run(const Place &at, u64 *time, f32 &x) { \
            if (at.wave < kWaves / 2) {                                                  \
                __builtin_amdgcn_s_setprio(3);                                           \
                MOON_MATRIX_STREAM(8, 32, MOON_FOUR_MFMAS(""), MOON_SUM)                 \
                __builtin_amdgcn_s_setprio(0);                                           \
            } else {                                                                     \
                MOON_VECTOR_STREAM(few, many, partner)                                   \
            }                                                                            \
        }                                                                                \
    };
MOON_BESIDE(mfma_beside_valu, 80, 320, MOON_FOUR_ADDS)
MOON_BESIDE(mfma_beside_exp, 40, 160, MOON_FOUR_EXPS)
MOON_BESIDE(mfma_beside_packed, 80, 320, MOON_TWO_PACKED)

// --- LDS -------------------------------------------------------------------------------------------------------------
// Word i of LDS holds the byte address of word i + 1, around kLdsWords.

#define MOON_FOUR_LDS_READS(mnemonic, a, b, c, d)                                            \
    mnemonic " v[" a "], v60\n\t" mnemonic " v[" b "], v60 offset:1024\n\t" mnemonic " v[" c \
             "], v60 offset:2048\n\t" mnemonic " v[" d "], v60 offset:3072\n\ts_waitcnt lgkmcnt(4)\n\t"
#define MOON_READS_B128 MOON_FOUR_LDS_READS("ds_read_b128", "40:43", "44:47", "48:51", "52:55")
#define MOON_READS_B64 MOON_FOUR_LDS_READS("ds_read_b64", "40:41", "44:45", "48:49", "52:53")
#define MOON_LDS_STREAM(lanes_apart, body)                                                          \
    static __device__ __forceinline__ void run(const Place &at, u64 *time, f32 &x) {                \
        u32 word = 0;                                                                               \
        asm volatile("v_mov_b32 v60, %[from]\n\t" MOON_TIMED(8, 32, body) "v_mov_b32 %[x], v40\n\t" \
                     : MOON_TIMES(time), [x] "=v"(word)                                             \
                     : [from] "v"(at.lane * (lanes_apart))                                          \
                     : MOON_MFMA_REGISTERS, MOON_VALU_REGISTERS);                                   \
        x = (f32)word;                                                                              \
    }
struct lds_b128 {
    MOON_LDS_STREAM(16, MOON_READS_B128)
};
struct lds_b64 {
    MOON_LDS_STREAM(8, MOON_READS_B64)
};
// Lanes 32 B apart: half of the banks lie idle.
struct lds_b128_conflicts {
    MOON_LDS_STREAM(32, MOON_READS_B128)
};

#define MOON_WALK(few, many, first, body)                                                           \
    u32 word = 0;                                                                                   \
    asm volatile("v_mov_b32 v40, %[from]\n\t" MOON_TIMED(few, many, body) "v_mov_b32 %[x], v40\n\t" \
                 : MOON_TIMES(time), [x] "=v"(word)                                                 \
                 : [from] "v"(first), [base] "s"(base)                                              \
                 : MOON_MFMA_REGISTERS, "memory");                                                  \
    x = (f32)word;
MOON_ALONE(lds_chain, {
    const u64 base = 0;
    MOON_WALK(16, 64, 4 * at.lane, "ds_read_b32 v40, v40\n\ts_waitcnt lgkmcnt(0)\n\t")
})

// --- memory ----------------------------------------------------------------------------------------------------------

#define MOON_LOADS_X4                                                                                          \
    "global_load_dwordx4 v[40:43], v60, %[base]\n\tglobal_load_dwordx4 v[44:47], v60, %[base] offset:1024\n\t" \
    "global_load_dwordx4 v[48:51], v60, %[base] offset:2048\n\tglobal_load_dwordx4 v[52:55], v60, %[base] "    \
    "offset:3072\n\ts_waitcnt vmcnt(4)\n\t"
struct l1_stream {
    static __device__ __forceinline__ void run(const Place &at, u64 *time, f32 &x) {
        u32 word = 0;
        asm volatile("v_mov_b32 v60, %[from]\n\t" MOON_TIMED(8, 32, MOON_LOADS_X4) "v_mov_b32 %[x], v40\n\t"
                     : MOON_TIMES(time), [x] "=v"(word)
                     : [from] "v"(16 * at.lane), [base] "s"(at.args.data)
                     : MOON_MFMA_REGISTERS, MOON_VALU_REGISTERS, "memory");
        x = (f32)word;
    }
};
#define MOON_LOAD_NEXT "global_load_dword v40, v40, %[base]\n\ts_waitcnt vmcnt(0)\n\t"
MOON_ALONE(l1_chain, {
    const u64 base = at.args.data + 4 * kWalkWords;
    MOON_WALK(16, 64, 0, MOON_LOAD_NEXT)
})
// First every line of the walk is touched, 128 KiB: what follows finds its lines in the L2, and not in the L1.
MOON_ALONE(l2_chain, {
    const u64 base = at.args.data;
    for (u32 line = 0; line < kWalkWords / kLineWords; line += kWavefront) {
        asm volatile("global_load_dword v40, %0, %1\n\ts_waitcnt vmcnt(0)" ::"v"(4 * kLineWords * (line + at.lane)),
                     "s"(base)
                     : "v40", "memory");
    }
    MOON_WALK(16, 64, 0, MOON_LOAD_NEXT)
})
MOON_ALONE(scalar_chain, {
    u32 word = 0;
    asm volatile(MOON_TIMED(16, 64, "s_load_dword %[x], %[base], %[x]\n\ts_waitcnt lgkmcnt(0)\n\t")
                 : MOON_TIMES(time), [x] "+s"(word)
                 : [base] "s"(at.args.data + 4 * kWalkWords)
                 : "memory");
    x = (f32)word;
})

// --- barrier ---------------------------------------------------------------------------------------------------------

struct barriers {
    static __device__ __forceinline__ void run(const Place &at, u64 *time, f32 &x) {
        asm volatile(MOON_TIMED(8, 32, "s_barrier\n\t") : MOON_TIMES(time)::"memory");
        x = (f32)at.wave;
    }
};

// --- the frame -------------------------------------------------------------------------------------------------------

template <class Benchmark>
__device__ __forceinline__ void measure(const MeasureArgs &args) {
    __shared__ static u32 lds[kLdsWords];
    const u32 thread = __builtin_amdgcn_workitem_id_x(), lane = thread % kWavefront;
    const u32 wave = __builtin_amdgcn_readfirstlane(thread / kWavefront);
#pragma unroll 1
    for (u32 i = thread; i < kLdsWords; i += kWaves * kWavefront) lds[i] = (i + 1) % kLdsWords * 4;
    u64 time[3] = {0, 0, 0};
    f32 x = 0;
#pragma unroll 1
    for (i32 pass = 0; pass < kPasses; pass++) {
        asm volatile("s_waitcnt vmcnt(0) lgkmcnt(0)" ::"v"((__attribute__((address_space(3))) u32 *)lds) : "memory");
        __builtin_amdgcn_s_barrier();
        Benchmark::run(Place{wave, lane, args}, time, x);
    }
    u32 hardware_id, die;
    asm volatile("s_getreg_b32 %0, hwreg(4)\n\ts_getreg_b32 %1, hwreg(20)" : "=s"(hardware_id), "=s"(die));
    Record &record = reinterpret_cast<Record *>(args.out)[wave];
    record.value[lane] = x;
    if (lane == 0) {
        for (i32 i = 0; i < 3; i++) record.time[i] = time[i];
        record.hardware_id = hardware_id;
        record.die = die;
    }
}

}  // namespace
}  // namespace moon

#define MOON_KERNEL(name)                                                                                  \
    extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(512, 512))) void moon_measure_##name( \
        moon::MeasureArgs args) {                                                                          \
        moon::measure<moon::name>(args);                                                                   \
    }

MOON_KERNEL(valu)
MOON_KERNEL(valu_chain)
MOON_KERNEL(exp)
MOON_KERNEL(packed)
MOON_KERNEL(branch)
MOON_KERNEL(mfma)
MOON_KERNEL(mfma_chain)
MOON_KERNEL(mfma_valu)
MOON_KERNEL(mfma_packed)
MOON_KERNEL(mfma_read_0)
MOON_KERNEL(mfma_read_1)
MOON_KERNEL(mfma_read_2)
MOON_KERNEL(mfma_read_3)
MOON_KERNEL(mfma_read_4)
MOON_KERNEL(mfma_read_5)
MOON_KERNEL(mfma_read_6)
MOON_KERNEL(mfma_read_7)
MOON_KERNEL(mfma_read_8)
MOON_KERNEL(mfma_beside_valu)
MOON_KERNEL(mfma_beside_exp)
MOON_KERNEL(mfma_beside_packed)
MOON_KERNEL(lds_b128)
MOON_KERNEL(lds_b64)
MOON_KERNEL(lds_b128_conflicts)
MOON_KERNEL(lds_chain)
MOON_KERNEL(l1_stream)
MOON_KERNEL(l1_chain)
MOON_KERNEL(l2_chain)
MOON_KERNEL(scalar_chain)
MOON_KERNEL(barriers)
