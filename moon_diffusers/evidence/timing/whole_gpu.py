"""From one compute unit to the whole GPU: rounds of workgroups, with and without the split of the keys.

Arithmetic, not simulation: a compute unit runs one workgroup at a time, all workgroups of a dense call are alike, and a
GPU is done when its last round is. Memory beyond the compute unit, clocks and power are outside.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from moon_diffusers import planning_cdna3, planning_cdna4

KEYS = 64
ROWS = {"moon": 384, "aiter": 256}
CU_COUNT = {"gfx942": 304, "gfx950": 256}

#: (batch, heads, length): the published shapes, then Wan2.1 1.3B (12 heads) and 14B (40) at 480p and 720p.
SHAPES = (
    (2, 24, 8192),
    (2, 24, 16384),
    (2, 24, 32768),
    (4, 16, 16384),
    (1, 16, 131072),
    (1, 12, 32760),
    (1, 40, 32760),
    (1, 12, 75600),
    (1, 40, 75600),
)


@dataclass(frozen=True, slots=True)
class Row:
    """Self-attention of one shape; rounds of workgroups are in units of a whole workgroup over all keys.

    `ideal` is what perfectly divisible work would take. `speed` is AITER's time over ours, by the cost of a key and row.
    """

    shape: tuple[int, int, int]
    aiter_rounds: float
    rounds: float
    split_rounds: float
    parts: int
    ideal: float
    speed: float
    speed_split: float


def table(arch: str, speed: float, shapes: tuple[tuple[int, int, int], ...] = SHAPES) -> list[Row]:
    """One row a shape. `speed`: AITER's cycles per key and query row over ours, as the timing model says."""
    cus = CU_COUNT[arch]
    rows = []
    for batch, heads, length in shapes:
        theirs = math.ceil(math.ceil(length / ROWS["aiter"]) * heads * batch / cus)
        blocks = math.ceil(length / ROWS["moon"]) * heads * batch
        tiles = math.ceil(length / KEYS)
        if arch == "gfx942":
            whole, parts = planning_cdna3.split_tail(blocks, tiles, cus)
        else:
            whole, parts = planning_cdna4.split(blocks, tiles, cus, causal=False)
        ours = math.ceil(blocks / cus)
        split = math.ceil(whole / cus) + math.ceil((blocks - whole) * parts / cus) / parts
        per_round = ROWS["aiter"] / ROWS["moon"] * speed
        rows.append(
            Row(
                (batch, heads, length),
                theirs,
                ours,
                split,
                parts,
                blocks / cus,
                theirs * per_round / ours,
                theirs * per_round / split,
            )
        )
    return rows


def markdown(rows: list[Row]) -> str:
    """For docs and terminals."""
    lines = [
        "| batch, heads, length | AITER's rounds of 256 rows | our rounds of 384 | with the split (parts) | evenly divided "
        "| speed against AITER, whole | with the split |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        batch, heads, length = row.shape
        lines.append(
            f"| {batch}, {heads}, {length:,} | {row.aiter_rounds:.0f} | {row.rounds:.0f} "
            f"| {row.split_rounds:.2f} ({row.parts}) | {row.ideal:.2f} | {row.speed:.2f} | {row.speed_split:.2f} |"
        )
    return "\n".join(lines)
