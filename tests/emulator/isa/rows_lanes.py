"""Instructions that move data between lanes: DPP, permlane swaps, readlane, bpermute."""

from __future__ import annotations

import numpy as np

from . import fp
from .harness import BOTH, Row, State

U = np.uint32
LANES = np.arange(64)


def _dpp_source(control: str) -> np.ndarray:
    """The lane that each lane reads, or -1 where there is none."""
    row, place = LANES // 16 * 16, LANES % 16
    name, _, argument = control.partition(":")
    if name == "quad_perm":
        pattern = [int(x) for x in argument.strip("[]").split(",")]
        return LANES // 4 * 4 + np.array(pattern)[LANES % 4]
    n = int(argument or 0)
    if name == "row_shl":
        return np.where(place + n < 16, LANES + n, -1)
    if name == "row_shr":
        return np.where(place - n >= 0, LANES - n, -1)
    if name == "row_ror":
        return row + (place - n) % 16
    if name == "row_mirror":
        return row + 15 - place
    if name == "row_half_mirror":
        return LANES // 8 * 8 + 7 - LANES % 8
    if name == "row_bcast":
        # 15: the last lane of a row to the next row; 31: lane 31 to rows 2 and 3.
        return np.where(LANES >= 16, row - 1, -1) if n == 15 else np.where(LANES >= 32, 31, -1)
    if name == "row_newbcast":
        return row + n
    if name == "wave_shr":
        return np.where(LANES - n >= 0, LANES - n, -1)
    if name == "wave_shl":
        return np.where(LANES + n < 64, LANES + n, -1)
    if name == "wave_ror":
        return (LANES - n) % 64
    raise ValueError(control)


