"""What a run leaves behind: JSON to repeat it and a Markdown table to read."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from moon_diffusers.evidence.bench.report import environment
from moon_diffusers.evidence.files import whole_file

from .step import MOON, SDPA, Row, Setup

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
        f"Wan2.1 transformer steps on {card}, torch {where['torch']}, diffusers {where['diffusers']}, "
        f"driver {where['driver']}, weights {whole['weights']}, revision {where['revision']}, {whole['date'][:10]}.",
        "Times are medians of interleaved rounds, spread is the interquartile range of the ratio; torch's side uses the "
        "SDPA backend named.",
    ]
    if dry:
        lines.append("**Dry run on the CPU: everything ran, no time means anything, so none is shown.**")
    header = ["model", "video", "mode", "tokens", "torch s", "moon s", "speed", "spread", "torch J", "moon J", "energy",
              "MHz", "W", "difference", "kernel calls", "fallen back", "torch SDPA", "note"]  # fmt: skip
    lines += ["", "| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
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


def write(folder: Path, stem: str, whole: dict[str, Any]) -> None:
    """`STEM.json` and `STEM.md` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with whole_file(folder / f"{stem}.json") as path:
        path.write_text(json.dumps(whole, indent=1), encoding="utf-8")
    with whole_file(folder / f"{stem}.md") as path:
        path.write_text(markdown(whole), encoding="utf-8")
