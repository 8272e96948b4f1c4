"""The replay of csrc/timing by ctypes: instructions, traces and constants in, cycles and stalls out."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moon_diffusers.errors import MoonError

# Order of MoonTimingClass in timing.h.
CLASSES = (
    "valu", "transcendental", "packed", "mfma", "scalar", "scalar_load", "lds_read", "lds_write", "vector_load",
    "vector_store", "lds_dma", "branch", "barrier", "waitcnt", "nop", "setprio", "other",
)  # fmt: skip
# Order of MoonTimingStall in timing.h.
STALLS = ("issued", "port", "matrix", "result", "vmcnt", "lgkmcnt", "barrier", "category", "nop", "done")

_RANGE = np.dtype([("first", "<u2"), ("count", "<u2")])
INSTRUCTION = np.dtype(
    [
        ("kind", "u1"),
        ("reads", "u1"),
        ("vmcnt", "<i2"),
        ("lgkmcnt", "<i2"),
        ("immediate", "<u2"),
        ("matrix_cycles", "<u2"),
        ("dwords", "<u2"),
        ("read", _RANGE, (4,)),
        ("accumulator", _RANGE),
        ("write", _RANGE),
    ]
)
RECORD = np.dtype(
    [
        ("instruction", "<u4"),
        ("first_line", "<u4"),
        ("lines", "<u2"),
        ("lds_bytes", "<u2"),
        ("lds_conflict_cycles", "<u2"),
        ("taken", "<u2"),
    ]
)


@dataclass(frozen=True, slots=True)
class Constants:
    """One set of constants, in cycles unless the name says otherwise; timing.h says what each means."""

    valu: int = 4
    transcendental: int = 16
    mfma_port: int = 4
    mfma_overlaps_valu: int = 1
    packed_beside_mfma: int = 0
    mfma_result: int = 16
    mfma_accumulate: int = 0
    valu_result: int = 0
    lds_bytes_per_cycle: int = 128
    lds_latency: int = 64
    l1_bytes_per_cycle: int = 64
    l1_hit_latency: int = 120
    l2_latency: int = 600
    l1_lines: int = 256
    barrier: int = 8
    branch_taken: int = 16
    scalar_load_latency: int = 200


@dataclass(frozen=True, slots=True)
class WaveTrace:
    """What one wavefront executed: `records` of dtype RECORD, and the touched 128-byte lines that they point into."""

    records: NDArray[np.void]
    lines: NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Workgroup:
    """The traces of one workgroup; wave w runs on SIMD w % 4."""

    instructions: NDArray[np.void]
    waves: tuple[WaveTrace, ...]


@dataclass(frozen=True, slots=True)
class Replay:
    """What the model says: cycles of the whole, busy cycles of the units, turns of 4 cycles that each wave waited."""

    cycles: int
    matrix_busy: tuple[int, ...]
    port_busy: tuple[int, ...]
    lds_busy: tuple[int, ...]
    l1_busy: int
    stalls: tuple[dict[str, int], ...]
    issue: tuple[NDArray[np.uint64], ...]  # per wave: cycle of issue of each record; empty unless asked for


class _Constants(ctypes.Structure):
    _fields_ = [(field.name, ctypes.c_int32) for field in fields(Constants)]


class _Wave(ctypes.Structure):
    _fields_ = [("records", ctypes.c_void_p), ("lines", ctypes.c_void_p), ("count", ctypes.c_uint64)]


class _Result(ctypes.Structure):
    _fields_ = [
        ("cycles", ctypes.c_uint64),
        ("matrix_busy", ctypes.c_uint64 * 4),
        ("port_busy", ctypes.c_uint64 * 4),
        ("lds_busy", ctypes.c_uint64 * 2),
        ("l1_busy", ctypes.c_uint64),
        ("stalls", (ctypes.c_uint64 * len(STALLS)) * 16),
    ]


@cache
def _library() -> ctypes.CDLL:
    path = Path(__file__).resolve().parents[2] / "_compiled" / "libmoon_timing.so"
    if not path.exists():
        raise MoonError(f"{path.name} is not built: run `make build`, or install the package again")
    library = ctypes.CDLL(str(path))
    library.moon_timing_run.argtypes = [
        ctypes.c_void_p,
        ctypes.c_uint64,
        ctypes.POINTER(_Wave),
        ctypes.c_uint32,
        ctypes.POINTER(_Constants),
        ctypes.POINTER(_Result),
        ctypes.c_void_p,
    ]
    library.moon_timing_run.restype = ctypes.c_int
    return library


def replay(workgroup: Workgroup, constants: Constants, *, timeline: bool = False) -> Replay:
    """Run the model on one workgroup.

    The call releases the interpreter lock, so threads replay side by side. Raises MoonError for traces that do not fit
    their instructions or that never end.
    """
    waves = workgroup.waves
    packed = (_Wave * len(waves))(
        *(_Wave(wave.records.ctypes.data, wave.lines.ctypes.data, len(wave.records)) for wave in waves)
    )
    values = _Constants(*(getattr(constants, field.name) for field in fields(Constants)))
    result = _Result()
    counts = [len(wave.records) for wave in waves]
    issue = np.zeros(sum(counts) if timeline else 0, np.uint64)
    status = _library().moon_timing_run(
        workgroup.instructions.ctypes.data,
        len(workgroup.instructions),
        packed,
        len(waves),
        ctypes.byref(values),
        ctypes.byref(result),
        issue.ctypes.data if timeline else None,
    )
    if status != 0:
        reasons = {1: "the traces do not fit their instructions", 2: "no wave can go on"}
        raise MoonError(f"timing model: {reasons.get(status, f'status {status}')}")
    ends = np.cumsum(counts)[:-1]
    return Replay(
        cycles=result.cycles,
        matrix_busy=tuple(result.matrix_busy),
        port_busy=tuple(result.port_busy),
        lds_busy=tuple(result.lds_busy),
        l1_busy=result.l1_busy,
        stalls=tuple(dict(zip(STALLS, result.stalls[w], strict=True)) for w in range(len(waves))),
        issue=tuple(np.split(issue, ends)) if timeline else (),
    )


def make_instructions(rows: Sequence[dict[str, Any]]) -> NDArray[np.void]:
    """Instructions from plain rows: `kind` by name, ranges as (first, count), the rest as timing.h names it."""
    table = np.zeros(len(rows), INSTRUCTION)
    table["vmcnt"] = table["lgkmcnt"] = -1
    for entry, row in zip(table, rows, strict=True):
        for key, value in row.items():
            if key == "kind":
                entry["kind"] = CLASSES.index(str(value))
            elif key == "read":
                ranges = list(value)
                entry["reads"] = len(ranges)
                entry["read"][: len(ranges)] = ranges
            else:
                entry[key] = value
    return table
