"""What a kernel moves per FLOP: proxies for its energy, counted in the emulator, beside AITER's kernel in the same run.

At a power cap time is energy, and what costs energy beside the multiplications is moving their operands: accumulators
through the matrix core, K and V to the compute unit, fragments out of LDS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from moon_diffusers.emulator.options import emulator_options
from moon_diffusers.errors import MoonError
from moon_diffusers.evidence import aiter, calls, peer, reference, slots
from moon_diffusers.evidence.device import RawDevice
from moon_diffusers.runtime.device import Device

#: Bytes of one register of a wave.
_REGISTER = 64 * 4
_COUNTS = {"checks": "off", "counts": "on", "threads": "1", "mma": "fast", "order": "forward"}


@dataclass(frozen=True)
class Proxies:
    """Of one call; a FLOP is one of the two matrix products' 4 Sq Sk D.

    Attributes:
        accumulators: bytes of accumulator registers that the matrix core reads and writes, per FLOP.
        fetched: bytes of K and V that reach the compute units, per kFLOP.
        lds: bytes read from LDS, per kFLOP.
        vector: vector and transcendental instructions of a lane, per score.
        conflicts: LDS cycles lost to bank conflicts.
    """

    kernel: str
    accumulators: float
    fetched: float
    lds: float
    vector: float
    conflicts: int


def proxies(report: dict[str, Any], code: list[slots.Instruction], shape: aiter.Shape) -> Proxies:
    """From the report of a launch with counts on, and the kernel's disassembly."""
    if "counts" not in report:
        raise MoonError("the report has no counts: switch the emulator's option counts on")
    counts = report["counts"]
    names = {item.address: item.name for item in code}
    scores = shape.batch * shape.num_heads * shape.seqlen_q * shape.seqlen_k
    flops = 4 * scores * shape.head_dim
    lds = loaded = 0
    for address, _, lds_bytes, _, _, global_bytes, _ in counts["per_instruction"]:
        if names[address].startswith("ds_read"):
            lds += lds_bytes
        if names[address].startswith(("buffer_load", "global_load", "flat_load")):
            loaded += global_bytes
    q = 2 * shape.batch * shape.num_heads * shape.seqlen_q * shape.head_dim
    accumulators = counts["accumulator_registers_read"] + counts["accumulator_registers_written"]
    kinds = counts["kinds"]
    return Proxies(
        kernel=report["kernel"],
        accumulators=accumulators * _REGISTER / flops,
        fetched=(loaded - q) / flops * 1000,
        lds=lds / flops * 1000,
        vector=(kinds["valu"] + kinds["trans"]) * 64 / scores,
        conflicts=counts["lds_conflict_cycles"],
    )


def rescale_share(report: dict[str, Any], code: list[slots.Instruction]) -> float:
    """In what share of a wave's tiles the lazy rescale was taken, 0 to 1."""
    executed = {row[0]: row[1] for row in report["counts"]["per_instruction"]}
    taken = tested = 0
    for tile in slots.common_tiles(code):
        branch, rescale = slots.rescale_branch(tile, code)
        tested += executed.get(branch, 0)
        taken += executed.get(rescale, 0)
    return taken / tested


@dataclass(frozen=True)
class Comparison:
    """Our kernel and AITER's on the same tensors; ``rescaled`` is of ours."""

    ours: Proxies
    aiter: Proxies
    rescaled: float


def disassembly(device: Device | RawDevice, image: bytes) -> list[slots.Instruction]:
    """All instructions of a code object."""
    hip = device.hip
    return [item for code in slots.disassembly(hip.disassemble(image)).values() for item in code]


def run_ours(
    device: Device, shape: aiter.Shape, *, causal: bool = False, kind: reference.Kind = "normal"
) -> calls.Result:
    """Our kernel, undivided, with counts."""
    q, k, v = reference.inputs(
        shape.batch, shape.seqlen_q, shape.seqlen_k, shape.num_heads, shape.num_heads_kv, kind=kind
    )
    call = calls.Call(q, k, v, causal=causal, batch_invariant=True, family="cdna4")
    with emulator_options(device.hip, **_COUNTS):
        return calls.run(device, call)


def code_of(device: Device, result: calls.Result) -> list[slots.Instruction]:
    """The disassembly of the code object that holds a result's forward kernel."""
    return disassembly(device, device.manifest.read(device.manifest.code_object_of(result.route.forward)))


def compare(device: Device, raw: RawDevice, shape: aiter.Shape, *, causal: bool = False) -> Comparison:
    """Run both kernels on N(0, 1) tensors of ``shape``.

    Raises:
        AiterUnavailableError: AITER's code object cannot be had here.
    """
    ours = run_ours(device, shape, causal=causal)
    code = code_of(device, ours)
    kernel = aiter.Kernel("gfx950", "rtne", causal)
    q, k, v = reference.inputs(shape.batch, shape.seqlen_q, shape.seqlen_k, shape.num_heads, shape.num_heads_kv)
    with emulator_options(raw.hip, **_COUNTS):
        theirs = peer.run(raw, kernel, q, k, v)
    (report,) = ours.reports
    their_code = disassembly(raw, aiter.code_object(kernel))
    return Comparison(
        proxies(report, code, shape), proxies(theirs.report, their_code, shape), rescale_share(report, code)
    )
