// A code object in executable form: the loaded image, the decoded instructions and the kernels in it.
#pragma once
#include "op_use.h"
#include "wave.h"
#include <deque>
#include <map>

namespace moon {

struct KernelArg {
    std::string value_kind;
    u32 offset = 0, size = 0;
};

struct Kernel {
    std::string name;
    u64 descriptor = 0;  // offsets from the load base
    u64 entry = 0;
    u64 code_size = 0;      // of the symbol; 0: unknown
    u32 first_op = 0;       // index into Program::ops
    u32 kernarg_size = 0;   // with hidden arguments
    u32 explicit_size = 0;  // without them
    u32 lds_bytes = 0, scratch_bytes = 0;
    u32 vgprs = 0, sgprs = 0, agprs = 0, vgpr_spills = 0, sgpr_spills = 0;
    u32 max_threads = 1024;
    u32 rsrc1 = 0, rsrc2 = 0, rsrc3 = 0, properties = 0, preload = 0;
    bool has_args = false;
    std::vector<KernelArg> args;
};

struct Section {
    u64 begin = 0, end = 0;  // offsets from the load base
};

struct Program {
    std::string arch;  // "gfx942"
    u8 arch_bit = 0;
    u8 *base = nullptr;  // the image as loaded, memory addresses
    u64 size = 0;
    std::vector<Section> text;
    std::vector<Op> ops;
    std::vector<OpUse> uses;            // of each op
    std::vector<i32> op_of_dword;       // by offset/4: index of the op that starts there, else -1
    std::deque<Op> inner;               // plain forms of DPP and SDWA
    std::deque<std::vector<u32>> rows;  // constants, repeated for all lanes
    std::vector<Kernel> kernels;
    ~Program();
};

// Loads and decodes; on failure returns null, an error code and a message.
std::shared_ptr<Program> load_program(const void *image, size_t size, const char *expect_arch, int *error,
                                      std::string *message);

// Decodes one instruction. Returns its size in bytes, 0 if it is not known (op.words then holds the raw dword).
int decode(Program &p, const u32 *code, size_t dwords, u64 offset, Op *op);
void link_branches(Program &p);

const Op *op_at(const Wave &w, u64 address);
const Op *op_index(const Wave &w, i32 index);
u64 code_address(const Wave &w, const Op &op);
u32 xcc_id(const Wave &w);
std::string op_text(const Op &op);  // operands as text

}  // namespace moon
