"""The pipeline folder: WanPipeline.save_pretrained, and the settings that the model was made for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, WanPipeline

from .models import Networks, build_tokenizer
from .vocabulary import caption, scene

STEPS = 10
GUIDANCE = 4.0
FPS = 8

#: Combinations that training showed, and combinations that it never showed.
SEEN = (
    scene("rocket", "blue", motion="moving up"),
    scene("heart"),
    scene("cat", "yellow"),
    scene("penguin", "green"),
    scene("butterfly"),
    scene("ghost", "black"),
    scene("dinosaur", "pink"),
    scene("car", "gray", motion="moving left"),
    scene("robot", motion="growing"),
    scene("flying saucer", "purple", second="cat"),
)
UNSEEN = (
    scene("dinosaur", "orange"),
    scene("frog", "red"),
    scene("train", motion="growing"),
    scene("ghost", "black", motion="moving right"),
    scene("bus", "green", motion="moving left"),
    scene("panda", "blue", second="robot"),
)
PROMPTS = tuple(caption(entry) for entry in SEEN)
UNSEEN_PROMPTS = tuple(caption(entry) for entry in UNSEEN)


def build_pipeline(networks: Networks) -> WanPipeline:
    """A WanPipeline over the networks as they are."""
    return WanPipeline(
        tokenizer=build_tokenizer(),
        text_encoder=networks.text_encoder,
        transformer=networks.transformer,
        vae=networks.autoencoder,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
    )


@torch.no_grad()
def generate(
    pipeline: WanPipeline,
    prompts: list[str],
    networks: Networks,
    seed: int,
    steps: int = STEPS,
    guidance: float = GUIDANCE,
) -> list[tuple[str, np.ndarray]]:
    """``(prompt, clip)`` pairs, clips as float ``(num_frames, height, width, 3)`` in [0, 1]."""
    shape = networks.shape
    pipeline.set_progress_bar_config(disable=True)
    generators = [torch.Generator("cpu").manual_seed(seed + number) for number in range(len(prompts))]
    with torch.autocast(networks.device.type, dtype=torch.bfloat16, enabled=networks.device.type == "cuda"):
        frames = pipeline(
            prompt=prompts,
            height=shape.height,
            width=shape.width,
            num_frames=shape.num_frames,
            num_inference_steps=steps,
            guidance_scale=guidance,
            generator=generators,
            output_type="np",
        ).frames
    return list(zip(prompts, frames, strict=True))


def export(directory: Path, networks: Networks) -> None:
    """Write the pipeline in bf16, and ``moon_sample.json``, into ``directory``."""
    for part in (networks.transformer, networks.text_encoder, networks.autoencoder):
        part.to(torch.bfloat16)
    build_pipeline(networks).save_pretrained(directory)
    shape = networks.shape
    settings = {
        "title": "animated emoji on coloured backgrounds, trained from scratch",
        "height": shape.height,
        "width": shape.width,
        "num_frames": shape.num_frames,
        "num_inference_steps": STEPS,
        "guidance_scale": GUIDANCE,
        "fps": FPS,
        "prompts": list(PROMPTS + UNSEEN_PROMPTS),
    }
    (directory / "moon_sample.json").write_text(json.dumps(settings, indent=2) + "\n")
