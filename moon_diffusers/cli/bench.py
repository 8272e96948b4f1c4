"""`moon-diffusers bench`: attention kernels side by side on this machine's GPU."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from moon_diffusers.evidence.bench.run import CaseResult

GROUP_NAMES = ("dense", "model", "cross", "causal", "gqa", "varlen", "small")


@click.command("bench")
@click.option(
    "--group",
    "groups",
    multiple=True,
    type=click.Choice(GROUP_NAMES),
    help="Group of shapes; repeat for more (default: all).",
)
@click.option(
    "--case", "names", multiple=True, metavar="TEXT", help="Keep the cases whose name contains TEXT; repeat for more."
)
@click.option(
    "--peer", "only", multiple=True, metavar="TEXT", help="Keep the kernels whose name contains TEXT; repeat for more."
)
@click.option("--rescale", "rescales", multiple=True, default=("auto",), show_default=True,
              type=click.Choice(("auto", "exact", "lazy")), help="Rescale policies of our kernel.")  # fmt: skip
@click.option(
    "--baseline",
    metavar="NAME",
    help="Kernel that ratios are given against (default: the fastest peer of the first case).",
)
@click.option("--block-ms", default=250.0, show_default=True, help="Duration of a block.")
@click.option("--rounds", default=16, show_default=True, help="Rounds; each kernel runs one block a round.")
@click.option("--discard", default=4, show_default=True, help="First rounds that warm up and do not count.")
@click.option("--device", "index", default=0, show_default=True, help="Index of the GPU.")
@click.option("--emulate", type=click.Choice(("gfx942", "gfx950")),
              help="No GPU: run small shapes in the emulator for correctness; prints no time.")  # fmt: skip
@click.option("--rows", default=200, show_default=True, help="Longest sequence under --emulate.")
@click.option(
    "--output", type=click.Path(path_type=Path, file_okay=False), help="Folder for bench.json, bench.md and bench.svg."
)
def bench(
    groups: tuple[str, ...],
    names: tuple[str, ...],
    only: tuple[str, ...],
    rescales: tuple[str, ...],
    baseline: str | None,
    block_ms: float,
    rounds: int,
    discard: int,
    index: int,
    emulate: str | None,
    rows: int,
    output: Path | None,
) -> None:
    """Time attention kernels side by side: ours and every one found on this machine.

    Each output is first checked on sampled rows against fp32; a wrong kernel is not timed. Then the kernels run in
    rotated blocks of equal duration, the last-level cache flushed before each, the first rounds discarded; the median of
    the rest is given with its spread, and ratios are formed within rounds. The V pre-pass is inside our figure.

    \b
    Examples:
      moon-diffusers bench                                     everything, on GPU 0
      moon-diffusers bench --group dense --output out          the published shapes, kept as JSON, table and plot
      moon-diffusers bench --case wan --peer moon --peer torch
      moon-diffusers bench --emulate gfx942                    correctness on a machine without a GPU
    """
    import torch

    from moon_diffusers.evidence.bench import grid, peers, report, schedule, telemetry
    from moon_diffusers.evidence.bench.run import run

    cases = [case for case in grid.select(groups) if not names or any(text in case.name for text in names)]
    if not cases:
        raise click.UsageError(f"--case: {', '.join(names)} matches no case of the chosen groups")
    try:
        method = schedule.Method(block_ms / 1e3, rounds, discard)
    except ValueError as error:
        raise click.UsageError(str(error)) from error

    clock: schedule.Clock | None = None
    source = None
    stack = contextlib.ExitStack()
    if emulate:
        from moon_diffusers.emulation import emulate as emulation

        device = torch.device("cpu")
        stack.enter_context(emulation(emulate))
        cases = [case.shrunk(rows) for case in cases]
        only = only or ("moon",)
    else:
        from moon_diffusers.evidence.bench.gpu import GpuClock

        if not torch.cuda.is_available():
            raise click.UsageError("no GPU that torch can use; --emulate gfx942 checks correctness without one")
        device = torch.device("cuda", index)
        clock = GpuClock(device)
        source = telemetry.find_source(index)
    found = peers.discover(tuple(text.lower() for text in only), rescales)
    if not found.peers:
        raise click.UsageError(f"--peer: {', '.join(only)} matches no kernel on this machine")

    facts = report.environment(device, source)
    where = facts.get("gpu", f"emulated {emulate}")
    click.echo(f"{where}, torch {facts['torch']}; kernels: {', '.join(p.name for p in found.peers)}")
    done: list[CaseResult] = []

    def keep(result: CaseResult) -> None:
        done.append(result)
        if output:
            report.write(output, done, method, facts, found.absent, baseline or fastest_peer(done))

    with stack:
        run(cases, found.peers, device, clock, method, source, click.echo, keep)
    click.echo("\n" + report.markdown(done, baseline or fastest_peer(done), facts))
    if output:
        click.echo(f"written: {output}/bench.json, bench.md" + (", bench.svg" if clock else ""))
    if any(peer.peer.startswith("moon") and "wrong output" in peer.note for result in done for peer in result.peers):
        click.echo("our kernel gave a wrong output: see above", err=True)
        sys.exit(1)


def fastest_peer(results: list[CaseResult]) -> str | None:
    """The fastest kernel that is not ours, on the first case that has one."""
    for result in results:
        others = [peer for peer in result.timed() if not peer.peer.startswith("moon") and peer.blocks is not None]
        if others:
            return min(others, key=lambda peer: peer.blocks.median if peer.blocks else 0.0).peer
    return None
