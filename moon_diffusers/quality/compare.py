"""Comparing what is on disk: two runs of `moon-diffusers generate`, two videos, or two latent files."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from moon_diffusers.errors import MoonError
from moon_diffusers.quality.metrics import compare_frames, compare_latents, warp_error
from moon_diffusers.quality.video import read_video

__all__ = ["CompareError", "Comparison", "compare_paths"]

_VIDEOS = (".mp4", ".mkv", ".webm", ".mov", ".avi", ".gif")
_LATENTS = (".safetensors", ".npy", ".pt")
# What may differ between two runs that are still the same question.
_NOT_COMPARED = ("self_check", "lossless", "attention_errors", "noise_floor", "gate_factor", "minimum_share")


class CompareError(MoonError, ValueError):
    """Two things that cannot be compared."""


@dataclass
class Comparison:
    """What two things differ by.

    Attributes:
        kind: `runs`, `videos` or `latents`.
        rows: `(figure, of A, of B)` as text, for figures that each has by itself.
        latents: by name, `LatentMetrics.as_dict()` of B against A.
        frames: by name, `FrameMetrics.as_dict()` of B against A.
        notes: what the reader should know before believing the figures.
        not_compared: names of latents and frames that only one side has, or that differ in shape.
    """

    kind: str
    rows: list[tuple[str, str, str]] = field(default_factory=list)
    latents: dict[str, dict[str, Any]] = field(default_factory=dict)
    frames: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    not_compared: dict[str, list[str]] = field(default_factory=lambda: {"latents": [], "frames": []})

    @property
    def identical(self) -> bool:
        """True when every latent and every frame of both sides was compared, and is equal."""
        if any(self.not_compared.values()):
            return False
        frames = all(frame["identical_frames"] == frame["frames"] for frame in self.frames.values())
        return frames and all(latent["identical"] for latent in self.latents.values())


def compare_paths(a: Path, b: Path) -> Comparison:
    """Compare B against A.

    Raises:
        CompareError: one is missing or of an unknown kind, or they are of two kinds.
        VideoError: a video cannot be read.
    """
    kinds = (_kind("RUN_A", a), _kind("RUN_B", b))
    if kinds[0] != kinds[1]:
        raise CompareError(f"RUN_A is a {kinds[0][:-1]} and RUN_B a {kinds[1][:-1]}; expected two of a kind")
    if kinds[0] == "runs":
        return _compare_runs(a if a.is_dir() else a.parent, b if b.is_dir() else b.parent)
    if kinds[0] == "videos":
        return _compare_videos(a, b)
    comparison = Comparison("latents")
    _add_latents(comparison, _read_latents(a), _read_latents(b))
    return comparison


def _kind(argument: str, path: Path) -> str:
    if path.is_dir():
        if (path / "report.json").is_file():
            return "runs"
        raise CompareError(f"{argument} is {str(path)!r}: the folder has no report.json")
    if not path.is_file():
        raise CompareError(f"{argument} is {str(path)!r}: does not exist")
    if path.name == "report.json":
        return "runs"
    if path.suffix.lower() in _VIDEOS:
        return "videos"
    if path.suffix.lower() in _LATENTS:
        return "latents"
    accepted = ", ".join((*_VIDEOS, *_LATENTS))
    raise CompareError(f"{argument} is {str(path)!r}: expected a run's folder, or a file that ends in {accepted}")


@dataclass(frozen=True)
class _Run:
    """What is compared of a run's report."""

    settings: dict[str, Any]
    initial: str
    code_objects: Any
    weights: Any
    figures: dict[str, str]
    step_seconds: float


def _compare_runs(a: Path, b: Path) -> Comparison:
    comparison = Comparison("runs")
    runs = (_read_run(a), _read_run(b))
    for name in sorted(runs[0].settings.keys() | runs[1].settings.keys()):
        values = (runs[0].settings.get(name), runs[1].settings.get(name))
        if values[0] != values[1] and name not in _NOT_COMPARED:
            comparison.rows.append((f"setting {name}", str(values[0]), str(values[1])))
    if runs[0].initial != runs[1].initial:
        comparison.notes.append("the runs started from different latents: their videos differ for that alone")
    if runs[0].code_objects != runs[1].code_objects:
        comparison.notes.append("the runs used different builds of the kernels")
    if runs[0].weights != runs[1].weights:
        comparison.notes.append("the runs used different weights")
    comparison.rows += [(name, value, runs[1].figures[name]) for name, value in runs[0].figures.items()]
    ratio = f"{runs[0].step_seconds / runs[1].step_seconds:.3f}x" if runs[1].step_seconds else "-"
    comparison.rows.append(("step with kernel, A / B", ratio, ""))
    if any(run.settings.get("emulate") for run in runs):
        comparison.notes.append("a run was emulated: step times say nothing about a GPU")
    paths = (a / "latents.safetensors", b / "latents.safetensors")
    present = [path.is_file() for path in paths]
    if all(present):
        _add_latents(comparison, _read_latents(paths[0]), _read_latents(paths[1]))
    elif any(present):
        comparison.notes.append(f"{str(paths[present.index(False)])!r} does not exist: latents not compared")
        comparison.not_compared["latents"].append("latents")
    for name in ("without_kernel", "with_kernel"):
        suffix = ".mkv" if all((run / f"{name}.mkv").is_file() for run in (a, b)) else ".mp4"
        if suffix == ".mp4":
            note = "frames were read from mp4, which is lossy (about 42 dB); generate with --lossless for exact figures"
            if note not in comparison.notes:
                comparison.notes.append(note)
        _add_frames(comparison, name, a / f"{name}{suffix}", b / f"{name}{suffix}")
    return comparison


