"""Predictions over all sets of constants that agree with what was published.

A single set of constants gives a number that looks sure and is not. So every set of the grid replays AITER's three
rounding modes; those that reproduce AITER's published ratios survive; a prediction is the minimum, median and maximum
over the survivors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median

from .constants import AGREEMENT, AITER_RATIOS
from .library import STALLS, Constants, Replay, Workgroup, replay


@dataclass(frozen=True, slots=True)
class Steady:
    """A kernel's steady state: two traces that differ only in their number of keys."""

    short: Workgroup
    long: Workgroup
    keys: int  # by which they differ
    rows: int

    def cost(self, constants: Constants) -> Cost:
        """What a key costs once the loop runs: the difference of the two replays."""
        a, b = replay(self.short, constants), replay(self.long, constants)
        cycles = b.cycles - a.cycles
        busy = sum(b.matrix_busy) - sum(a.matrix_busy)
        return Cost(cycles / self.keys / self.rows, busy / 4 / cycles, limits(b))


@dataclass(frozen=True, slots=True)
class Whole:
    """A kernel's whole life on one workgroup, begin and end included: for sequences too short for a steady state."""

    workgroup: Workgroup
    keys: int
    rows: int

    def cost(self, constants: Constants) -> Cost:
        """What a key costs, begin and end spread over all keys."""
        result = replay(self.workgroup, constants)
        busy = sum(result.matrix_busy) / 4 / result.cycles
        return Cost(result.cycles / self.keys / self.rows, busy, limits(result))


@dataclass(frozen=True, slots=True)
class Cost:
    """`cycles` per key and query row of a workgroup; share of the cycles that the matrix pipes work; why waves wait."""

    cycles: float
    utilisation: float
    limits: dict[str, float]


@dataclass(frozen=True, slots=True)
class Range:
    """Minimum, median and maximum over the surviving sets."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Range:
        """Of at least one value."""
        return cls(min(values), median(values), max(values))

    def __str__(self) -> str:
        return f"{self.low:.2f} / {self.middle:.2f} / {self.high:.2f}"


def limits(result: Replay) -> dict[str, float]:
    """Share of all waves' turns spent on each reason not to issue, the largest first; issuing itself is left out."""
    total = sum(sum(wave.values()) for wave in result.stalls)
    shares = {
        name: sum(wave[name] for wave in result.stalls) / total for name in STALLS if name not in ("issued", "done")
    }
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def map_sets(function: Callable[[Constants], Cost], sets: Sequence[Constants]) -> list[Cost]:
    """`function` of every set, on all cores: the replay runs without the interpreter lock."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return list(pool.map(function, sets))


def survivors(aiter: dict[str, Steady], sets: Sequence[Constants]) -> list[Constants]:
    """The sets under which AITER's rtne and rtna modes cost, relative to its rtz mode, what was published."""
    base = map_sets(aiter["rtz"].cost, sets)
    agree = [True] * len(sets)
    for rounding, published in AITER_RATIOS.items():
        costs = map_sets(aiter[rounding].cost, sets)
        for index, (cost, reference) in enumerate(zip(costs, base, strict=True)):
            agree[index] &= abs(cost.cycles / reference.cycles / published - 1) <= AGREEMENT
    return [constants for constants, kept in zip(sets, agree, strict=True) if kept]


@dataclass(frozen=True, slots=True)
class Prediction:
    """A kernel beside its peer over the surviving sets. `speed`: peer's cycles over ours, above 1 ours needs fewer."""

    cycles: Range
    utilisation: Range
    speed: Range
    limits: dict[str, float]  # of the set with the median speed


def predict(ours: Steady | Whole, peer: Sequence[Cost], sets: Sequence[Constants]) -> Prediction:
    """`peer` holds the peer's costs for the same sets, in order."""
    costs = map_sets(ours.cost, sets)
    speeds = [theirs.cycles / mine.cycles for mine, theirs in zip(costs, peer, strict=True)]
    middle = sorted(range(len(sets)), key=speeds.__getitem__)[len(sets) // 2]
    return Prediction(
        Range.of([cost.cycles for cost in costs]),
        Range.of([cost.utilisation for cost in costs]),
        Range.of(speeds),
        costs[middle].limits,
    )
