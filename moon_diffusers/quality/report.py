"""The report page: one self-contained HTML file, from the figures of report.json and the videos beside it."""

from __future__ import annotations

import base64
import io
import math
from pathlib import Path
from typing import Any

from moon_diffusers.quality.charts import line_chart
from moon_diffusers.quality.frames import to_uint8
from moon_diffusers.quality.video import read_video

__all__ = ["decibel", "figure", "jsonable", "percent", "render_index", "render_report", "sci", "seconds"]


def jsonable(value: Any) -> Any:
    """Copy a report with NaN and infinity, which JSON has not, as None."""
    if isinstance(value, dict):
        return {key: jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def render_report(report: dict[str, Any], folder: Path) -> str:
    """Return report.html's text; the mp4 files in `folder` are embedded."""
    names = ("side_by_side", "without_kernel", "with_kernel")
    videos = {name: _video_url(folder / f"{name}.mp4") for name in names}
    posters = {name: _poster_url(folder / f"{name}.mp4") for name in names}
    rows = [report["comparison"], *report["noise_floors"]]
    charts = [
        line_chart(
            "Latent error after each denoising step",
            "relative L2 against the run without the kernel",
            {row["name"]: row["latents_per_step"] for row in rows},
            log=True,
        ),
        line_chart(
            "PSNR of each frame",
            "dB against the run without the kernel; a gap is an identical frame",
            {row["name"]: row["frames"]["psnr_per_frame"] for row in rows},
        ),
    ]
    return _render("report.html.j2", r=report, videos=videos, posters=posters, rows=rows, charts=charts)


def render_index(entries: list[dict[str, Any]], summary: dict[str, Any]) -> str:
    """Return index.html's text for several prompts; each entry names the folder its report lies in."""
    return _render("index.html.j2", entries=entries, s=summary)


def _render(template: str, **values: Any) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    for function in (sci, decibel, figure, seconds, percent, combined, plain):
        environment.filters[function.__name__] = function
    return str(environment.get_template(template).render(**values))


def _video_url(path: Path) -> str:
    return "data:video/mp4;base64," + base64.b64encode(path.read_bytes()).decode("ascii")


def _poster_url(path: Path) -> str:
    """Return the first frame as a picture: for before playing, and for browsers that cannot play."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(to_uint8(read_video(path, 1)[0])[0]).save(file, "JPEG", quality=92)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def sci(value: float | None) -> str:
    """Format a small number as 1.23·10⁻⁴; None as not finite."""
    if value is None:
        return "not finite"
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    mantissa = f"{value / 10**exponent:.2f}"
    superscript = str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{value:.3g}" if -2 <= exponent <= 3 else f"{mantissa}·10{superscript}"


def decibel(value: float | None) -> str:
    """Format a PSNR; None is that of identical frames."""
    return "∞ (identical)" if value is None else f"{value:.1f} dB"


def figure(value: float | None, digits: int = 4) -> str:
    """Format a number, or a dash for one that does not exist."""
    return "–" if value is None else f"{value:.{digits}f}"


def seconds(value: float) -> str:
    """Format a duration in s."""
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s" if value < 100 else f"{value:.0f} s"


def percent(value: float) -> str:
    """Format a share of 1."""
    return f"{value:.1%}".replace(".0%", "%")


def combined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Join two tables of facts."""
    return {**first, **second}


def plain(value: Any) -> str:
    """Write a fact of report.json for people: no brackets, a dash for what is not there."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {plain(item)}" for key, item in value.items()) or "–"
    if isinstance(value, (list, tuple)):
        return ", ".join(plain(item) for item in value) or "–"
    if value is None or value == "":
        return "–"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
