// Rows: matrix cores. a is M (and N), b is K, c the blocks, d the element type. A null handler decodes but does not
// execute.
#include "mfma.h"

namespace moon {

namespace {

constexpr Ty N = Ty::NONE;
constexpr Ty regs(int dwords) {
    return dwords == 1    ? Ty::B32
           : dwords == 2  ? Ty::B64
           : dwords == 3  ? Ty::B96
           : dwords == 4  ? Ty::B128
           : dwords == 8  ? Ty::B256
           : dwords == 16 ? Ty::B512
                          : Ty::B1024;
}
constexpr int bits(u16 type) { return type == MA_F32 ? 32 : type == MA_I8 ? 8 : 16; }
constexpr Ty operand(int m, int k, int blocks, int width) {
    return regs(m * k * blocks / 64 * width / 32 > 0 ? m * k * blocks / 64 * width / 32 : 1);
}
constexpr Row mfma(u16 op, const char *name, int m, int k, int blocks, u16 type, u8 arch = BOTH) {
    Ty ab = operand(m, k, blocks, bits(type)), cd = regs(m * m * blocks / 64);
    return {name,         Enc::MAI,     op,
            arch,         Class::MFMA,  cd,
            {ab, ab, cd}, IGNORES_EXEC, type == MA_I8 ? run_mfma_i8 : run_mfma,
            u16(m),       u16(k),       u16(blocks),
            type};
}
constexpr Row smfmac(u16 op, const char *name, int m, int k, u16 type, u8 arch = BOTH) {
    Ty a = operand(m, k / 2, 1, bits(type)), b = operand(m, k, 1, bits(type)), cd = regs(m * m / 64);
    return {name,
            Enc::MAI,
            op,
            arch,
            Class::MFMA,
            cd,
            {a, b, Ty::B32},
            IGNORES_EXEC | SMFMAC | READS_DST,
            type == MA_I8 ? nullptr : run_smfmac,
            u16(m),
            u16(k),
            1,
            type};
}
// Known by name and size only.
constexpr Row named(u16 op, const char *name, int a, int cd, u8 arch = BOTH) {
    return {name,         Enc::MAI, op, arch, Class::MFMA, regs(cd), {regs(a), regs(a), regs(cd)},
            IGNORES_EXEC, nullptr,  0,  0,    0,           MA_OTHER};
}
constexpr Row named_sparse(u16 op, const char *name, int a, int cd, u8 arch = BOTH) {
    return {name,
            Enc::MAI,
            op,
            arch,
            Class::MFMA,
            regs(cd),
            {regs(a), regs(2 * a), Ty::B32},
            IGNORES_EXEC | SMFMAC | READS_DST,
            nullptr,
            0,
            0,
            0,
            MA_OTHER};
}
void acc_move(Wave &w, const Op &op) {
    const Operand &o = op.src[0];
    const u32 *m = w.exec_lanes();
    u32 *d = w.v[op.dst];
    for (int i = 0; i < kLanes; i++) {
        u32 x = o.kind == Kind::VGPR ? w.v[o.index][i] : read_s32(w, o);
        d[i] = (x & m[i]) | (d[i] & ~m[i]);
    }
}
constexpr Row acc(u16 op, const char *name) {
    return {name, Enc::MAI, op, BOTH, Class::VALU, Ty::B32, {Ty::B32, N, N}, 0, acc_move, 0, 0, 0, 0};
}

}  // namespace

extern const Row kMatrixRows[] = {mfma(64, "v_mfma_f32_32x32x1_2b_f32", 32, 1, 2, MA_F32),
                                  mfma(65, "v_mfma_f32_16x16x1_4b_f32", 16, 1, 4, MA_F32),
                                  mfma(66, "v_mfma_f32_4x4x1_16b_f32", 4, 1, 16, MA_F32),
                                  mfma(68, "v_mfma_f32_32x32x2_f32", 32, 2, 1, MA_F32),
                                  mfma(69, "v_mfma_f32_16x16x4_f32", 16, 4, 1, MA_F32),
                                  mfma(72, "v_mfma_f32_32x32x4_2b_f16", 32, 4, 2, MA_F16),
                                  mfma(73, "v_mfma_f32_16x16x4_4b_f16", 16, 4, 4, MA_F16),
                                  mfma(74, "v_mfma_f32_4x4x4_16b_f16", 4, 4, 16, MA_F16),
                                  mfma(76, "v_mfma_f32_32x32x8_f16", 32, 8, 1, MA_F16),
                                  mfma(77, "v_mfma_f32_16x16x16_f16", 16, 16, 1, MA_F16),
                                  mfma(80, "v_mfma_i32_32x32x4_2b_i8", 32, 4, 2, MA_I8),
                                  mfma(81, "v_mfma_i32_16x16x4_4b_i8", 16, 4, 4, MA_I8),
                                  mfma(82, "v_mfma_i32_4x4x4_16b_i8", 4, 4, 16, MA_I8),
                                  mfma(86, "v_mfma_i32_32x32x16_i8", 32, 16, 1, MA_I8),
                                  mfma(87, "v_mfma_i32_16x16x32_i8", 16, 32, 1, MA_I8),
                                  mfma(93, "v_mfma_f32_32x32x4_2b_bf16", 32, 4, 2, MA_BF16),
                                  mfma(94, "v_mfma_f32_16x16x4_4b_bf16", 16, 4, 4, MA_BF16),
                                  mfma(95, "v_mfma_f32_4x4x4_16b_bf16", 4, 4, 16, MA_BF16),
                                  mfma(96, "v_mfma_f32_32x32x8_bf16", 32, 8, 1, MA_BF16),
                                  mfma(97, "v_mfma_f32_16x16x16_bf16", 16, 16, 1, MA_BF16),
                                  mfma(53, "v_mfma_f32_16x16x32_bf16", 16, 32, 1, MA_BF16, GFX950),
                                  mfma(55, "v_mfma_f32_32x32x16_bf16", 32, 16, 1, MA_BF16, GFX950),
                                  mfma(84, "v_mfma_f32_16x16x32_f16", 16, 32, 1, MA_F16, GFX950),
                                  mfma(85, "v_mfma_f32_32x32x16_f16", 32, 16, 1, MA_F16, GFX950),
                                  mfma(54, "v_mfma_i32_16x16x64_i8", 16, 64, 1, MA_I8, GFX950),
                                  mfma(56, "v_mfma_i32_32x32x32_i8", 32, 32, 1, MA_I8, GFX950),

                                  smfmac(98, "v_smfmac_f32_16x16x32_f16", 16, 32, MA_F16),
                                  smfmac(100, "v_smfmac_f32_32x32x16_f16", 32, 16, MA_F16),
                                  smfmac(102, "v_smfmac_f32_16x16x32_bf16", 16, 32, MA_BF16),
                                  smfmac(104, "v_smfmac_f32_32x32x16_bf16", 32, 16, MA_BF16),
                                  smfmac(57, "v_smfmac_f32_16x16x64_bf16", 16, 64, MA_BF16, GFX950),
                                  smfmac(70, "v_smfmac_f32_32x32x32_bf16", 32, 32, MA_BF16, GFX950),
                                  smfmac(90, "v_smfmac_f32_16x16x64_f16", 16, 64, MA_F16, GFX950),
                                  smfmac(91, "v_smfmac_f32_32x32x32_f16", 32, 32, MA_F16, GFX950),
                                  smfmac(106, "v_smfmac_i32_16x16x64_i8", 16, 64, MA_I8),
                                  smfmac(108, "v_smfmac_i32_32x32x32_i8", 32, 32, MA_I8),
                                  smfmac(58, "v_smfmac_i32_16x16x128_i8", 16, 128, MA_I8, GFX950),
                                  smfmac(71, "v_smfmac_i32_32x32x64_i8", 32, 64, MA_I8, GFX950),

                                  acc(88, "v_accvgpr_read_b32"),
                                  acc(89, "v_accvgpr_write_b32"),

                                  named(62, "v_mfma_f32_16x16x8_xf32", 2, 4, GFX942),
                                  named(63, "v_mfma_f32_32x32x4_xf32", 2, 16, GFX942),
                                  named(110, "v_mfma_f64_16x16x4_f64", 2, 8),
                                  named(111, "v_mfma_f64_4x4x4_4b_f64", 2, 2),
                                  named(112, "v_mfma_f32_16x16x32_bf8_bf8", 2, 4),
                                  named(113, "v_mfma_f32_16x16x32_bf8_fp8", 2, 4),
                                  named(114, "v_mfma_f32_16x16x32_fp8_bf8", 2, 4),
                                  named(115, "v_mfma_f32_16x16x32_fp8_fp8", 2, 4),
                                  named(116, "v_mfma_f32_32x32x16_bf8_bf8", 2, 16),
                                  named(117, "v_mfma_f32_32x32x16_bf8_fp8", 2, 16),
                                  named(118, "v_mfma_f32_32x32x16_fp8_bf8", 2, 16),
                                  named(119, "v_mfma_f32_32x32x16_fp8_fp8", 2, 16),
                                  named(45, "v_mfma_f32_16x16x128_f8f6f4", 8, 4, GFX950),
                                  named(46, "v_mfma_f32_32x32x64_f8f6f4", 8, 16, GFX950),
                                  named_sparse(59, "v_smfmac_f32_16x16x128_bf8_bf8", 4, 4, GFX950),
                                  named_sparse(60, "v_smfmac_f32_16x16x128_bf8_fp8", 4, 4, GFX950),
                                  named_sparse(61, "v_smfmac_f32_16x16x128_fp8_bf8", 4, 4, GFX950),
                                  named_sparse(67, "v_smfmac_f32_16x16x128_fp8_fp8", 4, 4, GFX950),
                                  named_sparse(75, "v_smfmac_f32_32x32x64_bf8_bf8", 4, 16, GFX950),
                                  named_sparse(78, "v_smfmac_f32_32x32x64_bf8_fp8", 4, 16, GFX950),
                                  named_sparse(79, "v_smfmac_f32_32x32x64_fp8_bf8", 4, 16, GFX950),
                                  named_sparse(83, "v_smfmac_f32_32x32x64_fp8_fp8", 4, 16, GFX950),
                                  named_sparse(120, "v_smfmac_f32_16x16x64_bf8_bf8", 2, 4),
                                  named_sparse(121, "v_smfmac_f32_16x16x64_bf8_fp8", 2, 4),
                                  named_sparse(122, "v_smfmac_f32_16x16x64_fp8_bf8", 2, 4),
                                  named_sparse(123, "v_smfmac_f32_16x16x64_fp8_fp8", 2, 4),
                                  named_sparse(124, "v_smfmac_f32_32x32x32_bf8_bf8", 2, 16),
                                  named_sparse(125, "v_smfmac_f32_32x32x32_bf8_fp8", 2, 16),
                                  named_sparse(126, "v_smfmac_f32_32x32x32_fp8_bf8", 2, 16),
                                  named_sparse(127, "v_smfmac_f32_32x32x32_fp8_fp8", 2, 16),
                                  {nullptr, Enc::VOP1, 0, 0, Class::OTHER, N, {N, N, N}, 0, nullptr, 0, 0, 0, 0}};

}  // namespace moon
