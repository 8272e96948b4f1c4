"""Scalar instructions: arithmetic, comparisons, moves, EXEC, branches, modes."""

from __future__ import annotations

import numpy as np

from . import fp
from .harness import Row, State
from .table import salu

U, I, L = np.uint32, np.int32, np.uint64


def _add_carry(a, b, carry=0):
    total = a.astype(L) + b.astype(L) + carry
    return total.astype(U), total >> L(32) != 0


def _sub_borrow(a, b, borrow=0):
    total = a.astype(np.int64) - b.astype(np.int64) - borrow
    return total.astype(U), total < 0


def _signed(a, b, sign):
    total = a.view(I).astype(np.int64) + sign * b.view(I).astype(np.int64)
    return total.astype(U), (total > 0x7FFFFFFF) | (total < -0x80000000)


def _nonzero(value):
    return value, value != 0


def _carry_in(function):
    def model(state: State) -> None:
        value, carry = function(state.sa, state.sb, state.scc)
        state.sd, state.scc = value[:, None].copy(), carry.astype(U)

    return model


def _select(dwords):
    def model(state: State) -> None:
        value = np.where(state.scc != 0, state.sa, state.sb)
        state.sd = np.ascontiguousarray(value)[:, None].view(U)

    return model


def _save_exec(function):
    def model(state: State) -> None:
        old = state.exec_mask
        state.exec_mask = function(state.sa, old)
        state.sd = old[:, None].view(U)
        state.scc = (state.exec_mask != 0).astype(U)

    return model


def _exec_op(function):
    def model(state: State) -> None:
        state.exec_mask = function(state.exec_mask, state.sa)
        state.scc = (state.exec_mask != 0).astype(U)

    return model


def _branch(taken):
    """A branch row's asm puts 0 into {sd} when taken, else 1."""

    def model(state: State) -> None:
        state.sd = np.where(taken(state), 0, 1).astype(U)[:, None]

    return model


def _branch_row(mnemonic, taken):
    text = f"s_mov_b32 {{sd}}, 0\ns_nop 7\n{mnemonic} {{id}}\ns_mov_b32 {{sd}}, 1\n{{id}}:"
    return Row(mnemonic, text, _branch(taken), sd=1)


def _nothing(state: State) -> None:
    pass


def _compares(name, kind, function):
    return salu(name, f"{kind} {kind}", function, dwords=0, scc=True)


_LT, _GT, _GE, _LE = (lambda a, b: a < b), (lambda a, b: a > b), (lambda a, b: a >= b), (lambda a, b: a <= b)
_EQ, _NE = (lambda a, b: a == b), (lambda a, b: a != b)


def _abs(a):
    value = np.abs(a.astype(np.int64)).astype(U)
    return value, value != 0


def _shift64(a, b, left):
    b = (b & 63).astype(L)
    return a << b if left else a >> b


def _bfe(a, b):
    width = ((b >> 16) & 127).astype(L)
    mask = np.where(width >= 64, ~L(0), (L(1) << np.minimum(width, 63)) - L(1))
    return ((a.astype(L) >> (b & 31).astype(L)) & mask).astype(U)


def _mode_row(name, asm, rounding):
    """The MODE register takes effect: 1 + 2^-24 rounds up or down as told."""

    def model(state: State) -> None:
        saved = fp.mode
        fp.mode = fp.Mode(rounding=rounding)
        value = fp.add(state.a, state.b)
        fp.mode = saved
        state.d = np.where(state.active[:, :, None], value[..., None].view(U), state.d)

    text = f"{asm}\ns_nop 3\nv_add_f32_e32 {{d}}, {{a}}, {{b}}\ns_nop 3\ns_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), 0"
    return Row(name, text, model, {"a": "finite", "b": "finite"}, d=1, compare="f32")


