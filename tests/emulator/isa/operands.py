"""Operand kinds: how many dwords a value takes, what values are tried, and how numpy views them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

F32_EDGES = np.array(
    [
        0x00000000, 0x80000000, 0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001, 0x7F800001,
        0xFFBFFFFF, 0x7FFFFFFF, 0x00000001, 0x80000001, 0x007FFFFF, 0x807FFFFF, 0x00800000, 0x80800000, 0x7F7FFFFF,
        0xFF7FFFFF, 0x3F7FFFFF, 0x3F800001, 0x33800000, 0x4B800000, 0x4F7FFFFF, 0x4F800000, 0x4F000000, 0xCF000000,
        0x42FE0000, 0xC2FC0000, 0xC3160000, 0x40490FDB, 0x3EAAAAAB, 0x3F318000, 0x7F7F8000, 0x7F7F7FFF,
    ],
    np.uint32,
)  # fmt: skip
U32_EDGES = np.array(
    [
        0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 33, 63, 64, 127, 255, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFF, 0x800000,
        0xFFFFFF, 0x1000000, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF, 0xFFFFFFFE, 0xAAAAAAAA, 0x55555555,
    ],
    np.uint32,
)  # fmt: skip
SHIFT_EDGES = np.array([0, 1, 2, 5, 15, 16, 17, 30, 31, 32, 33, 47, 63, 64, 65, 255, 0xFFFFFFFF, 0x80000000], np.uint32)

Generator = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
"""Takes a generator and a shape whose last axis is dwords; gives uint32."""


def _mixed(edges: np.ndarray) -> Generator:
    def make(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        random = rng.integers(0, 1 << 32, shape, np.uint32)
        return np.where(rng.random(shape) < 0.5, rng.choice(edges, shape), random)

    return make


def _f32(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    values = _mixed(F32_EDGES)(rng, shape)
    near_one = (rng.standard_normal(shape) * 4).astype(np.float32).view(np.uint32)
    return np.where(rng.random(shape) < 0.3, near_one, values)


def _finite(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    exponent = rng.uniform(-30, 30, shape)
    return (rng.standard_normal(shape) * 2.0**exponent).astype(np.float32).view(np.uint32)


def _positive(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return _finite(rng, shape) & 0x7FFFFFFF


def _exponent(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    values = rng.uniform(-160, 140, shape).astype(np.float32).view(np.uint32)
    return np.where(rng.random(shape) < 0.3, _f32(rng, shape), values)


def _bf16_pair(scale: float, special: float) -> Generator:
    def make(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        halves = []
        for _ in range(2):
            bits = ((rng.standard_normal(shape) * scale).astype(np.float32).view(np.uint32) >> 16).astype(np.uint32)
            odd = rng.choice(np.array([0, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0x0001, 0x7F7F, 0x8080], np.uint32), shape)
            halves.append(np.where(rng.random(shape) < special, odd, bits))
        return (halves[1] << 16 | halves[0]).astype(np.uint32)

    return make


def _bf16_wide(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Bfloat16 pairs over many exponents and with denormals: what tells one accumulation order from another."""
    halves = []
    for _ in range(2):
        exponent = rng.integers(110, 146, shape).astype(np.uint32)
        tiny = rng.random(shape) < 0.02
        exponent = np.where(tiny, rng.integers(0, 3, shape), exponent).astype(np.uint32)
        halves.append(
            rng.integers(0, 2, shape).astype(np.uint32) << 15
            | exponent << 7
            | rng.integers(0, 128, shape).astype(np.uint32)
        )
    return (halves[1] << 16 | halves[0]).astype(np.uint32)


def _below(limit: int, step: int) -> Generator:
    def make(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return (rng.integers(0, limit // step, shape) * step).astype(np.uint32)

    return make


@dataclass(frozen=True)
class Kind:
    """A kind of operand: dwords per lane, how values are made, and the numpy dtype of one value (None: raw dwords)."""

    dwords: int
    make: Generator
    dtype: type | None

    def view(self, dwords: np.ndarray) -> np.ndarray:
        """Dwords (..., n) as values: one per lane where the dtype fills the operand, else an axis of them."""
        if self.dtype is None:
            return dwords
        values = np.ascontiguousarray(dwords).view(self.dtype)
        return values[..., 0] if values.shape[-1] == 1 else values


def _raw(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(0, 1 << 32, shape, np.uint32)


KINDS: dict[str, Kind] = {
    "u32": Kind(1, _mixed(U32_EDGES), np.uint32),
    "i32": Kind(1, _mixed(U32_EDGES), np.int32),
    "shift": Kind(1, _mixed(SHIFT_EDGES), np.uint32),
    "u64": Kind(2, _mixed(U32_EDGES), np.uint64),
    "mask": Kind(2, _raw, np.uint64),
    "f32": Kind(1, _f32, np.float32),
    "finite": Kind(1, _finite, np.float32),
    "positive": Kind(1, _positive, np.float32),
    "exponent": Kind(1, _exponent, np.float32),
    "f32x2": Kind(2, _f32, np.float32),
    "fbits": Kind(1, _f32, np.uint32),
    "lane": Kind(1, _below(256, 1), np.uint32),
    "selector": Kind(1, lambda rng, shape: _raw(rng, shape) & 0x0F0F0F0F, np.uint32),
    "lds4": Kind(1, _below(2048, 4), np.uint32),
    "lds8": Kind(1, _below(2048, 8), np.uint32),
    "lds16": Kind(1, _below(2048, 16), np.uint32),
    "buf4": Kind(1, _below(2048, 4), np.uint32),
    "buf16": Kind(1, _below(2048, 16), np.uint32),
    **{f"raw{n}": Kind(n, _raw, None) for n in (1, 2, 3, 4, 8, 16)},
    **{f"bf{2 * n}": Kind(n, _bf16_pair(1.0, 0.0), np.uint16) for n in (2, 4, 8)},
    **{f"bf{2 * n}wide": Kind(n, _bf16_wide, np.uint16) for n in (2, 4, 8)},
    **{f"bf{2 * n}odd": Kind(n, _bf16_pair(1.0, 0.003), np.uint16) for n in (2, 4, 8)},
    **{
        f"acc{n}": Kind(n, lambda rng, shape: rng.standard_normal(shape).astype(np.float32).view(np.uint32), np.float32)
        for n in (4, 16)
    },
    **{f"acc{n}wide": Kind(n, _finite, np.float32) for n in (4, 16)},
}
