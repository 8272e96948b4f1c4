"""What a run leaves behind: JSON to repeat it, a Markdown table to read, a plot to look at."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from moon_diffusers.errors import ArgumentError
from moon_diffusers.evidence.bench.report import environment
from moon_diffusers.evidence.files import whole_file

from .step import MOON, SDPA, Row, Setup
from .wan import SIZES

SCHEMA = 1


def facts(setup: Setup) -> dict[str, Any]:
    """The machine, the software and the revision, as far as they decide a figure."""
    where = environment(setup.device, setup.source)
    return where | {"energy_counter": setup.counter.name if setup.counter else None, "emulated": setup.emulate or None}


def document(
    rows: list[Row], videos: list[dict[str, Any]], setup: Setup, where: dict[str, Any], weights: str, finished: bool
) -> dict[str, Any]:
    """The whole run as one JSON-able value. A dry run says so, and its times mean nothing."""
    return {
        "schema": SCHEMA,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "dry_run": bool(setup.emulate) or setup.device.type == "cpu",
        "finished": finished,
        "seconds": round(setup.budget.spent, 1),
        "budget_seconds": setup.budget.seconds,
        "weights": weights,
        "method": asdict(setup.method) | {"sdpa": setup.sdpa, "self_only": setup.self_only},
        "environment": where,
        "rows": [row.as_json() for row in rows],
        "pipelines": videos,
    }


def markdown(whole: dict[str, Any]) -> str:
    """A row for each transformer step and each pipeline run; ratios above 1 mean that the kernel's side is better."""
    where, dry = whole["environment"], whole["dry_run"]
    card = where.get("gpu", f"emulated {where['emulated']}" if where["emulated"] else "CPU")
    lines = [
        f"Wan2.1 on {card}, torch {where['torch']}, diffusers {where['diffusers']}, "
        f"driver {where['driver']}, weights {whole['weights']}, revision {where['revision']}, {whole['date'][:10]}.",
    ]
    if dry:
        lines.append("**Dry run on the CPU: everything ran, no time means anything, so none is shown.**")
    if whole["rows"]:
        lines += [
            "Times are medians of interleaved rounds, spread is the interquartile range of the ratio; torch's side uses the "
            "SDPA backend named.",
        ]
    header = ["model", "video", "mode", "tokens", "torch s", "moon s", "speed", "spread", "torch J", "moon J", "energy",
              "MHz", "W", "difference", "kernel calls", "fallen back", "torch SDPA", "note"]  # fmt: skip
    lines += ["", "| " + " | ".join(header) + " |", "|" + "---|" * len(header)] if whole["rows"] else []
    for row in whole["rows"]:
        theirs, ours = (row["sides"].get(name, {}) for name in (SDPA, MOON))
        ratio = {} if dry or row["ratio"] is None else row["ratio"]
        times = [None if dry else side.get("median_seconds") for side in (theirs, ours)]
        joules = [None if dry else side.get("median_joules") for side in (theirs, ours)]
        cells = [row["size"], row["resolution"], row["mode"], f"{row['tokens']:,}"]
        cells += [figure(x, ".3f") for x in times] + [
            figure(ratio.get("speed"), ".3f"),
            figure(ratio.get("spread"), ".2%"),
        ]
        cells += [figure(x, ".0f") for x in joules] + [figure(ratio.get("energy"), ".3f")]
        cells += [" / ".join(figure(side.get(key), ".0f") for side in (theirs, ours)) for key in ("mhz", "watt")]
        cells += [figure(row["difference"], ".1e"), str(row["served"]), str(row["fallbacks"]), row["sdpa"], row["note"]]
        lines.append("| " + " | ".join(cells) + " |")
    if whole["pipelines"]:
        lines += ["", "Whole pipeline runs, VAE included:", ""]
        header = ["model", "video", "steps", "torch s", "moon s", "speed", "of which decoding", "speed of a step", "energy",
                  "difference", "kernel calls", "fallen back", "note"]  # fmt: skip
        lines += ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for row in whole["pipelines"]:
        theirs, ours = (row["sides"].get(name, {}) for name in (SDPA, MOON))
        times = [None if dry else side.get("seconds") for side in (theirs, ours)]
        decoding = " / ".join(figure(None if dry else side.get("decoding_seconds"), ".1f") for side in (theirs, ours))
        cells = [row["size"], row["resolution"], str(row["steps"]), *(figure(x, ".1f") for x in times)]
        cells += [figure(None if dry else row.get("speed"), ".3f"), decoding]
        cells += [figure(None if dry else row.get("step_speed"), ".3f")]
        cells += [figure(None if dry else row.get("energy"), ".3f"), figure(row.get("difference"), ".1e")]
        cells += [str(row.get("served", "")), str(row.get("fallbacks", "")), row["note"]]
        lines.append("| " + " | ".join(cells) + " |")
    said = [row["summary"] for row in (*whole["rows"], *whole["pipelines"]) if row.get("summary")]
    lines += ["", *(f"* {line}" for line in dict.fromkeys(said))]
    if not whole["finished"]:
        lines += ["", "Not finished: the time was up."]
    return "\n".join(lines) + "\n"


