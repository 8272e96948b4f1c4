"""One run of a pipeline: latents after every step, raw frames, and where the time went."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from moon_diffusers.generation.models import denoisers
from moon_diffusers.generation.settings import GenerateError, Settings
from moon_diffusers.quality.frames import Frames, as_frames

__all__ = ["RunResult", "call_arguments", "read_image", "resolved", "run_pipeline"]


@dataclass
class RunResult:
    """What one run left behind.

    Attributes:
        latents: after each step, in the pipeline's own dtype, on the CPU; the last one is what the VAE decodes.
        frames: raw decoded frames, or None when only latents were asked for.
        initial_sha256: hash of what the pipeline's `prepare_latents` returned.
        seconds: `total`, `encode` (until the denoiser starts), `denoise`, `decode`.
        step_seconds: each denoising step.
    """

    latents: list[torch.Tensor] = field(default_factory=list)
    frames: Frames | None = None
    initial_sha256: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    step_seconds: list[float] = field(default_factory=list)


def call_arguments(pipe: Any, settings: Settings) -> dict[str, Any]:
    """Return the keyword arguments of `settings` for this pipeline's call, values left at None not among them.

    Raises:
        GenerateError: the pipeline does not take a value that was given, or cannot report its latents.
    """
    accepted = inspect.signature(pipe.__call__).parameters
    if "callback_on_step_end" not in accepted:
        raise GenerateError(
            f"model: {type(pipe).__name__} has no callback_on_step_end, so its latents cannot be compared"
        )
    names = ("prompt", "negative_prompt", "height", "width", "num_frames", "num_inference_steps", "guidance_scale")
    given = {name: getattr(settings, name) for name in names if getattr(settings, name) is not None}
    if settings.image is not None:
        given["image"] = read_image(settings.image)
    for name in given:
        if name not in accepted:
            raise GenerateError(f"{name} is {getattr(settings, name)!r}: not an argument of {type(pipe).__name__}")
    for name, parameter in accepted.items():
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD and name not in given:
            raise GenerateError(f"{name} is not given; {type(pipe).__name__} needs it")
    return given


def read_image(path: str) -> Any:
    """Read a picture as an RGB PIL image.

    Raises:
        GenerateError: the file is missing, or no picture.
    """
    from PIL import Image

    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except OSError as error:
        raise GenerateError(f"image is {path!r}: cannot be read: {error.strerror or 'no picture'}") from error


def run_pipeline(
    pipe: Any,
    settings: Settings,
    on_step: Callable[[], None] = lambda: None,
    *,
    decode: bool = True,
    steps: int | None = None,
) -> RunResult:
    """Run the pipeline once, from the latents that `settings.seed` draws.

    Args:
        pipe: a loaded pipeline.
        settings: what to generate.
        on_step: called after each denoising step.
        decode: False stops at the latents.
        steps: another number of steps than the settings', for a warm-up.

    Raises:
        GenerateError: the pipeline refuses its arguments, or makes no step.
    """
    arguments = call_arguments(pipe, settings)
    if steps is not None:
        arguments["num_inference_steps"] = steps
    result = RunResult()
    marks: dict[str, float] = {}
    clock = _Clock(settings.device)

    def denoiser_starts(*_: Any) -> None:
        if "denoise" not in marks:
            marks["denoise"] = marks["step"] = clock.now()

    def step_ends(_pipe: Any, _index: int, _timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
        now = clock.now()
        result.step_seconds.append(now - marks["step"])
        result.latents.append(values["latents"].detach().to("cpu", copy=True))
        on_step()
        # Copying the latents and drawing the progress bar is not the step's time.
        marks["step"] = marks["decode"] = clock.now()
        return {}

    with contextlib.ExitStack() as stack:
        for module in denoisers(pipe).values():
            stack.callback(module.register_forward_pre_hook(denoiser_starts).remove)
        stack.enter_context(_recorded_initial_latents(pipe, result))
        start = clock.now()
        try:
            output = pipe(
                **arguments,
                generator=torch.Generator("cpu").manual_seed(settings.seed),
                callback_on_step_end=step_ends,
                callback_on_step_end_tensor_inputs=["latents"],
                output_type="np" if decode else "latent",
            )
        except ValueError as error:
            # Before the first step it is the pipeline's own check of its arguments.
            if result.latents:
                raise
            raise GenerateError(" ".join(str(error).split())) from error
        end = clock.now()
    if not result.latents:
        raise GenerateError(f"num_inference_steps is {settings.num_inference_steps}: the pipeline made no step")
    if decode:
        frames = getattr(output, "frames", None)
        result.frames = as_frames(output.images if frames is None else frames)
    result.seconds = {
        "total": end - start,
        "encode": marks["denoise"] - start,
        "denoise": sum(result.step_seconds),
        "decode": end - marks["decode"],
    }
    return result


class _Clock:
    """Wall time that waits for the device first."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def resolved(pipe: Any, settings: Settings) -> Settings:
    """Fill what is still None from the defaults of this pipeline's call, so that the report can say what was run."""
    accepted = inspect.signature(pipe.__call__).parameters
    names = ("height", "width", "num_frames", "num_inference_steps", "guidance_scale")
    missing = [name for name in names if getattr(settings, name) is None and name in accepted]
    defaults = {name: accepted[name].default for name in missing}
    filled: dict[str, Any] = {name: value for name, value in defaults.items() if isinstance(value, (int, float))}
    return replace(settings, **filled)


@contextlib.contextmanager
def _recorded_initial_latents(pipe: Any, result: RunResult) -> Any:
    original = getattr(pipe, "prepare_latents", None)
    if original is None:
        yield
        return

    def recording(*args: Any, **kwargs: Any) -> Any:
        value = original(*args, **kwargs)
        digest = hashlib.sha256()
        for tensor in value if isinstance(value, (tuple, list)) else [value]:
            if isinstance(tensor, torch.Tensor):
                digest.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
        result.initial_sha256 = digest.hexdigest()
        return value

    pipe.prepare_latents = recording
    try:
        yield
    finally:
        del pipe.prepare_latents
