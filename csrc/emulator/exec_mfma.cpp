// MFMA and SMFMAC. Lane l of an operand holds row (or column) l % M; element j is k = per * (l / M) + j. Results:
// column l % M, rows as mfma_row says. EXEC is ignored, denormals are kept.
#include "mfma.h"

namespace moon {

namespace {

// Vectors of one result row. Where the host has no fused multiply-add, a product of two 16-bit floats is exact in
// binary32 anyway, so that a separate multiply and add give the same bits but for products outside its range.
#if defined(__clang__)
typedef float f32x16 __attribute__((ext_vector_type(16)));
typedef float f32x32 __attribute__((ext_vector_type(32)));
template <class V>
inline V splat(float x) {
    return V(x);
}
template <class V>
inline V fused(V a, V b, V c) {
#if defined(__FMA__) || defined(__aarch64__)
    return __builtin_elementwise_fma(a, b, c);
#else
    return a * b + c;
#endif
}
#else
typedef float f32x16 __attribute__((vector_size(64)));
typedef float f32x32 __attribute__((vector_size(128)));
template <class V>
inline V splat(float x) {
    V r;
    for (size_t i = 0; i < sizeof(V) / 4; i++) r[i] = x;
    return r;
}
template <class V>
inline V fused(V a, V b, V c) {
    V r;
    for (size_t i = 0; i < sizeof(V) / 4; i++) r[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return r;
}
#endif
template <int M>
struct RowOf;
template <>
struct RowOf<16> {
    using V = f32x16;
};
template <>
struct RowOf<32> {
    using V = f32x32;
};

void unpack(const Wave &w, const Operand &o, u16 type, int per, float (*out)[kLanes]) {
    const u32(*rows)[kLanes] = &w.v[o.index];
    if (type == MA_F32) {
        std::memcpy(out, rows, size_t(per) * kLanes * 4);
    } else if (type == MA_BF16) {
        for (int j = 0; j < per; j += 2) {
            const u32 *r = rows[j / 2];
            for (int i = 0; i < kLanes; i++) out[j][i] = as_f32(r[i] << 16);
            for (int i = 0; i < kLanes; i++) out[j + 1][i] = as_f32(r[i] & 0xffff0000u);
        }
    } else {
        for (int j = 0; j < per; j++)
            for (int i = 0; i < kLanes; i++) out[j][i] = f16_to_f32(u16(rows[j / 2][i] >> (16 * (j & 1))));
    }
}

// C's rows, safe against an overlapping destination.
struct Accumulator {
    alignas(64) u32 copy[32][kLanes];
    const u32 (*rows)[kLanes];
    Accumulator(const Wave &w, const Op &op, int n) {
        const Operand &o = op.src[2];
        if (o.kind == Kind::VGPR) {
            rows = &w.v[o.index];
            if (o.index == op.dst || o.index + n <= op.dst || op.dst + n <= o.index) return;
            std::memcpy(copy, rows, size_t(n) * sizeof(copy[0]));
        } else {
            u32 x = read_s32(w, o);
            for (int r = 0; r < n; r++)
                for (int i = 0; i < kLanes; i++) copy[r][i] = x;
        }
        rows = copy;
    }
};

// Rows are computed several at a time: their chains of additions are independent, and they share B's row.
template <int M, int PER>
void product_of(Wave &w, const Op &op, const MfmaTile &t, const u32 (*c)[kLanes]) {
    using V = typename RowOf<M>::V;
    constexpr int groups = kLanes / M, regs = M * M / 64;
#if defined(__AVX512F__)
    constexpr int at_once = 2;
#else
    constexpr int at_once = 1;
#endif
    for (int r0 = 0; r0 < regs; r0 += at_once) {
        V acc[at_once * groups];
        int row[at_once * groups];
        for (int n = 0; n < at_once * groups; n++) {
            int r = r0 + n / groups, g = n % groups;
            row[n] = mfma_row(M, r, g);
            std::memcpy(&acc[n], &c[r][g * M], sizeof(V));
        }
        for (int kg = 0; kg < groups; kg++)
            for (int j = 0; j < PER; j++) {
                V b;
                std::memcpy(&b, &t.b[j][kg * M], sizeof(V));
                for (int n = 0; n < at_once * groups; n++) acc[n] = fused(splat<V>(t.a[j][kg * M + row[n]]), b, acc[n]);
            }
        for (int n = 0; n < at_once * groups; n++)
            std::memcpy(&w.v[op.dst + r0 + n / groups][(n % groups) * M], &acc[n], sizeof(V));
    }
}
template <int M>
void product(Wave &w, const Op &op, const MfmaTile &t, const u32 (*c)[kLanes]) {
    if (t.per == 4)
        product_of<M, 4>(w, op, t, c);
    else if (t.per == 8)
        product_of<M, 8>(w, op, t, c);
    else
        product_of<M, 1>(w, op, t, c);  // fp32
}

// acc += sum of av[k] * bv[k][...], one after another.
template <class V>
void add_products(float *acc, const float *av, const float *const *bv, int n) {
    V sum;
    std::memcpy(&sum, acc, sizeof(V));
    for (int k = 0; k < n; k++) {
        V b;
        std::memcpy(&b, bv[k], sizeof(V));
        sum = fused(splat<V>(av[k]), b, sum);
    }
    std::memcpy(acc, &sum, sizeof(V));
}

// Several blocks: block b's operands are in the lanes of group b, its result in registers or lanes of its own.
void product_blocks(Wave &w, const Op &op, const MfmaTile &t, const u32 (*c)[kLanes], bool exact) {
    const int m = t.m, groups = kLanes / m, per_block = m * m / 64;
    u32 out[32][kLanes];
    const int regs = m * m * t.blocks / 64;
    for (int r = 0; r < regs; r++)
        for (int l = 0; l < kLanes; l++) {
            int g = l / m, col = l % m;
            int block = m == 4 ? g : r / per_block;
            int row = m == 4 ? r : mfma_row(m, r % per_block, g);
            (void)groups;
            float a[16], b[16];
            for (int j = 0; j < t.per; j++) a[j] = t.a[j][block * m + row], b[j] = t.b[j][block * m + col];
            float acc = as_f32(c[r][l]);
            if (exact) {
                acc = mfma_dot_exact(a, b, t.per, acc);
            } else {
                for (int j = 0; j < t.per; j++) acc = __builtin_fmaf(a[j], b[j], acc);
            }
            out[r][l] = as_u32(acc);
        }
    std::memcpy(&w.v[op.dst], out, size_t(regs) * sizeof(out[0]));
}

void product_exact(Wave &w, const Op &op, const MfmaTile &t, const u32 (*c)[kLanes]) {
    const int m = t.m, groups = kLanes / m, regs = m * m / 64;
    alignas(64) u32 out[16][kLanes];
    const bool done = mfma_rows_exact(t, c, out);
    for (int r = 0; r < regs && !done; r++)
        for (int l = 0; l < kLanes; l++) {
            int row = mfma_row(m, r, l / m), col = l % m;
            float a[64], b[64];
            int n = 0;
            for (int g = 0; g < groups; g++)
                for (int j = 0; j < t.per; j++, n++) a[n] = t.a[j][g * m + row], b[n] = t.b[j][g * m + col];
            out[r][l] = as_u32(mfma_dot_exact(a, b, n, as_f32(c[r][l])));
        }
    std::memcpy(&w.v[op.dst], out, size_t(regs) * sizeof(out[0]));
}

bool plain_controls(Wave &w, const Op &op) {
    if (op.cbsz == 0 && op.blgp == 0 && op.abid == 0) return true;
    fault(w, op, 719, "cbsz, abid and blgp of a dense MFMA are not modelled");
    return false;
}

}  // namespace

void run_mfma(Wave &w, const Op &op) {
    const Row &r = *op.row;
    if (!plain_controls(w, op)) return;
    MfmaTile t;
    t.m = r.a, t.k = r.b, t.blocks = r.c;
    t.per = t.m * t.k * t.blocks / 64;
    unpack(w, op.src[0], r.d, t.per, t.a);
    unpack(w, op.src[1], r.d, t.per, t.b);
    Accumulator c(w, op, t.m * t.m * t.blocks / 64);
    bool exact = w.launch->options.exact_mma && (r.d == MA_BF16 || r.d == MA_F16);
    if (t.blocks > 1)
        product_blocks(w, op, t, c.rows, exact);
    else if (exact)
        product_exact(w, op, t, c.rows);
    else if (t.m == 32)
        product<32>(w, op, t, c.rows);
    else
        product<16>(w, op, t, c.rows);
}

void run_mfma_i8(Wave &w, const Op &op) {
    const Row &row = *op.row;
    if (!plain_controls(w, op)) return;
    const int m = row.a, blocks = row.c, per = m * row.b * blocks / 64, regs = m * m * blocks / 64,
              per_block = m * m / 64;
    Accumulator c(w, op, regs);
    auto element = [&](const Operand &o, int lane, int j) {
        return i32(i8(w.v[o.index + j / 4][lane] >> (8 * (j & 3))));
    };
    u32 out[32][kLanes];
    for (int r = 0; r < regs; r++)
        for (int l = 0; l < kLanes; l++) {
            int g = l / m, col = l % m;
            int block = blocks == 1 ? 0 : m == 4 ? g : r / per_block;
            int i = m == 4 ? r : mfma_row(m, blocks == 1 ? r : r % per_block, g);
            u32 acc = c.rows[r][l];
            int first = blocks == 1 ? 0 : block, last = blocks == 1 ? kLanes / m : block + 1;
            for (int q = first; q < last; q++)
                for (int j = 0; j < per; j++)
                    acc += u32(element(op.src[0], q * m + i, j) * element(op.src[1], q * m + col, j));
            out[r][l] = acc;
        }
    std::memcpy(&w.v[op.dst], out, size_t(regs) * sizeof(out[0]));
}

// Sparse A: of every 4 dense k, lane l holds 2, whose places src2 gives in 2 bits each. One lane group covers K /
// groups dense values of k. CBSZ = 0: ABID chooses the set of indices in the register, else the first set is used.
void run_smfmac(Wave &w, const Op &op) {
    const Row &r = *op.row;
    const int m = r.a, groups = kLanes / m, dense = r.b / groups, kept = dense / 2, regs = m * m / 64;
    alignas(64) float a[16][kLanes], b[16][kLanes];
    unpack(w, op.src[0], r.d, kept, a);
    unpack(w, op.src[1], r.d, dense, b);
    const int set_bits = kept * 2, sets = 32 / set_bits;
    const int set = op.cbsz == 0 ? op.abid % sets : 0;
    alignas(64) u32 index[kLanes];  // the destination may be the index register's neighbour
    std::memcpy(index, w.v[op.src[2].index], sizeof(index));
    const bool exact = w.launch->options.exact_mma;
    for (int reg = 0; reg < regs; reg++)
        for (int g = 0; g < groups; g++) {
            const int row = mfma_row(m, reg, g);
            alignas(64) float acc[32];
            std::memcpy(acc, &w.v[op.dst + reg][g * m], size_t(m) * 4);
            float av[64];
            const float *bv[64];
            int n = 0;
            for (int q = 0; q < groups; q++) {
                u32 idx = index[q * m + row] >> (set * set_bits);
                for (int j = 0; j < kept; j++, n++) {
                    av[n] = a[j][q * m + row];
                    bv[n] = &b[4 * (j / 2) + int(idx >> (2 * j) & 3)][q * m];
                }
            }
            if (exact) {
                for (int col = 0; col < m; col++) {
                    float bc[64];
                    for (int k = 0; k < n; k++) bc[k] = bv[k][col];
                    acc[col] = mfma_dot_exact(av, bc, n, acc[col]);
                }
            } else if (m == 16) {
                add_products<f32x16>(acc, av, bv, n);
            } else {
                add_products<f32x32>(acc, av, bv, n);
            }
            std::memcpy(&w.v[op.dst + reg][g * m], acc, size_t(m) * 4);
        }
}

}  // namespace moon
