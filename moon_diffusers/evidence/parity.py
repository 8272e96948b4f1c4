"""Our bits beside AITER's: the same inputs through both kernels, and what may differ.

In the emulator AITER's code objects run as they are, beside ours. On a ROCm device `aiter.flash_attn_func` runs beside
`moon_diffusers.attention`. The gate: of each rounding mode's elements at least `IDENTICAL` equal in bits, none further
off than one bfloat16 ULP of its row's largest element, and non-finite elements where AITER has them (in rtne and rtna
with the same bits; rtz passes a NaN's payload on, which is the host's or the chip's own).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from moon_diffusers.emulator.options import emulator_options
from moon_diffusers.evidence import aiter, bf16, calls, reference
from moon_diffusers.evidence.code_object import CodeObject
from moon_diffusers.evidence.device import RawDevice, loaded, uploaded
from moon_diffusers.runtime.device import Device

Bits = NDArray[np.uint16]

#: Least share of bit-identical elements of a rounding mode.
IDENTICAL = 0.9999


@dataclass(frozen=True)
class Case:
    """One comparison: sizes, data, and a non-finite element planted in q, k or v (tensor, `reference.NONFINITE` key)."""

    shape: aiter.Shape
    rounding: bf16.Rounding
    kind: reference.Kind = "normal"
    planted: tuple[str, str] | None = None
    seed: int = 0

    def __str__(self) -> str:
        s = self.shape
        heads = str(s.num_heads) if s.num_heads == s.num_heads_kv else f"{s.num_heads}/{s.num_heads_kv}"
        words = f"B{s.batch} H{heads} {s.seqlen_q}x{s.seqlen_k} {self.kind}"
        return words + (f", {self.planted[1]} in {self.planted[0]}" if self.planted else "")

    def inputs(self) -> tuple[Bits, Bits, Bits]:
        """q, k, v of the case."""
        s = self.shape
        q, k, v = reference.inputs(
            s.batch, s.seqlen_q, s.seqlen_k, s.num_heads, s.num_heads_kv, kind=self.kind, seed=self.seed
        )
        tensors = {"q": q, "k": k, "v": v}
        if self.planted:
            name, value = self.planted
            bits = tensors[name]
            index = np.random.default_rng(self.seed + 1).integers(bits.shape)
            tensors[name] = reference.plant(bits, tuple(int(i) for i in index), value)
        return tensors["q"], tensors["k"], tensors["v"]


@dataclass(frozen=True)
class Difference:
    """How our bits differ from AITER's. Counts are of elements; ``row_ulps`` is in ULPs of the row's largest element."""

    elements: int
    differing: int
    beyond_1_ulp: int
    max_ulp: int
    row_ulps: float
    nonfinite: int
    nonfinite_equal: bool

    @property
    def identical(self) -> float:
        """Share of bit-identical elements."""
        return 1 - self.differing / self.elements

    def faults(self) -> list[str]:
        """What of this one case breaks the gate."""
        found = []
        if self.row_ulps > 1:
            found.append(f"an element is {self.row_ulps:.2f} ULPs of its row's largest off")
        if not self.nonfinite_equal:
            found.append("non-finite elements differ")
        return found


def compare(ours: Bits, theirs: Bits, rounding: bf16.Rounding) -> Difference:
    """Compare two results of one shape, head dim last. Raises ValueError for shapes that differ."""
    if ours.shape != theirs.shape:
        raise ValueError(f"ours {ours.shape}, theirs {theirs.shape}: shapes differ")
    a, b = bf16.to_float(ours).astype(np.float64), bf16.to_float(theirs).astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    if rounding == "rtz":
        same = (np.isnan(a) == np.isnan(b)) & ((np.isfinite(a) == np.isfinite(b)) | np.isnan(a))
        same &= np.where(np.isinf(a) & np.isinf(b), a == b, True)
    else:
        same = finite | (ours == theirs)
    largest = np.abs(np.where(finite, b, 0)).max(axis=-1, keepdims=True)
    ulp = np.exp2(np.floor(np.log2(np.where(largest > 0, largest, 1))) - 7)
    away = np.where(finite, np.abs(np.where(finite, a, 0) - np.where(finite, b, 0)), 0) / ulp
    ulps = np.where(finite, bf16.ulp_distance(ours, theirs), 0)
    differ = np.where(finite, ours != theirs, ~same)
    return Difference(
        elements=ours.size,
        differing=int(differ.sum()),
        beyond_1_ulp=int((ulps > 1).sum()),
        max_ulp=int(ulps.max()),
        row_ulps=float(np.max(away)),
        nonfinite=int((~np.isfinite(b)).sum()),
        nonfinite_equal=bool(same.all()),
    )


class Pair(Protocol):
    """Where the two kernels run."""

    def ours(self, case: Case) -> Bits:
        """Our result of a case, BSHD."""
        ...

    def theirs(self, case: Case) -> Bits:
        """AITER's result of a case, BSHD."""
        ...


