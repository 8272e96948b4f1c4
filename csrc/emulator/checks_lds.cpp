// LDS: races between barriers, data still on its way, uninitialised reads and bounds.
//
// Within a wave LDS instructions keep their order, so that a wave sees its own writes. Another wave may touch a dword
// only after a barrier, and only if the access was complete (waited for) before that barrier. A direct-to-LDS load is
// complete when vmcnt says so, for its own wave too.
#include "checks.h"
#include <cstdio>

namespace moon {

namespace {

std::string place(u64 byte) {
    char text[48];
    snprintf(text, sizeof(text), "LDS 0x%llx", (unsigned long long)byte);
    return text;
}

// Why an earlier access of wave `other` may not be seen as complete by wave `w`; null if it is.
const char *unordered(const Wave &w, const Wave &other, bool dma, u32 seq, u32 epoch) {
    const CheckState &o = *other.check;
    if (&w == &other) return dma && seq > o.vm_closed ? "has not been waited for (vmcnt)" : nullptr;
    if (epoch == w.group->epoch) return "happened since the last barrier";
    return seq > (dma ? o.vm_at_barrier : o.lds_at_barrier) ? "was not waited for before the barrier" : nullptr;
}

void touch(WorkerState &s, Wave &w, const OpUse &u, u32 index, u64 byte, u32 bytes, bool write, bool dma) {
    LdsShadow &shadow = s.shadow;
    CheckState &c = *w.check;
    if (byte + bytes > w.group->lds_bytes) {
        if (first_hit(s, index, Check::LDS_OUT_OF_BOUNDS))
            report(s, w, index, Check::LDS_OUT_OF_BOUNDS, "error", place(byte),
                   std::string(write ? "writes " : "reads ") + std::to_string(bytes) + " bytes past the " +
                       std::to_string(w.group->lds_bytes) + " that the workgroup has");
        return;
    }
    const bool atomic = u.kind == OpKind::LDS_OTHER;
    u32 seq = dma ? c.vm_issued : c.lds_issued;
    for (u64 d = byte / 4; d <= (byte + bytes - 1) / 4; d++) {
        LdsDword &x = shadow.dwords[size_t(d)];
        if (!write && !x.written && first_hit(s, index, Check::UNINITIALISED_LDS))
            report(s, w, index, Check::UNINITIALISED_LDS, "warning", place(d * 4), "reads LDS that was never written");
        if (x.writer >= 0 && !(atomic && x.write_op == index)) {
            const Wave &other = *w.group->waves[size_t(x.writer)];
            const char *why = unordered(w, other, x.dma, x.write_seq, x.write_epoch);
            if (why) {
                bool own = &other == &w;
                Check kind = own ? Check::MISSING_WAITCNT : Check::LDS_RACE;
                if (first_hit(s, index, kind))
                    report(s, w, index, kind, "error", place(d * 4),
                           std::string(write ? "writes" : "reads") + " what " + op_at_text(s, x.write_op) +
                               " of wavefront " + std::to_string(x.writer) + " wrote, which " + why);
            }
        }
        if (write) {
            if (x.reader >= 0 && !atomic) {
                const Wave *other = w.group->waves[size_t(x.reader)];
                const char *why = nullptr;
                if (x.read_epoch == w.group->epoch && (x.readers & ~(1u << w.id)))
                    why = "happened since the last barrier";
                else if (other != &w && x.read_seq > other->check->lds_at_barrier)
                    why = "was not waited for before the barrier";
                else if (dma && other == &w && x.read_seq > c.lds_closed)
                    why = "has not been waited for (lgkmcnt)";
                if (why && first_hit(s, index, Check::LDS_RACE))
                    report(s, w, index, Check::LDS_RACE, "error", place(d * 4),
                           "overwrites what " + op_at_text(s, x.read_op) + " of wavefront " + std::to_string(x.reader) +
                               " reads, and that read " + why);
            }
            x.writer = i8(w.id), x.dma = dma, x.write_seq = seq, x.write_epoch = w.group->epoch, x.write_op = index,
            x.written = true;
        } else {
            if (x.read_epoch != w.group->epoch || x.reader < 0) x.readers = 0;
            x.readers |= u16(1u << w.id);
            x.reader = i8(w.id), x.read_seq = seq, x.read_epoch = w.group->epoch, x.read_op = index;
        }
    }
}

}  // namespace

void checks_lds(WorkerState &s, Wave &w, const Op &op, const OpUse &u, u32 index) {
    const MemAccess &m = w.mem;
    if (!m.lds) {  // the LDS side of a direct-to-LDS load
        for (u64 k = m.mask2; k; k &= k - 1) touch(s, w, u, index, m.addr2[lowest(k)], m.bytes2, true, true);
        return;
    }
    (void)op;
    for (u64 k = m.mask; k; k &= k - 1) touch(s, w, u, index, m.addr[lowest(k)], m.bytes, m.write, false);
    if (m.second)
        for (u64 k = m.mask2; k; k &= k - 1) touch(s, w, u, index, m.addr2[lowest(k)], m.bytes2, m.write, false);
}

}  // namespace moon
