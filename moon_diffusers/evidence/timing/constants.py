"""The constants of each architecture: what is published, and the grid of what is not.

Published (AMD's ISA guides and matrix calculator, LLVM's scheduling and hazard tables): cycles of the matrix instructions,
vector issue blocked by them, the LDS banks. Not published, or reported in more than one way: everything in `UNCERTAIN`.
`scripts/measure_cdna_constants.py` replaces these guesses by one run on silicon.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from .library import Constants

PUBLISHED: dict[str, Constants] = {
    "gfx942": Constants(transcendental=16, mfma_port=4),
    "gfx950": Constants(transcendental=8, mfma_port=8),
}

UNCERTAIN: dict[str, dict[str, tuple[int, ...]]] = {
    "gfx942": {
        "transcendental": (8, 16),
        "mfma_overlaps_valu": (1, 0),
        "packed_beside_mfma": (0, 1),
        "mfma_result": (4, 16),
        "mfma_accumulate": (0, 8, 16),
        "lds_bytes_per_cycle": (64, 72, 96, 128),
        "lds_latency": (64, 128, 220),
        "l1_bytes_per_cycle": (64, 128),
        "l2_latency": (300, 600, 800),
        "barrier": (8, 32),
    },
    "gfx950": {
        "transcendental": (8, 16),
        "packed_beside_mfma": (0, 1),
        "mfma_result": (8, 16),
        "mfma_accumulate": (0, 4),
        "lds_bytes_per_cycle": (96, 128, 256),
        "lds_latency": (64, 128, 220),
        "l1_bytes_per_cycle": (64, 128),
        "l2_latency": (300, 600, 800),
        "barrier": (8, 32),
    },
}

#: What of the grid agrees with what has been published or reported; the rest of the grid stays as it is.
#: Both: a matrix instruction blocks vector issue for 4 (gfx942) or 8 cycles (gfx950), no longer, and packed fp32 gets no
#: slot beside one. gfx942: a quarter-rate unit takes 16 cycles for a transcendental. gfx950: half of that; LDS reads
#: of 128 B a cycle, 256 by AMD's word; a measured LDS latency of 69 cycles, so 220 is out.
REPORTED: dict[str, dict[str, tuple[int, ...]]] = {
    "gfx942": {"transcendental": (16,), "mfma_overlaps_valu": (1,), "packed_beside_mfma": (0,)},
    "gfx950": {
        "transcendental": (8,),
        "packed_beside_mfma": (0,),
        "lds_bytes_per_cycle": (128, 256),
        "lds_latency": (64, 128),
    },
}

Grid = Literal["published", "wide"]
#: gfx942 takes the wide grid, because published ratios filter it; nothing filters gfx950's.
DEFAULT_GRID: dict[str, Grid] = {"gfx942": "wide", "gfx950": "published"}

#: Published times of AITER v3 on MI300X relative to its rtz mode, geometric mean of the published shapes.
AITER_RATIOS = {"rtne": 1.134, "rtna": 1.080}
#: How far a set of constants may be from each published ratio.
AGREEMENT = 0.03


def grid(arch: str, known: Mapping[str, Sequence[int]] | None = None, which: Grid | None = None) -> list[Constants]:
    """Every combination of the uncertain constants of `arch`; `known` names values that replace a constant's.

    `which`: "published" leaves out what contradicts `REPORTED`, "wide" nothing; None is the architecture's default.
    """
    values: dict[str, Sequence[int]] = {**UNCERTAIN[arch]}
    if (which or DEFAULT_GRID[arch]) == "published":
        values |= REPORTED[arch]
    values |= known or {}
    rows = itertools.product(*values.values())
    return [replace(PUBLISHED[arch], **dict(zip(values, row, strict=True))) for row in rows]


def sample(
    arch: str,
    count: int,
    seed: int = 0,
    known: Mapping[str, Sequence[int]] | None = None,
    which: Grid | None = None,
) -> list[Constants]:
    """`count` sets of the grid, drawn without repetition; all of them where the grid has no more."""
    sets = grid(arch, known, which)
    return sets if count >= len(sets) else random.Random(seed).sample(sets, count)
