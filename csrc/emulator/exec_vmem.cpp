// Global, flat, scratch and buffer instructions, and scalar loads.
#include "memory_ops.h"
#include <chrono>

namespace moon {

namespace {

void record(Wave &w, u64 mask, u32 bytes, bool write) {
    w.mem.mask = mask;
    w.mem.bytes = bytes;
    w.mem.lds = false;
    w.mem.write = write;
    w.mem.second = false;
}

// A direct-to-LDS load puts lane i's data at M0 + the instruction's offset + i * size; lanes out of range give zeros.
void to_lds(Wave &w, const Op &op, const u8 *const *ptr, u64 mask, u64 zero) {
    Workgroup &g = *w.group;
    u32 n = op.row->a;
    u32 m0 = w.s[kM0] & (w.launch->program->arch_bit == GFX950 ? 0xfffffu : 0xffffu);
    u64 base = u64(m0) + u32(op.imm);
    u32 slot = n < 4 ? 4 : n;  // sub-dword loads fill a dword a lane
    w.mem.second = true, w.mem.bytes2 = slot, w.mem.mask2 = mask | zero;
    for (int i = 0; i < kLanes; i++) w.mem.addr2[i] = base + u64(i) * slot;
    if (mask == ~0ull && op.row->b == K_DWORDS && base + u64(kLanes) * slot <= g.lds.size()) {
        u8 *d = g.lds.data() + base;
        if (n == 4)
            for (int i = 0; i < kLanes; i++) std::memcpy(d + 4 * i, ptr[i], 4);
        else if (n == 16)
            for (int i = 0; i < kLanes; i++) std::memcpy(d + 16 * i, ptr[i], 16);
        else
            for (int i = 0; i < kLanes; i++) std::memcpy(d + 12 * i, ptr[i], 12);
        return;
    }
    for (u64 m = mask | zero; m; m &= m - 1) {
        int i = lowest(m);
        u64 at = w.mem.addr2[i];
        if (at + slot > g.lds.size()) continue;
        u8 *d = g.lds.data() + at;
        if (zero >> i & 1) {
            std::memset(d, 0, slot);
        } else if (op.row->b == K_DWORDS) {
            std::memcpy(d, ptr[i], n);
        } else {
            u32 x = op.row->b == K_U8   ? ptr[i][0]
                    : op.row->b == K_I8 ? u32(i32(i8(ptr[i][0])))
                                        : u32(ptr[i][0] | ptr[i][1] << 8);
            if (op.row->b == K_I16) x = u32(i32(i16(x)));
            std::memcpy(d, &x, 4);
        }
    }
}

void atomics(Wave &w, const Op &op, u8 *const *ptr, u64 mask) {
    AtomicOp kind = AtomicOp(op.row->c);
    bool wide = op.row->a == 8, cas = kind == A_CMPSWAP;
    for (u64 m = mask; m; m &= m - 1) {
        int i = lowest(m);
        if (wide) {
            u64 d = U64::get(w.v[op.data], i), c = cas ? U64::get(w.v[op.data + 2], i) : 0,
                old = atomic64(ptr[i], kind, d, c);
            if (op.sc0) U64::put(w.v[op.dst], i, old);
        } else {
            u32 d = w.v[op.data][i], c = cas ? w.v[op.data + 1][i] : 0, old = atomic32(ptr[i], kind, d, c);
            if (op.sc0) w.v[op.dst][i] = old;
        }
    }
}

// The addresses are in w.mem.addr and known to be good.
void perform(Wave &w, const Op &op, u64 mask, u64 zero) {
    u8 *ptr[kLanes];
    for (int i = 0; i < kLanes; i++) ptr[i] = reinterpret_cast<u8 *>(w.mem.addr[i]);
    if (op.row->flags & ATOMIC)
        atomics(w, op, ptr, mask);
    else if (op.row->flags & STORE)
        store_rows(w, op, op.data, ptr, mask);
    else if (op.lds)
        to_lds(w, op, ptr, mask, zero);
    else
        load_rows(w, op, op.dst, ptr, mask, zero);
}

}  // namespace

void run_global(Wave &w, const Op &op) {
    u64 e = w.exec();
    u64 *addr = w.mem.addr;
    if (op.saddr) {
        u64 base = w.s64(op.src[0].index) + u64(i64(op.imm));
        const u32 *off = op.addr == kNoReg ? nullptr : w.v[op.addr];
        for (int i = 0; i < kLanes; i++) addr[i] = base + (off ? off[i] : 0);
    } else {
        const u32 *lo = w.v[op.addr], *hi = w.v[op.addr + 1];
        for (int i = 0; i < kLanes; i++) addr[i] = (lo[i] | u64(hi[i]) << 32) + u64(i64(op.imm));
    }
    bool write = op.row->flags & (STORE | ATOMIC);
    record(w, e, op.row->a, write);
    if (reachable(w, op, addr, e, op.row->a, write)) perform(w, op, e, 0);
}

// Flat: the apertures of LDS and scratch are told apart by the high dword (read_special gives the same numbers).
void run_flat(Wave &w, const Op &op) {
    u64 e = w.exec(), shared = 0, priv = 0;
    u64 *addr = w.mem.addr;
    const u32 *lo = w.v[op.addr], *hi = w.v[op.addr + 1];
    for (int i = 0; i < kLanes; i++) {
        addr[i] = (lo[i] | u64(hi[i]) << 32) + u64(i64(op.imm));
        shared |= u64(addr[i] >> 32 == 0x00010000u) << i;
        priv |= u64(addr[i] >> 32 == 0x00020000u) << i;
    }
    bool write = op.row->flags & (STORE | ATOMIC);
    record(w, e, op.row->a, write);
    u64 global = e & ~shared & ~priv;
    if (!reachable(w, op, addr, global, op.row->a, write)) return;
    u64 good = global, zero = 0;
    for (u64 m = e & (shared | priv); m; m &= m - 1) {
        int i = lowest(m);
        u64 off = addr[i] & 0xffffffffu;
        u64 limit = shared >> i & 1 ? w.group->lds.size() : w.scratch_bytes;
        u8 *base = shared >> i & 1 ? w.group->lds.data() : w.scratch.data() + size_t(i) * w.scratch_bytes;
        if (off + op.row->a <= limit) {
            addr[i] = reinterpret_cast<u64>(base + off);
            good |= 1ull << i;
        } else {
            zero |= 1ull << i;
        }
    }
    w.mem.mask = global;  // only true global traffic is counted as such
    perform(w, op, good, zero);
}

// Scratch: each lane has its own contiguous private segment here; the hardware's interleaving is not visible to a
// kernel.
void run_scratch(Wave &w, const Op &op) {
    u64 e = w.exec(), good = 0, bad = 0;
    i64 base = i64(op.imm);
    if (op.saddr) base += w.s[op.src[0].index];
    const u32 *off = op.addr == kNoReg ? nullptr : w.v[op.addr];
    for (int i = 0; i < kLanes; i++) {
        i64 at = base + (off ? i64(off[i]) : 0);
        if (!(e >> i & 1)) continue;
        if (at >= 0 && u64(at) + op.row->a <= w.scratch_bytes) {
            w.mem.addr[i] = reinterpret_cast<u64>(w.scratch.data() + size_t(i) * w.scratch_bytes + at);
            good |= 1ull << i;
        } else {
            bad |= 1ull << i;
        }
    }
    if (bad) {
        fault(w, op, 700, "lane %d leaves the private segment of %u bytes", lowest(bad), w.scratch_bytes);
        return;
    }
    record(w, 0, op.row->a, op.row->flags & STORE);
    perform(w, op, good, 0);
}

// Buffers: base + soffset + instruction offset + voffset (offen) + index * stride (idxen), checked against num_records
// with soffset included. A load that is partly in range gives zeros for the dwords that are not.
void run_buffer(Wave &w, const Op &op) {
    const u32 *rsrc = &w.s[op.src[0].index];
    u64 base = (rsrc[0] | u64(rsrc[1] & 0xffffu) << 32);
    u32 stride = rsrc[1] >> 16 & 0x3fffu;
    u64 records = rsrc[2];
    u64 soffset = read_s32(w, op.src[1]);
    u64 e = w.exec(), in = 0;
    u32 bytes = op.row->a;
    const u32 *idx = op.idxen ? w.v[op.addr] : nullptr;
    const u32 *off = op.offen ? w.v[op.addr + (op.idxen ? 1 : 0)] : nullptr;
    u64 fixed = soffset + u32(op.imm);
    alignas(64) u64 at[kLanes];
    bool structured = stride != 0 && op.idxen;
    if (!structured) {
        u32 bad = 0;
        if (off) {
            for (int i = 0; i < kLanes; i++) {
                at[i] = fixed + off[i];
                bad |= at[i] + bytes > records;
            }
        } else {
            for (int i = 0; i < kLanes; i++) at[i] = fixed;
            bad = fixed + bytes > records;
        }
        if (bad)
            for (int i = 0; i < kLanes; i++) in |= u64(at[i] + bytes <= records) << i;
        else
            in = ~0ull;
    } else {
        for (int i = 0; i < kLanes; i++) {
            u64 o = fixed + (off ? off[i] : 0);
            at[i] = u64(idx[i]) * stride + o;
            in |= u64(idx[i] < records) << i;
        }
    }
    for (int i = 0; i < kLanes; i++) w.mem.addr[i] = base + at[i];
    bool write = op.row->flags & (STORE | ATOMIC);
    u64 good = in & e, out = e & ~in;
    u64 partial = 0;
    if (out && !structured && bytes > 4)
        for (u64 m = out; m; m &= m - 1) partial |= u64(at[lowest(m)] + 4 <= records) << lowest(m);
    record(w, good, bytes, write);
    if (!reachable(w, op, w.mem.addr, good, bytes, write)) return;
    if (!partial) {
        perform(w, op, good, out);
        return;
    }
    // Lanes of which only the first dwords are in range.
    u8 piece[kLanes][16];
    u64 real[kLanes];
    std::memcpy(real, w.mem.addr, sizeof(real));
    for (u64 m = partial; m; m &= m - 1) {
        int i = lowest(m);
        u32 part = u32(records - at[i]) & ~3u;
        if (!reachable(w, op, w.mem.addr, 1ull << i, part, write)) return;
        std::memset(piece[i], 0, 16);
        if (!write) std::memcpy(piece[i], reinterpret_cast<u8 *>(real[i]), part);
        w.mem.addr[i] = reinterpret_cast<u64>(piece[i]);
    }
    perform(w, op, good | partial, out & ~partial);
    for (u64 m = partial; m && write; m &= m - 1) {
        int i = lowest(m);
        std::memcpy(reinterpret_cast<u8 *>(real[i]), piece[i], u32(records - at[i]) & ~3u);
    }
    std::memcpy(w.mem.addr, real, sizeof(real));
}

void run_cache_control(Wave &w, const Op &) { w.mem.mask = 0; }

namespace {
u64 smem_offset(const Wave &w, const Op &op) {
    u64 off = u64(i64(op.imm));
    if (op.src[1].kind != Kind::NONE) off += read_s32(w, op.src[1]);
    return off;
}
void put_scalar(Wave &w, u16 dst, const u32 *x, int n) {
    for (int k = 0; k < n; k++) w.s[(dst + k) & 127] = x[k];
}
}  // namespace

void run_smem_load(Wave &w, const Op &op) {
    int n = op.row->a / 4;
    u64 addr = (w.s64(op.src[0].index) + smem_offset(w, op)) & ~3ull;
    w.mem.mask = 1, w.mem.addr[0] = addr, w.mem.bytes = op.row->a, w.mem.lds = false, w.mem.write = false,
    w.mem.second = false;
    if (!reachable_scalar(w, op, addr, op.row->a)) return;
    u32 x[16];
    std::memcpy(x, reinterpret_cast<u8 *>(addr), op.row->a);
    put_scalar(w, op.sdst, x, n);
}
void run_smem_buffer_load(Wave &w, const Op &op) {
    const u32 *rsrc = &w.s[op.src[0].index];
    u64 base = rsrc[0] | u64(rsrc[1] & 0xffffu) << 32, stride = rsrc[1] >> 16 & 0x3fffu;
    u64 limit = stride ? u64(rsrc[2]) * stride : rsrc[2], off = smem_offset(w, op) & ~3ull;
    int n = op.row->a / 4;
    u32 x[16] = {};
    w.mem.mask = 1, w.mem.addr[0] = base + off, w.mem.bytes = op.row->a, w.mem.lds = false, w.mem.write = false,
    w.mem.second = false;
    for (int k = 0; k < n; k++) {
        u64 o = off + 4u * u32(k);
        if (o + 4 > limit) continue;
        if (!reachable_scalar(w, op, base + o, 4)) return;
        std::memcpy(&x[k], reinterpret_cast<u8 *>(base + o), 4);
    }
    put_scalar(w, op.sdst, x, n);
}
// Time is counted in instructions, so that runs repeat.
void run_smem_time(Wave &w, const Op &op) {
    w.set_s64(op.sdst, w.executed * 4);
    w.mem.mask = 0;
}

}  // namespace moon
