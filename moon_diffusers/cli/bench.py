"""`moon-diffusers bench`: attention kernels side by side on this machine's GPU."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from moon_diffusers.cli.gpu import chosen_gpu

if TYPE_CHECKING:
    from moon_diffusers.evidence.bench.grid import Case
    from moon_diffusers.evidence.bench.peers import Found
    from moon_diffusers.evidence.bench.run import CaseResult

GROUP_NAMES = ("dense", "model", "cross", "keys", "causal", "gqa", "varlen", "small", "short")


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
@click.option("--budget-seconds", type=float, help="End after this with what there is.")
@click.option("--graph", is_flag=True, help="Time replays of captured graphs: the device's part of a call alone.")
@click.option(
    "--cudnn",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder with another libcudnn.so.9 (of a nvidia-cudnn wheel) for torch's cudnn backend.",
)
@click.option("--device", "index", type=click.IntRange(min=0), default=0, show_default=True, help="Index of the GPU.")
@click.option("--emulate", type=click.Choice(("gfx942", "gfx950")),
              help="No GPU: run small shapes in the emulator for correctness; prints no time.")  # fmt: skip
@click.option(
    "--rows", type=click.IntRange(min=1), default=200, show_default=True, help="Longest sequence under --emulate."
)
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
    budget_seconds: float | None,
    graph: bool,
    cudnn: Path | None,
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
    if cudnn is not None and str(cudnn) != os.environ.get("MOON_BENCH_CUDNN"):
        restart_with(cudnn)
    from moon_diffusers.evidence.files import check_folder

    if output is not None:
        check_folder(output)
    from moon_diffusers.evidence.bench import grid, peers, report, schedule, telemetry
    from moon_diffusers.evidence.bench.run import Bench, run
    from moon_diffusers.evidence.budget import Budget

    cases = [case for case in grid.select(groups) if not names or any(text in case.name for text in names)]
    if not cases:
        raise click.UsageError(f"--case: {', '.join(names)} matches no case of the chosen groups")
    try:
        method = schedule.Method(block_ms / 1e3, rounds, discard)
        budget = Budget(budget_seconds)
    except ValueError as error:
        raise click.UsageError(str(error)) from error

    found = peers.discover(tuple(text.lower() for text in only), rescales)
    if emulate:
        return emulated_table(emulate, [case.shrunk(rows) for case in cases], found, output)
    from moon_diffusers.evidence.bench.gpu import GpuClock

    device = chosen_gpu(index, "--emulate gfx942 checks correctness without one")
    clock = GpuClock(device)
    source, counter = telemetry.find_source(index), telemetry.find_energy(index)
    if not found.peers:
        raise click.UsageError(f"--peer: {', '.join(only)} matches no kernel on this machine")

    facts = report.environment(device, source) | {"graph": graph, "energy_counter": counter.name if counter else None}
    for name, why in found.absent.items():
        click.echo(f"not here: {name} ({why})")
    click.echo(f"{facts['gpu']}, torch {facts['torch']}; kernels: {', '.join(p.name for p in found.peers)}")
    done: list[CaseResult] = []

    def keep(result: CaseResult) -> None:
        done.append(result)
        if output:
            report.write(output, done, method, facts, found.absent, baseline or fastest_peer(done))

    setup = Bench(device, clock, method, source, counter, budget)
    if graph:
        from moon_diffusers.evidence.bench.gpu import graphed

        setup = dataclasses.replace(setup, wrap=graphed)
    run(cases, found.peers, setup, click.echo, keep)
    click.echo("\n" + report.markdown(done, baseline or fastest_peer(done), facts))
    if output:
        click.echo(f"written: {output}/bench.json, bench.md, bench.svg")
    if any(peer.peer.startswith("moon") and "wrong output" in peer.note for result in done for peer in result.peers):
        click.echo("our kernel gave a wrong output: see above", err=True)
        sys.exit(1)


def emulated_table(arch: str, cases: list[Case], found: Found, output: Path | None) -> None:
    """Check and count our kernels, and AITER's v3, on small shapes. Exits with 1 if one of ours is wrong."""
    from moon_diffusers.evidence.bench import emulated
    from moon_diffusers.evidence.files import whole_file

    ours = tuple(peer for peer in found.peers if peer.name.startswith("moon"))
    if not ours:
        raise click.UsageError("--peer: none of our kernels is left; others need a GPU")
    for name, why in found.absent.items():
        click.echo(f"not here: {name} ({why})")
    click.echo(f"emulated {arch}; kernels: {', '.join(peer.name for peer in ours)}")
    done: list[emulated.Emulated] = []

    def keep(result: emulated.Emulated) -> None:
        if not done or done[-1].case != result.case:
            click.echo(result.case.name)
        done.append(result)
        click.echo("    " + emulated.line(result))

    # Shapes that differ in size alone are the same when they are small.
    emulated.run(arch, list(dict.fromkeys(cases)), ours, keep)
    click.echo("\n" + emulated.markdown(done, arch))
    if output:
        output.mkdir(parents=True, exist_ok=True)
        rows = {"schema": 1, "emulated": arch, "absent_peers": found.absent, "results": [*map(emulated.as_json, done)]}
        for name, text in (("bench.json", json.dumps(rows, indent=1)), ("bench.md", emulated.markdown(done, arch))):
            with whole_file(output / name) as path:
                path.write_text(text)
        click.echo(f"written: {output}/bench.json, bench.md")
    mine = [result for result in done if result.kernel.startswith("moon")]
    if wrong := [result for result in mine if result.error is None or result.note or result.findings]:
        click.echo(
            f"our kernel gave a wrong output or a finding in {len(wrong)} of {len(mine)} rows: see above", err=True
        )
        sys.exit(1)


def restart_with(cudnn: Path) -> NoReturn:
    """This command again in a process whose loader finds cuDNN in `cudnn` first.

    Raises:
        UsageError: there is no libcudnn there.
    """
    if not any(cudnn.glob("libcudnn.so*")):
        raise click.UsageError(f"--cudnn: {cudnn} has no libcudnn.so")
    paths = [str(cudnn.resolve()), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    environment = {"LD_LIBRARY_PATH": os.pathsep.join(paths), "MOON_BENCH_CUDNN": str(cudnn)}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | environment)


def fastest_peer(results: list[CaseResult]) -> str | None:
    """The fastest kernel that is not ours, on the first case that has one."""
    for result in results:
        others = [peer for peer in result.timed() if not peer.peer.startswith("moon") and peer.blocks is not None]
        if others:
            return min(others, key=lambda peer: peer.blocks.median if peer.blocks else 0.0).peer
    return None
