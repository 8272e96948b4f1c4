// Traces of one workgroup. PREFIX.json describes the kernel's instructions; PREFIX.wave<N>.bin holds what wavefront N
// executed, one little-endian record an instruction:
//   u32 instruction index | u16 LDS bytes | u16 LDS bank passes | u16 line count | u16 fewest passes | u32 lines[line
//   count]
// A line is a global address divided by 128, its low 32 bits. Files appear under their names when they are complete.
#include "counts.h"
#include "hip_state.h"
#include <cstdio>

namespace moon {

struct TraceState {
    std::string path, temporary;
    std::vector<u8> buffer;
    FILE *file = nullptr;
    bool good = true;
    void flush() {
        if (file && !buffer.empty()) good &= std::fwrite(buffer.data(), 1, buffer.size(), file) == buffer.size();
        buffer.clear();
    }
};

TraceState *trace_open(Wave &w, const std::string &prefix) {
    auto *t = new TraceState;
    t->path = prefix + ".wave" + std::to_string(w.id) + ".bin";
    t->temporary = t->path + ".tmp";
    t->file = std::fopen(t->temporary.c_str(), "wb");
    t->good = t->file != nullptr;
    return t;
}

void trace_op(TraceState *t, const Wave &w, const OpUse &u, u32 index) {
    u64 lines[192];
    u32 n = 0;
    BankCycles b;
    switch (u.kind) {
        case OpKind::LDS_READ:
        case OpKind::LDS_WRITE:
        case OpKind::LDS_OTHER: b = lds_bank_cycles(w, u); break;
        case OpKind::VMEM_LDS:
            b = lds_bank_cycles(w, u);
            n = touched_lines(w, lines);
            break;
        case OpKind::VMEM_LOAD:
        case OpKind::VMEM_STORE:
        case OpKind::SMEM: n = touched_lines(w, lines); break;
        default: break;
    }
    u16 half[4] = {u16(b.bytes), u16(b.cycles), u16(n), u16(b.ideal)};
    size_t at = t->buffer.size();
    t->buffer.resize(at + 12 + 4 * size_t(n));
    std::memcpy(&t->buffer[at], &index, 4);
    std::memcpy(&t->buffer[at + 4], half, 8);
    for (u32 i = 0; i < n; i++) {
        u32 line = u32(lines[i]);
        std::memcpy(&t->buffer[at + 12 + 4 * size_t(i)], &line, 4);
    }
    if (t->buffer.size() > (1u << 20)) t->flush();
}

bool trace_close(TraceState *t) {
    t->flush();
    bool good = t->good;
    if (t->file) good &= std::fclose(t->file) == 0;
    if (good) good = std::rename(t->temporary.c_str(), t->path.c_str()) == 0;
    if (!good && t->file) std::remove(t->temporary.c_str());
    delete t;
    return good;
}

namespace {
std::string ranges(const RegRange *r, int n, int skip) {
    std::string s = "[";
    bool first = true;
    for (int i = 0; i < n; i++) {
        if (i == skip) continue;
        s +=
            std::string(first ? "" : ", ") + "[" + std::to_string(r[i].first) + ", " + std::to_string(r[i].count) + "]";
        first = false;
    }
    return s + "]";
}
}  // namespace

bool trace_table(const Launch &l, const std::string &path) {
    const Program &p = *l.program;
    std::string s = "{\"schema\": 1, \"kernel\": " + json_string(l.kernel->name) +
                    ", \"arch\": " + json_string(l.device->arch) +
                    ", \"waves\": " + std::to_string((l.threads() + kLanes - 1) / kLanes) +
                    ", \"workgroup\": " + std::to_string(l.options.trace_workgroup) + ", \"instructions\": [\n";
    for (size_t i = 0; i < p.ops.size(); i++) {
        const Op &op = p.ops[i];
        const OpUse &u = p.uses[i];
        char name[96], head[512];
        mnemonic(op, name, sizeof(name));
        int immediate = u.kind == OpKind::NOP ? u.nop - 1 : u.kind == OpKind::SETPRIO ? op.imm : 0;
        i64 target = op.target >= 0 ? op.target : -1;
        std::string acc = u.accumulator >= 0 ? "[" + std::to_string(u.vread[u.accumulator].first) + ", " +
                                                   std::to_string(u.vread[u.accumulator].count) + "]"
                                             : "null";
        snprintf(head, sizeof(head),
                 "{\"index\": %zu, \"address\": %u, \"mnemonic\": \"%s\", \"class\": \"%s\", \"vmcnt\": %d, "
                 "\"lgkmcnt\": %d, "
                 "\"immediate\": %d, \"target\": %lld, \"passes\": %d, ",
                 i, op.address, name, kind_name(u.kind), u.vmcnt, u.lgkmcnt, immediate, (long long)target, u.passes);
        s += head;
        s += "\"writes\": " + ranges(u.vwrite, u.vwrites, -1) +
             ", \"reads\": " + ranges(u.vread, u.vreads, u.accumulator) + ", \"accumulator\": " + acc +
             ", \"scalar_writes\": " + ranges(u.swrite, u.swrites, -1) +
             ", \"scalar_reads\": " + ranges(u.sread, u.sreads, -1) + "}" + (i + 1 < p.ops.size() ? ",\n" : "\n");
    }
    s += "]}\n";
    std::string temporary = path + ".tmp";
    FILE *f = std::fopen(temporary.c_str(), "wb");
    if (!f) return false;
    bool good = std::fwrite(s.data(), 1, s.size(), f) == s.size();
    good &= std::fclose(f) == 0;
    good = good && std::rename(temporary.c_str(), path.c_str()) == 0;
    if (!good) std::remove(temporary.c_str());
    return good;
}

}  // namespace moon
