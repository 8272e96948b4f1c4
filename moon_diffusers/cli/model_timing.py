"""`moon-diffusers model-timing`: what the machine code implies for its time, beside AITER's, with its uncertainty."""

from __future__ import annotations

import json
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from moon_diffusers.evidence.capture import CapturedCall
    from moon_diffusers.evidence.timing.comparison import Row
    from moon_diffusers.evidence.timing.constants import Grid
    from moon_diffusers.evidence.timing.ensemble import Steady, Whole
    from moon_diffusers.evidence.timing.traces import Data, Subject

# AITER's cost per key and row depends neither on the data nor on how many keys there are: these few suffice to filter.
FILTER_KEYS = 2048


@click.command("model-timing")
@click.option("--arch", type=click.Choice(("gfx942", "gfx950")), default="gfx942", show_default=True)
@click.option(
    "--data",
    "kinds",
    multiple=True,
    type=click.Choice(("flat", "normal", "peaky")),
    default=("flat", "normal"),
    show_default=True,
    help="Inputs: equal scores, so that no maximum rises; N(0,1); keys four times as large.",
)
@click.option(
    "--keys",
    type=click.IntRange(min=512),
    default=2048,
    show_default=True,
    help="Keys of the longer trace; the shorter has half. Maxima rise less often later.",
)
@click.option(
    "--whole", is_flag=True, help="Whole launches of --keys keys, begin and end included, not the steady state."
)
@click.option(
    "--compare",
    "tables",
    multiple=True,
    type=click.Choice(("limits", "energy")),
    default=("limits", "energy"),
    show_default=True,
    help="Tables behind the ratios: what limits each kernel; what it moves for its work.",
)
@click.option(
    "--sets",
    "count",
    type=click.IntRange(min=1),
    default=1500,
    show_default=True,
    help="Sets of constants drawn from the grid.",
)
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--grid",
    type=click.Choice(("published", "wide")),
    help="Which sets of constants: those that agree with what has been published or reported (default: gfx950), or all "
    "(default: gfx942, whose sets AITER's published ratios filter).",
)
@click.option(
    "--constants",
    "known",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Constants that are known, as scripts/measure_cdna_constants.py prints them; the grid spans the others.",
)
@click.option(
    "--captured",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Also model the calls that `moon-diffusers capture` kept in this file: whole launches, begin and end included.",
)
@click.option(
    "--timeline",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw two waves of a SIMD over some tiles (.png or .svg), our first kernel, published constants.",
)
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Also write the figures as JSON.")
def model_timing(
    arch: str,
    kinds: tuple[Data, ...],
    keys: int,
    whole: bool,
    tables: tuple[str, ...],
    count: int,
    seed: int,
    grid: Grid | None,
    known: Path | None,
    captured: Path | None,
    timeline: Path | None,
    output: Path | None,
) -> None:
    """Model the steady state of our kernels beside AITER's on one compute unit.

    One workgroup of each kernel runs in the emulator; its trace is replayed under many sets of constants that nobody has
    published. Only sets that reproduce AITER's published ratios between its rounding modes are kept (gfx942; nothing
    published constrains gfx950); with --constants none is left out. Figures are minimum / median / maximum over the kept
    sets. Clocks and power are outside the model, and so is everything beyond one compute unit.
    """
    from moon_diffusers.evidence.files import check_file
    from moon_diffusers.evidence.timing import comparison, constants, ensemble
    from moon_diffusers.evidence.timing.traces import Subject

    if timeline is not None:
        if timeline.suffix not in (".png", ".svg"):
            raise click.UsageError(f"--timeline: {timeline}; accepted: a name that ends in .png or .svg")
        check_file(timeline, "timeline")
    if output is not None:
        check_file(output)
    source, values = _known(known, arch)
    calls = _captured_calls(captured)
    sets = constants.sample(arch, count, seed, values, grid)
    peers = {mode: Subject("aiter", arch, mode) for mode in comparison.ROUNDINGS[arch]}
    kept = sets
    if arch == "gfx942":
        kept = ensemble.survivors(
            {mode: _steady(subject, FILTER_KEYS, "flat") for mode, subject in peers.items()}, sets
        )
        click.echo(
            f"{arch}: {len(kept)} of {len(sets)} sets of constants reproduce AITER's published ratios within 3 %"
        )
    else:
        click.echo(f"{arch}: {len(kept)} sets of constants; no published ratio constrains them")
    if known:
        click.echo(f"constants of {known}: {source}; all {len(sets)} sets are used")
        kept = sets
    if not kept:
        raise click.ClickException("no set of constants reproduces the published ratios: draw more with --sets")
    rows: list[Row] = []
    click.echo(comparison.HEADER)

    def compare(label: str, make: Callable[[Subject], Steady | Whole]) -> None:
        for row in comparison.compare(arch, label, kept, make):
            rows.append(row)
            click.echo(comparison.line(row))

    for data in kinds:
        compare(data, lambda subject, data=data: (_launch if whole else _steady)(subject, keys, data))  # type: ignore[misc]
    for number, call in enumerate(calls, 1):
        click.echo(f"captured {number}: {_describe(call)}, whole launch")
        compare(f"captured {number}", lambda subject, call=call: _captured(subject, call))  # type: ignore[misc]
    for name in tables:
        click.echo("\n" + (comparison.limits if name == "limits" else comparison.energy)(rows))
    first = next((row for row in rows if row.kernel.startswith("moon rtne")), None)
    if first is not None:
        from moon_diffusers.evidence.timing import whole_gpu

        speed = first.found.speed.middle
        click.echo(
            f"\nWhole GPU, self-attention, {first.kernel} at its median of {speed:.2f} a key and row ({first.data}):"
        )
        click.echo(whole_gpu.markdown(whole_gpu.table(arch, speed)))
    if timeline:
        from moon_diffusers.evidence.timing.timeline import draw
        from moon_diffusers.evidence.timing.traces import trace

        subject = Subject("moon", arch, comparison.ROUNDINGS[arch][0], comparison.RESCALES[arch][0])
        draw(trace(subject, keys, kinds[0]), constants.PUBLISHED[arch], timeline, f"{subject.name} on {arch}, modelled")
        click.echo(f"timeline: {timeline}")
    if output:
        from moon_diffusers.evidence.files import whole_file
        from moon_diffusers.evidence.repeat import software
        from moon_diffusers.runtime.code_objects import load_manifest

        document = {
            "schema": 1,
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "command": " ".join(["moon-diffusers", *sys.argv[1:]]),
            "software": software(),
            "code_objects": {item.file: item.sha256 for item in load_manifest().code_objects if item.arch == arch},
            "arch": arch,
            "keys": keys,
            "seed": seed,
            "grid": grid or constants.DEFAULT_GRID[arch],
            "known": {"source": source, "constants": values},
            "drawn": len(sets),
            "kept": len(kept),
            "whole": whole,
            "captured": {f"captured {number}": _describe(call) for number, call in enumerate(calls, 1)},
            "rows": [comparison.as_json(row) for row in rows],
        }
        with whole_file(output) as path:
            path.write_text(json.dumps(document, indent=1))


