"""`moon-diffusers trace`: what each wavefront of one workgroup executes, as files for a timing model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from moon_diffusers.cli.emulated_run import emulate, failed, shape_options
from moon_diffusers.errors import ArgumentError, HipError


@click.command()
@shape_options
@click.option("--workgroup", type=click.IntRange(min=0), default=0, show_default=True, help="Which one, along x first.")
@click.option("--output", type=click.Path(path_type=Path), required=True, help="Prefix of the files that are written.")
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
def trace(workgroup: int, output: Path, force: bool, **call: Any) -> None:
    """Trace one workgroup of KERNEL: auto (the package's choice), a family of its kernels, or aiter.

    Writes OUTPUT.json, a table of the kernel's instructions, and OUTPUT.wave<N>.bin for each wavefront;
    docs/emulator.md describes both, moon_diffusers.emulator.read_trace reads them.
    """
    from moon_diffusers.emulator import read_table, read_trace

    # Else the files would lie beside the folder that is named.
    if output.name in ("", ".."):
        raise ArgumentError("output", repr(str(output)), "a prefix of file names, as folder/name")
    if Path(f"{output}.json").exists() and not force:
        raise ArgumentError("output", f"{output}.json", "a prefix of files that do not exist yet, or --force")
    if not output.parent.is_dir():
        raise ArgumentError("output", str(output), "a prefix in a folder that exists")
    former = set(_files(output))
    try:
        run = emulate({"trace": str(output.absolute()), "trace_workgroup": str(workgroup)}, **call)
    except HipError as error:
        for file in set(_files(output)) - former:
            file.unlink(missing_ok=True)
        raise failed(error) from error
    groups = run.report.grid[0] * run.report.grid[1] * run.report.grid[2]
    if workgroup >= groups:
        raise ArgumentError("workgroup", workgroup, f"at most {groups - 1}: the launch has {groups} workgroups")
    table = read_table(output)
    click.echo(f"{table.kernel}, workgroup {table.workgroup}: {len(table.instructions)} instructions in {output}.json")
    for wave in range(table.waves):
        item = read_trace(output, wave)
        size = Path(f"{output}.wave{wave}.bin").stat().st_size
        click.echo(f"  {output}.wave{wave}.bin: {len(item.index):,} executed, {size:,} B")


def _files(prefix: Path) -> list[Path]:
    """What a trace under this prefix consists of, as far as it is there."""
    waves = re.compile(re.escape(prefix.name) + r"\.wave\d+\.bin")
    beside = prefix.absolute().parent
    return [path for path in beside.iterdir() if path.name == f"{prefix.name}.json" or waves.fullmatch(path.name)]
