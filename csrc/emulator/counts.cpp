// Counting.
#include "counts.h"
#include "report.h"
#include <algorithm>

namespace moon {

namespace {

// Lanes go through the banks in groups: halves for 4 bytes a lane, sixteens for more. A bank gives one dword a pass;
// lanes that want the same dword share it. 32 banks on gfx942, 64 on gfx950.
void add_access(const u64 *addr, u64 mask, u32 bytes, u32 banks, BankCycles *out) {
    const int group = bytes <= 4 ? 32 : 16;
    for (int base = 0; base < kLanes; base += group) {
        u64 m = mask >> base & ((group == 32) ? 0xffffffffull : 0xffffull);
        if (!m) continue;
        u64 seen[64];
        int n = 0;
        u32 load[64] = {}, worst = 0;
        for (; m; m &= m - 1) {
            u64 first = addr[base + lowest(m)] / 4, last = (addr[base + lowest(m)] + bytes - 1) / 4;
            for (u64 d = first; d <= last && n < 64; d++) {
                bool again = false;
                for (int i = 0; i < n && !again; i++) again = seen[i] == d;
                if (again) continue;
                seen[n++] = d;
                worst = std::max(worst, ++load[d % banks]);
            }
        }
        out->cycles += worst;
        out->ideal += (u32(n) + banks - 1) / banks;
    }
    out->bytes += u32(popcount(mask)) * bytes;
}

}  // namespace

BankCycles lds_bank_cycles(const Wave &w, const OpUse &u) {
    BankCycles r;
    const MemAccess &m = w.mem;
    const u32 banks = w.launch->program->arch_bit == GFX950 ? 64 : 32;
    if (u.kind == OpKind::VMEM_LDS) {
        r.bytes = u32(popcount(m.mask2)) * m.bytes2;  // written behind the kernel's back; no conflicts: consecutive
        return r;
    }
    if (!m.lds || !m.mask) return r;
    add_access(m.addr, m.mask, m.bytes, banks, &r);
    if (m.second) add_access(m.addr2, m.mask2, m.bytes2, banks, &r);
    return r;
}

u32 touched_lines(const Wave &w, u64 *lines) {
    const MemAccess &m = w.mem;
    if (m.lds || !m.mask) return 0;
    u32 n = 0;
    for (u64 k = m.mask; k; k &= k - 1) {
        u64 first = m.addr[lowest(k)] >> 7, last = (m.addr[lowest(k)] + m.bytes - 1) >> 7;
        for (u64 l = first; l <= last && n < 192; l++)
            if (n == 0 || lines[n - 1] != l) lines[n++] = l;
    }
    std::sort(lines, lines + n);
    return u32(std::unique(lines, lines + n) - lines);
}

void count_op(CountState &c, const Wave &w, const OpUse &u, u32 index) {
    OpCount &o = c.ops[index];
    o.executed++;
    switch (u.kind) {
        case OpKind::LDS_READ:
        case OpKind::LDS_WRITE:
        case OpKind::LDS_OTHER: {
            BankCycles b = lds_bank_cycles(w, u);
            o.lds_bytes += b.bytes, o.lds_cycles += b.cycles, o.lds_ideal += b.ideal;
            break;
        }
        case OpKind::VMEM_LDS: o.lds_bytes += u64(popcount(w.mem.mask2)) * w.mem.bytes2; [[fallthrough]];
        case OpKind::VMEM_LOAD:
        case OpKind::VMEM_STORE: {
            u64 lines[192];
            o.lines += touched_lines(w, lines);
            o.global_bytes += u64(popcount(w.mem.mask)) * w.mem.bytes;
            break;
        }
        default: break;
    }
}

// Totals by kind, and one row an executed instruction: [address, executed, lds_bytes, lds_cycles, lds_ideal,
// global_bytes, lines]. Accumulator registers are counted a wave: a register is 64 lanes of 4 bytes.
std::string counts_json(const Launch &l) {
    if (!l.counts) return "";
    u64 kinds[size_t(OpKind::COUNT)] = {}, acc_read = 0, acc_write = 0;
    OpCount total;
    std::string rows;
    const Program &p = *l.program;
    for (size_t i = 0; i < l.counts->ops.size(); i++) {
        const OpCount &o = l.counts->ops[i];
        if (!o.executed) continue;
        const OpUse &u = p.uses[i];
        kinds[size_t(u.kind)] += o.executed;
        if (u.kind == OpKind::MFMA || u.kind == OpKind::SMFMAC) {
            acc_write += o.executed * u.vwrite[0].count;
            if (u.accumulator >= 0) acc_read += o.executed * u.vread[u.accumulator].count;
        }
        total.executed += o.executed, total.lds_bytes += o.lds_bytes, total.lds_cycles += o.lds_cycles;
        total.lds_ideal += o.lds_ideal, total.global_bytes += o.global_bytes, total.lines += o.lines;
        rows += rows.empty() ? "[" : ", [";
        rows += std::to_string(p.ops[i].address) + ", " + std::to_string(o.executed) + ", " +
                std::to_string(o.lds_bytes) + ", " + std::to_string(o.lds_cycles) + ", " + std::to_string(o.lds_ideal) +
                ", " + std::to_string(o.global_bytes) + ", " + std::to_string(o.lines) + "]";
    }
    std::string r = ", \"counts\": {\"instructions\": " + std::to_string(total.executed) + ", \"kinds\": {";
    for (size_t k = 0; k < size_t(OpKind::COUNT); k++)
        r += std::string(k ? ", " : "") + "\"" + kind_name(OpKind(k)) + "\": " + std::to_string(kinds[k]);
    r += "}, \"lds_bytes\": " + std::to_string(total.lds_bytes) +
         ", \"lds_cycles\": " + std::to_string(total.lds_cycles) +
         ", \"lds_conflict_cycles\": " + std::to_string(total.lds_cycles - total.lds_ideal) +
         ", \"global_bytes\": " + std::to_string(total.global_bytes) +
         ", \"cache_lines\": " + std::to_string(total.lines) +
         ", \"accumulator_registers_read\": " + std::to_string(acc_read) +
         ", \"accumulator_registers_written\": " + std::to_string(acc_write) + ", \"per_instruction\": [" + rows + "]}";
    return r;
}

}  // namespace moon
