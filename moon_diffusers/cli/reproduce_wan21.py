"""`moon-diffusers reproduce-wan21`: Wan2.1 with and without the kernel on this machine's GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from moon_diffusers.cli.gpu import chosen_gpu


@click.command("reproduce-wan21")
@click.option("--model", "sizes", multiple=True, type=click.Choice(("1.3b", "14b")), default=("1.3b", "14b"),
              show_default=True, help="Transformer; repeat for more.")  # fmt: skip
@click.option("--video", "resolutions", multiple=True, type=click.Choice(("480p", "720p")), default=("480p", "720p"),
              show_default=True, help="832x480 or 1280x720, 81 frames; repeat for more.")  # fmt: skip
@click.option("--mode", "modes", multiple=True, type=click.Choice(("eager", "compile")), default=("eager", "compile"),
              show_default=True, help="Both sides eager, or both by torch.compile; repeat for more.")  # fmt: skip
@click.option("--weights", type=click.Path(path_type=Path, exists=True, file_okay=False),
              help="Folder of a Wan2.1 pipeline or transformer; needs one --model (default: random weights).")  # fmt: skip
@click.option("--self-only", is_flag=True, help="Only self-attention on the kernel (default: cross-attention too).")
@click.option("--sdpa", default="fastest", show_default=True,
              type=click.Choice(("fastest", "default", "cudnn", "flash", "efficient")),
              help="Torch's side: the fastest backend for the shape, torch's own choice, or one by name.")  # fmt: skip
@click.option("--pipeline", "pipelines", multiple=True, metavar="MODEL-VIDEO",
              help="Also a whole pipeline run, e.g. 1.3b-480p; repeat for more.")  # fmt: skip
@click.option("--pipeline-steps", default=50, show_default=True, help="Denoising steps of the pipeline run.")
@click.option("--no-steps", is_flag=True, help="No single steps, only the pipeline runs.")
@click.option("--rounds", default=10, show_default=True, help="Kept rounds of a row.")
@click.option("--row-seconds", default=75.0, show_default=True, help="Begin no round after this; at least 3 are kept.")
@click.option("--warm-seconds", default=15.0, show_default=True, help="Rounds before this are thrown away.")
@click.option("--budget-seconds", type=float, help="End after this with what there is.")
@click.option("--device", "index", type=click.IntRange(min=0), default=0, show_default=True, help="Index of the GPU.")
@click.option("--dry-run", is_flag=True, help="A tiny model on the CPU: shows that everything runs; no times.")
@click.option("--emulate", default="gfx942", show_default=True, type=click.Choice(("gfx942", "gfx950", "none")),
              help="Whose kernel the dry run emulates; none: every call falls back to torch.")  # fmt: skip
@click.option("--from", "files", multiple=True, type=click.Path(path_type=Path, exists=True, dir_okay=False),
              help="Measure nothing: join these wan21.json into one table and plot; repeat for more.")  # fmt: skip
@click.option("--output", type=click.Path(path_type=Path, file_okay=False), help="Folder for wan21.json, .md and .svg.")
def reproduce_wan21(
    sizes: tuple[str, ...],
    resolutions: tuple[str, ...],
    modes: tuple[str, ...],
    weights: Path | None,
    self_only: bool,
    sdpa: str,
    pipelines: tuple[str, ...],
    pipeline_steps: int,
    no_steps: bool,
    rounds: int,
    row_seconds: float,
    warm_seconds: float,
    budget_seconds: float | None,
    index: int,
    dry_run: bool,
    emulate: str,
    files: tuple[Path, ...],
    output: Path | None,
) -> None:
    """Time one Wan2.1 transformer step with torch SDPA and with MoonAttnProcessor, in turns.

    The model is diffusers' WanTransformer3DModel; a step is one call of it in bf16 (guidance makes two of a denoising
    step). Rounds alternate their direction; the median ratio is given with its spread, the energy by the card's counter,
    the difference of the outputs, and how many calls the kernel served. Works on CUDA and ROCm alike.

    \b
    Examples:
      moon-diffusers reproduce-wan21 --output out                       everything, some 10 minutes on an H200
      moon-diffusers reproduce-wan21 --model 1.3b --video 720p --mode eager
      moon-diffusers reproduce-wan21 --no-steps --pipeline 1.3b-480p    a whole video, with and without
      moon-diffusers reproduce-wan21 --dry-run                          a tiny model in the emulator
    """
    import torch

    from moon_diffusers.end_to_end import report, step, video, wan
    from moon_diffusers.end_to_end.rounds import HostClock, Method
    from moon_diffusers.evidence.bench import telemetry
    from moon_diffusers.evidence.budget import Budget
    from moon_diffusers.evidence.files import check_folder

    if output is not None:
        check_folder(output)
    if min(rounds, pipeline_steps) < 1:
        raise click.UsageError("--rounds and --pipeline-steps must be at least 1")
    if no_steps and not pipelines and not files:
        raise click.UsageError("--no-steps leaves nothing to time without --pipeline")
    if weights is not None and len(sizes) != 1:
        raise click.UsageError("--weights needs exactly one --model")
    wanted = [pair.partition("-")[::2] for pair in pipelines]
    for pair in wanted:
        if pair[0] not in wan.SIZES or pair[1] not in wan.RESOLUTIONS:
            raise click.UsageError(f"--pipeline: {'-'.join(pair)}; accepted: MODEL-VIDEO, e.g. 14b-720p")
    if files:
        whole = report.joined(files)
        if output:
            report.write(output, "wan21", whole, pictures=True)
        click.echo(report.markdown(whole))
        return
    budget = Budget(budget_seconds)
    if dry_run:
        sizes, resolutions, wanted = ("tiny",), ("tiny",), [("tiny", "tiny")] * bool(pipelines)
        pipeline_steps = min(pipeline_steps, 2)
        setup = step.Setup(
            torch.device("cpu"), HostClock(), None, None, Method(1, 1, 0.0, 0.0), budget, sdpa="default",
            self_only=self_only, emulate="" if emulate == "none" else emulate,
        )  # fmt: skip
    else:
        from moon_diffusers.evidence.bench.gpu import GpuClock

        device = chosen_gpu(index, "--dry-run shows that everything runs without one")
        torch.cuda.set_device(device)
        setup = step.Setup(
            device, GpuClock(device), telemetry.find_source(index), telemetry.find_energy(index),
            Method(rounds, min(3, rounds), warm_seconds, row_seconds), budget, sdpa=sdpa, self_only=self_only,
        )  # fmt: skip
    where = report.facts(setup)
    given = "random" if weights is None else weights.name
    rows: list[step.Row] = []
    videos: list[dict[str, Any]] = []

    def keep(finished: bool) -> dict[str, Any]:
        whole = report.document(rows, videos, setup, where, given, finished)
        if output:
            report.write(output, "wan21", whole, pictures=finished)
        return whole

    finished = True
    for name in dict.fromkeys((*(() if no_steps else sizes), *(pair[0] for pair in wanted))):
        if budget.left == 0:
            finished = False
            break
        size = wan.SIZES[name]
        click.echo(f"building {name} ({given} weights), {budget.spent:.0f} s spent")
        model = wan.build(size, weights, setup.device)
        for video_name, mode in [] if no_steps or name not in sizes else [(r, m) for r in resolutions for m in modes]:
            if budget.left == 0:
                finished = False
                break
            row = step.measure_step(model, size, wan.RESOLUTIONS[video_name], mode, setup)
            rows.append(row)
            keep(False)
            click.echo(line(row, setup.device.type == "cpu") + f"  ({budget.spent:.0f} s spent)")
        for _, video_name in [pair for pair in wanted if pair[0] == name]:
            if budget.left == 0:
                finished = False
                break
            done = video.measure_video(model, size, wan.RESOLUTIONS[video_name], setup, weights, pipeline_steps)
            videos.append(done)
            keep(False)
            speed = "" if dry_run or "speed" not in done else f"speed {done['speed']:.3f}, "
            told = f"{speed}{done.get('summary', '')} {done['note']}"
            click.echo(f"pipeline {name} {video_name}: {told}  ({budget.spent:.0f} s spent)")
        del model
        step.free(setup.device)
    click.echo("\n" + report.markdown(keep(finished)))
    if output:
        click.echo(f"written: {output}/wan21.json, .md" + ("" if dry_run else ", .svg"))
    bad = [row for row in rows if row.difference is not None and not row.difference < 0.05]
    if bad:
        click.echo("the two sides' outputs differ by more than rounding: see above", err=True)
        sys.exit(1)


def line(row: Any, dry: bool) -> str:
    """One row for the terminal."""
    text = f"{row.size} {row.resolution} {row.mode}: "
    ratio = row.ratio
    if ratio and not dry:
        ours, theirs = row.sides["moon"].blocks.median, row.sides["sdpa"].blocks.median
        text += f"torch {theirs:.3f} s, moon {ours:.3f} s, speed {ratio['speed']:.3f} +-{ratio['spread']:.2%}"
        text += f", energy {ratio['energy']:.3f}" if "energy" in ratio else ""
    difference = "" if row.difference is None else f" difference {row.difference:.1e},"
    return f"{text}{difference} {row.served} calls on the kernel, {row.fallbacks} fallen back. {row.note}"
