"""From cycles of the microbenchmarks to the model's constants, by the model itself.

The same kernels run in the emulator once; their traces are replayed under trial constants until the model needs as many
cycles as were measured, one constant after the other, each by the benchmark that depends on it and on none that comes
later. So a constant means what the model means by it, with all of the model's turns and queues. What is left over after
that, the benchmarks that fix no constant included, says how good the model's form is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moon_diffusers.emulator.options import emulator_options
from moon_diffusers.emulator.trace import read_table, read_trace
from moon_diffusers.errors import ArgumentError, MoonError
from moon_diffusers.evidence.device import loaded, open_emulator, uploaded
from moon_diffusers.runtime.code_objects import load_manifest

from . import microbenchmarks
from .constants import PUBLISHED
from .library import Constants, Workgroup, replay
from .microbenchmarks import BENCHMARKS, WAVES
from .traces import convert

#: Cycles of an item, by benchmark.
Cycles = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Traced:
    """A benchmark's trace, and which records of each wave read the counter last: before, between and behind."""

    workgroup: Workgroup
    stamps: tuple[NDArray[np.int64], ...]


@cache
def traced(arch: str, name: str) -> Traced:
    """The benchmark as the emulator executes it. Raises MoonError if it was not built or does not run."""
    device = open_emulator(arch)
    image = microbenchmarks.image_of(load_manifest(), arch)
    arrays = microbenchmarks.memory()
    with tempfile.TemporaryDirectory() as folder, uploaded(device, arrays) as at, loaded(device, image) as module:
        prefix = Path(folder, "trace")
        kernarg = at["out"].to_bytes(8, "little") + at["data"].to_bytes(8, "little")
        with emulator_options(device.hip, trace=str(prefix), trace_workgroup="0", checks="off", threads="1"):
            function = device.function(module, microbenchmarks.PREFIX + name)
            device.launch(function, (1, 1, 1), (64 * WAVES, 1, 1), kernarg)
        table = read_table(prefix)
        waves = [read_trace(prefix, wave) for wave in range(table.waves)]
    counters = [row["index"] for row in table.instructions if row["mnemonic"] == "s_memtime"]
    stamps = tuple(np.flatnonzero(np.isin(wave.index, counters))[-3:] for wave in waves)
    return Traced(convert(table, waves), stamps)


def modelled_times(arch: str, name: str, constants: Constants) -> NDArray[np.int64]:
    """When each wave reads the counter, (waves, 3), in the model's cycles; zeros for a wave without a part."""
    subject = traced(arch, name)
    issue = replay(subject.workgroup, constants, timeline=True).issue
    times = np.zeros((WAVES, 3), np.int64)
    for wave, stamps in enumerate(subject.stamps):
        if len(stamps):
            times[wave] = issue[wave][stamps]
    return times


def modelled(arch: str, name: str, constants: Constants) -> float:
    """Cycles of one item in the model."""
    return microbenchmarks.cycles(BENCHMARKS[name], modelled_times(arch, name, constants))


@dataclass(frozen=True, slots=True)
class Step:
    """Which benchmark fixes a constant, and between which values; `rate`: a larger one needs fewer cycles."""

    constant: str
    benchmark: str
    low: int
    high: int
    rate: bool = False


STEPS = (
    Step("valu", "valu", 1, 64),
    Step("valu_result", "valu_chain", 0, 64),
    Step("transcendental", "exp", 1, 128),
    Step("mfma_port", "mfma_valu", 1, 128),
    Step("packed_beside_mfma", "mfma_packed", 0, 1, rate=True),
    Step("mfma_accumulate", "mfma_chain", 0, 128),
    Step("mfma_result", "mfma_read_{states}", 0, 128),
    Step("branch_taken", "branch", 0, 512),
    Step("barrier", "barriers", 0, 2048),
    Step("scalar_load_latency", "scalar_chain", 0, 4096),
    Step("lds_bytes_per_cycle", "lds_b128", 8, 1024, rate=True),
    Step("lds_latency", "lds_chain", 0, 4096),
    Step("l1_bytes_per_cycle", "l1_stream", 8, 1024, rate=True),
    Step("l1_hit_latency", "l1_chain", 0, 8192),
    Step("l2_latency", "l2_chain", 0, 16384),
)


def first_right(right: Mapping[str, bool]) -> int:
    """The fewest wait states behind a matrix instruction after which a reader got its result."""
    return next((states for states in range(8) if right.get(f"mfma_read_{states}", False)), 8)


