"""What a run leaves behind: JSON to repeat it, a Markdown table to read, a plot to look at."""

from __future__ import annotations

import json
import platform
import sys
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from moon_diffusers.evidence.files import whole_file
from moon_diffusers.evidence.repeat import software

from .run import CaseResult, as_json, picojoule_per_flop
from .schedule import Method, ratio
from .telemetry import Source

SCHEMA = 1


def environment(device: torch.device, source: Source | None) -> dict[str, Any]:
    """The machine and the software, as far as they decide a figure."""
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "platform": platform.platform(),
        "telemetry": source.name if source else None,
        **software(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts["gpu"] = properties.name
        facts["multiprocessors"] = properties.multi_processor_count
        facts["memory_gib"] = round(properties.total_memory / 2**30, 1)
        # CUDA builds have gcnArchName too, and the card's name in it.
        facts["arch"] = properties.gcnArchName if torch.version.hip else f"sm_{properties.major}{properties.minor}"
        facts["cudnn"] = torch.backends.cudnn.version()  # type: ignore[no-untyped-call, unused-ignore]
    return facts


def document(
    results: list[CaseResult], method: Method, facts: dict[str, Any], absent: dict[str, str]
) -> dict[str, Any]:
    """The whole run as one JSON-able value."""
    return {
        "schema": SCHEMA,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "method": asdict(method),
        "environment": facts,
        "absent_peers": absent,
        "results": [as_json(result) for result in results],
    }


def markdown(results: list[CaseResult], baseline: str | None, facts: dict[str, Any]) -> str:
    """A table of a row per case and peer; ratios against `baseline`, above 1 faster than it."""
    where = facts.get("gpu", "CPU")
    lines = [f"Measured on {where}, torch {facts['torch']}. Times are medians; spread is the interquartile range.", ""]
    header = ["case", "kernel", "ms", "TF/s", "spread", "error", "MHz", "W", "pJ/FLOP"]
    header += [f"speed against {baseline}"] if baseline else []
    lines += ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for result in results:
        base = result.find(baseline) if baseline else None
        for peer in result.peers:
            if peer.blocks is None:
                row = [
                    result.case.name,
                    peer.peer,
                    peer.note or "checked, not timed",
                    "",
                    "",
                    error_text(peer.error),
                    "",
                    "",
                    "",
                ]
                row += [""] if baseline else []
            else:
                speed = result.case.flops / peer.blocks.median / 1e12
                row = [result.case.name, peer.peer, f"{peer.blocks.median * 1e3:.3f}", f"{speed:.1f}"]
                row += [f"{peer.blocks.spread:.2%}", error_text(peer.error)]
                row += [f"{peer.mhz:.0f}" if peer.mhz else "", f"{peer.watt:.0f}" if peer.watt else ""]
                energy = picojoule_per_flop(peer, result.case)
                row += [f"{energy:.2f}" if energy else ""]
                if baseline:
                    against = ratio(peer.blocks, base.blocks) if base and base.blocks else None
                    row += [f"{against.median:.3f} ({against.lowest:.3f}-{against.highest:.3f})" if against else ""]
            lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


def error_text(error: float | None) -> str:
    """An error for a table cell."""
    return "" if error is None else f"{error:.1e}"


def plot(results: list[CaseResult], path: Path, title: str) -> None:
    """Bars of TF/s per case, a colour a kernel, whiskers the lowest and highest block."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    timed = [result for result in results if result.timed()]
    names = list(dict.fromkeys(peer.peer for result in timed for peer in result.timed()))
    figure, axes = plt.subplots(figsize=(max(6.0, 1.4 * len(timed)), 4.5), layout="constrained")
    width = 0.8 / max(1, len(names))
    for index, name in enumerate(names):
        for place, result in enumerate(timed):
            peer = result.find(name)
            if peer is None or peer.blocks is None:
                continue
            speeds = sorted(result.case.flops / seconds / 1e12 for seconds in peer.blocks.seconds)
            middle = result.case.flops / peer.blocks.median / 1e12
            label = name if not axes.containers or name not in axes.get_legend_handles_labels()[1] else None
            axes.bar(
                place + (index - (len(names) - 1) / 2) * width,
                middle,
                width,
                color=f"C{index}",
                label=label,
                yerr=[[middle - speeds[0]], [speeds[-1] - middle]],
                error_kw={"linewidth": 0.8},
            )
    axes.set_xticks(range(len(timed)), [result.case.name for result in timed], rotation=30, ha="right", fontsize=8)
    axes.set_ylabel("TF/s")
    axes.set_title(title)
    # Outside: a bar may reach any corner.
    figure.legend(loc="outside lower center", ncols=max(1, len(names)), fontsize=8)
    with whole_file(path) as temporary:
        figure.savefig(temporary, dpi=150, format=path.suffix.removeprefix("."))
    plt.close(figure)


def write(folder: Path, results: list[CaseResult], method: Method, facts: dict[str, Any], absent: dict[str, str],
          baseline: str | None) -> None:  # fmt: skip
    """`bench.json`, `bench.md` and, where something was timed, `bench.svg` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with whole_file(folder / "bench.json") as path:
        path.write_text(json.dumps(document(results, method, facts, absent), indent=1))
    with whole_file(folder / "bench.md") as path:
        path.write_text(markdown(results, baseline, facts))
    if any(result.timed() for result in results):
        plot(results, folder / "bench.svg", f"bf16 attention forward, head dim 128, {facts.get('gpu', 'CPU')}")
