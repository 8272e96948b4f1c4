"""What a kernel moves for its work, counted in the traces that the model replays: proxies for its energy.

Under a power cap the clock falls until the work's energy per second is what the cap allows, so these counts stand beside
every ratio. They are counts, not joules. `evidence/energy.py` counts the same over whole launches, from the emulator's
own counters.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

from .library import CLASSES, Workgroup

_HEAD_DIM = 128
_REGISTER_BYTES = 64 * 4
_LINE_BYTES = 128


@dataclass(frozen=True, slots=True)
class Proxies:
    """A FLOP is one of the two products' 4 * rows * keys * head dim.

    Attributes:
        accumulators: bytes of accumulator registers that the matrix core reads and writes, per FLOP.
        operands: bytes of A and B registers that it reads, per FLOP.
        loaded: bytes of the lines that global loads touch, each time they do (L1 traffic), per kFLOP.
        fetched: bytes of those lines, each once a workgroup (what must come from the L2), per kFLOP.
        lds: bytes read from LDS, per kFLOP.
        vector: vector instructions of a lane per score, exponentials included, matrix instructions not.
    """

    accumulators: float
    operands: float
    loaded: float
    fetched: float
    lds: float
    vector: float

    def over(self, other: Proxies) -> Proxies:
        """Each figure as a ratio to another kernel's."""
        return Proxies(*(a / b for a, b in zip(astuple(self), astuple(other), strict=True)))


def totals(workgroup: Workgroup) -> NDArray[np.float64]:
    """Sums over a workgroup, in the order of `Proxies`: bytes, and vector instructions times 64."""
    code = workgroup.instructions
    matrix = code["kind"] == CLASSES.index("mfma")
    used = np.arange(4) < code["reads"][:, None]
    accumulators = np.where(matrix, code["accumulator"]["count"] + code["write"]["count"], 0)
    operands = np.where(matrix, (code["read"]["count"] * used).sum(axis=1), 0)
    loads = np.isin(code["kind"], [CLASSES.index("vector_load"), CLASSES.index("lds_dma")])
    reads = code["kind"] == CLASSES.index("lds_read")
    vector = np.isin(code["kind"], [CLASSES.index(name) for name in ("valu", "packed", "transcendental")])
    sums = np.zeros(6)
    lines = []
    for wave in workgroup.waves:
        at = wave.records["instruction"]
        lines.append(np.unique(wave.lines[np.repeat(loads[at], wave.records["lines"])]))
        sums += (
            accumulators[at].sum() * _REGISTER_BYTES,
            operands[at].sum() * _REGISTER_BYTES,
            wave.records["lines"][loads[at]].sum(dtype=np.int64) * _LINE_BYTES,
            0,
            wave.records["lds_bytes"][reads[at]].sum(dtype=np.int64),
            vector[at].sum() * 64,
        )
    sums[3] = len(np.unique(np.concatenate(lines))) * _LINE_BYTES
    return sums


def proxies(sums: NDArray[np.float64], rows: int, keys: int) -> Proxies:
    """Per FLOP and score of `rows` query rows by `keys` keys; `sums` as `totals` gives them, or a difference of two."""
    scores = rows * keys
    flops = 4 * scores * _HEAD_DIM
    accumulators, operands = (sums[:2] / flops).tolist()
    loaded, fetched, lds = (1000 * sums[2:5] / flops).tolist()
    return Proxies(accumulators, operands, loaded, fetched, lds, float(sums[5]) / scores)
