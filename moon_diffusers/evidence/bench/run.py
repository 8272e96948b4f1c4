"""One benchmark run: for every case check each peer's output, then time all that were right."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from moon_diffusers.evidence.budget import Budget

from . import inputs as tensors
from .grid import Case
from .peers import Peer, Unsupported
from .schedule import Blocks, Clock, Kernel, Method, measure
from .telemetry import EnergyCounter, Sampler, Source

Progress = Callable[[str], None]


#: Of a kernel's energy pass; the counter steps ten times a second, and the first quarter is left out.
ENERGY_SECONDS = 1.2


@dataclass(frozen=True, slots=True)
class Bench:
    """What all cases of a run share. Without a clock outputs are checked and nothing is timed.

    Attributes:
        wrap: turns a kernel that was right into what is timed, e.g. the replay of a graph.
    """

    device: torch.device
    clock: Clock | None
    method: Method
    source: Source | None = None
    counter: EnergyCounter | None = None
    budget: Budget = field(default_factory=lambda: Budget(None))
    wrap: Callable[[Kernel], Kernel] = lambda kernel: kernel


@dataclass(slots=True)
class PeerResult:
    """One peer on one case. Without `blocks` it was not timed, and `note` says why."""

    peer: str
    version: str
    error: float | None = None
    blocks: Blocks | None = None
    mhz: float | None = None
    watt: float | None = None
    joule: float | None = None  # a call, by the card's counter
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
    if result.error > peer.bound:
        result.note = f"wrong output: relative L2 {result.error:.2e}, accepted {peer.bound:.2g}; not timed"
        return result, None
    return result, call


def run_case(case: Case, peers: Iterable[Peer], bench: Bench) -> CaseResult:
    """Check and time all peers on one case."""
    x = tensors.make_inputs(case, bench.device)
    result = CaseResult(case)
    kernels: dict[str, Kernel] = {}
    for peer in peers:
        checked, kernel = check_peer(peer, case, x)
        result.peers.append(checked)
        if kernel is not None and bench.clock is not None:
            try:
                kernels[peer.name] = bench.wrap(kernel)
            except Exception as error:  # a kernel that cannot be captured
                checked.note = f"not timed: {type(error).__name__}: {error}".splitlines()[0][:200]
    if bench.clock is None or not kernels:
        return result
    with Sampler(bench.source, counter=bench.counter) as sampler:
        blocks = measure(bench.clock, kernels, bench.method, lambda: bench.budget.left == 0)
        spans = energy_pass(bench.clock, kernels, blocks) if bench.counter and bench.budget.left else {}
    for checked in result.peers:
        checked.blocks = blocks.get(checked.peer)
        if checked.blocks is not None and not checked.blocks.seconds:
            checked.blocks, checked.note = None, "not timed: the time was up"
        if checked.blocks is not None and (reading := sampler.during(checked.blocks.spans)):
            checked.mhz, checked.watt = reading
        if checked.blocks is not None and checked.peer in spans:
            seconds, begin, end = spans[checked.peer]
            begin += (end - begin) / 4
            joules = sampler.joules(begin, end)
            checked.joule = None if joules is None else joules / (end - begin) * seconds
    return result


def energy_pass(
    clock: Clock, kernels: dict[str, Kernel], blocks: dict[str, Blocks]
) -> dict[str, tuple[float, float, float]]:
    """A long block of each kernel: seconds a call, begin and end on the host's clock."""
    spans = {}
    for name, kernel in kernels.items():
        if not blocks[name].seconds:
            continue
        calls = max(1, round(ENERGY_SECONDS / blocks[name].median))
        seconds, begin, end = clock.block(kernel, calls)
        spans[name] = (seconds / calls, begin, end)
    return spans


def run(cases: list[Case], peers: tuple[Peer, ...], bench: Bench, progress: Progress,
        keep: Callable[[CaseResult], None]) -> list[CaseResult]:  # fmt: skip
    """All cases, one after the other; `keep` is called after each, so that a cut run loses nothing."""
    results = []
    for number, case in enumerate(cases, 1):
        if bench.budget.left == 0:
            progress(f"the time is up: {len(cases) - number + 1} of {len(cases)} cases were not begun")
            break
        progress(f"[{number}/{len(cases)}] {case.name}, {bench.budget.spent:.0f} s spent")
        result = run_case(case, peers, bench)
        results.append(result)
        keep(result)
        for line in summary_lines(result):
            progress("    " + line)
        gc.collect()
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()
    return results


def summary_lines(result: CaseResult) -> list[str]:
    """One line a peer, for the terminal."""
    lines = []
    for peer in result.peers:
        if peer.blocks is not None:
            speed = result.case.flops / peer.blocks.median / 1e12
            clock = f"  {peer.mhz:.0f} MHz {peer.watt:.0f} W" if peer.mhz and peer.watt else ""
            energy = picojoule_per_flop(peer, result.case)
            clock += f"  {energy:.2f} pJ/FLOP" if energy else ""
            lines.append(
                f"{peer.peer:24s} {peer.blocks.median * 1e3:9.3f} ms  {speed:7.1f} TF/s  +-{peer.blocks.spread:.2%}"
                f"  error {peer.error:.1e}{clock}"
            )
        else:
            lines.append(f"{peer.peer:24s} {peer.note or f'right: relative L2 {peer.error:.1e}'}")
    return lines


def picojoule_per_flop(peer: PeerResult, case: Case) -> float | None:
    """By the card's energy counter; where there is none, by the sampled power."""
    if peer.blocks is None:
        return None
    joule = peer.joule if peer.joule is not None else peer.watt * peer.blocks.median if peer.watt else None
    return None if joule is None else joule / case.flops * 1e12


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
                "joule": p.joule,
                "picojoule_per_flop": picojoule_per_flop(p, case),
            }
            for p in result.peers
        ],
    }
