"""Bfloat16 as numpy ``uint16`` bit patterns: conversion in three roundings, and distances in units in the last place.

numpy has no bfloat16; the bits are what kernels write and what parity is about, so bits are what is kept.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Rounding = Literal["rtne", "rtna", "rtz"]
ROUNDINGS: tuple[Rounding, ...] = ("rtne", "rtna", "rtz")
BITS = np.uint16
CANONICAL_NAN = 0x7FFF


def from_float(x: NDArray[np.floating[Any]], rounding: Rounding = "rtne") -> NDArray[np.uint16]:
    """Round an array of any shape to bfloat16 bits, through float32, as the CDNA kernels round.

    ``rtne``: to nearest, ties to even; ``rtna``: to nearest, ties away from zero; both turn every NaN into 0x7FFF.
    ``rtz``: the high half as it is, a NaN's payload included.
    Raises ValueError for another name.
    """
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    if rounding == "rtz":
        return (bits >> 16).astype(np.uint16)
    if rounding == "rtne":
        rounded = bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)
    elif rounding == "rtna":
        rounded = bits + np.uint32(0x8000)
    else:
        raise ValueError(f"rounding={rounding!r}: expected one of {', '.join(ROUNDINGS)}")
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(nan, np.uint16(CANONICAL_NAN), (rounded >> 16).astype(np.uint16))


def to_float(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The float32 values of bfloat16 bits; exact."""
    return (np.asarray(bits, dtype=np.uint16).astype(np.uint32) << 16).view(np.float32)


def ulp_distance(a: NDArray[np.uint16], b: NDArray[np.uint16]) -> NDArray[np.int64]:
    """How many bfloat16 steps lie between ``a`` and ``b``, elementwise; -0 and +0 are one value, NaN to NaN is 0.

    NaN to a number is 2**16, more than any two numbers are apart.
    """
    distance = np.abs(_ordinal(a) - _ordinal(b))
    nan_a, nan_b = (a & 0x7FFF) > 0x7F80, (b & 0x7FFF) > 0x7F80
    distance = np.where(nan_a & nan_b, 0, distance)
    return np.where(nan_a ^ nan_b, 1 << 16, distance)


def _ordinal(bits: NDArray[np.uint16]) -> NDArray[np.int64]:
    magnitude = (bits & 0x7FFF).astype(np.int64)
    return np.where(bits & 0x8000, -magnitude, magnitude)
