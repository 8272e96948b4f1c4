"""Writing a finished pair to its folder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from moon_diffusers.errors import MoonError
from moon_diffusers.generation.output import write_text
from moon_diffusers.generation.paired import Outcome
from moon_diffusers.generation.settings import GenerateError
from moon_diffusers.quality.frames import side_by_side
from moon_diffusers.quality.report import jsonable, render_report
from moon_diffusers.quality.video import write_lossless, write_mp4

__all__ = ["write_outcome"]


def write_outcome(folder: Path, outcome: Outcome) -> None:
    """Write videos, latents, report.json and report.html of one pair into an existing folder.

    Raises:
        GenerateError: something cannot be written, e.g. for want of space.
    """
    try:
        _write(folder, outcome)
    except (OSError, SafetensorError) as error:
        if isinstance(error, MoonError):
            raise
        raise GenerateError(f"output is {str(folder.parent)!r}: cannot be written: {error}") from error


def _write(folder: Path, outcome: Outcome) -> None:
    left, right = outcome.without_kernel.frames, outcome.with_kernel.frames
    assert left is not None and right is not None
    write_mp4(folder / "without_kernel.mp4", left, outcome.fps)
    write_mp4(folder / "with_kernel.mp4", right, outcome.fps)
    write_mp4(folder / "side_by_side.mp4", side_by_side(left, right, ("without kernel", "with kernel")), outcome.fps)
    if outcome.report["settings"]["lossless"]:
        write_lossless(folder / "without_kernel.mkv", left, outcome.fps)
        write_lossless(folder / "with_kernel.mkv", right, outcome.fps)
    latents: dict[str, torch.Tensor] = {
        "without_kernel": outcome.without_kernel.latents[-1].contiguous(),
        "with_kernel": outcome.with_kernel.latents[-1].contiguous(),
    }
    save_file(latents, folder / "latents.safetensors")
    hashes = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}
    report = jsonable(outcome.report | {"files": hashes})
    write_text(folder / "report.html", render_report(report, folder))
    # report.json last: its presence says that the folder is whole.
    write_text(folder / "report.json", json.dumps(report, indent=2, allow_nan=False) + "\n")