def fit(arch: str, measured: Cycles, right: Mapping[str, bool]) -> Constants:
    """The constants under which the model needs the measured cycles.

    Args:
        measured: of every benchmark that `STEPS` names.
        right: whether a benchmark's results were; where a reader of a matrix result came too early, the hardware did
            not wait by itself, and the shortest wait that was long enough counts.

    A constant is known to a turn of four cycles, or to a whole cycle an instruction; of the values that fit equally well
    the largest multiple of four is taken, of a rate the smallest.
    """
    found = PUBLISHED[arch]
    for step in STEPS:
        name = step.benchmark.format(states=first_right(right))
        if name not in measured:
            raise ArgumentError("measured", sorted(measured), f"{name} among them")
        if step.constant == "mfma_port":
            found = _fit_port(arch, name, measured[name], found, step)
            continue

        def cost(value: int, step: Step = step, name: str = name, base: Constants = found) -> float:
            changed: dict[str, Any] = {step.constant: value}
            return modelled(arch, name, replace(base, **changed))

        best: dict[str, Any] = {step.constant: _solve(cost, measured[name], step)}
        found = replace(found, **best)
    return found


def _fit_port(arch: str, name: str, target: float, base: Constants, step: Step) -> Constants:
    """A port that is held as long as the matrix pipe is one that overlaps nothing."""
    base = replace(base, mfma_overlaps_valu=1)
    port = _solve(lambda value: modelled(arch, name, replace(base, mfma_port=value)), target, step)
    if modelled(arch, name, replace(base, mfma_overlaps_valu=0)) <= target:
        return replace(base, mfma_overlaps_valu=0)
    return replace(base, mfma_port=port)


def _solve(cost: Callable[[int], float], target: float, step: Step) -> int:
    """The value whose cost is nearest to `target`; costs are monotone."""
    reached = (lambda x: cost(x) <= target) if step.rate else (lambda x: cost(x) >= target)
    at = _first(reached, step.low, step.high)
    if at > step.low and abs(cost(at - 1) - target) < abs(cost(at) - target):
        at -= 1
    best = cost(at)
    low = _first((lambda x: cost(x) <= best) if step.rate else (lambda x: cost(x) >= best), step.low, at)
    high = _first((lambda x: cost(x) < best) if step.rate else (lambda x: cost(x) > best), at, step.high + 1) - 1
    turns = range(-(-low // 4) * 4, high + 1, 4)
    if not turns:
        return low
    return turns[0] if step.rate else turns[-1]


def _first(reached: Callable[[int], bool], low: int, high: int) -> int:
    """The first value of `low`.. for which `reached`, which is so from some value on; `high` if there is none below."""
    while low < high:
        middle = (low + high) // 2
        if reached(middle):
            high = middle
        else:
            low = middle + 1
    return low


#: The constants that `fit` finds; the others keep their published values.
FITTED = frozenset({step.constant for step in STEPS} | {"mfma_overlaps_valu"})


def document(arch: str, source: str, constants: Constants, **more: Any) -> dict[str, Any]:
    """What `moon-diffusers model-timing --constants` reads: the fitted constants, and whatever else is to be kept."""
    found = {name: value for name, value in asdict(constants).items() if name in FITTED}
    return {"schema": 1, "arch": arch, "source": source, "constants": found, **more}


def read_document(data: Any, arch: str) -> dict[str, tuple[int, ...]]:
    """The values of each constant that a document names: one, or several to try.

    Raises MoonError naming what is wrong with it.
    """
    if not isinstance(data, dict) or data.get("schema") != 1 or not isinstance(data.get("constants"), dict):
        raise MoonError('constants: expected {"schema": 1, "arch": ..., "constants": {...}}')
    if data.get("arch") != arch:
        raise MoonError(f"constants: of {data.get('arch')!r}; accepted: {arch}")
    known = {field.name for field in fields(Constants)}
    found: dict[str, tuple[int, ...]] = {}
    for name, value in data["constants"].items():
        if name not in known:
            raise MoonError(f"constants: unknown name {name!r}; accepted: {', '.join(sorted(known))}")
        values = value if isinstance(value, list) else [value]
        if not values or not all(type(item) is int and 0 <= item < 2**31 for item in values):
            raise MoonError(f"constants: {name} is {value!r}; accepted: a whole number from 0 on, or a list of them")
        found[name] = tuple(values)
    return found