def _dpp(name, control, function, *, row_mask=15, bank_mask=15, bound=False, binary=True, compare="bits", kind="u32"):
    source = _dpp_source(control)

    def model(state: State) -> None:
        a = state.a.view(U)
        valid = (source >= 0) & state.active[:, np.maximum(source, 0)]
        moved = np.where(valid, a[:, np.maximum(source, 0)], 0)
        enabled = state.active & ((row_mask >> (LANES // 16)) & 1 == 1) & ((bank_mask >> (LANES % 16 // 4)) & 1 == 1)
        if not bound:
            enabled = enabled & valid
        value = function(moved, state.b.view(U)) if binary else function(moved)
        state.d = np.where(enabled[:, :, None], value[:, :, None], state.d)

    operands = "{a}, {b}" if binary else "{a}"
    tail = f"{control} row_mask:{row_mask:#x} bank_mask:{bank_mask:#x}" + (" bound_ctrl:0" if bound else "")
    kinds = {"a": kind, "b": kind} if binary else {"a": kind}
    full = compare == "any exec"
    return Row(f"{name}_dpp {tail}", f"{name}_dpp {{d}}, {operands} {tail}", model, kinds, d=1, full_exec=full,
               compare=compare)  # fmt: skip


def _float(function):
    return lambda a, b: function(a.astype(U).view(np.float32), b.view(np.float32)).view(U)


def _readfirstlane(state: State) -> None:
    first = np.where(state.active.any(axis=1), state.active.argmax(axis=1), 0)
    state.sd = state.a[np.arange(16), first][:, None].copy()


def _readlane(state: State) -> None:
    state.sd = state.a[np.arange(16), state.sb & 63][:, None].copy()


def _writelane_m0(state: State) -> None:
    state.d[np.arange(16), state.m0 & 63, 0] = state.sa


def _swap(half: int):
    def model(state: State) -> None:
        low = LANES[LANES % (2 * half) < half]
        d, s = state.d[:, :, 0].copy(), state.d[:, :, 1].copy()
        state.d[:, low, 1] = d[:, low + half]
        state.d[:, low + half, 0] = s[:, low]

    return model


def _bpermute(offset: int):
    def model(state: State) -> None:
        source = ((state.a.astype(np.int64) + offset) // 4) % 64
        rows = np.arange(16)[:, None]
        value = np.where(state.active[rows, source], state.b[rows, source], 0)
        state.d = np.where(state.active, value, state.d[:, :, 0])[:, :, None]

    return model


def _permute(state: State) -> None:
    for w in range(16):
        moved = np.zeros(64, U)
        for lane in LANES[state.active[w]]:
            moved[int(state.a[w, lane]) // 4 % 64] = state.b[w, lane]
        state.d[w, state.active[w], 0] = moved[state.active[w]]


def _mbcnt(high: bool):
    def model(state: State) -> None:
        below = (np.uint64(1) << LANES.astype(np.uint64)) - np.uint64(1)
        part = (below >> np.uint64(32)).astype(U) if high else below.astype(U)
        bits = state.a & part[None, :]
        count = np.array([bin(int(x)).count("1") for x in bits.ravel()], U).reshape(bits.shape)
        state.d = np.where(state.active, state.b + count, state.d[:, :, 0])[:, :, None]

    return model


def _cndmask(state: State) -> None:
    chosen = (state.vcc[:, None] >> LANES.astype(np.uint64)) & np.uint64(1) != 0
    state.d = np.where(state.active, np.where(chosen, state.b, state.a), state.d[:, :, 0])[:, :, None]


def _cndmask_pair(state: State) -> None:
    chosen = (state.sc[:, None] >> LANES.astype(np.uint64)) & np.uint64(1) != 0
    state.d = np.where(state.active, np.where(chosen, state.b, state.a), state.d[:, :, 0])[:, :, None]


def _keep(moved):
    return moved


ROWS: list[Row] = [
    *[_dpp("v_mov_b32", c, _keep, binary=False) for c in (
        "quad_perm:[1,0,3,2]", "quad_perm:[3,3,0,1]", "row_shl:1", "row_shr:15", "row_ror:4", "row_mirror",
        "row_half_mirror", "row_bcast:15", "row_bcast:31", "row_newbcast:5", "wave_shr:1")],
    _dpp("v_mov_b32", "row_shr:3", _keep, binary=False, bound=True),
    _dpp("v_mov_b32", "quad_perm:[2,3,0,1]", _keep, binary=False, row_mask=5, bank_mask=10),
    _dpp("v_add_u32", "row_ror:8", lambda a, b: (a + b).astype(U)),
    _dpp("v_add_f32", "quad_perm:[1,0,3,2]", _float(fp.add), compare="f32", kind="finite"),
    _dpp("v_max_f32", "row_ror:2", _float(fp.maximum_number), compare="f32", kind="finite"),
    _dpp("v_mul_f32", "row_shl:2", _float(fp.mul), compare="f32", kind="finite", bound=True),
    Row("v_readfirstlane_b32", "v_readfirstlane_b32 {sd}, {a}", _readfirstlane, {"a": "u32"}, sd=1),
    Row("v_readlane_b32", "v_readlane_b32 {sd}, {a}, {sb}", _readlane, {"a": "u32", "sb": "u32"}, sd=1),
    Row("v_writelane_b32", "v_writelane_b32 {d}, {sa}, m0", _writelane_m0, {"sa": "u32"}, d=1),
    Row("v_permlane32_swap_b32", "v_permlane32_swap_b32 v64, v65", _swap(32), d=2, archs=("gfx950",), full_exec=True),
    Row("v_permlane16_swap_b32", "v_permlane16_swap_b32 v64, v65", _swap(16), d=2, archs=("gfx950",), full_exec=True),
    Row("ds_bpermute_b32", "ds_bpermute_b32 {d}, {a}, {b}", _bpermute(0), {"a": "lane", "b": "u32"}, d=1),
    Row("ds_bpermute_b32 offset", "ds_bpermute_b32 {d}, {a}, {b} offset:68", _bpermute(68), {"a": "lane", "b": "u32"}, d=1),
    Row("ds_permute_b32", "ds_permute_b32 {d}, {a}, {b}", _permute, {"a": "lane", "b": "u32"}, d=1),
    Row("v_mbcnt_lo_u32_b32", "v_mbcnt_lo_u32_b32 {d}, {a}, {b}", _mbcnt(False), {"a": "u32", "b": "u32"}, d=1, archs=BOTH),
    Row("v_mbcnt_hi_u32_b32", "v_mbcnt_hi_u32_b32 {d}, {a}, {b}", _mbcnt(True), {"a": "u32", "b": "u32"}, d=1, archs=BOTH),
    Row("v_cndmask_b32_e32", "v_cndmask_b32_e32 {d}, {a}, {b}, vcc", _cndmask, {"a": "u32", "b": "u32"}, d=1),
    Row("v_cndmask_b32_e64", "v_cndmask_b32_e64 {d}, {a}, {b}, {sc}", _cndmask_pair, {"a": "u32", "b": "u32", "sc": "mask"}, d=1),
]  # fmt: skip
