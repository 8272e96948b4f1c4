"""Several prompts: one folder each, a table of all, and no work done twice."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from moon_diffusers.generation.output import whole_folder, write_text
from moon_diffusers.generation.paired import Outcome
from moon_diffusers.generation.settings import GenerateError, Settings
from moon_diffusers.generation.write import write_outcome
from moon_diffusers.quality.report import decibel, figure, render_index, sci

__all__ = ["check_batch", "prompt_folder", "read_prompts", "run_batch"]


def read_prompts(path: Path) -> list[str]:
    """Read a prompt file: one prompt a line; empty lines and lines that start with `#` are left out.

    Raises:
        GenerateError: it cannot be read, or holds no prompt, or one twice.
    """
    try:
        # -sig: a byte order mark, as Windows' editors write one, is no part of the first prompt.
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise GenerateError(f"prompt_file is {str(path)!r}: cannot be read: {reason}") from error
    prompts = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not prompts:
        raise GenerateError(f"prompt_file is {str(path)!r}: holds no prompt")
    if len(set(prompts)) < len(prompts):
        twice = next(prompt for prompt in prompts if prompts.count(prompt) > 1)
        raise GenerateError(f"prompt_file is {str(path)!r}: holds {twice!r} twice")
    return prompts


def prompt_folder(index: int, prompt: str) -> str:
    """Return the folder name of a prompt: its number and its first words."""
    words = re.sub(r"[^a-z0-9]+", "-", prompt.lower()).strip("-")[:40].rstrip("-")
    return f"{index + 1:03d}-{words}" if words else f"{index + 1:03d}"


def check_batch(output: Path, prompts: list[str], settings: Settings, force: bool) -> list[int]:
    """Return which prompts are still to be run.

    Raises:
        GenerateError: `output` holds runs of other settings, and `force` is not given.
    """
    todo = []
    for index, prompt in enumerate(prompts):
        report = output / prompt_folder(index, prompt) / "report.json"
        if force or not report.is_file():
            todo.append(index)
            continue
        if _read_report(report).get("fingerprint") != replace(settings, prompt=prompt).fingerprint():
            raise GenerateError(
                f"output is {str(output)!r}: {report.parent.name} has other settings; give --force to redo it"
            )
        _entry(report.parent.name, _read_report(report))
    return todo


def run_batch(
    output: Path, prompts: list[str], todo: list[int], settings: Settings, run: Callable[[Settings], Outcome]
) -> dict[str, Any]:
    """Run the prompts in `todo`, each into its own folder, and keep index.html up to date; return the summary."""
    output.mkdir(parents=True, exist_ok=True)
    for index in todo:
        asked = replace(settings, prompt=prompts[index])
        outcome = run(asked)
        outcome.report["fingerprint"] = asked.fingerprint()
        with whole_folder(output / prompt_folder(index, prompts[index])) as folder:
            write_outcome(folder, outcome)
        _write_index(output, prompts, settings)
    return _write_index(output, prompts, settings)


def _write_index(output: Path, prompts: list[str], settings: Settings) -> dict[str, Any]:
    entries = []
    for index, prompt in enumerate(prompts):
        name = prompt_folder(index, prompt)
        path = output / name / "report.json"
        # One that cannot be read is being redone by --force: without it `check_batch` has refused.
        with suppress(GenerateError):
            if path.is_file():
                entries.append(_entry(name, _read_report(path)))
    summary = {
        "schema": 1,
        "kind": "moon-diffusers generate --prompt-file",
        "model": settings.model,
        "total": len(prompts),
        "done": len(entries),
        "passed": sum(entry["passed"] for entry in entries),
        "cards": [
            _card("latents, relative L2", [entry["relative_l2"] for entry in entries], sci),
            _card("times the noise floor", [entry["ratio"] for entry in entries], lambda v: figure(v, 2)),
            _card("PSNR", [entry["psnr"] for entry in entries], decibel),
            _card("SSIM", [entry["ssim"] for entry in entries], lambda v: figure(v, 5)),
        ],
    }
    write_text(output / "index.html", render_index(entries, summary))
    write_text(output / "index.json", json.dumps(summary | {"entries": entries}, indent=2, allow_nan=False) + "\n")
    return summary


def _entry(folder: str, report: dict[str, Any]) -> dict[str, Any]:
    try:
        return _entry_of(folder, report)
    except (LookupError, TypeError) as error:
        raise GenerateError(f"output: the report of {folder} is damaged: {error!r}; give --force to redo it") from error


def _entry_of(folder: str, report: dict[str, Any]) -> dict[str, Any]:
    error, floor = report["comparison"]["latents"]["relative_l2"], report["noise_floors"][0]["latents"]["relative_l2"]
    frames = report["comparison"]["frames"]
    return {
        "folder": folder,
        "prompt": report["settings"]["prompt"],
        "passed": report["gate"]["passed"],
        "relative_l2": error,
        "ratio": error / floor if error is not None and floor else None,
        "psnr": frames["psnr"],
        "ssim": frames["ssim"],
        "share": report["routing"]["share"],
    }


def _card(name: str, values: list[float | None], show: Callable[[float], str]) -> dict[str, str]:
    """Mean and standard error over the prompts; values that do not exist are counted, not averaged."""
    known = [value for value in values if value is not None]
    if not known:
        return {"name": name, "value": "–", "note": "no figure"}
    note = "one prompt"
    if len(known) > 1:
        note = f"± {show(statistics.stdev(known) / math.sqrt(len(known)))}, worst {show(_worst(name, known))}"
    if len(known) < len(values):
        note += f"; {len(values) - len(known)} without a figure"
    return {"name": name, "value": show(statistics.fmean(known)), "note": note}


def _worst(name: str, known: list[float]) -> float:
    return min(known) if name in ("PSNR", "SSIM") else max(known)


def _read_report(path: Path) -> dict[str, Any]:
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise GenerateError(f"output: {str(path)!r} cannot be read: {error}") from error
    if not isinstance(report, dict):
        raise GenerateError(f"output: {str(path)!r} is no report")
    return report
