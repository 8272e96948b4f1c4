"""`moon-diffusers compare`: what two runs, videos or latent files differ by."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from moon_diffusers.quality.compare import Comparison


@click.command(epilog="Exit codes: 0 done, 1 a limit was passed, 2 bad input.")
@click.argument("run_a", type=click.Path(path_type=Path))
@click.argument("run_b", type=click.Path(path_type=Path))
@click.option("--max-latent-error", type=float, help="Fail when the relative L2 of any latents is larger.")
@click.option("--min-psnr", type=float, help="Fail when the PSNR of any video is lower, in dB.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def compare(run_a: Path, run_b: Path, max_latent_error: float | None, min_psnr: float | None, as_json: bool) -> None:
    """Compare RUN_B against RUN_A: two folders of `moon-diffusers generate`, two videos, or two latent files.

    Videos of any kind that ffmpeg reads; latents as .safetensors, .npy or .pt.
    """
    from moon_diffusers.quality.compare import CompareError, compare_paths
    from moon_diffusers.quality.video import require_video_packages

    # Every comparison with NaN is false: such a limit would let everything pass.
    if max_latent_error is not None and not max_latent_error >= 0:
        raise CompareError(f"max_latent_error is {max_latent_error}; expected a number of at least 0")
    if min_psnr is not None and math.isnan(min_psnr):
        raise CompareError(f"min_psnr is {min_psnr}; expected a number of dB")
    require_video_packages()
    comparison = compare_paths(run_a, run_b)
    failures = _failures(comparison, max_latent_error, min_psnr)
    if as_json:
        content = dataclasses.asdict(comparison) | {"identical": comparison.identical, "failures": failures}
        click.echo(json.dumps(content, indent=2, allow_nan=False))
    else:
        for line in _lines(comparison):
            click.echo(line)
        for failure in failures:
            click.echo(f"FAIL  {failure}")
    if failures:
        raise SystemExit(1)


def _lines(comparison: Comparison) -> list[str]:
    lines = []
    if comparison.rows:
        width = max(len(row[0]) for row in comparison.rows) + 2
        column = max(len("A"), *(len(row[1]) for row in comparison.rows)) + 2
        lines.append(f"{'':<{width}}{'A':<{column}}B")
        lines += [f"{name:<{width}}{a:<{column}}{b}".rstrip() for name, a, b in comparison.rows]
    for name, latents in comparison.latents.items():
        if latents["identical"]:
            lines.append(f"latents {name}: identical")
        else:
            error, largest = (_number(latents[key], ".3e") for key in ("relative_l2", "max_abs"))
            lines.append(f"latents {name}: relative L2 {error}, max abs {largest}")
    for name, frames in comparison.frames.items():
        if frames["psnr"] is None:
            lines.append(f"frames {name}: identical")
        else:
            text = f"PSNR {frames['psnr']:.2f} dB (worst {frames['psnr_worst']:.2f}), SSIM {_number(frames['ssim'], '.5f')}"
            flip = "" if frames["flip"] is None else f", FLIP {frames['flip']:.4f}"
            lines.append(f"frames {name}: {text}, temporal {_number(frames['temporal'], '.5f')}{flip}")
    return lines + [f"note: {note}" for note in comparison.notes]


def _failures(comparison: Comparison, max_latent_error: float | None, min_psnr: float | None) -> list[str]:
    """Return what is beyond the limits; a figure that a limit asks for and that does not exist is beyond it."""
    failures = []
    if max_latent_error is not None:
        failures += [f"latents {name}: not compared" for name in comparison.not_compared["latents"]]
        if not comparison.latents:
            failures.append("no latents were compared")
        for name, latents in comparison.latents.items():
            error = latents["relative_l2"]
            if error is None or error > max_latent_error:
                failures.append(f"latents {name}: relative L2 {_number(error, '.3e')} is above {max_latent_error:g}")
    if min_psnr is not None:
        failures += [f"frames {name}: not compared" for name in comparison.not_compared["frames"]]
        if not comparison.frames:
            failures.append("no frames were compared")
        for name, frames in comparison.frames.items():
            if frames["psnr"] is not None and frames["psnr"] < min_psnr:
                failures.append(f"frames {name}: PSNR {frames['psnr']:.2f} dB is below {min_psnr:g} dB")
    return failures


def _number(value: Any, form: str) -> str:
    return "not there" if value is None else format(value, form)
