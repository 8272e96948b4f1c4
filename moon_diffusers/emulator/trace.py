"""Reading traces: what each wavefront of one workgroup executed.

The emulator's options ``trace=PREFIX`` and ``trace_workgroup=N`` write ``PREFIX.json``, a table of the kernel's
instructions, and ``PREFIX.wave<N>.bin``, one little-endian record an executed instruction::

    u32 instruction index | u16 LDS bytes | u16 LDS bank passes | u16 line count | u16 fewest passes | u32 lines[line count]

A line is a global address divided by 128, its low 32 bits.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moon_diffusers.errors import ArgumentError

_HEADER = 12


@dataclass(frozen=True, slots=True)
class Trace:
    """One wavefront, an entry per executed instruction.

    Attributes:
        index: int64 (n,), into the table's instructions.
        lds_bytes: int64 (n,), bytes moved by an LDS instruction or a direct-to-LDS load.
        lds_passes, lds_fewest_passes: int64 (n,), turns of the LDS banks, and how few the size needs.
        line_offsets: int64 (n + 1,), where each entry's lines begin in `lines`.
        lines: uint32, the 128-byte lines of global memory that were touched, ascending within an entry.
    """

    index: NDArray[np.int64]
    lds_bytes: NDArray[np.int64]
    lds_passes: NDArray[np.int64]
    lds_fewest_passes: NDArray[np.int64]
    line_offsets: NDArray[np.int64]
    lines: NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class TraceTable:
    """The kernel that a trace is of. `instructions` are the table's rows, as the emulator wrote them: index, address,
    mnemonic, class, vmcnt, lgkmcnt (-1: not waited on), immediate, target (an index, or -1), passes (of 4 cycles, of an
    MFMA), and register ranges [first, count] (AGPRs from 256): writes, reads, accumulator (or null), scalar_writes,
    scalar_reads."""

    kernel: str
    arch: str
    waves: int
    workgroup: int
    instructions: list[dict[str, Any]]


def read_table(prefix: str | Path) -> TraceTable:
    """The table of a trace. Raises ArgumentError if it is not there or not one."""
    path = Path(f"{prefix}.json")
    try:
        item = json.loads(path.read_text())
        return TraceTable(item["kernel"], item["arch"], item["waves"], item["workgroup"], item["instructions"])
    except (OSError, ValueError, KeyError) as error:
        raise ArgumentError("prefix", str(prefix), f"the prefix of a trace ({error})") from error


def read_trace(prefix: str | Path, wave: int) -> Trace:
    """What wavefront `wave` executed. Raises ArgumentError if the file is not there or is cut short."""
    path = Path(f"{prefix}.wave{wave}.bin")
    try:
        data = np.fromfile(path, np.uint8)
    except OSError as error:
        raise ArgumentError("prefix", str(prefix), f"the prefix of a trace ({error})") from error
    if len(data) % 4:
        raise ArgumentError("prefix", str(path), "a whole trace; this one is cut short")
    words = data.view("<u4")
    starts = _record_starts(words, path)
    first, second = words[starts + 1], words[starts + 2]
    counts = (second & 0xFFFF).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    in_lines = np.ones(len(words), bool)
    for k in range(3):
        in_lines[starts + k] = False
    return Trace(
        index=words[starts].astype(np.int64),
        lds_bytes=(first & 0xFFFF).astype(np.int64),
        lds_passes=(first >> 16).astype(np.int64),
        lds_fewest_passes=(second >> 16).astype(np.int64),
        line_offsets=offsets,
        lines=words[in_lines].astype(np.uint32),
    )


def _record_starts(words: NDArray[np.uint32], path: Path) -> NDArray[np.int64]:
    """Where each record begins, in words: the length of one is known only from itself."""
    starts = []
    at, end = 0, len(words)
    values = words.tolist()
    while at < end:
        if at + _HEADER // 4 > end:
            raise ArgumentError("prefix", str(path), "a whole trace; this one is cut short")
        starts.append(at)
        at += _HEADER // 4 + (values[at + 2] & 0xFFFF)
    if at != end:
        raise ArgumentError("prefix", str(path), "a whole trace; this one is cut short")
    return np.asarray(starts, np.int64)
