"""The benchmark's table without a GPU: small shapes in the emulator, checked and counted, never timed.

Ours runs through the public functions, as on a GPU, with every check of the emulator on. Where AITER's code object can be
had, its v3 kernel runs beside ours on plain dense cases.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from moon_diffusers.emulation import emulate
from moon_diffusers.emulator.options import emulator_options
from moon_diffusers.evidence import aiter, peer
from moon_diffusers.evidence.device import open_emulator
from moon_diffusers.runtime.device import open_emulated
from moon_diffusers.runtime.hip import Hip

from . import inputs as tensors
from .grid import Case
from .peers import Peer
from .run import check_peer

_OPTIONS = {"checks": "on", "counts": "on", "threads": "1", "mma": "fast", "order": "forward"}
# Of the report's kinds of instructions, under the names of the table.
KINDS = {
    "matrix": ("mfma", "smfmac"),
    "vector": ("valu", "trans"),
    "LDS": ("lds_read", "lds_write", "lds_other"),
    "memory": ("vmem_load", "vmem_store", "vmem_lds"),
}


@dataclass(slots=True)
class Emulated:
    """One kernel on one case.

    Attributes:
        error: relative L2 against fp64 on sampled rows; None where it did not run, and `note` says why.
        launches: the kernels of the call, in order.
        instructions: that wavefronts executed, all launches together; counts: of them by kind.
        findings: what the emulator's checks reported, errors and warnings.
    """

    case: Case
    kernel: str
    error: float | None = None
    note: str = ""
    launches: list[str] = field(default_factory=list)
    instructions: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    findings: int = 0

    def add(self, report: dict[str, Any]) -> None:
        """Count a launch."""
        self.launches.append(report["kernel"])
        self.instructions += report["instructions"]
        self.findings += len(report["findings"])
        for name, kinds in KINDS.items():
            self.counts[name] += sum(report["counts"]["kinds"].get(kind, 0) for kind in kinds)


@contextmanager
def reports(hip: Hip) -> Iterator[list[dict[str, Any]]]:
    """The reports of all launches that an emulator runs within the block."""
    found: list[dict[str, Any]] = []
    launch = hip.launch_kernel

    def launch_and_report(*arguments: Any) -> int:
        code: int = launch(*arguments)
        found.append(json.loads(hip.report()))
        return code

    hip.launch_kernel = launch_and_report
    try:
        yield found
    finally:
        hip.launch_kernel = launch


def run(arch: str, cases: Iterable[Case], peers: tuple[Peer, ...], keep: Callable[[Emulated], None]) -> None:
    """Check and count every peer, and AITER's v3, on every case; `keep` is called after each."""
    hip = open_emulated(arch).hip
    assert isinstance(hip, Hip)
    with emulator_options(hip, **_OPTIONS), emulate(arch):
        for case in cases:
            x = tensors.make_inputs(case, torch.device("cpu"))
            for item in peers:
                with reports(hip) as found:
                    checked, _ = check_peer(item, case, x)
                result = Emulated(case, checked.peer, checked.error, checked.note)
                for report in found:
                    result.add(report)
                keep(result)
            for rounding in ("rtne", "rtna", "rtz") if arch == "gfx942" else ("rtne",):
                keep(_aiter(arch, rounding, case, x))


def _aiter(arch: str, rounding: str, case: Case, x: tensors.Inputs) -> Emulated:
    result = Emulated(case, f"aiter {rounding} v3")
    if case.causal or case.seqlens:
        result.note = "not run: plain dense cases only"
        return result
    words = [t.view(torch.int16).numpy().view("uint16") for t in (x.q, x.k, x.v)]
    try:
        seen = peer.run(open_emulator(arch), aiter.Kernel(arch, rounding, False), *words)  # type: ignore[arg-type]
    except aiter.AiterUnavailableError as error:
        result.note = f"not here: {error}"
        return result
    out = torch.from_numpy(seen.o.view("int16")).view(torch.bfloat16)
    result.error = tensors.sampled_error(case, x, out)
    result.add(seen.report)
    return result


def line(result: Emulated) -> str:
    """For the terminal."""
    if result.error is None:
        return f"{result.kernel:24s} {result.note}"
    counts = "  ".join(f"{name} {result.counts[name]:,}" for name in KINDS)
    wrong = f"  {result.note}" if result.note else ""
    return f"{result.kernel:24s} relative L2 {result.error:.1e}  {counts}  findings {result.findings}{wrong}"


def markdown(results: list[Emulated], arch: str) -> str:
    """A row a case and kernel; instructions are of wavefronts, all launches of the call together."""
    lines = [f"Emulated {arch}: right or wrong, and what was executed. No times: there was no GPU.", ""]
    header = ["case", "kernel", "error", "launches", "wave instructions", *KINDS, "findings"]
    lines += ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for item in results:
        if item.error is None:
            row = [item.case.name, item.kernel, item.note, "", "", *("" for _ in KINDS), ""]
        else:
            row = [item.case.name, item.kernel, f"{item.error:.1e}" + (f" ({item.note})" if item.note else "")]
            row += [", ".join(item.launches), f"{item.instructions:,}"]
            row += [*(f"{item.counts[name]:,}" for name in KINDS), str(item.findings)]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


def as_json(item: Emulated) -> dict[str, Any]:
    """Everything of a row."""
    return {
        "case": item.case.name,
        "kernel": item.kernel,
        "error": item.error,
        "note": item.note,
        "launches": item.launches,
        "instructions": item.instructions,
        "counts": dict(item.counts),
        "findings": item.findings,
    }
