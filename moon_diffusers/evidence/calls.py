"""Whole attention calls on numpy arrays by the package's own route and plan, each launch with its report.

Nothing between the problem and the kernel is stood in for: routing, planning and argument packing are the package's.
Tensors are bfloat16 bits (uint16) of any strides, BSHD, or (rows, heads, head dim) when packed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moon_diffusers.errors import ArgumentError
from moon_diffusers.planning import LaunchPlan, plan
from moon_diffusers.problem import Problem
from moon_diffusers.routing import Fallback, Route, Target, route
from moon_diffusers.runtime.device import Device
from moon_diffusers.runtime.hip import Hip

Array = NDArray[Any]
Bits = NDArray[np.uint16]

#: What outputs hold before a launch: a row that no kernel writes is seen.
NOISE = 0x4142


@dataclass(frozen=True)
class Call:
    """One attention call.

    Attributes:
        q, k, v: uint16, (B, S, H, 128) or, with the cumulative lengths, (rows, H, 128).
        seqlens_k: int32 (B,), valid keys.
        cu_seqlens_q, cu_seqlens_k: int32 (B + 1,), where the packed sequences begin.
        o: where the result goes, for strides of its own; None for a contiguous array.
        cu_count: compute units to plan for; 0 for the device's own.
        family: take the first kernel of this family that serves the call; empty for the route's choice.
    """

    q: Bits
    k: Bits
    v: Bits
    o: Bits | None = None
    rounding: str = "rtne"
    rescale: str = "auto"
    softmax_scale: float = 128**-0.5
    causal: bool = False
    seqlens_k: Array | None = None
    cu_seqlens_q: Array | None = None
    cu_seqlens_k: Array | None = None
    batch_invariant: bool = False
    return_lse: bool = True
    cu_count: int = 0
    family: str = ""


@dataclass
class Result:
    """What a call gave: ``o`` as q (uint16), ``lse`` fp32 (B, H, Sq) or (H, rows), and a report for each launch."""

    o: Bits
    lse: Array
    route: Route
    plan: LaunchPlan
    reports: list[dict[str, Any]] = field(default_factory=list)

    @property
    def findings(self) -> list[Any]:
        """The findings of all launches."""
        return [finding for report in self.reports for finding in report.get("findings", [])]


def span(array: Array) -> Array:
    """All memory from an array's first element to its last, as one dimension; strides are not negative."""
    last = sum((n - 1) * s for n, s in zip(array.shape, array.strides, strict=True))
    return np.lib.stride_tricks.as_strided(array, (last // array.itemsize + 1,), (array.itemsize,))


def _strides(array: Array) -> tuple[int, int, int]:
    """Strides in elements: batch, head, row."""
    elements = [s // array.itemsize for s in array.strides]
    if array.ndim == 3:
        return 0, elements[1], elements[0]
    return elements[0], elements[2], elements[1]


def problem(call: Call) -> Problem:
    """What a call asks for."""
    packed = call.cu_seqlens_q is not None and call.cu_seqlens_k is not None
    o = call.q if call.o is None else call.o
    strides = [_strides(x) for x in (call.q, call.k, call.v)]
    o_strides = _strides(o) if call.o is not None else _strides(np.empty(call.q.shape, np.uint16))
    alignment = 16
    while any(2 * stride % alignment for group in (*strides, o_strides) for stride in group):
        alignment //= 2
    if packed:
        assert call.cu_seqlens_q is not None and call.cu_seqlens_k is not None
        batch = len(call.cu_seqlens_q) - 1
        seqlen_q, seqlen_k = (int(np.diff(x).max()) for x in (call.cu_seqlens_q, call.cu_seqlens_k))
    else:
        batch, seqlen_q, seqlen_k = call.q.shape[0], call.q.shape[1], call.k.shape[1]
    return Problem(
        batch=batch,
        num_heads=call.q.shape[-2],
        num_heads_kv=call.k.shape[-2],
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        head_dim=call.q.shape[-1],
        dtype="bfloat16",
        q_strides=strides[0],
        k_strides=strides[1],
        v_strides=strides[2],
        o_strides=o_strides,
        softmax_scale=call.softmax_scale,
        alignment=alignment,
        causal=call.causal,
        rounding=call.rounding,
        rescale=call.rescale,
        return_lse=call.return_lse,
        has_seqlens_k=call.seqlens_k is not None,
        has_cu_seqlens=packed,
        total_q=call.q.shape[0] if packed else 0,
        batch_invariant=call.batch_invariant,
    )


def prepare(device: Device, call: Call) -> tuple[Route, LaunchPlan]:
    """The route and the plan of a call. Raises ArgumentError where no kernel serves it."""
    asked = problem(call)
    kernels = device.kernels
    if call.family:
        kernels = tuple(k for k in kernels if k.role != "forward" or k.family == call.family)
    chosen = route(asked, Target(device.info.arch, kernels))
    if isinstance(chosen, Fallback):
        raise ArgumentError("call", asked.shape_text(), f"what a kernel serves ({chosen.reason})")
    info = replace(device.info, cu_count=call.cu_count) if call.cu_count else device.info
    return chosen, plan(asked, chosen, info)


@contextmanager
def _memory(hip: Hip, arrays: Mapping[str, Array]) -> Iterator[dict[str, int]]:
    """Arrays in device memory, each exactly as large as it is, so that accesses past its end are seen."""
    addresses: dict[str, int] = {}
    try:
        for name, array in arrays.items():
            addresses[name] = hip.malloc(max(array.nbytes, 1))
            if array.nbytes:
                flat = np.ascontiguousarray(array)
                hip.copy_to_device(addresses[name], flat.ctypes.data, flat.nbytes)
        yield addresses
    finally:
        for address in addresses.values():
            hip.free(address)


def _download(hip: Hip, address: int, like: Array) -> Array:
    out = np.empty_like(like, order="C")
    hip.copy_to_host(out.ctypes.data, address, out.nbytes)
    return out


def run(device: Device, call: Call, options: Mapping[str, str] | None = None) -> Result:
    """Run a call; ``options`` are the emulator's, for this and later launches.

    Raises:
        ArgumentError: no kernel serves the call.
        HipError: a launch failed.
    """
    chosen, plans = prepare(device, call)
    hip = device.hip
    for key, value in (options or {}).items():
        hip.set_option(key, value)
    o = np.full(call.q.shape, NOISE, np.uint16) if call.o is None else call.o
    heads, rows = call.q.shape[-2], call.q.shape[-3]
    lse = np.full((heads, rows) if call.q.ndim == 3 else (call.q.shape[0], heads, rows), np.nan, np.float32)
    arrays: dict[str, Array] = {
        "q": span(call.q),
        "k": span(call.k),
        "v": span(call.v),
        "o": span(o),
        "lse": lse,
        "workspace": np.full(max(plans.workspace_bytes, 1), 0xA5, np.uint8),
    }
    for name in ("seqlens_k", "cu_seqlens_q", "cu_seqlens_k"):
        lengths = getattr(call, name)
        if lengths is not None:
            arrays[name] = np.asarray(lengths, np.int32)
    result = Result(o, lse, chosen, plans)
    with device.current(), _memory(hip, arrays) as addresses:
        for launch in device.prepare(plans).launches:
            launch(0, addresses)
            hip.synchronize()
            if device.emulated:
                result.reports.append(json.loads(hip.report() or "{}"))
        span(o)[:] = _download(hip, addresses["o"], arrays["o"])
        result.lse = _download(hip, addresses["lse"], lse)
    return result
