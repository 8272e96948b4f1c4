"""Two sides in turns, step by step: so that heat and clocks fall on both alike.

A round is one step of each side; the direction alternates. Rounds are thrown away until the card has worked for a while;
of the others the median counts, and ratios are formed within rounds.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from moon_diffusers.errors import ArgumentError
from moon_diffusers.evidence.bench.schedule import Blocks, Clock, Kernel, orders, ratio
from moon_diffusers.evidence.bench.telemetry import Sampler
from moon_diffusers.evidence.budget import Budget


@dataclass(frozen=True, slots=True)
class Method:
    """How long is measured.

    Attributes:
        rounds: kept rounds.
        least_rounds: as many are kept even if that takes longer than `row_seconds`.
        warm_seconds: rounds count once both sides have run for this long; the first never counts.
        row_seconds: no further round is begun after this many seconds of kept rounds.

    Raises:
        ArgumentError: a time below 0, or NaN.
    """

    rounds: int = 10
    least_rounds: int = 3
    warm_seconds: float = 15.0
    row_seconds: float = 75.0

    def __post_init__(self) -> None:
        for name in ("warm_seconds", "row_seconds"):
            if not getattr(self, name) >= 0:
                raise ArgumentError(name, getattr(self, name), "seconds from 0 on")


@dataclass(slots=True)
class Side:
    """What was measured of one side. Seconds and joules are of one step each."""

    blocks: Blocks = field(default_factory=lambda: Blocks(1))
    joules: list[float] = field(default_factory=list)
    mhz: float | None = None
    watt: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Everything, single steps included."""
        return {
            "seconds": self.blocks.seconds,
            "median_seconds": self.blocks.median if self.blocks.seconds else None,
            "spread": self.blocks.spread if self.blocks.seconds else None,
            "joules": self.joules,
            "median_joules": median(self.joules) if self.joules else None,
            "mhz": self.mhz,
            "watt": self.watt,
        }


class HostClock:
    """For a dry run on the CPU: the host's clock, which says nothing about a GPU."""

    def flush(self) -> None:
        """Nothing to flush."""

    def block(self, kernel: Kernel, calls: int) -> tuple[float, float, float]:
        """Run `calls` calls: seconds, begin and end."""
        begin = time.monotonic()
        for _ in range(calls):
            kernel()
        end = time.monotonic()
        return end - begin, begin, end


def measure(
    sides: dict[str, Kernel],
    clock: Clock,
    method: Method,
    sampler: Sampler,
    budget: Budget,
) -> dict[str, Side]:
    """Run the rounds. Both sides must have run once before. No round is begun that the budget cannot hold.

    Args:
        sampler: reads clocks, power and energy meanwhile; not yet running.

    Returns:
        The kept rounds of each side, equally many; none if the budget did not even hold a warm round and a kept one.
    """
    names = list(sides)
    results = {name: Side() for name in names}
    warm = kept_seconds = last = 0.0
    kept = 0
    warm_seconds = min(method.warm_seconds, budget.left / 3)
    with sampler:
        for number, order in enumerate(orders(len(names), 10**6)):
            begin_round = time.monotonic()
            counts = number > 0 and warm >= warm_seconds
            enough = kept >= method.rounds or (kept >= method.least_rounds and kept_seconds >= method.row_seconds)
            if enough or budget.left < last or (number == 1 and budget.left < 2 * last):
                break
            for index in order:
                side = results[names[index]]
                seconds, begin, end = clock.block(sides[names[index]], 1)
                if counts:
                    side.blocks.seconds.append(seconds)
                    side.blocks.spans.append((begin, end))
            last = time.monotonic() - begin_round
            warm += last
            if counts:
                kept += 1
                kept_seconds += last
    for side in results.values():
        if reading := sampler.during(side.blocks.spans):
            side.mhz, side.watt = reading
        joules = [sampler.joules(begin, end) for begin, end in side.blocks.spans]
        side.joules = [value for value in joules if value is not None] if None not in joules else []
    return results


def compared(ours: Side, theirs: Side) -> dict[str, float] | None:
    """How much faster, and how much less energy, ours is than theirs, within rounds; None without kept rounds."""
    if not ours.blocks.seconds or not theirs.blocks.seconds:
        return None
    speed = ratio(ours.blocks, theirs.blocks)
    figures = {"speed": speed.median, "spread": speed.spread, "lowest": speed.lowest, "highest": speed.highest}
    if ours.joules and theirs.joules and min(ours.joules) > 0:
        figures["energy"] = median(b / a for a, b in zip(ours.joules, theirs.joules, strict=True))
    return figures


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Relative L2 of two results, `one` in the denominator; infinity if either has something that is not finite."""
    if not (one.isfinite().all() and other.isfinite().all()):
        return math.inf
    norm = one.double().norm().item()
    return (other.double() - one.double()).norm().item() / norm if norm else math.inf
