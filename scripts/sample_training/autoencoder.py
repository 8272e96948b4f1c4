"""Stage 1: AutoencoderKLWan from scratch on composed clips, then the statistics of its latents."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from diffusers import AutoencoderKLWan

from . import whole_clip
from .models import Networks
from .render import render
from .schedule import Schedule
from .sprites import Sprites
from .vocabulary import Scene, sample_scene

KL_WEIGHT = 3e-4  # of the mean per-dimension divergence, in nats


def reconstruction_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Absolute error of pixels, of their horizontal and vertical steps (edges) and of their steps in time."""
    loss = (output - target).abs().mean()
    for dim, weight in ((-1, 0.5), (-2, 0.5), (2, 0.25)):
        loss = loss + weight * (output.diff(dim=dim) - target.diff(dim=dim)).abs().mean()
    return loss


def scenes_for(step: int, batch: int, subjects: int, seed: int) -> list[Scene]:
    """The scenes of one step: the same for the same seed and step, wherever a run was cut."""
    rng = random.Random(f"{seed}/{step}")
    return [sample_scene(rng, subjects) for _ in range(batch)]


def use_channels_last(autoencoder: AutoencoderKLWan) -> None:
    """Store convolution weights channels last, which cuDNN prefers; activations follow."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    for parameter in autoencoder.parameters():
        if parameter.ndim in formats:
            parameter.data = parameter.data.contiguous(memory_format=formats[parameter.ndim])


def render_pool(networks: Networks, sprites: Sprites, clips: int, batch: int, seed: int) -> torch.Tensor:
    """``clips`` composed clips on the device: uint8 ``(clips, 3, frames, height, width)``."""
    shape = networks.shape
    pool = torch.empty(clips, 3, shape.num_frames, shape.height, shape.width, dtype=torch.uint8, device=networks.device)
    for first in range(0, clips, batch):
        scenes = scenes_for(first, min(batch, clips - first), sprites.subjects, seed)
        video = render(sprites, scenes, shape.num_frames, shape.height, shape.width, seed + first)
        pool[first : first + len(scenes)] = video.add(1).mul(127.5).round().to(torch.uint8)
    return pool


def train(
    networks: Networks,
    pool: torch.Tensor,
    schedule: Schedule,
    batch: int,
    seed: int,
    state: dict[str, Any] | None = None,
    every: Callable[[dict[str, Any]], None] | None = None,
) -> Iterator[tuple[int, dict[str, float]]]:
    """Train ``networks.autoencoder`` in place on ``pool``, yielding ``(step, {"loss", ...})`` every so often.

    ``state``: where an earlier call was cut. ``every``: called after each report with what a later call needs.
    """
    autoencoder, device = networks.autoencoder, networks.device
    autoencoder.train().requires_grad_(True)
    if device.type == "cuda":
        use_channels_last(autoencoder)
    parameters = list(autoencoder.parameters())
    optimizer = torch.optim.AdamW(
        parameters, lr=schedule.rate, betas=(0.9, 0.98), weight_decay=1e-4, fused=device.type == "cuda"
    )
    first = step = 0
    if state is not None:
        autoencoder.load_state_dict(state["weights"])
        optimizer.load_state_dict(state["optimizer"])
        first = step = state["step"]
    began = time.monotonic()
    while not schedule.done(step - first):
        for group in optimizer.param_groups:
            group["lr"] = schedule.learning_rate(step - first)
        generator = torch.Generator(device=device).manual_seed(seed * 1_000_003 + step)
        pick = torch.randint(pool.shape[0], (batch,), generator=generator, device=device)
        clips = pool[pick].float().div(127.5).sub(1)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            mean, logvar = whole_clip.encode(autoencoder, clips)
            latents = mean + torch.randn_like(mean) * torch.exp(0.5 * logvar)
            output = whole_clip.decode(autoencoder, latents).float()
        divergence = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).mean()
        rebuilt = reconstruction_loss(output, clips)
        loss = rebuilt + KL_WEIGHT * divergence
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if step % 50 == 0 or schedule.done(step + 1 - first):
            mse = (output.detach().clamp(-1, 1) - clips).square().mean()
            psnr = 10 * torch.log10(4 / mse)
            yield (
                step,
                {
                    "loss": float(rebuilt.detach()),
                    "kl": float(divergence.detach()),
                    "psnr": float(psnr),
                    "seconds": time.monotonic() - began,
                },
            )
            if every is not None:
                every({"weights": autoencoder.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1})
        step += 1
    autoencoder.eval().requires_grad_(False)


@torch.no_grad()
def encode_bank(
    networks: Networks, sprites: Sprites, clips: int, batch: int, seed: int
) -> tuple[torch.Tensor, list[Scene]]:
    """Raw latents (posterior means) of ``clips`` composed clips: bf16 ``(clips, *latent_shape)``, and their scenes."""
    shape, device = networks.shape, networks.device
    bank = torch.empty(clips, *shape.latent_shape, dtype=torch.bfloat16, device=device)
    scenes: list[Scene] = []
    for first in range(0, clips, batch):
        some = scenes_for(first, min(batch, clips - first), sprites.subjects, seed)
        video = render(sprites, some, shape.num_frames, shape.height, shape.width, seed + first)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            bank[first : first + len(some)] = whole_clip.encode(networks.autoencoder, video)[0].to(torch.bfloat16)
        scenes.extend(some)
    return bank, scenes


def record_statistics(autoencoder: AutoencoderKLWan, bank: torch.Tensor) -> None:
    """Write the latents' mean and standard deviation by channel into the config, where WanPipeline reads them."""
    sample = bank[:4096].float()
    autoencoder.register_to_config(
        latents_mean=[round(v, 5) for v in sample.mean(dim=(0, 2, 3, 4)).tolist()],
        latents_std=[round(v, 5) for v in sample.std(dim=(0, 2, 3, 4)).tolist()],
    )


def normalise(autoencoder: AutoencoderKLWan, latents: torch.Tensor) -> torch.Tensor:
    """Raw latents to what the denoiser sees: zero mean, unit deviation in every channel."""
    mean = torch.tensor(autoencoder.config.latents_mean, device=latents.device).view(1, -1, 1, 1, 1)
    std = torch.tensor(autoencoder.config.latents_std, device=latents.device).view(1, -1, 1, 1, 1)
    return ((latents.float() - mean) / std).to(latents.dtype)
