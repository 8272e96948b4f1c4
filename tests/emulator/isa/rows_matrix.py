"""Matrix instructions: layouts, accumulation in both of the emulator's modes, sparse operands."""

from __future__ import annotations

import numpy as np

from moon_diffusers.evidence import bf16

from .harness import WORKGROUPS, Row, State

U = np.uint32
LANES = np.arange(64)


def unpack_rows(values: np.ndarray, size: int) -> np.ndarray:
    """An A operand (w, lane, j) of a size x size product as (w, row, k): row l % size, k = n (l / size) + j."""
    n = values.shape[2]
    out = np.zeros((len(values), size, n * (64 // size)), values.dtype)
    for lane in LANES:
        first = n * (lane // size)
        out[:, lane % size, first : first + n] = values[:, lane]
    return out


def accumulator_rows(size: int, registers: int) -> np.ndarray:
    """The row that each (lane, register) of C and D holds; its column is lane % size."""
    lane, register = LANES[:, None], np.arange(registers)[None, :]
    if size == 16:
        return 4 * (lane // 16) + register
    return 8 * (register // 4) + 4 * (lane // 32) + register % 4


def _spread(matrix: np.ndarray, size: int, registers: int) -> np.ndarray:
    return matrix[:, accumulator_rows(size, registers), LANES[:, None] % size]


def _gather(values: np.ndarray, size: int) -> np.ndarray:
    registers = values.shape[2]
    out = np.zeros((len(values), size, size), values.dtype)
    out[:, accumulator_rows(size, registers), np.broadcast_to(LANES[:, None] % size, (64, registers))] = values
    return out


def _products(state: State, size: int) -> tuple[np.ndarray, np.ndarray]:
    a = unpack_rows(bf16.to_float(state.a).astype(np.float64), size)
    b = unpack_rows(bf16.to_float(state.b).astype(np.float64), size)
    return a, b


def close(size: int, registers: int, zero: bool = False, sparse: bool = False, abid: int = 0, cbsz: int = 0):
    """Within a few float32 roundings of the float64 product; NaN and infinities where float64 has them."""

    def model(state: State) -> None:
        if sparse:
            a, b = expand_sparse(state, size, abid, cbsz), _products(state, size)[1]
            c = state.d.view(np.float32).astype(np.float64)
        else:
            a, b = _products(state, size)
            c = np.zeros((WORKGROUPS, 64, registers)) if zero else state.c.astype(np.float64)
        c = _gather(c, size)
        expected = a @ b.transpose(0, 2, 1) + c
        bound = (np.abs(a) @ np.abs(b).transpose(0, 2, 1) + np.abs(c)) * 2.0**-21
        expected = np.where(np.abs(expected) < 2.0**128, expected, expected * np.inf)
        expected, bound = _spread(expected, size, registers), _spread(bound, size, registers)

        def check(actual: np.ndarray) -> str | None:
            got = actual.view(np.float32).astype(np.float64)
            odd = ~np.isfinite(expected)
            same = np.where(np.isnan(expected), np.isnan(got), got == expected)
            good = np.where(odd, same, np.abs(got - np.where(odd, 0, expected)) <= np.where(odd, 0, bound))
            if good.all():
                return None
            at = tuple(np.argwhere(~good)[0])
            return f"d{list(at)}: got {got[at]!r}, expected {expected[at]!r} ({int((~good).sum())} wrong)"

        state.inputs = {**state.inputs, "check": check}

    return model


def _exponent(x: np.ndarray, lowest: int = -126) -> np.ndarray:
    """The unbiased exponent that the hardware uses: denormals have the lowest; zero counts as far below everything."""
    exponent = np.frexp(x)[1].astype(np.int64) - 1
    return np.where(x == 0, -2000, np.maximum(exponent, lowest))


def published(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """CDNA3's accumulation as published: groups of eight products in sequence, for finite inputs (n, k), (n, k), (n,).

    Products are truncated at 24 bits below the group's largest product exponent and summed; the dot is floored at 31 bits
    and the accumulator at 24 bits below the larger of their exponents; the sum is rounded to nearest even.
    """
    total = c.astype(np.float64)
    for first in range(0, a.shape[1], 8):
        x, y = a[:, first : first + 8], b[:, first : first + 8]
        exponent = _exponent(x) + _exponent(y)
        exponent = np.where((x == 0) | (y == 0), -2000, exponent)
        top = np.maximum(exponent.max(axis=1), -2000)
        step = np.exp2(np.maximum(top, -900) - 24.0)
        dot = np.trunc(x * y / step[:, None]).sum(axis=1) * step
        largest = np.maximum(np.maximum(top, _exponent(total)), -900)
        fine, coarse = np.exp2(largest - 31.0), np.exp2(largest - 24.0)
        total = (np.floor(dot / fine) * fine + np.floor(total / coarse) * coarse).astype(np.float32).astype(np.float64)
    return total.astype(np.float32)


def exact(size: int, registers: int):
    """Bit for bit the published accumulation."""

    def model(state: State) -> None:
        a, b = _products(state, size)
        c = _gather(state.c.astype(np.float64), size)
        shape = (WORKGROUPS, size, size)
        wide_a = np.broadcast_to(a[:, :, None, :], (*shape, a.shape[2])).reshape(-1, a.shape[2])
        wide_b = np.broadcast_to(b[:, None, :, :], (*shape, a.shape[2])).reshape(-1, a.shape[2])
        d = published(wide_a, wide_b, c.reshape(-1)).reshape(shape)
        state.d = np.ascontiguousarray(_spread(d, size, registers)).view(U)

    return model


def expand_sparse(state: State, size: int, abid: int, cbsz: int) -> np.ndarray:
    """The sparse A operand made dense: of every four k, two are kept, at the places that the index says."""
    kept = bf16.to_float(state.a).astype(np.float64)
    n = kept.shape[2]
    bits = 2 * n
    set_at = 0 if cbsz else bits * abid
    index = (state.c.astype(np.int64) >> set_at) & ((1 << bits) - 1)
    dense = np.zeros((WORKGROUPS, size, 2 * n * (64 // size)))
    for lane in LANES:
        for j in range(n):
            place = (index[:, lane] >> (2 * j)) & 3
            k = 2 * n * (lane // size) + 4 * (j // 2) + place
            np.add.at(dense, (np.arange(WORKGROUPS), lane % size, k), kept[:, lane, j])
    return dense


FAST, EXACT = (("mma", "fast"),), (("mma", "exact"),)
SHAPES = (
    ("v_mfma_f32_16x16x16_bf16", 16, 4, 2, ("gfx942", "gfx950")),
    ("v_mfma_f32_32x32x8_bf16", 32, 16, 2, ("gfx942", "gfx950")),
    ("v_mfma_f32_16x16x32_bf16", 16, 4, 4, ("gfx950",)),
    ("v_mfma_f32_32x32x16_bf16", 32, 16, 4, ("gfx950",)),
)

ROWS: list[Row] = []
for _name, _size, _registers, _dwords, _archs in SHAPES:
    _kinds = {"a": f"bf{2 * _dwords}", "b": f"bf{2 * _dwords}", "c": f"acc{_registers}"}
    _wide = {"a": f"bf{2 * _dwords}wide", "b": f"bf{2 * _dwords}wide", "c": f"acc{_registers}wide"}
    _odd = {"a": f"bf{2 * _dwords}odd", "b": f"bf{2 * _dwords}odd", "c": f"acc{_registers}"}
    _asm = f"{_name} {{d}}, {{a}}, {{b}}, {{c}}"
    ROWS += [
        Row(_name, _asm, close(_size, _registers), _kinds, d=_registers, archs=_archs, compare="any", options=FAST),
        Row(f"{_name} NaN and Inf", _asm, close(_size, _registers), _odd, d=_registers, archs=_archs, compare="any", options=FAST),
        Row(f"{_name} zero C", f"{_name} {{d}}, {{a}}, {{b}}, 0", close(_size, _registers, zero=True),
            {k: v for k, v in _kinds.items() if k != "c"}, d=_registers, archs=_archs, compare="any", options=FAST),
    ]  # fmt: skip
    if "gfx942" in _archs:
        for _label, _operands in (("exact", _kinds), ("exact, many exponents", _wide)):
            ROWS.append(
                Row(f"{_name} {_label}", _asm, exact(_size, _registers), _operands, d=_registers, archs=("gfx942",),
                    compare="f32~", options=EXACT)
            )  # fmt: skip
for _abid, _cbsz in ((0, 0), (1, 0), (2, 0), (3, 0), (0, 1)):
    _tail = "" if (_abid, _cbsz) == (0, 0) else f" abid:{_abid}" if not _cbsz else f" cbsz:{_cbsz}"
    ROWS.append(
        Row(f"v_smfmac_f32_16x16x32_bf16{_tail}", f"v_smfmac_f32_16x16x32_bf16 {{d}}, {{a}}, {{b}}, {{c}}{_tail}",
            close(16, 4, sparse=True, abid=_abid, cbsz=_cbsz), {"a": "bf4", "b": "bf8", "c": "u32", "d": "acc4"}, d=4,
            compare="any", options=FAST)
    )  # fmt: skip
for _abid in (0, 1):
    _tail = f" abid:{_abid}" if _abid else ""
    ROWS.append(
        Row(f"v_smfmac_f32_16x16x64_bf16{_tail}", f"v_smfmac_f32_16x16x64_bf16 {{d}}, {{a}}, {{b}}, {{c}}{_tail}",
            close(16, 4, sparse=True, abid=_abid), {"a": "bf8", "b": "bf16", "c": "u32", "d": "acc4"}, d=4,
            archs=("gfx950",), compare="any", options=FAST)
    )  # fmt: skip
# Accumulation registers: a128 is not v128, and a matrix instruction takes and leaves its operands there.
_TO_A = "\n".join(f"v_accvgpr_write_b32 a{i}, v{48 + i}" for i in range(4))
_FROM_A = "\n".join(f"v_accvgpr_read_b32 v{64 + i}, a{i}" for i in range(4))


def _through_accumulators(state: State) -> None:
    state.d = np.where(state.active[:, :, None], state.a[:, :, None], state.d)


ROWS += [
    Row("v_accvgpr_write_b32", "v_accvgpr_write_b32 a127, {a}\ns_nop 7\nv_accvgpr_read_b32 {d}, a127", _through_accumulators,
        {"a": "u32"}, d=1),
    Row("v_accvgpr_read_b32", "v_mov_b32_e32 v96, 0\nv_accvgpr_write_b32 a96, {a}\ns_nop 7\nv_accvgpr_read_b32 {d}, a96",
        _through_accumulators, {"a": "u32"}, d=1),
    Row("v_accvgpr_mov_b32", "v_accvgpr_write_b32 a3, {a}\ns_nop 7\nv_accvgpr_mov_b32 a4, a3\ns_nop 7\nv_accvgpr_read_b32 {d}, a4",
        _through_accumulators, {"a": "u32"}, d=1),
    Row("v_mfma_f32_16x16x16_bf16 accumulators",
        f"{_TO_A}\ns_nop 7\nv_mfma_f32_16x16x16_bf16 a[0:3], {{a}}, {{b}}, a[0:3]\ns_nop 15\ns_nop 7\n{_FROM_A}",
        close(16, 4), {"a": "bf4", "b": "bf4", "c": "acc4"}, d=4, compare="any", full_exec=True, options=FAST),
    Row("v_mfma_f32_16x16x16_bf16 accumulator operands",
        "v_accvgpr_write_b32 a8, v16\nv_accvgpr_write_b32 a9, v17\ns_nop 7\n"
        "v_mfma_f32_16x16x16_bf16 {d}, a[8:9], {b}, {c}",
        close(16, 4), {"a": "bf4", "b": "bf4", "c": "acc4"}, d=4, compare="any", full_exec=True, options=FAST),
]  # fmt: skip
