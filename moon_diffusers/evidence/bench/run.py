"""One benchmark run: for every case check each peer's output, then time all that were right."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from . import inputs as tensors
from .grid import Case
from .peers import Peer, Unsupported
from .schedule import Blocks, Clock, Kernel, Method, measure
from .telemetry import Sampler, Source

Progress = Callable[[str], None]


@dataclass(slots=True)
class PeerResult:
    """One peer on one case. Without `blocks` it was not timed, and `note` says why."""

    peer: str
    version: str
    error: float | None = None
    blocks: Blocks | None = None
    mhz: float | None = None
    watt: float | None = None
    note: str = ""


@dataclass(slots=True)
class CaseResult:
    """All peers on one case."""

    case: Case
    peers: list[PeerResult] = field(default_factory=list)

    def timed(self) -> list[PeerResult]:
        """The peers that were timed."""
        return [result for result in self.peers if result.blocks is not None]

    def find(self, name: str) -> PeerResult | None:
        """The result of a peer by name, if it was timed."""
        return next((result for result in self.timed() if result.peer == name), None)


def check_peer(peer: Peer, case: Case, x: tensors.Inputs) -> tuple[PeerResult, Kernel | None]:
    """Call the peer once and compare; the kernel is returned only if its output is right."""
    result = PeerResult(peer.name, peer.version)
    try:
        call = peer.prepare(case, x)
        result.error = tensors.sampled_error(case, x, call())
    except Unsupported as why:
        result.note = str(why)
        return result, None
    except Exception as error:  # out of memory, no kernel for this shape, a missing symbol: the peer's own business
        result.note = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        return result, None
    bound = tensors.TOLERANCE_RTZ if peer.truncates else tensors.TOLERANCE
    if result.error > bound:
        result.note = f"wrong output: relative L2 {result.error:.2e}, accepted {bound:.0e}; not timed"
        return result, None
    return result, call


def run_case(case: Case, peers: Iterable[Peer], device: torch.device, clock: Clock | None, method: Method,
             source: Source | None) -> CaseResult:  # fmt: skip
    """Check and time all peers on one case; with no clock they are checked and not timed."""
    x = tensors.make_inputs(case, device)
    result = CaseResult(case)
    kernels: dict[str, Kernel] = {}
    for peer in peers:
        checked, kernel = check_peer(peer, case, x)
        result.peers.append(checked)
        if kernel is not None:
            kernels[peer.name] = kernel
    if clock is None or not kernels:
        return result
    with Sampler(source) as sampler:
        blocks = measure(clock, kernels, method)
    for checked in result.peers:
        checked.blocks = blocks.get(checked.peer)
        if checked.blocks is not None and (reading := sampler.during(checked.blocks.spans)):
            checked.mhz, checked.watt = reading
    return result


def run(cases: list[Case], peers: tuple[Peer, ...], device: torch.device, clock: Clock | None, method: Method,
        source: Source | None, progress: Progress, keep: Callable[[CaseResult], None]) -> list[CaseResult]:  # fmt: skip
    """All cases, one after the other; `keep` is called after each, so that a cut run loses nothing."""
    results = []
    for number, case in enumerate(cases, 1):
        progress(f"[{number}/{len(cases)}] {case.name}")
        result = run_case(case, peers, device, clock, method, source)
        results.append(result)
        keep(result)
        for line in summary_lines(result):
            progress("    " + line)
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return results


def summary_lines(result: CaseResult) -> list[str]:
    """One line a peer, for the terminal."""
    lines = []
    for peer in result.peers:
        if peer.blocks is not None:
            speed = result.case.flops / peer.blocks.median / 1e12
            clock = f"  {peer.mhz:.0f} MHz {peer.watt:.0f} W" if peer.mhz and peer.watt else ""
            lines.append(
                f"{peer.peer:24s} {peer.blocks.median * 1e3:9.3f} ms  {speed:7.1f} TF/s  +-{peer.blocks.spread:.2%}"
                f"  error {peer.error:.1e}{clock}"
            )
        else:
            lines.append(f"{peer.peer:24s} {peer.note or f'right: relative L2 {peer.error:.1e}'}")
    return lines


def as_json(result: CaseResult) -> dict[str, Any]:
    """A case with everything that was measured, blocks included."""
    case = result.case
    return {
        "case": {slot: getattr(case, slot) for slot in case.__slots__} | {"name": case.name, "flops": case.flops},
        "peers": [
            {
                "peer": p.peer,
                "version": p.version,
                "error": p.error,
                "note": p.note,
                "calls_per_block": p.blocks.calls if p.blocks else None,
                "seconds": p.blocks.seconds if p.blocks else [],
                "median_seconds": p.blocks.median if p.blocks else None,
                "spread": p.blocks.spread if p.blocks else None,
                "tflops": case.flops / p.blocks.median / 1e12 if p.blocks else None,
                "mhz": p.mhz,
                "watt": p.watt,
                "picojoule_per_flop": p.watt * p.blocks.median / case.flops * 1e12 if p.blocks and p.watt else None,
            }
            for p in result.peers
        ],
    }