class Emulated:
    """Both kernels' code objects in the emulator's gfx942."""

    def __init__(self, device: Device, rescale: str = "exact") -> None:
        self.device = device
        self.rescale = rescale

    def ours(self, case: Case) -> Bits:
        """Our result, with bit-exact matrix instructions."""
        q, k, v = case.inputs()
        call = calls.Call(
            q,
            k,
            v,
            rounding=case.rounding,
            rescale=self.rescale,
            batch_invariant=True,
            family="cdna3",
        )
        return calls.run(self.device, call, {"mma": "exact"}).o

    def theirs(self, case: Case) -> Bits:
        """AITER's result, in the same emulator. Raises AiterUnavailableError where its code objects cannot be had."""
        raw = RawDevice(self.device.hip, self.device.ordinal)
        q, k, v = case.inputs()
        image, name = _aiter_image(case.rounding)
        o = np.full(q.shape, calls.NOISE, np.uint16)
        with ExitStack() as stack:
            stack.enter_context(emulator_options(raw.hip, mma="exact"))
            addresses = stack.enter_context(uploaded(raw, {"q": q, "k": k, "v": v, "o": o}))
            module = stack.enter_context(loaded(raw, image))
            q_at, k_at, v_at, o_at = (addresses[name] for name in "qkvo")
            kernarg = aiter.pack_kernarg(case.shape, q=q_at, k=k_at, v=v_at, o=o_at, lse=0, causal=False)
            raw.launch(raw.function(module, name), case.shape.grid(False), aiter.BLOCK, kernarg)
            return raw.download(addresses["o"], o)


@cache
def _aiter_image(rounding: bf16.Rounding) -> tuple[bytes, str]:
    image = aiter.code_object(aiter.Kernel("gfx942", rounding, False))
    return image, CodeObject(image).kernels[0].name


class OnDevice:
    """Both on a ROCm device through their Python functions. Raises ImportError where AITER is not installed."""

    def __init__(self, rescale: str = "exact") -> None:
        import aiter as peer  # type: ignore[import-not-found]
        import torch

        self.peer: Any = peer
        self.torch: Any = torch
        self.rescale = rescale

    def _tensors(self, case: Case) -> list[Any]:
        torch = self.torch
        return [torch.from_numpy(x.view(np.int16)).view(torch.bfloat16).cuda() for x in case.inputs()]

    def _bits(self, tensor: Any) -> Bits:
        bits: Bits = tensor.contiguous().view(self.torch.int16).cpu().numpy().view(np.uint16)
        return bits

    def ours(self, case: Case) -> Bits:
        """Our result; raises StrictError where the kernel does not serve."""
        import moon_diffusers

        q, k, v = self._tensors(case)
        return self._bits(
            moon_diffusers.attention(
                q,
                k,
                v,
                rounding=case.rounding,
                rescale=self.rescale,
                batch_invariant=True,
                strict=True,
            )
        )

    def theirs(self, case: Case) -> Bits:
        """AITER's result by `flash_attn_func`, its rounding chosen by `how_v3_bf16_cvt`."""
        q, k, v = self._tensors(case)
        out = self.peer.flash_attn_func(q, k, v, how_v3_bf16_cvt=("rtne", "rtna", "rtz").index(case.rounding))
        return self._bits(out[0] if isinstance(out, tuple) else out)


def cases(thorough: bool = False) -> Iterator[Case]:
    """What is compared: shapes and data kinds in each mode, then single NaNs and infinities in q, k and v."""
    shapes = [aiter.Shape(1, 384, 64, 1, 1), aiter.Shape(1, 300, 200, 1, 1), aiter.Shape(1, 257, 513, 2, 1)]
    if thorough:
        shapes += [aiter.Shape(1, 512, 512, 2, 2), aiter.Shape(2, 257, 1025, 2, 1), aiter.Shape(1, 384, 4096, 1, 1)]
    for rounding in bf16.ROUNDINGS:
        for shape in shapes:
            for kind in reference.KINDS:
                yield Case(shape, rounding, kind)
        for seed, name in enumerate(("q", "k", "v")):
            for value in reference.NONFINITE if thorough else ("quiet NaN", "signalling NaN", "+Inf", "-Inf"):
                yield Case(aiter.Shape(1, 256, 96, 1, 1), rounding, planted=(name, value), seed=seed)


@dataclass(frozen=True)
class Row:
    """A case and what it showed."""

    case: Case
    difference: Difference


def measure(pair: Pair, chosen: Iterable[Case]) -> Iterator[Row]:
    """Run the cases one after the other."""
    for case in chosen:
        yield Row(case, compare(pair.ours(case), pair.theirs(case), case.rounding))


def verdict(rows: Iterable[Row]) -> list[str]:
    """What breaks the gate, a line each; empty where parity holds."""
    found = []
    totals: dict[str, list[int]] = {}
    for row in rows:
        found += [f"{row.case.rounding} {row.case}: {fault}" for fault in row.difference.faults()]
        total = totals.setdefault(row.case.rounding, [0, 0])
        total[0] += row.difference.elements
        total[1] += row.difference.differing
    for rounding, (elements, differing) in totals.items():
        if differing > (1 - IDENTICAL) * elements:
            found.append(f"{rounding}: {1 - differing / elements:.4%} of the elements identical, {IDENTICAL:.2%} asked")
    return found
