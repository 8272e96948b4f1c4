"""Kernels with inputs, ready to be launched from any image of their code object: AITER's and the project's own."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moon_diffusers.emulator.options import emulator_options
from moon_diffusers.errors import ArgumentError, HipError, MoonError
from moon_diffusers.evidence import aiter, decode_check, reference
from moon_diffusers.evidence.code_object import CodeObject
from moon_diffusers.evidence.device import RawDevice, loaded, open_emulator, uploaded
from moon_diffusers.evidence.equivalence import Execution, read_trace
from moon_diffusers.evidence.faults import Observation
from moon_diffusers.planning import plan
from moon_diffusers.problem import Problem
from moon_diffusers.routing import Fallback, Target, route
from moon_diffusers.runtime import launcher
from moon_diffusers.runtime.device import open_emulated

Array = NDArray[Any]
OPTIONS = {"mma": "fast", "checks": "on", "threads": "1", "budget": "0", "counts": "off", "trace": ""}
_NOISE = 0x4142


@dataclass
class _Call:
    """One kernel launch of a subject: which kernel, how many workgroups, which arguments given the addresses."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_lds: int
    kernarg: bytes
    pointers: tuple[tuple[int, str, int], ...] = ()
    # Another code object than the subject's own, for a helper kernel that lives elsewhere.
    image: bytes | None = None

    def arguments(self, addresses: dict[str, int]) -> bytes:
        """The kernel arguments with the addresses filled in."""
        data = bytearray(self.kernarg)
        for word, buffer, offset in self.pointers:
            data[8 * word : 8 * word + 8] = (addresses[buffer] + offset).to_bytes(8, "little")
        return bytes(data)


@dataclass
class EmulatedSubject:
    """A kernel on seeded inputs in the emulator; see `faults.Subject`. ``outputs`` names what is compared."""

    name: str
    arch: str
    image: bytes
    arrays: dict[str, Array]
    outputs: tuple[str, ...]
    calls: list[_Call] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)

    @property
    def kernels(self) -> frozenset[str]:
        """The kernels of ``image`` that are launched."""
        return frozenset(call.name for call in self.calls if call.image is None)

    def traces(self, image: bytes) -> Iterator[Execution]:
        """What each workgroup of each launch of ``image``'s kernels executes."""
        code = CodeObject(image)
        listing = decode_check.parse_emulator(open_emulator(self.arch).hip.disassemble(image))
        with tempfile.TemporaryDirectory() as folder:
            for place, call in enumerate(self.calls):
                for workgroup in range(0 if call.image else math.prod(call.grid)):
                    prefix = Path(folder, f"{place}-{workgroup}")
                    seen = self.run(image, {"trace": str(prefix), "trace_workgroup": str(workgroup)})
                    if seen.error:
                        raise MoonError(f"{self.name}: cannot be traced: {seen.error}")
                    yield read_trace(prefix.with_name(f"{prefix.name}.{place}"), code, listing)

    def run(self, image: bytes, options: dict[str, str]) -> Observation:
        """Launch and observe; a launch error is observed, not raised."""
        device = open_emulator(self.arch)
        seen = Observation()
        # The options are the process's: left set, they would reach whoever launches next.
        settings = {**OPTIONS, **self.options, **options}
        with emulator_options(device.hip, **settings), uploaded(device, self.arrays) as addresses:
            try:
                with ExitStack() as modules:
                    module = modules.enter_context(loaded(device, image))
                    for place, call in enumerate(self.calls):
                        if options.get("trace"):
                            device.set_options({"trace": f"{options['trace']}.{place}"})
                        other = call.image and modules.enter_context(loaded(device, call.image))
                        _launch(device, other or module, call, addresses, seen)
            except HipError as error:
                seen.error = str(error)
            seen.outputs = [device.download(addresses[name], self.arrays[name]) for name in self.outputs]
        return seen


def _launch(device: RawDevice, module: int, call: _Call, addresses: dict[str, int], seen: Observation) -> None:
    function = device.function(module, call.name)
    try:
        device.launch(function, call.grid, call.block, call.arguments(addresses), dynamic_lds=call.dynamic_lds)
    finally:
        report = device.report()
        seen.findings += report.get("findings", [])
        seen.executed += int(report.get("instructions", 0))