def _figures(report: dict[str, Any]) -> dict[str, str]:
    latents, frames = report["comparison"]["latents"], report["comparison"]["frames"]
    floor = report["noise_floors"][0]["latents"]["relative_l2"]
    return {
        "gate": "passed" if report["gate"]["passed"] else "failed",
        "latent error": _number(latents["relative_l2"], ".3e"),
        "noise floor": _number(floor, ".3e"),
        "PSNR": "identical" if frames["psnr"] is None else f"{frames['psnr']:.2f} dB",
        "SSIM": _number(frames["ssim"], ".5f"),
        "calls on the kernel": f"{report['routing']['share']:.1%} of {report['routing']['calls']}",
        "median step, without kernel": f"{statistics.median(report['runs']['without_kernel']['step_seconds']):.4f} s",
        "median step, with kernel": f"{statistics.median(report['runs']['with_kernel']['step_seconds']):.4f} s",
    }


def _compare_videos(a: Path, b: Path) -> Comparison:
    comparison = Comparison("videos")
    _add_frames(comparison, "video", a, b)
    if ".mkv" not in (a.suffix.lower(), b.suffix.lower()):
        comparison.notes.append("lossy videos: the figures hold the codec's error too")
    return comparison


def _add_frames(comparison: Comparison, name: str, a: Path, b: Path) -> None:
    left, right = read_video(a)[0], read_video(b)[0]
    if left.shape != right.shape:
        comparison.notes.append(f"{name}: shapes {left.shape} and {right.shape} differ; frames not compared")
        comparison.not_compared["frames"].append(name)
        return
    comparison.frames[name] = compare_frames(left, right).as_dict()
    comparison.rows.append((f"warp error, {name}", _number(warp_error(left), ".5f"), _number(warp_error(right), ".5f")))


def _add_latents(comparison: Comparison, a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    common = [name for name in a if name in b]
    if not common:
        raise CompareError(f"the latents share no name: {', '.join(a)} and {', '.join(b)}")
    for name in sorted(a.keys() ^ b.keys()):
        comparison.notes.append(f"{name}: latents of one side only; not compared")
        comparison.not_compared["latents"].append(name)
    for name in common:
        if a[name].shape != b[name].shape:
            shapes = f"{tuple(a[name].shape)} and {tuple(b[name].shape)}"
            comparison.notes.append(f"{name}: latents of shapes {shapes} differ; not compared")
            comparison.not_compared["latents"].append(name)
        else:
            comparison.latents[name] = compare_latents(a[name], b[name]).as_dict()


def _read_latents(path: Path) -> dict[str, torch.Tensor]:
    try:
        if path.suffix.lower() == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(path))
        if path.suffix.lower() == ".npy":
            import numpy as np

            return {"latents": torch.from_numpy(np.load(path, allow_pickle=False))}
        value = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # each format has errors of its own; all mean that the file is no such file
        reason = " ".join(str(error).split())[:200]
        raise CompareError(f"latents {str(path)!r} cannot be read: {reason}") from error
    if isinstance(value, torch.Tensor):
        return {"latents": value}
    if isinstance(value, dict) and value and all(isinstance(item, torch.Tensor) for item in value.values()):
        return {str(name): item for name, item in value.items()}
    raise CompareError(f"latents {str(path)!r}: expected a tensor, or a dict of tensors")


def _read_run(folder: Path) -> _Run:
    path = folder / "report.json"
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        if report["kind"] != "moon-diffusers generate" or report["schema"] != 1:
            raise CompareError(
                f"report {str(path)!r}: kind {report['kind']!r} of schema {report['schema']} is not known"
            )
        return _Run(
            settings=dict(report["settings"]),
            initial=report["initial_latents_sha256"],
            code_objects=report["environment"]["code_objects"],
            weights=report["model"]["weights"],
            figures=_figures(report),
            step_seconds=statistics.median(report["runs"]["with_kernel"]["step_seconds"]),
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        if isinstance(error, MoonError):
            raise
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise CompareError(f"report {str(path)!r} cannot be read: {reason}") from error


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
