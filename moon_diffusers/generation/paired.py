"""The paired run itself: baseline, noise floors, kernel, gate."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import moon_diffusers
from moon_diffusers.generation import kernel
from moon_diffusers.generation.environment import describe_environment, describe_model
from moon_diffusers.generation.models import denoisers
from moon_diffusers.generation.observe import AttentionErrors, LayerErrors, Sabotage, layer_names
from moon_diffusers.generation.reference import attention_in_fp32, inside_forward, math_attention
from moon_diffusers.generation.run import RunResult, resolved, run_pipeline
from moon_diffusers.generation.settings import SABOTAGES, GenerateError, Settings
from moon_diffusers.quality.gates import (
    ATTENTION_FACTORS,
    LATENT_FACTOR,
    Check,
    Gate,
    attention_checks,
    finite_check,
    initial_check,
    latent_check,
    share_check,
)
from moon_diffusers.quality.metrics import LatentMetrics, compare_frames, compare_latents, warp_error

__all__ = ["Outcome", "Progress", "run_pair"]

_FLOORS = {
    "attention-fp32": "baseline with its attention computed in fp32",
    "repeat": "baseline run again",
    "math": "baseline with torch's unfused attention",
}


class Progress(Protocol):
    """What a paired run tells about its progress."""

    def run(self, label: str) -> None:
        """A run of the pipeline starts."""

    def step(self) -> None:
        """A denoising step is done."""


@dataclass
class Outcome:
    """A finished pair.

    Attributes:
        report: JSON-able, the content of report.json.
        without_kernel, with_kernel: the two runs.
        fps: frames per second for the videos.
    """

    report: dict[str, Any]
    without_kernel: RunResult
    with_kernel: RunResult
    fps: float


@dataclass
class _Pair:
    pipe: Any
    settings: Settings
    progress: Progress
    routing: kernel.Routing = field(default_factory=kernel.Routing)
    layers: dict[str, LayerErrors] = field(default_factory=dict)

    def baseline(self, label: str, enter: Callable[[], Any] = nullcontext, decode: bool = True) -> RunResult:
        self.progress.run(label)
        with inside_forward(denoisers(self.pipe).values(), enter):
            return run_pipeline(self.pipe, self.settings, self.progress.step, decode=decode)

    def kernel(self, label: str, sabotage: str | None, decode: bool = True) -> RunResult:
        self.progress.run(label)
        tap: AbstractContextManager[Any] = Sabotage(sabotage) if sabotage else nullcontext()
        errors = AttentionErrors()
        with ExitStack() as stack:
            self.routing = stack.enter_context(kernel.kernel_attention(self.pipe, self.settings))
            stack.enter_context(tap)
            # Entered last, torch asks this mode first: it sees what the sabotage did.
            measuring = stack.enter_context(ExitStack())
            measuring.enter_context(layer_names(errors, denoisers(self.pipe)))
            measuring.enter_context(errors)

            def step() -> None:
                self.progress.step()
                if not self.settings.attention_errors:
                    # One step holds every layer; the others run, and are timed, untouched.
                    measuring.close()

            result = run_pipeline(self.pipe, self.settings, step, decode=decode)
        if isinstance(tap, Sabotage) and tap.calls == 0:
            raise GenerateError(
                f"sabotage is {sabotage!r}: the run made no attention call through the kernel's operator"
            )
        self.layers = errors.errors
        return result

    def gate(self, baseline: RunResult, run: RunResult, error: LatentMetrics, floor: LatentMetrics) -> Gate:
        given = self.settings.gate_factor
        attention_factor = given or ATTENTION_FACTORS[self.settings.rounding]
        checks: list[Check] = [
            *attention_checks({n: (layer.kernel, layer.sdpa) for n, layer in self.layers.items()}, attention_factor),
            latent_check(error, floor, given or LATENT_FACTOR),
            finite_check(error),
            share_check(self.routing.num_served, self.routing.expected, self.settings.minimum_share),
        ]
        if baseline.initial_sha256:
            checks.append(initial_check(baseline.initial_sha256, run.initial_sha256))
        return Gate(tuple(checks))


def run_pair(pipe: Any, settings: Settings, progress: Progress) -> Outcome:
    """Generate the video without and with the kernel, from identical latents, and judge the difference.

    Args:
        pipe: a loaded pipeline; it is left as it was.
        settings: what to generate.
        progress: told about each run and step.

    Raises:
        GenerateError: the pipeline cannot do what was asked.
    """
    settings = resolved(pipe, settings)
    pair = _Pair(pipe, settings, progress)
    if settings.device.startswith("cuda"):
        # Loading, autotuning and the kernel's self-test are nobody's step time.
        run_pipeline(pipe, settings, steps=1, decode=False)
        with kernel.kernel_attention(pipe, settings):
            run_pipeline(pipe, settings, steps=1, decode=False)

    baseline = pair.baseline("without kernel")
    enter = {"attention-fp32": attention_in_fp32, "repeat": nullcontext, "math": math_attention}
    others = {
        name: pair.baseline(f"noise floor: {name}", enter[name]) for name in ("attention-fp32", *settings.noise_floor)
    }
    run = pair.kernel("with kernel", settings.sabotage)
    routing, layers = pair.routing, pair.layers

    error = compare_latents(baseline.latents[-1], run.latents[-1])
    floor = compare_latents(baseline.latents[-1], others["attention-fp32"].latents[-1])
    gate = pair.gate(baseline, run, error, floor)
    self_check = []
    for kind in SABOTAGES if settings.self_check else ():
        broken = pair.kernel(f"self-check: {kind}", kind, decode=False)
        broken_error = compare_latents(baseline.latents[-1], broken.latents[-1])
        broken_gate = pair.gate(baseline, broken, broken_error, floor)
        self_check.append({"sabotage": kind, "noticed": not broken_gate.passed, "failures": broken_gate.failures()})

    report = {
        "schema": 1,
        "kind": "moon-diffusers generate",
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "version": moon_diffusers.__version__,
        "settings": settings.as_dict(),
        "model": describe_model(pipe, settings),
        "gate": gate.as_dict(),
        "self_check": self_check,
        "initial_latents_sha256": baseline.initial_sha256,
        "comparison": _row("with kernel", "with the kernel, against the run without", baseline, run),
        "noise_floors": [_row(name, _FLOORS[name], baseline, result) for name, result in others.items()],
        "runs": {"without_kernel": _run_facts(baseline), "with_kernel": _run_facts(run)},
        "speed": _speed(baseline, run, settings),
        "routing": routing.as_dict(),
        "attention_errors": {name: vars(layer) for name, layer in layers.items()},
        "environment": describe_environment(),
    }
    return Outcome(report, baseline, run, settings.fps or 16.0)


def _row(name: str, description: str, baseline: RunResult, other: RunResult) -> dict[str, Any]:
    """Latent and frame figures of one run against the baseline."""
    assert baseline.frames is not None and other.frames is not None
    steps = [compare_latents(a, b) for a, b in zip(baseline.latents, other.latents, strict=True)]
    return {
        "name": name,
        "description": description,
        "latents": steps[-1].as_dict(),
        "latents_per_step": [step.as_dict()["relative_l2"] for step in steps],
        "frames": compare_frames(baseline.frames, other.frames).as_dict(),
    }


def _run_facts(run: RunResult) -> dict[str, Any]:
    assert run.frames is not None
    return {
        "seconds": run.seconds,
        "step_seconds": run.step_seconds,
        "warp_error": warp_error(run.frames),
        "frames_shape": list(run.frames.shape),
        "latents_shape": list(run.latents[-1].shape),
    }


def _speed(baseline: RunResult, run: RunResult, settings: Settings) -> dict[str, Any]:
    """Ratio of the median step times, with the quartiles of the steps' own ratios as its spread."""
    # The first step pays for first calls, and attention errors are measured in it.
    first = 1 if len(run.step_seconds) > 1 else 0
    before, after = baseline.step_seconds[first:], run.step_seconds[first:]
    ratios = [a / b for a, b in zip(before, after, strict=True)]
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0], ratios[0], ratios[0]]
    return {
        "ratio": statistics.median(before) / statistics.median(after),
        "quartiles": [quartiles[0], quartiles[2]],
        "steps": len(ratios),
        "emulated": settings.emulate is not None,
        "observed": settings.attention_errors,
    }
