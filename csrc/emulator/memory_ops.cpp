// Register rows to and from lane pointers, range checks, and atomics.
#include "memory_ops.h"
#include <algorithm>

namespace moon {

namespace {
#if defined(__clang__)
typedef u32 u32x4 __attribute__((ext_vector_type(4)));
typedef u32 u32x2 __attribute__((ext_vector_type(2)));
// Four lanes of four dwords at a time become four rows of four lanes.
void load_all4(u32 (*rows)[kLanes], const u8 *const *ptr) {
    for (int i = 0; i < kLanes; i += 4) {
        u32x4 a, b, c, d;
        std::memcpy(&a, ptr[i], 16), std::memcpy(&b, ptr[i + 1], 16);
        std::memcpy(&c, ptr[i + 2], 16), std::memcpy(&d, ptr[i + 3], 16);
        u32x4 ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
        u32x4 AB = __builtin_shufflevector(a, b, 2, 6, 3, 7), CD = __builtin_shufflevector(c, d, 2, 6, 3, 7);
        u32x4 r0 = __builtin_shufflevector(ab, cd, 0, 1, 4, 5), r1 = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
        u32x4 r2 = __builtin_shufflevector(AB, CD, 0, 1, 4, 5), r3 = __builtin_shufflevector(AB, CD, 2, 3, 6, 7);
        std::memcpy(&rows[0][i], &r0, 16), std::memcpy(&rows[1][i], &r1, 16);
        std::memcpy(&rows[2][i], &r2, 16), std::memcpy(&rows[3][i], &r3, 16);
    }
}
void load_all2(u32 (*rows)[kLanes], const u8 *const *ptr) {
    for (int i = 0; i < kLanes; i += 4) {
        u32x2 a, b, c, d;
        std::memcpy(&a, ptr[i], 8), std::memcpy(&b, ptr[i + 1], 8);
        std::memcpy(&c, ptr[i + 2], 8), std::memcpy(&d, ptr[i + 3], 8);
        u32x4 ab = __builtin_shufflevector(a, b, 0, 2, 1, 3), cd = __builtin_shufflevector(c, d, 0, 2, 1, 3);
        u32x4 r0 = __builtin_shufflevector(ab, cd, 0, 1, 4, 5), r1 = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
        std::memcpy(&rows[0][i], &r0, 16), std::memcpy(&rows[1][i], &r1, 16);
    }
}
#endif

template <int N>
void load_dwords(u32 (*rows)[kLanes], const u8 *const *ptr, u64 mask) {
    if (mask == ~0ull) {
#if defined(__clang__)
        if (N == 4) return load_all4(rows, ptr);
        if (N == 2) return load_all2(rows, ptr);
#endif
        for (int i = 0; i < kLanes; i++) {
            u32 x[N];
            std::memcpy(x, ptr[i], sizeof(x));
            for (int k = 0; k < N; k++) rows[k][i] = x[k];
        }
        return;
    }
    for (u64 m = mask; m; m &= m - 1) {
        int i = lowest(m);
        u32 x[N];
        std::memcpy(x, ptr[i], sizeof(x));
        for (int k = 0; k < N; k++) rows[k][i] = x[k];
    }
}
template <int N>
void store_dwords(const u32 (*rows)[kLanes], u8 *const *ptr, u64 mask) {
    for (u64 m = mask; m; m &= m - 1) {
        int i = lowest(m);
        u32 x[N];
        for (int k = 0; k < N; k++) x[k] = rows[k][i];
        std::memcpy(ptr[i], x, sizeof(x));
    }
}
u32 load_small(const u8 *p, u16 kind, u32 old) {
    u16 h;
    switch (kind) {
        case K_U8: return p[0];
        case K_I8: return u32(i32(i8(p[0])));
        case K_D16_U8: return (old & 0xffff0000u) | p[0];
        case K_D16_I8: return (old & 0xffff0000u) | u16(i16(i8(p[0])));
        case K_D16HI_U8: return (old & 0xffffu) | u32(p[0]) << 16;
        case K_D16HI_I8: return (old & 0xffffu) | u32(u16(i16(i8(p[0])))) << 16;
        default: break;
    }
    std::memcpy(&h, p, 2);
    switch (kind) {
        case K_U16: return h;
        case K_I16: return u32(i32(i16(h)));
        case K_D16_U16: return (old & 0xffff0000u) | h;
        default:  // K_D16HI_U16
            return (old & 0xffffu) | u32(h) << 16;
    }
}
}  // namespace

void load_rows(Wave &w, const Op &op, u16 dst, const u8 *const *ptr, u64 mask, u64 zero) {
    u32(*rows)[kLanes] = &w.v[dst];
    const Row &r = *op.row;
    if (r.b != K_DWORDS) {
        static const u8 nothing[4] = {0, 0, 0, 0};
        for (u64 m = mask | zero; m; m &= m - 1) {
            int i = lowest(m);
            rows[0][i] = load_small(zero >> i & 1 ? nothing : ptr[i], r.b, rows[0][i]);
        }
        return;
    }
    int n = r.a / 4;
    switch (n) {
        case 1: load_dwords<1>(rows, ptr, mask); break;
        case 2: load_dwords<2>(rows, ptr, mask); break;
        case 3: load_dwords<3>(rows, ptr, mask); break;
        default: load_dwords<4>(rows, ptr, mask);
    }
    for (u64 m = zero; m; m &= m - 1)
        for (int k = 0; k < n; k++) rows[k][lowest(m)] = 0;
}

void store_rows(Wave &w, const Op &op, u16 src, u8 *const *ptr, u64 mask) {
    const u32(*rows)[kLanes] = &w.v[src];
    const Row &r = *op.row;
    if (r.b == K_DWORDS) {
        switch (r.a / 4) {
            case 1: return store_dwords<1>(rows, ptr, mask);
            case 2: return store_dwords<2>(rows, ptr, mask);
            case 3: return store_dwords<3>(rows, ptr, mask);
            default: return store_dwords<4>(rows, ptr, mask);
        }
    }
    for (u64 m = mask; m; m &= m - 1) {
        int i = lowest(m);
        u32 x = r.b == K_HI8 || r.b == K_HI16 ? rows[0][i] >> 16 : rows[0][i];
        std::memcpy(ptr[i], &x, r.b == K_U8 || r.b == K_HI8 ? 1 : 2);  // little endian, as the device
    }
}

namespace {
const Range *find_range(const Launch &l, u64 addr) {
    auto it = std::upper_bound(l.ranges.begin(), l.ranges.end(), addr, [](u64 a, const Range &r) { return a < r.lo; });
    if (it == l.ranges.begin()) return nullptr;
    --it;
    return addr < it->hi ? &*it : nullptr;
}
}  // namespace

bool reachable(Wave &w, const Op &op, const u64 *addr, u64 mask, u32 bytes, bool write) {
    if (!mask) return true;
    u64 lo = ~0ull, hi = 0;
    if (mask == ~0ull) {
        for (int i = 0; i < kLanes; i++) {
            lo = addr[i] < lo ? addr[i] : lo;
            hi = addr[i] > hi ? addr[i] : hi;
        }
    } else {
        for (u64 m = mask; m; m &= m - 1) {
            u64 a = addr[lowest(m)];
            lo = a < lo ? a : lo;
            hi = a > hi ? a : hi;
        }
    }
    if (lo >= w.range_lo && hi < w.range_hi && w.range_hi - hi >= bytes && (!write || w.range_write)) return true;
    const Range *r = find_range(*w.launch, lo);
    if (r && hi < r->hi && r->hi - hi >= bytes && (!write || r->writable)) {
        w.range_lo = r->lo, w.range_hi = r->hi, w.range_write = r->writable;
        return true;
    }
    for (u64 m = mask; m; m &= m - 1) {
        int i = lowest(m);
        u64 a = addr[i];
        r = find_range(*w.launch, a);
        if (r && r->hi - a >= bytes && (!write || r->writable)) continue;
        if (r && write && !r->writable)
            fault(w, op, 700, "lane %d writes %u bytes at 0x%llx, which is read-only", i, bytes, (unsigned long long)a);
        else if (r)
            fault(w, op, 700, "lane %d %s %u bytes at 0x%llx: %llu past the end of an allocation of %llu bytes", i,
                  write ? "writes" : "reads", bytes, (unsigned long long)a, (unsigned long long)(a + bytes - r->hi),
                  (unsigned long long)(r->hi - r->lo));
        else
            fault(w, op, 700, "lane %d %s %u bytes at 0x%llx, which is outside every allocation", i,
                  write ? "writes" : "reads", bytes, (unsigned long long)a);
        return false;
    }
    return true;
}

bool reachable_scalar(Wave &w, const Op &op, u64 addr, u32 bytes) {
    if (addr >= w.range_lo && addr < w.range_hi && w.range_hi - addr >= bytes) return true;
    const Range *r = find_range(*w.launch, addr);
    if (r && r->hi - addr >= bytes) return true;
    fault(w, op, 700, "scalar read of %u bytes at 0x%llx, which is %s", bytes, (unsigned long long)addr,
          r ? "partly past the end of its allocation" : "outside every allocation");
    return false;
}

namespace {
template <class T, class S>
T combine(AtomicOp op, T old, T data, T compare) {
    switch (op) {
        case A_SWAP: return data;
        case A_CMPSWAP: return old == compare ? data : old;
        case A_ADD: return old + data;
        case A_SUB: return old - data;
        case A_RSUB: return data - old;
        case A_SMIN: return S(old) < S(data) ? old : data;
        case A_UMIN: return old < data ? old : data;
        case A_SMAX: return S(old) > S(data) ? old : data;
        case A_UMAX: return old > data ? old : data;
        case A_AND: return old & data;
        case A_OR: return old | data;
        case A_XOR: return old ^ data;
        case A_INC: return old >= data ? 0 : old + 1;
        case A_DEC: return old == 0 || old > data ? data : old - 1;
        default: return old;
    }
}
u32 combine_float(AtomicOp op, u32 old, u32 data) {
    switch (op) {
        case A_ADD_F32: return as_u32(as_f32(old) + as_f32(data));
        case A_MIN_F32: return as_f32(data) < as_f32(old) ? data : old;
        case A_MAX_F32: return as_f32(data) > as_f32(old) ? data : old;
        case A_PK_ADD_F16:
            return f64_to_f16(double(f16_to_f32(u16(old))) + f16_to_f32(u16(data))) |
                   u32(f64_to_f16(double(f16_to_f32(u16(old >> 16))) + f16_to_f32(u16(data >> 16)))) << 16;
        default:  // A_PK_ADD_BF16
            return f32_to_bf16(bf16_to_f32(u16(old)) + bf16_to_f32(u16(data))) |
                   u32(f32_to_bf16(bf16_to_f32(u16(old >> 16)) + bf16_to_f32(u16(data >> 16)))) << 16;
    }
}
}  // namespace

u32 atomic32(u8 *p, AtomicOp op, u32 data, u32 compare) {
    u32 *q = reinterpret_cast<u32 *>(p), old = __atomic_load_n(q, __ATOMIC_RELAXED), next;
    do {
        next = op == A_ADD_F32 || op == A_MIN_F32 || op == A_MAX_F32 || op == A_PK_ADD_F16 || op == A_PK_ADD_BF16
                   ? combine_float(op, old, data)
                   : combine<u32, i32>(op, old, data, compare);
    } while (!__atomic_compare_exchange_n(q, &old, next, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return old;
}
u64 atomic64(u8 *p, AtomicOp op, u64 data, u64 compare) {
    u64 *q = reinterpret_cast<u64 *>(p), old = __atomic_load_n(q, __ATOMIC_RELAXED), next;
    do {
        double a = as_f64(old), b = as_f64(data);
        next = op == A_ADD_F64   ? as_u64(a + b)
               : op == A_MIN_F64 ? (b < a ? data : old)
               : op == A_MAX_F64 ? (b > a ? data : old)
                                 : combine<u64, i64>(op, old, data, compare);
    } while (!__atomic_compare_exchange_n(q, &old, next, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return old;
}

}  // namespace moon
