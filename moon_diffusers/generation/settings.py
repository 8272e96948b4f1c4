"""What a paired run was asked to do."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from moon_diffusers.errors import MoonError

__all__ = ["DTYPES", "NOISE_FLOORS", "ROUNDINGS", "SABOTAGES", "GenerateError", "Settings"]

DTYPES = {
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp16": "float16",
    "float16": "float16",
    "fp32": "float32",
    "float32": "float32",
}
ROUNDINGS = ("rtne", "rtna", "rtz")
NOISE_FLOORS = ("repeat", "math")
SABOTAGES = ("swap-heads", "drop-last-tile")


class GenerateError(MoonError, ValueError):
    """A paired run that cannot be done as asked."""


@dataclass(frozen=True)
class Settings:
    """One paired run. None leaves a value to the sample's recommendation, then to the pipeline's own default.

    Attributes:
        model: a pipeline folder, or a Hub id.
        prompt: the text; negative_prompt: what to steer away from (with guidance).
        image: path of the picture that an image-to-video pipeline starts from.
        seed: of the initial latents, drawn on the CPU so that every machine draws the same.
        height, width: pixels; num_frames: frames; fps: frames per second of the written videos.
        num_inference_steps: denoising steps; guidance_scale: classifier-free guidance, 1 is none.
        dtype: `bfloat16`, `float16` or `float32`, for everything but a Wan VAE, which stays in float32.
        rounding: how the kernel rounds P to bf16: `rtne`, `rtna` or `rtz`.
        emulate: architecture to emulate (`gfx942`, `gfx950`) or None for the real device.
        device: torch device of the pipeline.
        gate_factor: the largest error that passes, as a multiple of the noise floor; None takes the gate's own.
        minimum_share: the smallest share of attention calls the kernel must serve, 0..1.
        attention_errors: measure attention against float64 in every step, not only in the first.
        lossless: also write lossless videos.
        sabotage: break the kernel's results on purpose: `swap-heads`, `drop-last-tile`, or None.
        noise_floor: more noise floors, each one more run: `repeat` (the baseline again), `math` (unfused attention).
        self_check: afterwards run each sabotage, and demand that the gate notices.
    """

    model: str
    prompt: str
    revision: str | None = None
    negative_prompt: str | None = None
    image: str | None = None
    seed: int = 0
    height: int | None = None
    width: int | None = None
    num_frames: int | None = None
    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    fps: float | None = None
    dtype: str = "bfloat16"
    rounding: str = "rtne"
    emulate: str | None = None
    device: str = "cpu"
    gate_factor: float | None = None
    minimum_share: float = 1.0
    attention_errors: bool = False
    lossless: bool = False
    sabotage: str | None = None
    self_check: bool = False
    noise_floor: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # A sample's recommendations come from a file, and may be anything.
        for name in ("height", "width", "num_frames", "num_inference_steps"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise GenerateError(f"{name} is {value!r}; expected a whole number, at least 1")
        for name in ("fps", "guidance_scale"):
            value = getattr(self, name)
            if value is not None and type(value) not in (int, float):
                raise GenerateError(f"{name} is {value!r}; expected a number")
        if not 0 <= self.seed < 2**63:
            raise GenerateError(f"seed is {self.seed}; expected 0 to 2^63 - 1")
        for name, value in vars(self).items():
            # Bytes that were no text in this locale cannot be written to a report either.
            if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
                raise GenerateError(f"{name} is {value!r}; expected text, by the encoding of the locale")
        if not self.prompt.strip():
            raise GenerateError(f"prompt is {self.prompt!r}; expected text")
        if self.fps is not None and not 0 < self.fps <= 240:
            raise GenerateError(f"fps is {self.fps}; expected more than 0, at most 240")
        if self.dtype not in DTYPES.values():
            raise GenerateError(f"dtype is {self.dtype!r}; expected one of {', '.join(sorted(set(DTYPES.values())))}")
        if self.rounding not in ROUNDINGS:
            raise GenerateError(f"rounding is {self.rounding!r}; expected one of {', '.join(ROUNDINGS)}")
        if self.sabotage is not None and self.sabotage not in SABOTAGES:
            raise GenerateError(f"sabotage is {self.sabotage!r}; expected one of {', '.join(SABOTAGES)}")
        for floor in self.noise_floor:
            if floor not in NOISE_FLOORS:
                raise GenerateError(f"noise_floor is {floor!r}; expected one of {', '.join(NOISE_FLOORS)}")
        if self.guidance_scale is not None and not math.isfinite(self.guidance_scale):
            raise GenerateError(f"guidance_scale is {self.guidance_scale}; expected a finite number")
        if self.gate_factor is not None and not self.gate_factor > 0:
            raise GenerateError(f"gate_factor is {self.gate_factor}; expected more than 0")
        if not 0 <= self.minimum_share <= 1:
            raise GenerateError(f"minimum_share is {self.minimum_share}; expected 0 to 1")

    def with_recommended(self, recommended: dict[str, Any]) -> Settings:
        """Fill values that are None from a sample's `moon_sample.json`."""
        names = ("height", "width", "num_frames", "num_inference_steps", "guidance_scale", "fps", "negative_prompt")
        return replace(self, **{n: recommended[n] for n in names if getattr(self, n) is None and n in recommended})

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return asdict(self)

    def fingerprint(self) -> str:
        """Return a hash of everything that was asked; equal settings have equal fingerprints."""
        return hashlib.sha256(json.dumps(self.as_dict(), sort_keys=True).encode()).hexdigest()
