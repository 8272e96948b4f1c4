"""A whole pipeline run: all denoising steps with guidance, then the VAE. Text embeddings are given as tensors."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

import moon_diffusers
from moon_diffusers import counters
from moon_diffusers.evidence.bench.telemetry import SETTLE_SECONDS

from . import wan
from .rounds import difference
from .step import MOON, SDPA, Row, Setup, choose_backend, free, preferring, synchronize

#: The publisher's shift of the flow schedule at 480p and at 720p.
FLOW_SHIFT = {"720p": 5.0}


def build_vae(size: wan.Size, weights: Path | None, device: torch.device, seed: int = 2) -> nn.Module:
    """Wan's VAE in fp32, as its pipelines use it; a small one with the tiny transformer."""
    diffusers: Any = importlib.import_module("diffusers")
    if weights is not None and (weights / "vae").is_dir():
        loaded = diffusers.AutoencoderKLWan.from_pretrained(weights, subfolder="vae", torch_dtype=torch.float32)
        module: nn.Module = loaded.to(device)
        return module.eval().requires_grad_(False)
    small = {"base_dim": 8, "num_res_blocks": 1} if size.name == "tiny" else {}
    torch.manual_seed(seed)
    with torch.device(device):
        vae: nn.Module = diffusers.AutoencoderKLWan(**small)
    return vae.eval().requires_grad_(False)


def measure_video(
    model: Any, size: wan.Size, resolution: wan.Resolution, setup: Setup, weights: Path | None, steps: int
) -> dict[str, Any]:
    """Generate the same video with torch SDPA and with the kernel, one after the other; the row as JSON.

    Each side runs one unmeasured step first. Frames are compared by relative L2 of the decoded tensor and by its largest
    difference in [0, 1]. A side may take half of the time that is left; if that is too short for a video, the row holds the
    seconds of the steps that were made.
    """
    diffusers: Any = importlib.import_module("diffusers")
    row: dict[str, Any] = {
        "size": size.name,
        "resolution": resolution.name,
        "frames": resolution.frames,
        "steps": steps,
        "guidance_scale": 5.0,
        "sides": {},
        "note": "",
    }
    probe = Row(size.name, resolution.name, "pipeline", resolution.tokens, "self and cross")
    frames: dict[str, torch.Tensor] = {}
    try:
        with torch.no_grad(), setup.placed():
            backend = row["sdpa"] = choose_backend(probe, size, setup)
            vae = build_vae(size, weights, setup.device)
            generator = torch.Generator(setup.device).manual_seed(3)
            text = torch.randn(
                (2, 1, wan.TEXT_TOKENS, model.config.text_dim), generator=generator, device=setup.device
            ).bfloat16()
            for name, share in ((SDPA, 0.5), (MOON, 1.0)):
                allowed = setup.budget.left * share
                scheduler = diffusers.UniPCMultistepScheduler(
                    prediction_type="flow_prediction",
                    use_flow_sigmas=True,
                    num_train_timesteps=1000,
                    flow_shift=FLOW_SHIFT.get(resolution.name, 3.0),
                )
                pipe: Any = diffusers.WanPipeline(
                    tokenizer=None, text_encoder=None, vae=vae, scheduler=scheduler, transformer=wan.twin(model)
                )
                pipe.set_progress_bar_config(disable=True)
                if name == MOON:
                    pipe.set_attn_processor(moon_diffusers.MoonAttnProcessor(scope="pipeline"))
                with preferring(backend):
                    row["sides"][name], frames[name] = _generate(pipe, text, resolution, setup, steps, allowed)
                if name == MOON:
                    counts = counters.snapshot("pipeline")
                    row["summary"] = moon_diffusers.summary("pipeline")
                    row["served"], row["fallbacks"] = counts.num_served, counts.num_fallbacks
            theirs, ours = row["sides"][SDPA], row["sides"][MOON]
            if theirs["step_seconds"] and ours["step_seconds"]:
                row["step_speed"] = median(theirs["step_seconds"]) / median(ours["step_seconds"])
            if theirs["seconds"] is None or ours["seconds"] is None:
                made = [len(side["step_seconds"]) for side in (theirs, ours)]
                row["note"] = f"the time was up after {made[0]} and {made[1]} of {steps} steps"
                return row
            row["speed"] = theirs["seconds"] / ours["seconds"]
            if theirs["joules"] and ours["joules"]:
                row["energy"] = theirs["joules"] / ours["joules"]
            row["difference"] = difference(frames[SDPA], frames[MOON])
            row["largest_difference"] = (frames[SDPA] - frames[MOON]).abs().max().item()
            if not row["served"]:
                row["note"] = "no call ran on the kernel: both sides are torch SDPA"
    except Exception as error:  # as for a step
        row["note"] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    finally:
        free(setup.device)
    return row


class _TimeIsUp(Exception):
    """Thrown between two steps."""


def _generate(
    pipe: Any, text: torch.Tensor, resolution: wan.Resolution, setup: Setup, steps: int, allowed: float
) -> tuple[dict[str, Any], torch.Tensor]:
    """Seconds of each step and of everything, joules, clocks; and the frames (T, C, H, W) in [0, 1].

    After `allowed` seconds it ends with the steps made by then, and no frames.
    """
    marks: list[float] = []
    start = time.monotonic()

    def mark(_pipe: Any, _step: int, _timestep: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        synchronize(setup.device)
        marks.append(time.monotonic())
        if marks[-1] - start >= allowed:
            raise _TimeIsUp
        return kwargs

    def run(count: int, output_type: str) -> torch.Tensor:
        moon_diffusers.reset_summary("pipeline")
        generator = torch.Generator(setup.device).manual_seed(4)
        video: torch.Tensor = pipe(
            prompt_embeds=text[0],
            negative_prompt_embeds=text[1],
            height=resolution.height,
            width=resolution.width,
            num_frames=resolution.frames,
            num_inference_steps=count,
            guidance_scale=5.0,
            generator=generator,
            output_type=output_type,
            callback_on_step_end=mark,
        ).frames[0]
        synchronize(setup.device)
        return video

    video = torch.empty(0)
    with contextlib.suppress(_TimeIsUp):
        run(1, "latent")
    marks.clear()
    with setup.sampler() as sampler:
        time.sleep(SETTLE_SECONDS if setup.counter else 0)  # so that a step of the counter lies before the beginning
        begin = time.monotonic()
        with contextlib.suppress(_TimeIsUp):
            video = run(steps, "pt")
        end = time.monotonic()
    whole = video.numel() > 0
    reading = sampler.during([(begin, end)])
    figures = {
        "seconds": end - begin if whole else None,
        "step_seconds": [after - before for before, after in itertools.pairwise([begin, *marks])],
        "decoding_seconds": end - marks[-1] if whole else None,
        "joules": sampler.joules(begin, end) if whole else None,
        "mhz": reading[0] if reading else None,
        "watt": reading[1] if reading else None,
    }
    return figures, video.float()
