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

#: Published times of AITER v3 on MI300X relative to its rtz mode, geometric mean of the published shapes.
AITER_RATIOS = {"rtne": 1.134, "rtna": 1.080}
#: How far a set of constants may be from each published ratio.
AGREEMENT = 0.03


def grid(arch: str, known: Mapping[str, Sequence[int]] | None = None) -> list[Constants]:
    """Every combination of the uncertain constants of `arch`; `known` names values that replace a constant's."""
    values = {**UNCERTAIN[arch], **(known or {})}
    rows = itertools.product(*values.values())
    return [replace(PUBLISHED[arch], **dict(zip(values, row, strict=True))) for row in rows]


def sample(arch: str, count: int, seed: int = 0, known: Mapping[str, Sequence[int]] | None = None) -> list[Constants]:
    """`count` sets of the grid, drawn without repetition; all of them where the grid has no more."""
    sets = grid(arch, known)
    return sets if count >= len(sets) else random.Random(seed).sample(sets, count)
