// What an instruction reads, writes and waits for: the static facts that checks, counts and traces share.
#pragma once
#include "isa.h"
#include <vector>

namespace moon {

enum class OpKind : u8 {
    VALU,
    TRANS,
    MFMA,
    SMFMAC,
    SALU,
    SMEM,
    LDS_READ,
    LDS_WRITE,
    LDS_OTHER,
    VMEM_LOAD,
    VMEM_STORE,
    VMEM_LDS,
    BRANCH,
    BARRIER,
    WAITCNT,
    NOP,
    SETPRIO,
    OTHER,
    COUNT
};
const char *kind_name(OpKind k);

struct RegRange {
    u16 first = 0, count = 0;
};

struct OpUse {
    OpKind kind = OpKind::OTHER;
    u8 vreads = 0, vwrites = 0, sreads = 0, swrites = 0;
    i8 accumulator = -1;  // which of vread is an MFMA's C
    i8 wide_addend = -1;  // which of vread is a 64-bit addend, whose high half only the result's high half depends on
    bool div_fmas = false, trans = false, dpp = false, lane_read = false, permlane_swap = false, flat = false,
         exec_free = false;
    bool valu = false;             // issues to the vector ALU (VALU, TRANS)
    u8 passes = 0;                 // of an MFMA: 4 cycles each
    i16 vmcnt = -1, lgkmcnt = -1;  // of s_waitcnt; -1: not waited for
    u16 nop = 0;                   // wait states that s_nop gives
    RegRange vread[5], vwrite[2];  // VGPRs 0-255, AGPRs 256-511
    RegRange sread[6], swrite[3];  // by encoding number: VCC 106, M0 124, EXEC 126
};

OpUse describe_use(const Op &op, u8 arch);

}  // namespace moon