ROWS: list[Row] = [
    *salu("s_add_u32", "u32 u32", _add_carry, scc=True),
    *salu("s_sub_u32", "u32 u32", _sub_borrow, scc=True),
    *salu("s_add_i32", "u32 u32", lambda a, b: _signed(a, b, 1), scc=True),
    *salu("s_sub_i32", "u32 u32", lambda a, b: _signed(a, b, -1), scc=True),
    Row("s_addc_u32", "s_addc_u32 {sd}, {sa}, {sb}", _carry_in(_add_carry), {"sa": "u32", "sb": "u32"}, sd=1),
    Row("s_subb_u32", "s_subb_u32 {sd}, {sa}, {sb}", _carry_in(_sub_borrow), {"sa": "u32", "sb": "u32"}, sd=1),
    *salu("s_mul_i32", "u32 u32", lambda a, b: a * b),
    *salu("s_mul_hi_u32", "u32 u32", lambda a, b: (a.astype(L) * b.astype(L)) >> L(32)),
    *salu("s_mul_hi_i32", "i32 i32", lambda a, b: ((a.astype(np.int64) * b.astype(np.int64)) >> 32).astype(U)),
    *salu("s_min_i32", "i32 i32", lambda a, b: (np.minimum(a, b).view(U), a < b), scc=True),
    *salu("s_max_i32", "i32 i32", lambda a, b: (np.maximum(a, b).view(U), a > b), scc=True),
    *salu("s_min_u32", "u32 u32", lambda a, b: (np.minimum(a, b), a < b), scc=True),
    *salu("s_max_u32", "u32 u32", lambda a, b: (np.maximum(a, b), a > b), scc=True),
    *salu("s_and_b32", "u32 u32", lambda a, b: _nonzero(a & b), scc=True),
    *salu("s_or_b32", "u32 u32", lambda a, b: _nonzero(a | b), scc=True),
    *salu("s_xor_b32", "u32 u32", lambda a, b: _nonzero(a ^ b), scc=True),
    *salu("s_andn2_b32", "u32 u32", lambda a, b: _nonzero(a & ~b), scc=True),
    *salu("s_and_b64", "mask mask", lambda a, b: _nonzero(a & b), dwords=2, scc=True),
    *salu("s_or_b64", "mask mask", lambda a, b: _nonzero(a | b), dwords=2, scc=True),
    *salu("s_xor_b64", "mask mask", lambda a, b: _nonzero(a ^ b), dwords=2, scc=True),
    *salu("s_andn2_b64", "mask mask", lambda a, b: _nonzero(a & ~b), dwords=2, scc=True),
    *salu("s_not_b64", "mask", lambda a: _nonzero(~a), dwords=2, scc=True),
    *salu("s_not_b32", "u32", lambda a: _nonzero(~a), scc=True),
    *salu("s_xor_b64 minus one", "mask", lambda a: _nonzero(~a), asm="s_xor_b64 {sd}, {sa}, -1", dwords=2, scc=True),
    *salu("s_lshl_b32", "u32 shift", lambda a, b: _nonzero(a << (b & 31)), scc=True),
    *salu("s_lshr_b32", "u32 shift", lambda a, b: _nonzero(a >> (b & 31)), scc=True),
    *salu("s_ashr_i32", "i32 shift", lambda a, b: _nonzero((a >> (b & 31).astype(I)).view(U)), scc=True),
    *salu("s_lshl_b64", "u64 shift", lambda a, b: _nonzero(_shift64(a, b, True)), dwords=2, scc=True),
    *salu("s_lshr_b64", "u64 shift", lambda a, b: _nonzero(_shift64(a, b, False)), dwords=2, scc=True),
    *salu("s_bfe_u32", "u32 u32", lambda a, b: _nonzero(_bfe(a, b)), scc=True),
    *salu("s_abs_i32", "i32", _abs, scc=True),
    *salu("s_mov_b32", "u32", lambda a: a),
    *salu("s_mov_b32 literal", "", lambda: np.full(16, 0x12345678, U), asm="s_mov_b32 {sd}, 0x12345678"),
    *salu("s_mov_b32 inline float", "", lambda: np.full(16, 0xC0800000, U), asm="s_mov_b32 {sd}, -4.0"),
    *salu("s_mov_b64", "u64", lambda a: a, dwords=2),
    *salu("s_mov_b64 inline", "", lambda: np.full(16, 0xFFFFFFFFFFFFFFF0, L), asm="s_mov_b64 {sd}, -16", dwords=2),
    *salu("s_mov_b64 literal", "", lambda: np.full(16, 0x12345678, L), asm="s_mov_b64 {sd}, 0x12345678", dwords=2),
    *salu("s_movk_i32", "", lambda: np.full(16, 0xFFFF8001, U), asm="s_movk_i32 {sd}, 0x8001"),
    *salu("s_addk_i32", "", lambda d: _signed(d, np.full(16, 0xFFFF8001, U), 1), asm="s_addk_i32 {sd}, 0x8001", scc=True, tied=True),
    *salu("s_mulk_i32", "", lambda d: d * U(0xFFFFFF01), asm="s_mulk_i32 {sd}, 0xff01", tied=True),
    *salu("s_cmpk_gt_u32", "u32", lambda a: a > 0xFFFE, asm="s_cmpk_gt_u32 {sa}, 0xfffe", dwords=0, scc=True),
    *salu("s_cmpk_lt_i32", "i32", lambda a: a < -2, asm="s_cmpk_lt_i32 {sa}, 0xfffe", dwords=0, scc=True),
    *salu("s_cmpk_eq_i32", "i32", lambda a: a == -1, asm="s_cmpk_eq_i32 {sa}, 0xffff", dwords=0, scc=True),
    *salu("s_cmpk_lg_u32", "u32", lambda a: a != 0xFFFF, asm="s_cmpk_lg_u32 {sa}, 0xffff", dwords=0, scc=True),
    *salu("s_cmpk_gt_i32", "i32", lambda a: a > -2, asm="s_cmpk_gt_i32 {sa}, 0xfffe", dwords=0, scc=True),
    *salu("s_cmpk_lt_u32", "u32", lambda a: a < 0xFFFE, asm="s_cmpk_lt_u32 {sa}, 0xfffe", dwords=0, scc=True),
    *salu("s_cmpk_lg_i32", "i32", lambda a: a != -1, asm="s_cmpk_lg_i32 {sa}, 0xffff", dwords=0, scc=True),
    *salu("s_cmpk_ge_i32", "i32", lambda a: a >= -1, asm="s_cmpk_ge_i32 {sa}, 0xffff", dwords=0, scc=True),
    *salu("s_cmpk_le_i32", "i32", lambda a: a <= -1, asm="s_cmpk_le_i32 {sa}, 0xffff", dwords=0, scc=True),
    *[row for op, f in (("eq", _EQ), ("lg", _NE), ("lt", _LT), ("gt", _GT), ("ge", _GE), ("le", _LE))
      for kind in ("u32", "i32") for row in _compares(f"s_cmp_{op}_{kind}", kind, f)],
    *_compares("s_cmp_eq_u64", "u64", _EQ),
    *_compares("s_cmp_lg_u64", "u64", _NE),
    *salu("s_bitcmp1_b32", "u32 shift", lambda a, b: (a >> (b & 31)) & 1 == 1, dwords=0, scc=True),
    *salu("s_bitcmp0_b32", "u32 shift", lambda a, b: (a >> (b & 31)) & 1 == 0, dwords=0, scc=True),
    Row("s_cselect_b32", "s_cselect_b32 {sd}, {sa}, {sb}", _select(1), {"sa": "u32", "sb": "u32"}, sd=1),
    Row("s_cselect_b64", "s_cselect_b64 {sd}, {sa}, {sb}", _select(2), {"sa": "u64", "sb": "u64"}, sd=2),
    Row("s_and_saveexec_b64", "s_and_saveexec_b64 {sd}, {sa}", _save_exec(lambda a, e: a & e), {"sa": "mask"}, sd=2),
    Row("s_andn2_saveexec_b64", "s_andn2_saveexec_b64 {sd}, {sa}", _save_exec(lambda a, e: a & ~e), {"sa": "mask"}, sd=2),
    Row("s_or_saveexec_b64", "s_or_saveexec_b64 {sd}, {sa}", _save_exec(lambda a, e: a | e), {"sa": "mask"}, sd=2),
    Row("s_xor_saveexec_b64", "s_xor_saveexec_b64 {sd}, {sa}", _save_exec(lambda a, e: a ^ e), {"sa": "mask"}, sd=2),
    Row("s_or_b64 exec", "s_or_b64 exec, exec, {sa}", _exec_op(lambda e, a: e | a), {"sa": "mask"}),
    Row("s_andn2_b64 exec", "s_andn2_b64 exec, exec, {sa}", _exec_op(lambda e, a: e & ~a), {"sa": "mask"}),
    Row("s_xor_b64 exec", "s_xor_b64 exec, exec, {sa}", _exec_op(lambda e, a: e ^ a), {"sa": "mask"}),
    _branch_row("s_branch", lambda s: np.ones(len(s.scc), bool)),
    _branch_row("s_cbranch_scc0", lambda s: s.scc == 0),
    _branch_row("s_cbranch_scc1", lambda s: s.scc != 0),
    _branch_row("s_cbranch_vccz", lambda s: s.vcc == 0),
    _branch_row("s_cbranch_vccnz", lambda s: s.vcc != 0),
    _branch_row("s_cbranch_execz", lambda s: s.exec_mask == 0),
    _branch_row("s_cbranch_execnz", lambda s: s.exec_mask != 0),
    *[Row(f"{m} zero", f"s_mov_b32 {{sd}}, 0\ns_mov_b64 vcc, 0\ns_nop 7\n{m} {{id}}\ns_mov_b32 {{sd}}, 1\n{{id}}:",
          lambda s, taken=taken: (setattr(s, "vcc", s.vcc * L(0)), setattr(s, "sd", np.full((16, 1), not taken, U)))[0],
          sd=1) for m, taken in (("s_cbranch_vccz", True), ("s_cbranch_vccnz", False))],
    Row("s_nop", "s_nop 15", _nothing),
    Row("s_setprio", "s_setprio 3\ns_setprio 0", _nothing),
    Row("s_sleep", "s_sleep 1", _nothing),
    Row("s_waitcnt", "s_waitcnt vmcnt(63) expcnt(7) lgkmcnt(15)", _nothing),
    Row("s_barrier", "s_barrier", _nothing),
    _mode_row("s_setreg_imm32_b32", "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 2), 1", fp.UP),
    _mode_row("s_setreg_b32", "s_mov_b32 s48, 2\ns_setreg_b32 hwreg(HW_REG_MODE, 0, 2), s48", fp.DOWN),
    *salu("s_getreg_b32", "", lambda: np.full(16, 0xF0, U), asm="s_getreg_b32 {sd}, hwreg(HW_REG_MODE, 0, 8)"),
]  # fmt: skip
