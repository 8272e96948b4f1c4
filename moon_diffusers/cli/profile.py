"""`moon-diffusers profile`: what a kernel executes, where its hot loop is and what one turn of it costs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from moon_diffusers.cli.emulated_run import emulate, failed, shape_options
from moon_diffusers.errors import HipError

if TYPE_CHECKING:
    from moon_diffusers.cli.emulated_run import Run
    from moon_diffusers.emulator import HotLoop, Report

ORDER = (
    "mfma", "smfmac", "valu", "trans", "salu", "smem", "lds_read", "lds_write", "lds_other", "vmem_load", "vmem_store",
    "vmem_lds", "branch", "barrier", "waitcnt", "nop", "setprio", "other",
)  # fmt: skip


@click.command(epilog="Exit codes: 0 no error was found, 1 the checks found errors, 2 bad input.")
@shape_options
@click.option("--checks/--no-checks", default=True, show_default=True, help="Run the emulator's checks as well.")
@click.option("--listing", is_flag=True, help="Print the hot loops' instructions with how often each ran.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def profile(checks: bool, listing: bool, as_json: bool, **call: Any) -> None:
    """Run KERNEL in the emulator and count.

    KERNEL is auto (the package's choice), a family of its kernels, or aiter.
    """
    from moon_diffusers.emulator import hot_loops

    try:
        run = emulate({"counts": "on", "checks": "on" if checks else "off"}, **call)
    except HipError as error:
        raise failed(error) from error
    counts = run.report.counts
    assert counts is not None
    loops = hot_loops(run.listing(), counts)
    if as_json:
        click.echo(json.dumps(_facts(run, loops), indent=1))
    else:
        _print(run, loops, listing)
    if any(report.errors for report in run.reports):
        raise SystemExit(1)


def _facts(run: Run, loops: list[HotLoop]) -> dict[str, Any]:
    """Everything that the page says, and counts by mnemonic and by address."""
    counts = run.report.counts
    assert counts is not None
    totals = asdict(counts)
    totals["by_address"] = {hex(a): asdict(c) for a, c in counts.by_address.items()}
    totals["by_mnemonic"] = {m: asdict(c) for m, c in counts.by_mnemonic(run.listing()).items()}
    return {
        "kernel": run.report.kernel,
        "arch": run.report.arch,
        "launches": [{"kernel": r.kernel, "instructions": r.instructions, "seconds": r.seconds} for r in run.reports],
        "counts": totals,
        "hot_loops": [{**asdict(loop), "instructions": len(loop.instructions)} for loop in loops],
        "findings": [asdict(f) for r in run.reports for f in r.findings],
    }


def _line(report: Report) -> str:
    waves = (report.block[0] * report.block[1] * report.block[2] + 63) // 64
    groups = report.grid[0] * report.grid[1] * report.grid[2]
    return (
        f"{report.kernel}: {groups} workgroups of {waves} wavefronts, {report.instructions:,} wave-instructions, "
        f"{report.seconds:.2f} s ({report.speed / 1e6:.2f} M/s)"
    )


def _print(run: Run, loops: list[HotLoop], listing: bool) -> None:
    for report in run.reports:
        click.echo(_line(report))
    counts = run.report.counts
    assert counts is not None
    click.echo(f"\n{run.report.kernel} in all")
    click.echo("  " + ", ".join(f"{k} {counts.kinds[k]:,}" for k in ORDER if counts.kinds.get(k)))
    click.echo(
        f"  LDS {counts.lds_bytes:,} B in {counts.lds_passes:,} passes, {counts.lds_conflict_passes:,} of them bank conflicts"
    )
    click.echo(f"  global {counts.global_bytes:,} B, {counts.cache_lines:,} lines of 128 B touched")
    click.echo(
        f"  accumulator registers read {counts.accumulator_registers_read:,}, "
        f"written {counts.accumulator_registers_written:,}"
    )
    for n, loop in enumerate(loops, 1):
        click.echo(
            f"\nhot loop {n}: 0x{loop.first:x}-0x{loop.last:x}, {len(loop.instructions)} instructions, "
            f"{loop.share:.0%} of the time spent, {loop.iterations:,} turns; a turn:"
        )
        click.echo("  " + ", ".join(f"{k} {loop.kinds[k]:.4g}" for k in ORDER if loop.kinds.get(k)))
        total = loop.totals
        click.echo(
            f"  LDS {total.lds_bytes / loop.iterations:,.0f} B, {total.lds_passes / loop.iterations:,.1f} passes "
            f"({(total.lds_passes - total.lds_fewest_passes) / loop.iterations:,.1f} conflicts), "
            f"global {total.global_bytes / loop.iterations:,.0f} B, {total.cache_lines / loop.iterations:,.1f} lines"
        )
        if listing:
            for item in loop.instructions:
                ran = counts.by_address[item.address].executed
                click.echo(
                    f"  {item.address:6x}  {ran / loop.iterations:6.3f}  {item.mnemonic:<26} {item.text}".rstrip()
                )
    findings = [f for r in run.reports for f in r.findings]
    click.echo(f"\nfindings: {sum(f.severity == 'error' for f in findings)} errors, "
               f"{sum(f.severity == 'warning' for f in findings)} warnings")  # fmt: skip
    for finding in findings[:20]:
        click.echo(f"  {finding}")
    if len(findings) > 20:
        click.echo(f"  and {len(findings) - 20} more (--json lists all)")
