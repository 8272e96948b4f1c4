"""Our kernels beside AITER's in the same rounding mode: the rows of `moon-diffusers model-timing` and their tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

from . import ensemble
from .ensemble import Cost, Prediction, Range, Steady, Whole
from .library import Constants
from .proxies import Proxies
from .traces import Subject

ROUNDINGS = {"gfx942": ("rtne", "rtna", "rtz"), "gfx950": ("rtne",)}
#: The default first.
RESCALES = {"gfx942": ("lazy", "exact"), "gfx950": ("lazy",)}
#: Order of the tables' columns.
UNITS = ("matrix", "port", "lds", "l1")
WAITS = ("port", "matrix", "result", "vmcnt", "lgkmcnt", "barrier", "category", "nop")


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel on one input. `found.speed` and `energy` are against `peer`, AITER's kernel on the same input."""

    kernel: str
    data: str
    found: Prediction
    proxies: Proxies
    peer: Peer

    @property
    def energy(self) -> Proxies:
        """Ours over AITER's."""
        return self.proxies.over(self.peer.proxies)


@dataclass(frozen=True, slots=True)
class Peer:
    """AITER's kernel on the same input."""

    kernel: str
    costs: Sequence[Cost]
    proxies: Proxies


def compare(
    arch: str, data: str, sets: Sequence[Constants], make: Callable[[Subject], Steady | Whole]
) -> Iterator[Row]:
    """Every kernel of `arch` on one input, beside AITER's; `make` traces a kernel on it."""
    for mode in ROUNDINGS[arch]:
        subject = Subject("aiter", arch, mode)
        traced = make(subject)
        peer = Peer(subject.name, ensemble.map_sets(traced.cost, sets), traced.proxies())
        for rescale in RESCALES[arch]:
            subject = Subject("moon", arch, mode, rescale)
            traced = make(subject)
            found = ensemble.predict(ensemble.map_sets(traced.cost, sets), peer.costs)
            yield Row(subject.name, data, found, traced.proxies(), peer)


HEADER = (
    f"{'kernel':18s} {'data':12s} {'speed against AITER':>20s} {'matrix utilisation':>20s}  "
    "energy proxies over AITER's: accumulators, operands, loaded, fetched, LDS, vector"
)


def line(row: Row) -> str:
    """Speed, utilisation and energy of a row, as under `HEADER`."""
    energy = ", ".join(f"{value:.2f}" for value in astuple(row.energy))
    return f"{row.kernel:18s} {row.data:12s} {row.found.speed!s:>20s} {row.found.utilisation!s:>20s}  {energy}"


def limits(rows: Sequence[Row]) -> str:
    """What limits each kernel: which units work, and what the waves' turns are spent on. Medians over the sets."""
    text = [
        f"{'what limits':18s} {'data':12s} cycles " + " ".join(f"{name:>6s}" for name in UNITS) + "  | waits: "
        + " ".join(f"{name:>8s}" for name in WAITS)
    ]  # fmt: skip

    def add(kernel: str, data: str, cycles: Range, busy: dict[str, float], waits: dict[str, float]) -> None:
        shares = " ".join(f"{busy[name]:6.0%}" for name in UNITS)
        turns = " ".join(f"{waits[name]:8.0%}" for name in WAITS)
        # A thousand key-rows: a wave's 48 rows by some 21 keys.
        text.append(f"{kernel:18s} {data:12s} {1000 * cycles.middle:6.0f} {shares}  |        {turns}")

    shown = None
    for row in rows:
        if row.peer is not shown:
            shown = row.peer
            costs = row.peer.costs
            add(
                row.peer.kernel,
                row.data,
                Range.of([cost.cycles for cost in costs]),
                ensemble.medians([cost.busy for cost in costs]),
                ensemble.medians([cost.waits for cost in costs]),
            )
        add(row.kernel, row.data, row.found.cycles, row.found.busy, row.found.waits)
    text.append(
        "cycles: of a compute unit for a thousand query rows times keys. Shares of cycles; waits of waves' turns."
    )
    return "\n".join(text)


def energy(rows: Sequence[Row]) -> str:
    """What each kernel moves for its work."""
    text = [
        f"{'energy proxies':18s} {'data':12s} {'accumulators':>13s} {'operands':>9s} {'loaded':>9s} {'fetched':>9s} "
        f"{'LDS read':>9s} {'vector':>8s}",
        f"{'':18s} {'':12s} {'B/FLOP':>13s} {'B/FLOP':>9s} {'B/kFLOP':>9s} {'B/kFLOP':>9s} "
        f"{'B/kFLOP':>9s} {'a score':>8s}",
    ]

    def add(kernel: str, data: str, item: Proxies) -> None:
        text.append(
            f"{kernel:18s} {data:12s} {item.accumulators:13.3f} {item.operands:9.4f} {item.loaded:9.2f} {item.fetched:9.2f} "
            f"{item.lds:9.1f} {item.vector:8.2f}"
        )

    shown = None
    for row in rows:
        if row.peer is not shown:
            shown = row.peer
            add(row.peer.kernel, row.data, row.peer.proxies)
        add(row.kernel, row.data, row.proxies)
    return "\n".join(text)


def as_json(row: Row) -> dict[str, Any]:
    """For files."""
    ranges = {
        "speed": row.found.speed,
        "utilisation": row.found.utilisation,
        "cycles_per_key_and_row": row.found.cycles,
    }
    return {
        "kernel": row.kernel,
        "data": row.data,
        **{name: [item.low, item.middle, item.high] for name, item in ranges.items()},
        "busy": row.found.busy,
        "waits": row.found.waits,
        "energy": asdict(row.proxies),
        "peer": {
            "kernel": row.peer.kernel,
            "busy": ensemble.medians([cost.busy for cost in row.peer.costs]),
            "waits": ensemble.medians([cost.waits for cost in row.peer.costs]),
            "energy": asdict(row.peer.proxies),
        },
    }