def aiter_subject(kernel: aiter.Kernel, shape: aiter.Shape, kind: reference.Kind = "normal") -> EmulatedSubject:
    """AITER's kernel on seeded inputs. Raises AiterUnavailableError when its code object cannot be had."""
    image = aiter.code_object(kernel)
    sizes = (shape.batch, shape.seqlen_q, shape.seqlen_k, shape.num_heads, shape.num_heads_kv)
    q, k, v = reference.inputs(*sizes, kind=kind)
    o = np.full(q.shape, _NOISE, np.uint16)
    lse = np.full((shape.batch, shape.num_heads, shape.seqlen_q), np.nan, np.float32)
    name = CodeObject(image).kernels[0].name
    kernarg = aiter.pack_kernarg(shape, q=0, k=0, v=0, o=0, lse=1, causal=kernel.causal)
    # One argument per 16 bytes; the addresses are the first five.
    pointers = tuple((2 * slot, buffer, 0) for slot, buffer in enumerate(("o", "q", "k", "v", "lse")))
    call = _Call(name, shape.grid(kernel.causal), aiter.BLOCK, 0, kernarg, pointers)
    arrays: dict[str, Array] = {"q": q, "k": k, "v": v, "o": o, "lse": lse}
    label = f"aiter {kernel} B{shape.batch} {shape.seqlen_q}x{shape.seqlen_k} H{shape.num_heads}/{shape.num_heads_kv}"
    return EmulatedSubject(label, kernel.arch, image, arrays, ("o", "lse"), [call])


def own_subject(
    arch: str,
    shape: aiter.Shape,
    *,
    rounding: str = "rtne",
    rescale: str = "auto",
    causal: bool = False,
    kind: reference.Kind = "normal",
    batch_invariant: bool = False,
) -> EmulatedSubject:
    """The project's kernel on seeded inputs, by the package's own route and plan; `batch_invariant` keeps keys whole.

    Raises ArgumentError where no kernel serves the call; LibraryError, CodeObjectError where nothing is built.
    """
    device = open_emulated(arch)
    sizes = (shape.batch, shape.seqlen_q, shape.seqlen_k, shape.num_heads, shape.num_heads_kv)
    q, k, v = reference.inputs(*sizes, kind=kind)
    problem = Problem(
        batch=shape.batch,
        num_heads=shape.num_heads,
        num_heads_kv=shape.num_heads_kv,
        seqlen_q=shape.seqlen_q,
        seqlen_k=shape.seqlen_k,
        head_dim=shape.head_dim,
        dtype="bfloat16",
        q_strides=_strides(q),
        k_strides=_strides(k),
        v_strides=_strides(v),
        o_strides=_strides(q),
        softmax_scale=float(shape.head_dim**-0.5),
        causal=causal,
        rounding=rounding,
        rescale=rescale,
        return_lse=True,
        batch_invariant=batch_invariant,
    )
    chosen = route(problem, Target(arch, device.kernels))
    if isinstance(chosen, Fallback):
        raise ArgumentError("problem", problem.shape_text(), f"what a kernel of {arch} serves ({chosen.reason})")
    launches = plan(problem, chosen, device.info)
    arrays: dict[str, Array] = {
        "q": q,
        "k": k,
        "v": v,
        "o": np.full(q.shape, _NOISE, np.uint16),
        "lse": np.full((shape.batch, shape.num_heads, shape.seqlen_q), np.nan, np.float32),
        "workspace": np.full(max(launches.workspace_bytes, 1), 0xA5, np.uint8),
    }
    home = device.manifest.code_object_of(chosen.forward)
    image = device.manifest.read(home)
    calls = []
    for launch in launches.launches:
        item = device.manifest.code_object_of(launch.kernel)
        data, pointers = launcher.pack(launch, device.manifest.layouts[launch.kernel.kernarg_layout])
        other = None if item is home else device.manifest.read(item)
        spec = launch.kernel
        calls.append(_Call(spec.name, launch.grid, spec.block, launch.dynamic_lds, data, pointers, other))
    label = f"{chosen.forward.name}{' causal' if causal else ''} {problem.shape_text()}"
    return EmulatedSubject(label, arch, image, arrays, ("o", "lse"), calls)


def _strides(array: Array) -> tuple[int, int, int]:
    """Strides of a BSHD array in elements: batch, head, row."""
    batch, row, head, _ = (s // array.itemsize for s in array.strides)
    return batch, head, row
