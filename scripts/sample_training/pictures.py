"""What a person looks at: loss curves and contact sheets, as PNG."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

LABEL_HEIGHT = 14  # pixels


def contact_sheet(path: Path, rows: list[tuple[str, np.ndarray]], frames: int = 5, columns: int = 2) -> None:
    """Write ``frames`` evenly spaced frames of every clip, ``columns`` clips side by side, with labels.

    ``rows``: ``(label, clip)`` with clips as float ``(num_frames, height, width, 3)`` in [0, 1].
    """
    height, width = rows[0][1].shape[1:3]
    cell_width, cell_height = frames * width + 8, height + LABEL_HEIGHT + 4
    lines = -(-len(rows) // columns)
    sheet = Image.new("RGB", (columns * cell_width, lines * cell_height), "white")
    draw = ImageDraw.Draw(sheet)
    for number, (label, clip) in enumerate(rows):
        left, top = (number % columns) * cell_width, (number // columns) * cell_height
        draw.text((left + 2, top + 1), label, fill="black")
        for position, index in enumerate(np.linspace(0, len(clip) - 1, frames).round().astype(int)):
            frame = Image.fromarray((clip[index].clip(0, 1) * 255).round().astype(np.uint8))
            sheet.paste(frame, (left + position * width, top + LABEL_HEIGHT))
    sheet.save(path, optimize=True)


def loss_curves(path: Path, records: list[dict[str, float | str]]) -> None:
    """Plot the losses of each stage against its steps. ``records``: rows with ``stage``, ``step`` and figures."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    stages = sorted({str(record["stage"]) for record in records})
    figure, axes = pyplot.subplots(1, max(len(stages), 1), figsize=(6 * max(len(stages), 1), 4), squeeze=False)
    for axis, stage in zip(axes[0], stages, strict=False):
        rows = [record for record in records if record["stage"] == stage]
        for key in ("loss", "kl", "hint"):
            points = [(float(r["step"]), float(r[key])) for r in rows if key in r]
            if points:
                axis.plot(*zip(*points, strict=True), label=key)
        axis.set(title=stage, xlabel="step", yscale="log")
        axis.grid(True, which="both", alpha=0.3)
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
