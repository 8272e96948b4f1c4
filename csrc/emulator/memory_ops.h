// Lane-wise movement between registers and memory, shared by LDS, global, buffer and scratch instructions.
#pragma once
#include "launch.h"
#include "valu.h"

namespace moon {

enum MemKind : u16 {
    K_DWORDS,
    K_U8,
    K_I8,
    K_U16,
    K_I16,
    K_D16_U8,
    K_D16_I8,
    K_D16_U16,
    K_D16HI_U8,
    K_D16HI_I8,
    K_D16HI_U16,
    K_HI8,
    K_HI16
};

// Registers that a load of this row writes.
void load_rows(Wave &w, const Op &op, u16 dst, const u8 *const *ptr, u64 mask, u64 zero);
void store_rows(Wave &w, const Op &op, u16 src, u8 *const *ptr, u64 mask);

// All lanes of mask must lie in known allocations, else the launch faults and false is returned.
bool reachable(Wave &w, const Op &op, const u64 *addr, u64 mask, u32 bytes, bool write);
bool reachable_scalar(Wave &w, const Op &op, u64 addr, u32 bytes);

enum AtomicOp : u16 {
    A_SWAP,
    A_CMPSWAP,
    A_ADD,
    A_SUB,
    A_SMIN,
    A_UMIN,
    A_SMAX,
    A_UMAX,
    A_AND,
    A_OR,
    A_XOR,
    A_INC,
    A_DEC,
    A_ADD_F32,
    A_PK_ADD_F16,
    A_ADD_F64,
    A_MIN_F64,
    A_MAX_F64,
    A_PK_ADD_BF16,
    A_MIN_F32,
    A_MAX_F32,
    A_RSUB
};
u32 atomic32(u8 *p, AtomicOp op, u32 data, u32 compare);
u64 atomic64(u8 *p, AtomicOp op, u64 data, u64 compare);

void run_ds_read(Wave &, const Op &);
void run_ds_write(Wave &, const Op &);
void run_ds_read2(Wave &, const Op &);
void run_ds_write2(Wave &, const Op &);
void run_ds_atomic(Wave &, const Op &);
void run_ds_permute(Wave &, const Op &);
void run_ds_bpermute(Wave &, const Op &);
void run_ds_swizzle(Wave &, const Op &);
void run_ds_read_tr_b16(Wave &, const Op &);
void run_global(Wave &, const Op &);
void run_flat(Wave &, const Op &);
void run_scratch(Wave &, const Op &);
void run_buffer(Wave &, const Op &);
void run_cache_control(Wave &, const Op &);
void run_smem_load(Wave &, const Op &);
void run_smem_buffer_load(Wave &, const Op &);
void run_smem_time(Wave &, const Op &);

}  // namespace moon