def _known(path: Path | None, arch: str) -> tuple[str, dict[str, tuple[int, ...]]]:
    from moon_diffusers.errors import MoonError
    from moon_diffusers.evidence.timing.calibration import read_document

    if path is None:
        return "", {}
    try:
        data = json.loads(path.read_text())
        values = read_document(data, arch)
        return str(data.get("source", "")), values
    except (OSError, ValueError, MoonError) as error:
        raise click.UsageError(f"--constants {path}: {error}") from error


def _steady(subject: Subject, keys: int, data: Data) -> Steady:
    from moon_diffusers.evidence.timing.ensemble import Steady
    from moon_diffusers.evidence.timing.traces import trace

    return Steady(trace(subject, keys // 2, data), trace(subject, keys, data), keys - keys // 2, subject.rows)


def _launch(subject: Subject, keys: int, data: Data) -> Whole:
    from moon_diffusers.evidence.timing.ensemble import Whole
    from moon_diffusers.evidence.timing.traces import trace

    return Whole(trace(subject, keys, data), keys, subject.rows)


def _captured_calls(path: Path | None) -> list[CapturedCall]:
    from moon_diffusers.evidence.capture import load

    return load(path) if path else []


def _describe(call: CapturedCall) -> str:
    return f"{call.module}, step {call.step}, {call.k.shape[1]} keys"


def _captured(subject: Subject, call: CapturedCall) -> Whole:
    from moon_diffusers.evidence.timing.ensemble import Whole
    from moon_diffusers.evidence.timing.traces import trace_captured

    return Whole(trace_captured(subject, call), call.k.shape[1], subject.rows)
