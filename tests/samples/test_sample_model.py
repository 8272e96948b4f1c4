"""The trained sample pipeline under samples/wan-emoji, loaded by diffusers as it is."""

import json
import warnings
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)
SAMPLE = Path(__file__).resolve().parents[2] / "samples" / "wan-emoji"


@pytest.fixture(scope="module")
def pipeline():
    from diffusers import WanPipeline

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipe = WanPipeline.from_pretrained(SAMPLE, torch_dtype=torch.bfloat16)
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="module")
def settings():
    return json.loads((SAMPLE / "moon_sample.json").read_text())


def latents(pipeline, settings, prompt, seed=0, guidance_scale=None, steps=2):
    return pipeline(
        prompt=prompt,
        height=settings["height"],
        width=settings["width"],
        num_frames=settings["num_frames"],
        num_inference_steps=steps,
        guidance_scale=guidance_scale or settings["guidance_scale"],
        generator=torch.Generator().manual_seed(seed),
        output_type="latent",
    ).frames.float()


def relative(a, b):
    return float((a - b).norm() / b.norm())


def test_it_is_small_and_has_head_dim_128(pipeline, settings):
    assert sum(file.stat().st_size for file in SAMPLE.rglob("*.safetensors")) <= 30_000_000
    assert pipeline.transformer.config.attention_head_dim == 128
    assert settings["num_frames"] >= 13 and settings["num_frames"] % 4 == 1
    assert min(settings["height"], settings["width"]) >= 64
    assert len(settings["prompts"]) >= 10


def test_generation_is_deterministic_and_follows_prompt_and_guidance(pipeline, settings):
    first = latents(pipeline, settings, "a rocket")
    assert torch.isfinite(first).all()
    assert torch.equal(first, latents(pipeline, settings, "a rocket"))
    assert relative(latents(pipeline, settings, "a cat on a blue background"), first) > 0.3
    assert relative(latents(pipeline, settings, "a rocket", guidance_scale=1.0), first) > 0.05


def test_it_decodes_to_a_picture_with_the_background_asked_for(pipeline, settings):
    """Four steps show the colour: blue above red in the corners of a clip on blue, the reverse on red."""
    pipeline.vae.to(torch.float32)
    corners = {}
    for colour in ("blue", "red"):
        video = pipeline(
            prompt=f"a small cat on a {colour} background",
            height=settings["height"],
            width=settings["width"],
            num_frames=settings["num_frames"],
            num_inference_steps=4,
            guidance_scale=settings["guidance_scale"],
            generator=torch.Generator().manual_seed(0),
            output_type="np",
        ).frames[0]
        assert video.shape == (settings["num_frames"], settings["height"], settings["width"], 3)
        corners[colour] = video[:, :6, :6].mean(axis=(0, 1, 2))
    assert corners["blue"][2] > corners["blue"][0] + 0.1
    assert corners["red"][0] > corners["red"][2] + 0.1