def figure(value: float | None, form: str) -> str:
    """A number for a table cell, or nothing."""
    return "" if value is None else format(value, form)


def joined(files: Sequence[Path]) -> dict[str, Any]:
    """The rows of several runs as one document, for one table: the first run's environment, every run's command.

    Raises:
        ArgumentError: a file is no such document, or the runs were made on different cards or with different versions.
    """
    runs, order = [], list(SIZES)
    for file in files:
        try:
            run = json.loads(file.read_text(encoding="utf-8"))
            # What a table cannot be made of is no such document.
            markdown(run)
            run["command"], [order.index(row["size"]) for row in run["rows"]]
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ArgumentError("from", str(file), "a wan21.json") from error
        runs.append(run)
    for file, run in zip(files, runs, strict=True):
        for key in ("gpu", "emulated", "torch", "diffusers", "driver"):
            mine, first = (one["environment"].get(key) for one in (run, runs[0]))
            if mine != first:
                raise ArgumentError("from", f"{file} with {key} {mine}", f"runs alike: {files[0]} has {first}")
    whole = dict(runs[0])
    for run in runs[1:]:
        whole["command"] += f"; {run['command']}"
        whole["rows"] = whole["rows"] + run["rows"]
        whole["pipelines"] = whole["pipelines"] + run["pipelines"]
        whole["dry_run"] = whole["dry_run"] or run["dry_run"]
    whole["rows"] = sorted(
        whole["rows"], key=lambda row: (order.index(row["size"]), row["resolution"], row["mode"] != "eager")
    )
    # A run that was cut short has its rows all the same.
    return whole | {"finished": True}


def plot(whole: dict[str, Any], path: Path) -> None:
    """Bars of seconds a step, two a row, with the speed above them; whiskers are the shortest and longest step."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [row for row in whole["rows"] if row["ratio"]]
    figure, axes = plt.subplots(figsize=(max(5.0, 1.6 * len(rows)), 4.2), layout="constrained")
    for index, (name, label) in enumerate(((SDPA, "torch SDPA, fastest backend"), (MOON, "moon_diffusers"))):
        # In units of torch's step, so that models of different sizes share an axis.
        unit = [row["sides"][SDPA]["median_seconds"] for row in rows]
        steps = [row["sides"][name]["seconds"] for row in rows]
        middle = [row["sides"][name]["median_seconds"] / u for row, u in zip(rows, unit, strict=True)]
        error = [
            [m - min(s) / u for m, s, u in zip(middle, steps, unit, strict=True)],
            [max(s) / u - m for m, s, u in zip(middle, steps, unit, strict=True)],
        ]
        places = [place + (index - 0.5) * 0.38 for place in range(len(rows))]
        axes.bar(places, middle, 0.36, color=f"C{index}", label=label, yerr=error, error_kw={"linewidth": 0.8})
        for place, row, height in zip(places, rows, middle, strict=True):
            speed = f"\n{row['ratio']['speed']:.3f}x" if name == MOON else ""
            text = f"{row['sides'][name]['median_seconds']:.2f} s{speed}"
            axes.text(place, height + 0.02, text, ha="center", va="bottom", fontsize=7)
    names = [f"{row['size']} {row['resolution']}\n{row['mode']}" for row in rows]
    axes.set_xticks(range(len(rows)), names, fontsize=8)
    axes.set_ylim(0, 1.35)
    axes.set_ylabel("time of a step, torch's = 1")
    axes.set_title(f"Wan2.1 transformer step, 81 frames, bf16, {whole['environment'].get('gpu', 'CPU')}", fontsize=10)
    axes.legend(fontsize=8, loc="upper right")
    with whole_file(path) as temporary:
        figure.savefig(temporary, dpi=150, format=path.suffix.removeprefix("."))
    plt.close(figure)


def write(folder: Path, stem: str, whole: dict[str, Any], pictures: bool = False) -> None:
    """`STEM.json` and `STEM.md` into `folder`; with `pictures` also `STEM.svg`, where there are times to show."""
    folder.mkdir(parents=True, exist_ok=True)
    with whole_file(folder / f"{stem}.json") as path:
        path.write_text(json.dumps(whole, indent=1), encoding="utf-8")
    with whole_file(folder / f"{stem}.md") as path:
        path.write_text(markdown(whole), encoding="utf-8")
    if pictures and not whole["dry_run"] and any(row["ratio"] for row in whole["rows"]):
        plot(whole, folder / f"{stem}.svg")
