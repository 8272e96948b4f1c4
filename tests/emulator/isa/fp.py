"""Single precision as the ISA defines it, in numpy: four roundings, flushed denormals, IEEE and DX10 bits.

Sums and products are formed in float64 with the rounding error made sticky ("round to odd"), so that the one rounding
to float32 that follows is exact in every mode.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

NEAREST, UP, DOWN, ZERO = 0, 1, 2, 3
TINY = np.float32(2.0**-126)


@dataclass(frozen=True)
class Mode:
    """The MODE register's float fields for single precision."""

    rounding: int = NEAREST
    flush: bool = False
    ieee: bool = True
    dx10_clamp: bool = True


MODES: dict[str, Mode] = {
    "clang": Mode(),
    "flush": Mode(flush=True, ieee=False, dx10_clamp=False),
    "up": Mode(rounding=UP),
    "down": Mode(rounding=DOWN),
    "zero": Mode(rounding=ZERO),
}
mode = MODES["clang"]


def is_denormal(x: np.ndarray) -> np.ndarray:
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits & 0x7F800000) == 0) & ((bits & 0x007FFFFF) != 0)


def read(x: np.ndarray) -> np.ndarray:
    """An operand as the ALU sees it: float32, flushed when the mode says so."""
    x = np.asarray(x, np.float32)
    return np.where(is_denormal(x), np.copysign(np.float32(0), x), x) if mode.flush else x


def _odd(total: np.ndarray, error: np.ndarray) -> np.ndarray:
    error = np.where(np.isfinite(total), error, 0)
    bits = total.view(np.int64)
    step = np.where((error > 0) == (total > 0), 1, -1)
    return np.where((error != 0) & (bits & 1 == 0), bits + step, bits).view(np.float64)


def two_sum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Float64 a + b, rounded to odd."""
    total = a + b
    other = total - a
    error = (a - (total - other)) + (b - other)
    total = _odd(total, np.nan_to_num(error))
    if mode.rounding == DOWN:
        cancelled = (total == 0) & (np.signbit(a) != np.signbit(b))
        total = np.where(cancelled, -0.0, total)
    return total


def round32(x: np.ndarray) -> np.ndarray:
    """Float64 to float32 in the mode's rounding, flushed when the mode says so."""
    x = np.asarray(x, np.float64)
    near = x.astype(np.float32)
    wide = near.astype(np.float64)
    inf = np.float32(np.inf)
    if mode.rounding in (UP, ZERO):
        lift = (wide < x) & ((mode.rounding == UP) | (x < 0))
        near = np.where(lift, np.nextafter(near, inf), near)
    if mode.rounding in (DOWN, ZERO):
        lower = (wide > x) & ((mode.rounding == DOWN) | (x > 0))
        near = np.where(lower, np.nextafter(near, -inf), near)
    if mode.flush:
        near = np.where(is_denormal(near), np.copysign(np.float32(0), near), near)
    return near.astype(np.float32)


def add(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return round32(two_sum(read(a).astype(np.float64), read(b).astype(np.float64)))


def sub(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return add(a, -np.asarray(b))


def mul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return round32(read(a).astype(np.float64) * read(b).astype(np.float64))


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    return round32(two_sum(read(a).astype(np.float64) * read(b).astype(np.float64), read(c).astype(np.float64)))


def _signalling(x: np.ndarray) -> np.ndarray:
    bits = x.view(np.uint32)
    return np.isnan(x) & ((bits & 0x00400000) == 0)


def _quiet(x: np.ndarray) -> np.ndarray:
    return (x.view(np.uint32) | 0x00400000).view(np.float32)


def _extreme(a: np.ndarray, b: np.ndarray, largest: bool) -> np.ndarray:
    a, b = np.broadcast_arrays(read(a), read(b))
    a, b = a.copy(), b.copy()
    zeros = (a == 0) & (b == 0)
    first = (~np.signbit(a) if largest else np.signbit(a)) & zeros
    pick = np.where(zeros, first, (a >= b) if largest else (a <= b))
    out = np.where(pick, a, b)
    out = np.where(np.isnan(b), a, out)
    out = np.where(np.isnan(a), b, out)
    if mode.ieee:
        out = np.where(_signalling(b), _quiet(b), out)
        out = np.where(_signalling(a), _quiet(a), out)
    return out


def maximum_number(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """v_max_f32: a NaN gives way to the other operand, except a signalling one under IEEE."""
    return _extreme(a, b, True)


def minimum_number(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return _extreme(a, b, False)


def maximum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """v_maximum_f32: NaN wins."""
    out = _extreme(a, b, True)
    return np.where(np.isnan(a) | np.isnan(b), np.float32(np.nan), out)


def minimum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    out = _extreme(a, b, False)
    return np.where(np.isnan(a) | np.isnan(b), np.float32(np.nan), out)


def clamp(x: np.ndarray) -> np.ndarray:
    """The clamp modifier: to [0, 1]; a NaN becomes 0 only under DX10_CLAMP."""
    limited = np.where(x > 1, np.float32(1), np.where(x > 0, x, np.float32(0)))
    return np.where(np.isnan(x), np.float32(0) if mode.dx10_clamp else x, limited)


def ldexp(x: np.ndarray, n: int) -> np.ndarray:
    return round32(np.asarray(x, np.float64) * 2.0**n)


def exponent(x: np.ndarray) -> np.ndarray:
    """The biased exponent field."""
    return (np.asarray(x, np.float32).view(np.uint32).astype(np.int64) >> 23) & 0xFF
