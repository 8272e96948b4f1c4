// LDS instructions. Addresses are bytes from the workgroup's base; beyond its size reads give 0 and writes are dropped.
#include "memory_ops.h"

namespace moon {

namespace {

u8 kZeros[16];  // out-of-range reads point here

// Fills w.mem and lane pointers; returns the lanes that are in range.
u64 lds_lanes(Wave &w, const Op &op, u32 offset, u32 bytes, u64 *addr, u8 **ptr) {
    Workgroup &g = *w.group;
    const u32 *a = w.v[op.addr];
    u64 e = w.exec(), ok = 0;
    u8 *base = g.lds.data();
    u64 size = g.lds.size();
    if (e == ~0ull) {
        u32 bad = 0;
        for (int i = 0; i < kLanes; i++) {
            u64 x = u64(a[i]) + offset;
            addr[i] = x;
            bad |= x + bytes > size;
            ptr[i] = base + x;
        }
        if (!bad) return e;
    }
    for (int i = 0; i < kLanes; i++) {
        u64 x = u64(a[i]) + offset;
        addr[i] = x;
        bool in = x + bytes <= size;
        ptr[i] = in ? base + x : kZeros;
        ok |= u64(in) << i;
    }
    return ok & e;
}
void record(Wave &w, u32 bytes, bool write) {
    w.mem.mask = w.exec();
    w.mem.bytes = bytes;
    w.mem.lds = true;
    w.mem.write = write;
    w.mem.second = false;
}

}  // namespace

void run_ds_read(Wave &w, const Op &op) {
    u8 *ptr[kLanes];
    u64 e = w.exec(), ok = lds_lanes(w, op, u32(op.imm), op.row->a, w.mem.addr, ptr);
    record(w, op.row->a, false);
    load_rows(w, op, op.dst, ptr, ok, e & ~ok);
}
void run_ds_write(Wave &w, const Op &op) {
    u8 *ptr[kLanes];
    u64 ok = lds_lanes(w, op, u32(op.imm), op.row->a, w.mem.addr, ptr);
    record(w, op.row->a, true);
    store_rows(w, op, op.data, ptr, ok);
}

namespace {
// read2/write2: two accesses with 8-bit offsets in units of the element, or 64 of them.
void offsets2(const Op &op, u32 *o0, u32 *o1) {
    u32 unit = op.row->a * (op.row->c ? 64u : 1u);
    *o0 = (u32(op.imm) & 255) * unit;
    *o1 = (u32(op.imm) >> 8 & 255) * unit;
}
}  // namespace

void run_ds_read2(Wave &w, const Op &op) {
    u8 *p0[kLanes], *p1[kLanes];
    u32 o0, o1, n = op.row->a / 4;
    offsets2(op, &o0, &o1);
    u64 e = w.exec();
    u64 k0 = lds_lanes(w, op, o0, op.row->a, w.mem.addr, p0), k1 = lds_lanes(w, op, o1, op.row->a, w.mem.addr2, p1);
    record(w, op.row->a, false);
    w.mem.second = true, w.mem.bytes2 = op.row->a, w.mem.mask2 = e;
    u32 keep[kLanes];  // the address may be among the destinations
    std::memcpy(keep, w.v[op.addr], sizeof(keep));
    load_rows(w, op, op.dst, p0, k0, e & ~k0);
    load_rows(w, op, u16(op.dst + n), p1, k1, e & ~k1);
}
void run_ds_write2(Wave &w, const Op &op) {
    u8 *p0[kLanes], *p1[kLanes];
    u32 o0, o1;
    offsets2(op, &o0, &o1);
    u64 k0 = lds_lanes(w, op, o0, op.row->a, w.mem.addr, p0), k1 = lds_lanes(w, op, o1, op.row->a, w.mem.addr2, p1);
    record(w, op.row->a, true);
    w.mem.second = true, w.mem.bytes2 = op.row->a, w.mem.mask2 = w.exec();
    store_rows(w, op, op.data, p0, k0);
    store_rows(w, op, op.data1, p1, k1);
}

// Lane order decides between lanes that hit one address, as it does in the hardware's pass.
void run_ds_atomic(Wave &w, const Op &op) {
    u8 *ptr[kLanes];
    u64 ok = lds_lanes(w, op, u32(op.imm), op.row->a, w.mem.addr, ptr);
    record(w, op.row->a, true);
    AtomicOp kind = AtomicOp(op.row->c);
    for (u64 m = ok; m; m &= m - 1) {
        int i = lowest(m);
        // cmpst: data is the compare value, data1 the new one
        bool cas = kind == A_CMPSWAP;
        if (op.row->a == 4) {
            u32 d = w.v[cas ? op.data1 : op.data][i], c = w.v[op.data][i], old = atomic32(ptr[i], kind, d, c);
            if (op.row->d) w.v[op.dst][i] = old;
        } else {
            u64 d = U64::get(w.v[cas ? op.data1 : op.data], i), c = U64::get(w.v[op.data], i),
                old = atomic64(ptr[i], kind, d, c);
            if (op.row->d) U64::put(w.v[op.dst], i, old);
        }
    }
}

void run_ds_permute(Wave &w, const Op &op) {
    u32 out[kLanes] = {};
    u64 e = w.exec();
    for (int i = 0; i < kLanes; i++)
        if (e >> i & 1) out[((w.v[op.addr][i] + u32(op.imm)) >> 2) & 63] = w.v[op.data][i];
    for (int i = 0; i < kLanes; i++)
        if (e >> i & 1) w.v[op.dst][i] = out[i];
    w.mem.mask = 0;
}
void run_ds_bpermute(Wave &w, const Op &op) {
    u32 in[kLanes];
    u64 e = w.exec();
    for (int i = 0; i < kLanes; i++) {
        u32 from = ((w.v[op.addr][i] + u32(op.imm)) >> 2) & 63;
        in[i] = e >> from & 1 ? w.v[op.data][from] : 0;
    }
    for (int i = 0; i < kLanes; i++)
        if (e >> i & 1) w.v[op.dst][i] = in[i];
    w.mem.mask = 0;
}
void run_ds_swizzle(Wave &w, const Op &op) {
    u32 out[kLanes], k = u32(op.imm);
    u64 e = w.exec();
    for (int i = 0; i < kLanes; i++) {
        int from;
        if (k & 0x8000u) {  // quad permute
            from = (i & ~3) | int(k >> (2 * (i & 3)) & 3);
        } else {  // and, or, xor masks within 32 lanes
            int low = ((i & 31) & int(k & 31)) | int(k >> 5 & 31);
            from = (i & 32) | (low ^ int(k >> 10 & 31));
        }
        out[i] = e >> from & 1 ? w.v[op.addr][from] : 0;
    }
    for (int i = 0; i < kLanes; i++)
        if (e >> i & 1) w.v[op.dst][i] = out[i];
    w.mem.mask = 0;
}

// Transposing read: within 16 lanes, lane i's element k is element i % 4 of what lane 4k + i / 4 addresses.
void run_ds_read_tr_b16(Wave &w, const Op &op) {
    u8 *ptr[kLanes];
    u64 e = w.exec(), ok = lds_lanes(w, op, u32(op.imm), 8, w.mem.addr, ptr);
    record(w, 8, false);
    u16 in[kLanes][4];
    for (int i = 0; i < kLanes; i++) {
        if (ok >> i & 1)
            std::memcpy(in[i], ptr[i], 8);
        else
            std::memset(in[i], 0, 8);
    }
    for (int i = 0; i < kLanes; i++) {
        if (!(e >> i & 1)) continue;
        int base = i & ~15, n = i & 15;
        u16 x[4];
        for (int k = 0; k < 4; k++) x[k] = in[base + 4 * k + n / 4][n % 4];
        w.v[op.dst][i] = x[0] | u32(x[1]) << 16;
        w.v[op.dst + 1][i] = x[2] | u32(x[3]) << 16;
    }
}

}  // namespace moon
