"""From a launch in the emulator to what the timing model replays: one workgroup of a kernel, ours or AITER's."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from moon_diffusers.emulator.trace import Trace, TraceTable, read_table, read_trace
from moon_diffusers.errors import ArgumentError, MoonError
from moon_diffusers.evidence import aiter, reference, subjects

from .library import RECORD, WaveTrace, Workgroup, make_instructions

if TYPE_CHECKING:
    from moon_diffusers.evidence.capture import CapturedCall

#: Inputs: equal scores, so that no maximum rises after the first tile; N(0,1); keys four times as large.
Data = Literal["flat", "normal", "peaky"]

# The emulator's classes under the model's names.
_KINDS = {
    "valu": "valu",
    "trans": "transcendental",
    "mfma": "mfma",
    "smfmac": "mfma",
    "salu": "scalar",
    "smem": "scalar_load",
    "lds_read": "lds_read",
    "lds_other": "lds_read",
    "lds_write": "lds_write",
    "vmem_load": "vector_load",
    "vmem_store": "vector_store",
    "vmem_lds": "lds_dma",
    "branch": "branch",
    "barrier": "barrier",
    "waitcnt": "waitcnt",
    "nop": "nop",
    "setprio": "setprio",
}
_PACKED = re.compile(r"v_pk_(add|mul|fma|mov)_[fb]32")
_LDS_BITS = re.compile(r"_b(\d+)")
_PASS_CYCLES = 2  # a turn of all banks moves 128 B; a SIMD pair's port moves 64 B a cycle


@dataclass(frozen=True, slots=True)
class Subject:
    """A kernel to model: `maker` is "moon" or "aiter"; `rows` query rows of its workgroup."""

    maker: str
    arch: str
    rounding: str
    rescale: str = ""

    @property
    def name(self) -> str:
        """For tables: `moon rtne exact`, `aiter rtne`."""
        return " ".join(word for word in (self.maker, self.rounding, self.rescale) if word)

    @property
    def rows(self) -> int:
        """Query rows of a workgroup."""
        return 384 if self.maker == "moon" else 256


def _make(subject: Subject, shape: aiter.Shape, kind: reference.Kind) -> subjects.EmulatedSubject:
    """The kernel on random inputs, its keys in one piece."""
    if subject.maker == "aiter":
        kernel = aiter.Kernel(subject.arch, subject.rounding, False)  # type: ignore[arg-type]
        return subjects.aiter_subject(kernel, shape, kind)
    options: dict[str, Any] = {"rounding": subject.rounding, "rescale": subject.rescale}
    return subjects.own_subject(subject.arch, shape, kind=kind, batch_invariant=True, **options)


def trace(subject: Subject, keys: int, data: Data) -> Workgroup:
    """Run one workgroup of the kernel over `keys` keys in the emulator and return what its wavefronts executed.

    Raises AiterUnavailableError where AITER's code object cannot be had, MoonError if the launch fails.
    """
    made = _make(subject, aiter.Shape(1, subject.rows, keys, 1, 1), "normal" if data == "flat" else data)
    if data == "flat":
        made.arrays["k"][:] = made.arrays["k"][:, :1]
    return _run(made)


def trace_captured(subject: Subject, call: CapturedCall) -> Workgroup:
    """As `trace`, on the first head of a captured call; queries are repeated to fill the workgroup.

    Raises ArgumentError for a call that is causal or has another head dim than 128.
    """
    if call.causal or call.q.shape[-1] != 128:
        raise ArgumentError("call", call.module, "a dense call with head dim 128")
    q, k, v = (bits(t[0, :, 0]) for t in (call.q, call.k, call.v))
    shape = aiter.Shape(1, subject.rows, len(k), 1, 1)
    made = _make(subject, shape, "normal")
    made.arrays["q"][0, :, 0] = np.resize(q, (subject.rows, 128))
    made.arrays["k"][0, :, 0] = k
    made.arrays["v"][0, :, 0] = v
    return _run(made)


def bits(tensor: Any) -> NDArray[np.uint16]:
    """bf16 values of a torch tensor as their bit patterns."""
    import torch

    return np.asarray(tensor.to(torch.bfloat16).contiguous().view(torch.int16).numpy()).view(np.uint16)


def _run(made: subjects.EmulatedSubject) -> Workgroup:
    """Launch with a trace of workgroup 0, and keep the forward launch's."""
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder, "trace")
        seen = made.run(made.image, {"trace": str(prefix), "trace_workgroup": "0", "checks": "off"})
        if seen.error:
            raise MoonError(f"{made.name}: {seen.error}")
        for place in range(len(made.calls)):
            table = read_table(f"{prefix}.{place}")
            if any(row["class"] == "mfma" for row in table.instructions):  # the forward launch, not its helpers
                waves = [read_trace(f"{prefix}.{place}", wave) for wave in range(table.waves)]
                return convert(table, waves)
    raise MoonError(f"{made.name}: no launch of it uses the matrix cores")


def convert(table: TraceTable, waves: list[Trace]) -> Workgroup:
    """The emulator's trace in the model's terms."""
    used = np.unique(np.concatenate([wave.index for wave in waves]))
    place = np.full(int(used.max()) + 1, -1, np.int64)
    place[used] = np.arange(len(used))
    rows = [table.instructions[int(index)] for index in used]
    instructions = make_instructions([instruction(row) for row in rows])
    branches = np.asarray([row["class"] == "branch" for row in rows])
    lds_dma = np.asarray([row["class"] == "vmem_lds" for row in rows])
    return Workgroup(instructions, tuple(_wave(wave, place, branches, lds_dma) for wave in waves))


def instruction(row: dict[str, Any]) -> dict[str, Any]:
    """One row of the emulator's table as `make_instructions` takes it."""
    mnemonic = row["mnemonic"]
    kind = _KINDS.get(row["class"], "other")
    if _PACKED.match(mnemonic):
        kind = "packed"
    reads = [tuple(item) for item in row["reads"]]
    made: dict[str, Any] = {
        "kind": kind,
        "vmcnt": row["vmcnt"],
        "lgkmcnt": row["lgkmcnt"],
        "immediate": row["immediate"],
        "matrix_cycles": 4 * row["passes"],
        "read": reads[:4],
    }
    if row["accumulator"]:
        made["accumulator"] = tuple(row["accumulator"])
        made["read"] = [item for item in reads if item != tuple(row["accumulator"])][:4]
    # What a load writes is guarded by s_waitcnt, not by the issue logic.
    if row["writes"] and kind in ("valu", "transcendental", "packed", "mfma"):
        made["write"] = tuple(row["writes"][0])
    if kind == "lds_write" and (bits := _LDS_BITS.search(mnemonic)):
        made["dwords"] = max(1, int(bits.group(1)) // 32)
    return made


def _wave(wave: Trace, place: NDArray[np.int64], branches: NDArray[np.bool_], lds_dma: NDArray[np.bool_]) -> WaveTrace:
    records = np.zeros(len(wave.index), RECORD)
    records["instruction"] = place[wave.index]
    records["first_line"] = wave.line_offsets[:-1]
    records["lines"] = np.diff(wave.line_offsets)
    records["lds_bytes"] = np.where(lds_dma[records["instruction"]], 0, wave.lds_bytes)
    records["lds_conflict_cycles"] = _PASS_CYCLES * np.maximum(wave.lds_passes - wave.lds_fewest_passes, 0)
    jumped = np.append(wave.index[1:] != wave.index[:-1] + 1, False)
    records["taken"] = jumped & branches[records["instruction"]]
    return WaveTrace(records, np.ascontiguousarray(wave.lines, np.uint32))
