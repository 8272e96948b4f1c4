"""In which order and for how long kernels run, so that none profits from its place.

Every kernel runs in blocks of equal duration. A round is one block of each. The order rotates by one from round to round
and its direction alternates, so heat and clock drift fall on all alike. The last-level cache is flushed before every
block. The first rounds warm the card and are thrown away; the median of the others counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Protocol

Kernel = Callable[[], object]


class Clock(Protocol):
    """What the schedule needs of a device; `GpuClock` is the real one, tests bring a pretended one."""

    def flush(self) -> None:
        """Throw the contents of the last-level cache out."""

    def block(self, kernel: Kernel, calls: int) -> tuple[float, float, float]:
        """Run `calls` calls back to back: device seconds, and the host's monotonic times of begin and end."""


@dataclass(frozen=True, slots=True)
class Method:
    """The constants of a measurement; the defaults are those of the published CDNA4 figures."""

    block_seconds: float = 0.25
    rounds: int = 16
    discard: int = 4

    def __post_init__(self) -> None:
        if not 0 < self.block_seconds < math.inf:
            raise ValueError(f"block_seconds: {self.block_seconds}; accepted: above 0")
        if self.rounds < 1:
            raise ValueError(f"rounds: {self.rounds}; accepted: 1 or more")
        if not 0 <= self.discard < self.rounds:
            raise ValueError(f"discard: {self.discard}; accepted: 0 to rounds - 1 = {self.rounds - 1}")


@dataclass(slots=True)
class Blocks:
    """The kept blocks of one kernel: seconds a call, and when on the host's clock each ran."""

    calls: int
    seconds: list[float] = field(default_factory=list)
    spans: list[tuple[float, float]] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Seconds a call."""
        return median(self.seconds)

    @property
    def spread(self) -> float:
        """Interquartile range over the median; 0 for a single block."""
        return relative_iqr(self.seconds)


def relative_iqr(values: Sequence[float]) -> float:
    """Interquartile range over the median, the spread that is reported everywhere; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    low, _, high = quantiles(values, n=4, method="inclusive")
    return (high - low) / median(values)


def orders(kernels: int, rounds: int) -> Iterator[list[int]]:
    """The order of each round: rotated by one each time, reversed every second round."""
    for index in range(rounds):
        order = [(index // 2 + place) % kernels for place in range(kernels)]
        yield order[::-1] if index % 2 else order


def calibrate(clock: Clock, kernel: Kernel, block_seconds: float) -> int:
    """How many calls fill a block, after a first call that may compile or load something."""
    clock.block(kernel, 1)
    seconds, _, _ = clock.block(kernel, 1)
    if seconds < block_seconds / 20:  # a single short call is mostly overhead: look closer
        calls = max(1, min(1000, int(block_seconds / 10 / max(seconds, 1e-7))))
        total, _, _ = clock.block(kernel, calls)
        seconds = total / calls
    return max(1, round(block_seconds / max(seconds, 1e-9)))


def measure(
    clock: Clock, kernels: dict[str, Kernel], method: Method, expired: Callable[[], bool] = lambda: False
) -> dict[str, Blocks]:
    """Run the whole schedule and return the kept blocks of every kernel; no round is begun once `expired`."""
    names = list(kernels)
    results = {name: Blocks(calibrate(clock, kernels[name], method.block_seconds)) for name in names}
    for number, order in enumerate(orders(len(names), method.rounds)):
        if expired():
            break
        for index in order:
            name = names[index]
            blocks = results[name]
            clock.flush()
            seconds, begin, end = clock.block(kernels[name], blocks.calls)
            if number >= method.discard:
                blocks.seconds.append(seconds / blocks.calls)
                blocks.spans.append((begin, end))
    return results


@dataclass(frozen=True, slots=True)
class Ratio:
    """How much faster one kernel is than another: the median over rounds of their times in the same round."""

    median: float
    spread: float
    lowest: float
    highest: float


def ratio(ours: Blocks, theirs: Blocks) -> Ratio:
    """`theirs / ours` round by round, so that a drift of the clock cancels; above 1 ours is faster."""
    pairs = [b / a for a, b in zip(ours.seconds, theirs.seconds, strict=True)]
    return Ratio(median(pairs), relative_iqr(pairs), min(pairs), max(pairs))
