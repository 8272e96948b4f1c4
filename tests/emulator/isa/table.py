"""Short ways to write rows: an elementwise VALU operation, a comparison, a scalar operation, anything else."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from . import fp
from .harness import BOTH, Row, State, mask_of
from .operands import KINDS

Function = Callable[..., np.ndarray]
_RESULTS = {"u32": (1, np.uint32), "i32": (1, np.int32), "u64": (2, np.uint64), "f32": (1, np.float32)}
_RESULTS |= {"f32x2": (2, np.float32), "bf16x2": (1, np.uint32)}
FLOAT_MODES = tuple(fp.MODES)


def _split(kinds: str) -> dict[str, str]:
    """``"u32 s:u32"`` to operand names: vector operands a, b, c; scalar ones sa, sb, sc."""
    names: dict[str, str] = {}
    for place, kind in zip("abc", kinds.split(), strict=False):
        names[f"s{place}" if kind.startswith("s:") else place] = kind.removeprefix("s:")
    return names


def _arguments(state: State, kinds: dict[str, str]) -> list[np.ndarray]:
    values = []
    for name in kinds:
        value = state.inputs[name]
        # A scalar is the same for all lanes.
        values.append(value[:, None] if name.startswith("s") else value)
    return values


def store(state: State, value: np.ndarray, result: str, active: np.ndarray | None = None) -> None:
    """Write an elementwise result (workgroup, lane[, n]) into ``d`` where lanes are active."""
    dwords, dtype = _RESULTS[result]
    value = np.ascontiguousarray(np.asarray(value).astype(dtype, copy=False))
    if result == "f32x2":
        raw = value.view(np.uint32)
    else:
        raw = np.ascontiguousarray(np.broadcast_to(value, state.d.shape[:2]))[..., None].view(np.uint32)
    lanes = state.active if active is None else active
    state.d = np.where(lanes[:, :, None], raw[..., :dwords], state.d)


def valu(
    name: str,
    kinds: str,
    function: Function,
    result: str = "u32",
    *,
    asm: str | None = None,
    compare: str = "",
    archs: Sequence[str] = BOTH,
    modes: Sequence[str] = ("clang",),
    accumulate: bool = False,
) -> list[Row]:
    """An operation lane by lane: ``function`` takes the operands, with ``accumulate`` also the old destination."""
    names = _split(kinds)

    def model(state: State) -> None:
        arguments = _arguments(state, names)
        if accumulate:
            arguments.append(KINDS[result].view(state.d))
        store(state, function(*arguments), result)

    text = asm or f"{name.split()[0]} {{d}}, " + ", ".join(f"{{{n}}}" for n in names)
    comparison = compare or ("f32" if result.startswith("f32") else "bits")
    dwords = _RESULTS[result][0]
    given = {**names, "d": result} if accumulate else names
    return [
        Row(
            name if m == "clang" else f"{name} [{m}]",
            text,
            model,
            given,
            d=dwords,
            archs=archs,
            compare=comparison,
            mode=m,
        )
        for m in modes
    ]


def compare(
    name: str, kinds: str, function: Function, *, asm: str | None = None, archs: Sequence[str] = BOTH
) -> list[Row]:
    """A comparison in both encodings: to VCC, and to a pair of SGPRs; bits of inactive lanes are 0."""
    names = _split(kinds)

    def to_vcc(state: State) -> None:
        state.vcc = mask_of(function(*_arguments(state, names)) & state.active)

    def to_pair(state: State) -> None:
        bits = mask_of(function(*_arguments(state, names)) & state.active)
        state.sd = bits[:, None].view(np.uint32)

    operands = ", ".join(f"{{{n}}}" for n in names)
    return [
        Row(f"{name}_e32", f"{name}_e32 vcc, {operands}", to_vcc, names, archs=archs),
        Row(f"{name}_e64", f"{name}_e64 {{sd}}, {operands}", to_pair, names, sd=2, archs=archs),
    ]


def salu(
    name: str,
    kinds: str,
    function: Function,
    *,
    asm: str | None = None,
    dwords: int = 1,
    scc: bool = False,
    tied: bool = False,
    archs: Sequence[str] = BOTH,
) -> list[Row]:
    """A scalar operation: ``function`` gives the result, or (result, scc) with ``scc``; with ``tied`` it takes the old
    destination first. ``dwords=0``: it gives SCC alone.
    """
    names = {f"s{place}": kind for place, kind in zip("abc", kinds.split(), strict=False)}

    def model(state: State) -> None:
        arguments = [state.inputs[n] for n in names]
        if tied:
            arguments.insert(0, state.sd[:, 0])
        value = function(*arguments)
        if scc:
            value, condition = value if dwords else (None, value)
            state.scc = np.asarray(condition).astype(np.uint32)
        if dwords:
            raw = np.ascontiguousarray(value).astype({1: np.uint32, 2: np.uint64}[dwords])
            state.sd = raw[:, None].view(np.uint32)

    destination = "{sd}" + (", " if names else "") if dwords else ""
    text = asm or f"{name.split()[0]} {destination}" + ", ".join(f"{{{n}}}" for n in names)
    return [Row(name, text, model, names, sd=dwords, archs=archs)]
