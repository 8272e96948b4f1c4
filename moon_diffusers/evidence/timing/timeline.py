"""A picture of the two waves of a SIMD over a few tiles: who holds the matrix pipe, who the vector port, who waits."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from moon_diffusers.evidence.files import whole_file

from .library import CLASSES, Constants, Workgroup, replay

# (label, classes, colour); a bar is as long as its unit is held.
_LANES = (
    ("matrix", ("mfma",), "#3a5fcd"),
    ("exponentials", ("transcendental",), "#c1440e"),
    ("other vector", ("valu", "packed"), "#e0a030"),
    ("LDS", ("lds_read", "lds_write"), "#3c8d5a"),
    ("memory", ("vector_load", "vector_store", "lds_dma"), "#7b5ea7"),
    ("barrier", ("barrier",), "#111111"),
)


def draw(workgroup: Workgroup, constants: Constants, path: Path, title: str, cycles: int = 8000, simd: int = 0) -> None:
    """Draw `cycles` cycles from the middle of the replay to `path` (its ending says the format)."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    result = replay(workgroup, constants, timeline=True)
    begin = result.cycles // 2
    kinds = workgroup.instructions["kind"]
    held = {"transcendental": constants.transcendental, "valu": constants.valu, "packed": constants.valu, "barrier": 24}
    waves = [wave for wave in range(len(workgroup.waves)) if wave % 4 == simd]
    figure, axes = plt.subplots(figsize=(12, 1.0 + 1.5 * len(waves)), layout="constrained")
    ticks, labels = [], []
    for place, wave in enumerate(waves):
        issue = result.issue[wave].astype(np.int64)
        inside = (issue >= begin) & (issue < begin + cycles)
        instruction = workgroup.waves[wave].records["instruction"][inside]
        at = issue[inside] - begin
        for lane, (label, classes, colour) in enumerate(_LANES):
            y = -(place * (len(_LANES) + 1) + lane)
            ticks.append(y)
            labels.append(f"wave {wave}: {label}" if lane == 0 else label)
            for name in classes:
                chosen = kinds[instruction] == CLASSES.index(name)
                widths = workgroup.instructions["matrix_cycles"][instruction[chosen]]
                lengths = widths if name == "mfma" else np.full(int(chosen.sum()), held.get(name, 4))
                spans = list(zip(at[chosen].tolist(), lengths.tolist(), strict=True))
                axes.broken_barh(spans, (y - 0.4, 0.8), color=colour, linewidth=0)
    axes.set_yticks(ticks, labels, fontsize=8)
    axes.set_xlim(0, cycles)
    axes.set_xlabel("cycles")
    axes.set_title(title, fontsize=10)
    with whole_file(path) as temporary:
        figure.savefig(temporary, dpi=120, format=path.suffix.removeprefix("."))
    plt.close(figure)
