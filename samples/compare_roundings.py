"""Two runs of one video and what they differ by: the kernel rounding to nearest, and rounding toward zero.

python samples/compare_roundings.py [PIPELINE]
"""

import sys

from moon_diffusers.generation.models import default_sample, load_pipeline, recommended_settings
from moon_diffusers.generation.paired import run_pair
from moon_diffusers.generation.place import place
from moon_diffusers.generation.settings import Settings
from moon_diffusers.quality.metrics import compare_frames, compare_latents
from moon_diffusers.quality.report import decibel


class Silent:
    """A run's progress, not shown."""

    def run(self, label: str) -> None:
        """A run of the pipeline starts."""

    def step(self) -> None:
        """A denoising step is done."""


model = sys.argv[1] if len(sys.argv) > 1 else str(default_sample())
recommended = recommended_settings(model)
runs = {}
for rounding in ("rtne", "rtz"):
    settings = Settings(model=model, prompt=recommended.get("prompts", ["a red ball"])[0], rounding=rounding)
    settings = place(settings.with_recommended(recommended), emulate=None, device=None, is_sample=len(sys.argv) == 1)
    pipe = load_pipeline(settings)
    runs[rounding] = outcome = run_pair(pipe, settings, Silent())
    error = outcome.report["comparison"]["latents"]["relative_l2"]
    floor = outcome.report["noise_floors"][0]["latents"]["relative_l2"]
    print(f"{rounding}: latents {error:.3e} from torch's, noise floor {floor:.3e}; {outcome.report['routing']['line']}")

a, b = runs["rtne"].with_kernel, runs["rtz"].with_kernel
between = compare_frames(a.frames, b.frames)
print(
    f"rtz against rtne: latents {compare_latents(a.latents[-1], b.latents[-1]).relative_l2:.3e}, PSNR {decibel(between.psnr)}"
)
