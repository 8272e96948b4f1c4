"""One transformer step with torch SDPA and with the kernel, in turns."""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import moon_diffusers
from moon_diffusers import counters
from moon_diffusers.evidence.bench.schedule import Clock, Kernel
from moon_diffusers.evidence.bench.telemetry import EnergyCounter, Sampler, Source
from moon_diffusers.evidence.budget import Budget

from . import wan
from .rounds import Method, Side, compared, difference, measure

BACKENDS = {"cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}
SDPA, MOON = "sdpa", "moon"


@dataclass(frozen=True, slots=True)
class Setup:
    """What all rows of a run share.

    Attributes:
        sdpa: `fastest` (on the self-attention's shape), `default` (torch's own choice) or a name of `BACKENDS`.
        self_only: the kernel serves the self-attention alone, cross-attention stays with torch on both sides.
        emulate: an architecture to emulate on CPU tensors, for a dry run; empty on a GPU.
    """

    device: torch.device
    clock: Clock
    source: Source | None
    counter: EnergyCounter | None
    method: Method
    budget: Budget
    sdpa: str = "fastest"
    self_only: bool = False
    emulate: str = ""

    def sampler(self) -> Sampler:
        """What reads clocks, power and energy."""
        return Sampler(self.source, counter=self.counter)

    def placed(self) -> AbstractContextManager[Any]:
        """Where the kernel runs."""
        return moon_diffusers.emulate(self.emulate, work_limit=0) if self.emulate else nullcontext()


@dataclass(slots=True)
class Row:
    """What became of one combination."""

    size: str
    resolution: str
    mode: str
    tokens: int
    attention: str
    sdpa: str = ""
    sdpa_candidates: dict[str, float | str] = field(default_factory=dict)
    first_call_seconds: dict[str, float] = field(default_factory=dict)
    sides: dict[str, Side] = field(default_factory=dict)
    difference: float | None = None
    served: int = 0
    fallbacks: int = 0
    kernels: dict[str, int] = field(default_factory=dict)
    summary: str = ""
    memory_gib: float | None = None
    note: str = ""

    @property
    def ratio(self) -> dict[str, float] | None:
        """Speed and energy of the kernel's side against torch's; None without kept rounds."""
        return compared(self.sides[MOON], self.sides[SDPA]) if len(self.sides) == 2 else None

    def as_json(self) -> dict[str, Any]:
        """Everything, for the file."""
        plain = {slot: getattr(self, slot) for slot in self.__slots__ if slot != "sides"}
        return plain | {"ratio": self.ratio, "sides": {name: side.as_json() for name, side in self.sides.items()}}


def measure_step(model: nn.Module, size: wan.Size, resolution: wan.Resolution, mode: str, setup: Setup) -> Row:
    """One row. Whatever fails inside is the row's note: the other rows go on.

    Args:
        model: the transformer of `size`; not changed, both sides are twins of it.
        mode: `eager`, or `compile`: the repeated blocks of both sides by `torch.compile(fullgraph=True)`.
    """
    row = Row(size.name, resolution.name, mode, resolution.tokens, "self" if setup.self_only else "self and cross")
    try:
        with torch.no_grad(), setup.placed():
            _measure(row, model, size, resolution, setup)
    except Exception as error:  # out of memory, a compiler's failure: named, and the run goes on
        row.note = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    finally:
        free(setup.device)
    return row


def _measure(row: Row, model: nn.Module, size: wan.Size, resolution: wan.Resolution, setup: Setup) -> None:
    torch.compiler.reset()
    row.sdpa = choose_backend(row, size, setup)
    scope = f"{row.size} {row.resolution} {row.mode}"
    moon_diffusers.reset_summary(scope)
    theirs, ours = wan.twin(model), wan.twin(model)
    route(ours, moon_diffusers.MoonAttnProcessor(scope=scope), setup.self_only)
    models: dict[str, Any] = {SDPA: theirs, MOON: ours}
    if row.mode == "compile":
        for one in models.values():
            one.compile_repeated_blocks(fullgraph=True)
    arguments = wan.inputs(model, resolution, setup.device)

    def step(name: str) -> Tensor:
        out: Tensor = models[name](**arguments)[0]
        return out

    if setup.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(setup.device)
    with preferring(row.sdpa):
        outputs = {}
        for name in models:
            begin = time.monotonic()
            outputs[name] = step(name)
            synchronize(setup.device)
            row.first_call_seconds[name] = time.monotonic() - begin
        row.difference = difference(outputs[SDPA], outputs[MOON])
        outputs.clear()
        sides: dict[str, Kernel] = {name: functools.partial(step, name) for name in models}
        row.sides = measure(sides, setup.clock, setup.method, setup.sampler(), setup.budget)
    counts = counters.snapshot(scope)
    row.served, row.fallbacks, row.kernels = counts.num_served, counts.num_fallbacks, dict(counts.kernels)
    row.summary = moon_diffusers.summary(scope)
    if setup.device.type == "cuda":
        row.memory_gib = round(torch.cuda.max_memory_allocated(setup.device) / 2**30, 1)
    if row.ratio is None:
        row.note = "not timed: the time was up"
    elif row.served == 0:
        row.note = "no call ran on the kernel: both sides are torch SDPA"


def route(model: nn.Module, processor: moon_diffusers.MoonAttnProcessor, self_only: bool) -> None:
    """Give the model's attention modules to the kernel: all, or the self-attention alone."""
    if not self_only:
        moon_diffusers.set_attn_processor(model, processor)
        return
    for block in model.blocks:  # type: ignore[union-attr]
        block.attn1.set_processor(processor)


def choose_backend(row: Row, size: wan.Size, setup: Setup) -> str:
    """The SDPA backend that both sides use where torch computes: the fastest there is, unless told otherwise."""
    if setup.sdpa != "fastest" or setup.device.type != "cuda":
        return setup.sdpa if setup.sdpa != "fastest" else "default"
    shape = (1, row.tokens, size.num_heads, wan.HEAD_DIM)
    q, k, v = (torch.randn(shape, device=setup.device, dtype=torch.bfloat16).transpose(1, 2) for _ in range(3))
    for name, backend in BACKENDS.items():
        try:
            with sdpa_kernel(getattr(SDPBackend, backend)):
                setup.clock.block(lambda: scaled_dot_product_attention(q, k, v), 1)
                seconds, _, _ = setup.clock.block(lambda: scaled_dot_product_attention(q, k, v), 3)
            row.sdpa_candidates[name] = seconds / 3
        except Exception as error:  # "No available kernel", or no such backend in this torch
            row.sdpa_candidates[name] = f"{type(error).__name__}: {error}".splitlines()[0][:100]
    timed = {name: seconds for name, seconds in row.sdpa_candidates.items() if isinstance(seconds, float)}
    return min(timed, key=lambda name: timed[name]) if timed else "default"


@contextmanager
def preferring(name: str) -> Iterator[None]:
    """Torch SDPA takes this backend where it can and another where it cannot; `default` leaves the choice to torch."""
    if name == "default":
        yield
        return
    first = getattr(SDPBackend, BACKENDS[name])
    others = [getattr(SDPBackend, other) for other in (*BACKENDS.values(), "MATH") if hasattr(SDPBackend, other)]
    order = [first, *(other for other in others if other != first)]
    try:
        context: Any = sdpa_kernel(order, set_priority=True)
    except TypeError:  # torch < 2.6: no order, so no others
        context = sdpa_kernel(first)
    with context:
        yield


def synchronize(device: torch.device) -> None:
    """Wait for the GPU, if it is one."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free(device: torch.device) -> None:
    """Give back what a row has used."""
    torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
