"""What a wavefront executes for 64 keys in a kernel's steady loop: the difference of two runs that differ in length alone.

Counted by the emulator instruction by instruction, so branches that were not taken are not in it. Inputs decide what is
measured: scores that never rise, that rise in every tile's first 32 keys, or in both halves of every tile.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

import numpy as np

from moon_diffusers.emulator.options import emulator_options
from moon_diffusers.evidence import aiter, bf16, calls
from moon_diffusers.evidence.code_object import CodeObject
from moon_diffusers.evidence.device import RawDevice, loaded, uploaded
from moon_diffusers.runtime.device import Device

Rise = Literal["none", "first half", "both halves"]
RISES: tuple[Rise, ...] = ("none", "first half", "both halves")
KEYS = 64
WAVES = 8
_SHORT, _LONG = 4, 8  # tiles


@dataclass(frozen=True)
class TileCounts:
    """Wave-instructions by kind, for one wavefront and 64 keys; kinds as in the emulator's report."""

    kinds: dict[str, float]

    def __getitem__(self, kind: str) -> float:
        return self.kinds.get(kind, 0.0)

    def scaled(self, factor: float) -> TileCounts:
        """The counts of a wavefront that owned `factor` times as many rows."""
        return TileCounts({kind: factor * n for kind, n in self.kinds.items()})


def inputs(rows: int, tiles: int, rise: Rise) -> tuple[calls.Bits, calls.Bits, calls.Bits]:
    """q, k, v (1, S, 1, 128): every row has the same scores, which rise as asked."""
    q = np.full((1, rows, 1, 128), 1.0)
    k = np.zeros((1, tiles * KEYS, 1, 128))
    for tile in range(tiles):
        if rise != "none":
            k[0, tile * KEYS] = 2.0 * tile + 1
        if rise == "both halves":
            k[0, tile * KEYS + KEYS // 2] = 2.0 * tile + 2
    return bf16.from_float(q), bf16.from_float(k), bf16.from_float(np.ones_like(k))


def ours(device: Device, rounding: str, rescale: str, rise: Rise = "none") -> TileCounts:
    """Our gfx942 kernel, one workgroup of 384 rows: 48 a wavefront."""

    def kinds(tiles: int) -> dict[str, int]:
        q, k, v = inputs(384, tiles, rise)
        call = calls.Call(q, k, v, rounding=rounding, rescale=rescale, family="cdna3", batch_invariant=True)
        found: dict[str, int] = calls.run(device, call, {"counts": "on"}).reports[-1]["counts"]["kinds"]
        return found

    return _difference(kinds(_SHORT), kinds(_LONG))


def theirs(device: Device, rounding: bf16.Rounding, rise: Rise = "none") -> TileCounts:
    """AITER's kernel, one workgroup of 256 rows: 32 a wavefront. Raises AiterUnavailableError where it cannot be had."""
    image = aiter.code_object(aiter.Kernel("gfx942", rounding, False))
    raw = RawDevice(device.hip, device.ordinal)

    def kinds(tiles: int) -> dict[str, int]:
        q, k, v = inputs(256, tiles, rise)
        shape = aiter.Shape(1, 256, tiles * KEYS, 1, 1)
        with ExitStack() as stack:
            stack.enter_context(emulator_options(raw.hip, counts="on"))
            at = stack.enter_context(uploaded(raw, {"q": q, "k": k, "v": v, "o": np.zeros_like(q)}))
            module = stack.enter_context(loaded(raw, image))
            kernarg = aiter.pack_kernarg(shape, q=at["q"], k=at["k"], v=at["v"], o=at["o"], lse=0, causal=False)
            function = raw.function(module, CodeObject(image).kernels[0].name)
            raw.launch(function, shape.grid(False), aiter.BLOCK, kernarg)
            found: dict[str, int] = json.loads(device.hip.report())["counts"]["kinds"]
            return found

    return _difference(kinds(_SHORT), kinds(_LONG))


def _difference(short: dict[str, int], long: dict[str, int]) -> TileCounts:
    turns = WAVES * (_LONG - _SHORT)
    return TileCounts({kind: (n - short.get(kind, 0)) / turns for kind, n in long.items() if n or short.get(kind)})
