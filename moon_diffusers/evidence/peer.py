"""One launch of an AITER kernel on numpy arrays, with the report of the device that ran it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moon_diffusers.evidence import aiter
from moon_diffusers.evidence.code_object import CodeObject
from moon_diffusers.evidence.device import RawDevice, loaded, uploaded

Bits = NDArray[np.uint16]


@dataclass
class PeerResult:
    """``o`` as q (uint16, BSHD), ``lse`` fp32 (B, H, Sq), and the emulator's report."""

    o: Bits
    lse: NDArray[np.float32]
    report: dict[str, Any]


def shape_of(q: Bits, k: Bits) -> aiter.Shape:
    """The sizes of contiguous BSHD arrays."""
    return aiter.Shape(q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2])


def run(
    device: RawDevice, kernel: aiter.Kernel, q: Bits, k: Bits, v: Bits, softmax_scale: float | None = None
) -> PeerResult:
    """Run AITER's kernel on bfloat16 bits (B, S, H, 128).

    Raises:
        AiterUnavailableError: its code object cannot be had here.
        HipError: a call failed.
    """
    image = aiter.code_object(kernel)
    shape = shape_of(q, k)
    o = np.full(q.shape, 0x4142, np.uint16)
    lse = np.full((shape.batch, shape.num_heads, shape.seqlen_q), np.nan, np.float32)
    arrays: dict[str, NDArray[Any]] = {"q": q, "k": k, "v": v, "o": o, "lse": lse}
    with uploaded(device, arrays) as addresses, loaded(device, image) as module:
        kernarg = aiter.pack_kernarg(shape, **addresses, causal=kernel.causal, softmax_scale=softmax_scale)
        function = device.function(module, CodeObject(image).kernels[0].name)
        device.launch(function, shape.grid(kernel.causal), aiter.BLOCK, kernarg)
        report = device.report()
        return PeerResult(device.download(addresses["o"], o), device.download(addresses["lse"], lse), report)
