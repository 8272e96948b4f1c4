"""One line on a pipeline that you have already.

    python samples/one_line.py [PIPELINE]

On an AMD GPU the kernel runs there; elsewhere its machine code runs in the emulator, which is slow: keep to the sample.
"""

import contextlib
import sys

import torch
from diffusers import DiffusionPipeline
from diffusers.utils import export_to_video

import moon_diffusers
from moon_diffusers import MoonAttnProcessor
from moon_diffusers.generation.models import default_sample

has_gpu = torch.version.hip is not None and torch.cuda.is_available()
model = sys.argv[1] if len(sys.argv) > 1 else default_sample()
# A Wan VAE decodes in fp32.
pipe = DiffusionPipeline.from_pretrained(model, torch_dtype={"default": torch.bfloat16, "vae": torch.float32})
pipe.to("cuda" if has_gpu else "cpu")

pipe.set_attn_processor(MoonAttnProcessor())  # the one line

with contextlib.nullcontext() if has_gpu else moon_diffusers.emulate("gfx942"):
    video = pipe(
        "a rocket on a blue background moving up",
        height=96,
        width=96,
        num_frames=13,
        num_inference_steps=10,
        guidance_scale=4.0,
        generator=torch.Generator("cpu").manual_seed(0),
    ).frames[0]
export_to_video(video, "one_line.mp4", fps=8)
print("one_line.mp4:", moon_diffusers.summary())
