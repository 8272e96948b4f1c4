"""Small line charts as inline SVG: they follow the page's light or dark colours and need no script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Chart", "line_chart"]

_WIDTH, _HEIGHT = 560.0, 240.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 58.0, 12.0, 12.0, 30.0


@dataclass(frozen=True)
class Line:
    """One series: its name, its SVG path (with gaps) and its points."""

    name: str
    path: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Chart:
    """A chart ready for the template; coordinates are in the SVG's own units."""

    title: str
    subtitle: str
    width: float
    height: float
    lines: tuple[Line, ...]
    y_ticks: tuple[tuple[float, str], ...]
    x_ticks: tuple[tuple[float, str], ...]
    left: float
    right: float
    bottom: float


def line_chart(
    title: str, subtitle: str, series: dict[str, Sequence[float | None]], *, log: bool = False
) -> Chart | None:
    """Lay out series over 1, 2, 3 ...; None and, with `log`, values of zero are gaps. None if nothing can be drawn."""
    usable = {name: [_usable(value, log) for value in values] for name, values in series.items()}
    known = [value for values in usable.values() for value in values if value is not None]
    count = max((len(values) for values in usable.values()), default=0)
    if not known or count < 2:
        return None
    low, high, ticks = _log_scale(known) if log else _linear_scale(known)

    def x_of(index: int) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * index / (count - 1), 2)

    def y_of(value: float) -> float:
        return round(_TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - value) / (high - low), 2)

    lines = []
    for name, values in usable.items():
        path, points, drawing = [], [], False
        for index, value in enumerate(values):
            if value is None:
                drawing = False
                continue
            point = (x_of(index), y_of(value))
            path.append(f"{'L' if drawing else 'M'}{point[0]} {point[1]}")
            points.append(point)
            drawing = True
        lines.append(Line(name, " ".join(path), tuple(points)))
    step = max(1, math.ceil((count - 1) / 8))
    return Chart(
        title,
        subtitle,
        _WIDTH,
        _HEIGHT,
        tuple(lines),
        tuple((y_of(value), label) for value, label in ticks),
        tuple((x_of(index), str(index + 1)) for index in range(0, count, step)),
        _LEFT,
        _WIDTH - _RIGHT,
        _HEIGHT - _BOTTOM,
    )


def _usable(value: float | None, log: bool) -> float | None:
    if value is None or not math.isfinite(value) or (log and value <= 0):
        return None
    return math.log10(value) if log else value


def _log_scale(known: list[float]) -> tuple[float, float, list[tuple[float, str]]]:
    low, high = math.floor(min(known)), math.ceil(max(known))
    if low == high:
        high += 1
    step = max(1, math.ceil((high - low) / 5))
    superscript = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    exponents = range(low, high + 1, step)
    if high - low <= 2:
        # Within two decades the powers of ten alone would leave the reader without a scale.
        marks = [(e + math.log10(m), e, m) for e in range(low, high) for m in (1, 2, 5)] + [(high, high, 1)]
        return low, high, [(value, f"{m}·10{str(e).translate(superscript)}") for value, e, m in marks]
    return low, high, [(float(e), f"10{str(e).translate(superscript)}") for e in exponents]


def _linear_scale(known: list[float]) -> tuple[float, float, list[tuple[float, str]]]:
    low, high = min(known), max(known)
    span = (high - low) or abs(high) or 1.0
    step = 10 ** math.floor(math.log10(span / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= 5)
    first, last = math.floor(low / step), math.ceil(high / step)
    if first == last:
        last += 1
    digits = max(0, -math.floor(math.log10(step)))
    return first * step, last * step, [(n * step, f"{n * step:.{digits}f}") for n in range(first, last + 1)]
