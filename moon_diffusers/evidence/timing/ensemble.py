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
from .proxies import Proxies, proxies, totals


@dataclass(frozen=True, slots=True)
class Steady:
    """A kernel's steady state: two traces that differ only in their number of keys."""

    short: Workgroup
    long: Workgroup
    keys: int  # by which they differ
    rows: int

    def cost(self, constants: Constants) -> Cost:
        """What a key costs once the loop runs: the difference of the two replays."""
        return _cost(replay(self.long, constants), self.keys, self.rows, replay(self.short, constants))

    def proxies(self) -> Proxies:
        """What the kernel moves for a key once the loop runs."""
        return proxies(totals(self.long) - totals(self.short), self.rows, self.keys)


@dataclass(frozen=True, slots=True)
class Whole:
    """A kernel's whole life on one workgroup, begin and end included."""

    workgroup: Workgroup
    keys: int
    rows: int

    def cost(self, constants: Constants) -> Cost:
        """What a key costs, begin and end spread over all keys."""
        return _cost(replay(self.workgroup, constants), self.keys, self.rows)

    def proxies(self) -> Proxies:
        """What the kernel moves for a key, Q included."""
        return proxies(totals(self.workgroup), self.rows, self.keys)


@dataclass(frozen=True, slots=True)
class Cost:
    """`cycles` per key and query row of a workgroup, and where they go.

    Attributes:
        busy: share of all cycles that a unit works: the matrix pipes, the vector ports, the LDS ports, the L1.
        waits: share of all waves' turns spent on each reason not to issue, the largest first.
    """

    cycles: float
    busy: dict[str, float]
    waits: dict[str, float]

    @property
    def utilisation(self) -> float:
        """Of the matrix pipes."""
        return self.busy["matrix"]


def _cost(long: Replay, keys: int, rows: int, short: Replay | None = None) -> Cost:
    cycles = long.cycles - (short.cycles if short else 0)

    def units(result: Replay) -> dict[str, float]:
        return {
            "matrix": sum(result.matrix_busy) / 4,
            "port": sum(result.port_busy) / 4,
            "lds": sum(result.lds_busy) / 2,
            "l1": float(result.l1_busy),
        }

    def turns(result: Replay) -> dict[str, int]:
        return {name: sum(wave[name] for wave in result.stalls) for name in STALLS}

    busy, spent = units(long), turns(long)
    if short:
        busy = {name: value - units(short)[name] for name, value in busy.items()}
        spent = {name: value - turns(short)[name] for name, value in spent.items()}
    total = sum(spent.values())
    waits = {name: value / total for name, value in spent.items() if name not in ("issued", "done")}
    return Cost(
        cycles / keys / rows,
        {name: value / cycles for name, value in busy.items()},
        dict(sorted(waits.items(), key=lambda item: -item[1])),
    )


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


def medians(shares: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of each name over the sets, the largest first."""
    found = {name: median(item[name] for item in shares) for name in shares[0]}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


@dataclass(frozen=True, slots=True)
class Prediction:
    """A kernel beside its peer over the surviving sets. `speed`: peer's cycles over ours, above 1 ours needs fewer.

    `busy` and `waits` are medians over the sets; see `Cost`.
    """

    cycles: Range
    utilisation: Range
    speed: Range
    busy: dict[str, float]
    waits: dict[str, float]


def predict(costs: Sequence[Cost], peer: Sequence[Cost]) -> Prediction:
    """Both hold costs for the same sets, in order."""
    return Prediction(
        Range.of([cost.cycles for cost in costs]),
        Range.of([cost.utilisation for cost in costs]),
        Range.of([theirs.cycles / mine.cycles for mine, theirs in zip(costs, peer, strict=True)]),
        medians([cost.busy for cost in costs]),
        medians([cost.waits for cost in costs]),
    )
