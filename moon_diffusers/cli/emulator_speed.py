"""`moon-diffusers emulator-speed`: wave-instructions a second, as a benchmark of the emulator itself."""

from __future__ import annotations

import statistics
from typing import Any

import click

from moon_diffusers.cli.emulated_run import emulate, failed, shape_options
from moon_diffusers.errors import HipError


@click.command(name="emulator-speed")
@shape_options
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--threads", type=click.IntRange(min=0), default=1, show_default=True, help="0: all cores.")
def emulator_speed(repeats: int, threads: int, **call: Any) -> None:
    """Time KERNEL (auto, a family, or aiter) in the emulator, with checks off and on: median, and the spread.

    One workgroup of AITER's kernel over 4096 keys: emulator-speed aiter --seqlen-k 4096
    """
    for checks in ("off", "on"):
        speeds, report = [], None
        for _ in range(repeats):
            try:
                report = emulate({"checks": checks, "threads": str(threads)}, **call).report
            except HipError as error:
                raise failed(error) from error
            speeds.append(report.speed / 1e6)
        assert report is not None
        click.echo(
            f"checks {checks}: {statistics.median(speeds):.2f} M wave-instructions/s "
            f"({min(speeds):.2f} to {max(speeds):.2f} over {repeats} runs of {report.instructions:,}, {report.kernel})"
        )
