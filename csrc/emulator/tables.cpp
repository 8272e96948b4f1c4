// Finding an instruction's row by encoding and opcode.
#include "isa.h"
#include <cstdio>
#include <mutex>
#include <vector>

namespace moon {

extern const Row kFlowRows[], kF32Rows[], kIntRows[], kF16F64Rows[], kCompareRows[], kSpecialRows[], kPackedRows[],
    kScalarRows[], kMemoryRows[], kMatrixRows[];

namespace {

const Row *const kTables[] = {kF32Rows,    kIntRows,    kF16F64Rows, kCompareRows, kSpecialRows,
                              kPackedRows, kScalarRows, kFlowRows,   kMemoryRows,  kMatrixRows};
constexpr int kEncodings = 18, kOps = 1024;

struct Index {
    std::vector<const Row *> at[2];  // gfx942, gfx950
    Index() {
        for (int a = 0; a < 2; a++) {
            at[a].assign(kEncodings * kOps, nullptr);
            for (const Row *t : kTables)
                for (const Row *r = t; r->name; r++)
                    if (r->arch & (1 << a)) at[a][size_t(r->enc) * kOps + r->op] = r;
        }
    }
};

}  // namespace

const Row *find_row(Enc enc, u32 op, u8 arch) {
    static const Index index;
    return op < kOps ? index.at[arch == GFX950 ? 1 : 0][size_t(enc) * kOps + op] : nullptr;
}

const Row *const *all_tables(int *count) {
    *count = int(sizeof(kTables) / sizeof(kTables[0]));
    return kTables;
}

const char *class_name(Class c) {
    static const char *const names[] = {"salu", "valu",   "trans", "mfma",    "lds", "vmem",
                                        "smem", "branch", "wait",  "barrier", "nop", "other"};
    return c < Class::COUNT ? names[int(c)] : "other";
}

void mnemonic(const Op &op, char *out, size_t size) {
    static const char *const suffixes[] = {"", "_e32", "_e64", "_sdwa", "_dpp"};
    if (!op.row)
        snprintf(out, size, ".long 0x%08x", op.words[0]);
    else
        snprintf(out, size, "%s%s", op.row->name, suffixes[op.suffix]);
}

}  // namespace moon
