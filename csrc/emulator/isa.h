// What an instruction is: the rows of the tables, the operands and the decoded micro-operation.
#pragma once
#include "types.h"

namespace moon {

struct Wave;
struct Op;
using Handler = void (*)(Wave &, const Op &);

enum class Enc : u8 {
    SOP1,
    SOP2,
    SOPC,
    SOPK,
    SOPP,
    SMEM,
    VOP1,
    VOP2,
    VOPC,
    VOP3,
    VOP3B,
    VOP3P,
    MAI,
    DS,
    FLAT,
    GLOBAL,
    SCRATCH,
    MUBUF
};

// The classes that counts, traces and the timing model use.
enum class Class : u8 { SALU, VALU, TRANS, MFMA, LDS, VMEM, SMEM, BRANCH, WAIT, BARRIER, NOP, OTHER, COUNT };
const char *class_name(Class c);

// How a source's 32 or 64 bits are read: decides inline constants, modifiers and how many registers it spans.
enum class Ty : u8 {
    NONE,
    B32,
    F32,
    B64,
    F64,
    B16,
    F16,
    BF16,
    PK16,
    PKF16,
    PKF32,
    MASK64,
    B96,
    B128,
    B256,
    B512,
    B1024
};
inline int ty_dwords(Ty t) {
    switch (t) {
        case Ty::NONE: return 0;
        case Ty::B64:
        case Ty::F64:
        case Ty::PKF32:
        case Ty::MASK64: return 2;
        case Ty::B96: return 3;
        case Ty::B128: return 4;
        case Ty::B256: return 8;
        case Ty::B512: return 16;
        case Ty::B1024: return 32;
        default: return 1;
    }
}

enum : u8 { GFX942 = 1, GFX950 = 2, BOTH = 3 };

// Properties of a row.
enum Flag : u32 {
    NO_SUFFIX = 1,     // LLVM prints no _e32 / _e64
    READS_DST = 2,     // the destination is also a source (fmac, writelane, swap)
    SDST = 4,          // writes a mask to sdst (VOPC, carries)
    CARRY_IN = 8,      // reads a mask: VCC in VOP2, src2 in VOP3
    SCALAR_DST = 16,   // vdst is an SGPR (readlane, readfirstlane)
    WRITES_EXEC = 32,  // v_cmpx, *_saveexec
    LITERAL_K = 64,    // fmamk, fmaak: a 32-bit constant always follows
    STORE = 128,       // memory: reads data
    ATOMIC = 256,      // memory: reads data, returns the old value when asked
    TO_LDS = 512,      // memory: direct to LDS
    READS_SCC = 1024,
    WRITES_SCC = 2048,
    PRESERVES_HI = 4096,   // a 16-bit result that keeps the register's upper half
    NO_MODS = 8192,        // integer VOP3: neg/abs bits do not apply
    WRITES_SRC0 = 16384,   // swaps write both registers
    SMFMAC = 32768,        // src2 is an index, the destination accumulates
    READS_VCC = 65536,     // div_fmas
    IGNORES_EXEC = 131072  // runs for all lanes (readlane, mfma)
};

struct Row {
    const char *name;
    Enc enc;
    u16 op;
    u8 arch;
    Class cls;
    Ty dst;
    Ty src[3];
    u32 flags;
    Handler run;
    u16 a, b, c, d;  // meaning by encoding: memory: bytes a lane, kind; MAI: shape and type
};

enum class Kind : u8 { NONE, VGPR, SGPR, CONST, SPECIAL };

struct Operand {
    Kind kind = Kind::NONE;
    u8 dwords = 0;
    Ty ty = Ty::NONE;
    u16 index = 0;             // VGPR: 0-255, AGPR: 256-511; SGPR: the encoding's number
    u32 value = 0;             // CONST: low dword, also the literal
    u32 value_hi = 0;          // CONST: high dword of 64-bit operands
    const u32 *row = nullptr;  // CONST: the value(s) repeated for all lanes
};

struct Op {
    Handler run = nullptr;
    Operand src[3];
    u16 dst = 0;   // VGPR index (AGPR + 256), or SGPR number
    u16 sdst = 0;  // mask destination; SOPK's register
    u16 dst_dwords = 0;
    u16 data = 0;   // memory: data VGPR
    u16 addr = 0;   // memory: address VGPR; 0xffff: none
    u16 data1 = 0;  // DS: second data VGPR
    u8 neg = 0, abs = 0, omod = 0, clamp = 0, opsel = 0, opsel_hi = 0, neg_hi = 0;
    u8 cbsz = 0, abid = 0, blgp = 0;
    u8 mods = 0;        // any of neg/abs/opsel on a source
    bool plain = true;  // nothing follows the lane loop but the write
    u8 size = 4;        // bytes
    u8 fp = 0;          // bit 0: an f32 operation, bit 1: f16/f64: MODE's rounding applies
    bool lds = false, offen = false, idxen = false, sc0 = false, sc1 = false, nt = false, saddr = false;
    i32 imm = 0;      // signed immediate or offset
    i32 target = -1;  // branches: index of the target op
    u32 address = 0;  // of this instruction, from the code object's load base
    const Row *row = nullptr;
    const Op *inner = nullptr;  // DPP and SDWA: the plain operation on temporary rows
    u32 ext = 0;                // the DPP or SDWA dword
    u8 suffix = 0;              // 0 none, 1 _e32, 2 _e64, 3 _sdwa, 4 _dpp
    u32 words[4] = {0, 0, 0, 0};
};

const Row *find_row(Enc enc, u32 op, u8 arch);
const Row *const *all_tables(int *count);  // for documentation and tests: every table, null-name terminated
Handler saturating(const Row &row);        // the clamped form of an integer row, or null
void mnemonic(const Op &op, char *out, size_t size);

}  // namespace moon
