"""Wan2.1's transformer in its published sizes, random or loaded weights, and the inputs of one step."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from moon_diffusers.errors import ArgumentError

HEAD_DIM = 128
TEXT_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Size:
    """A transformer's configuration, as its publisher's `config.json` has it."""

    name: str
    num_heads: int
    num_layers: int
    ffn_dim: int
    text_dim: int = 4096
    channels: int = 16

    def config(self) -> dict[str, Any]:
        """Keyword arguments of `WanTransformer3DModel`."""
        return {
            "patch_size": (1, 2, 2),
            "num_attention_heads": self.num_heads,
            "attention_head_dim": HEAD_DIM,
            "in_channels": self.channels,
            "out_channels": self.channels,
            "text_dim": self.text_dim,
            "freq_dim": 256,
            "ffn_dim": self.ffn_dim,
            "num_layers": self.num_layers,
            "cross_attn_norm": True,
            "qk_norm": "rms_norm_across_heads",
            "eps": 1e-6,
            "rope_max_seq_len": 1024,
        }


@dataclass(frozen=True, slots=True)
class Resolution:
    """A video's measures: pixels and frames."""

    name: str
    width: int
    height: int
    frames: int = 81

    @property
    def latent(self) -> tuple[int, int, int]:
        """Frames, height and width of the latents: the VAE compresses 4 x 8 x 8."""
        return (self.frames - 1) // 4 + 1, self.height // 8, self.width // 8

    @property
    def tokens(self) -> int:
        """Length of the self-attention."""
        frames, height, width = self.latent
        return frames * (height // 2) * (width // 2)


SIZES = {
    size.name: size
    for size in (
        Size("1.3b", num_heads=12, num_layers=30, ffn_dim=8960),
        Size("14b", num_heads=40, num_layers=40, ffn_dim=13824),
        Size("tiny", num_heads=2, num_layers=2, ffn_dim=64, text_dim=32),
    )
}
RESOLUTIONS = {
    resolution.name: resolution
    for resolution in (
        Resolution("480p", 832, 480),
        Resolution("720p", 1280, 720),
        Resolution("tiny", 64, 48, frames=5),
    )
}


def build(size: Size, weights: Path | None, device: torch.device, seed: int = 0) -> nn.Module:
    """The transformer in bf16 on `device`, without gradients.

    Random weights are diffusers' own initialisation, and the modules that `from_pretrained` would keep in fp32 are
    in fp32 here too.

    Raises:
        ArgumentError: `weights` is no folder with a Wan transformer.
    """
    diffusers: Any = importlib.import_module("diffusers")
    if weights is not None:
        subfolder = "transformer" if (weights / "transformer").is_dir() else None
        if not (weights / (subfolder or "") / "config.json").is_file():
            raise ArgumentError("weights", str(weights), "a folder with config.json, or with one in transformer/")
        loaded = diffusers.WanTransformer3DModel.from_pretrained(
            weights, subfolder=subfolder, torch_dtype=torch.bfloat16
        )
        module: nn.Module = loaded.to(device)
        return module.eval().requires_grad_(False)
    torch.manual_seed(seed)
    with default_dtype(torch.bfloat16), torch.device(device):
        model = diffusers.WanTransformer3DModel(**size.config())
    keep = set(getattr(model, "_keep_in_fp32_modules", None) or ())
    for name, parameter in model.named_parameters():
        if keep & set(name.split(".")):
            parameter.data = parameter.data.float()
    random: nn.Module = model.eval().requires_grad_(False)
    return random


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Torch's default dtype for a while."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def twin(model: nn.Module) -> nn.Module:
    """A second model with the same tensors and its own modules: its processors may be changed, its weights not."""
    shared: list[Tensor] = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(tensor): tensor for tensor in shared})


def inputs(model: Any, resolution: Resolution, device: torch.device, seed: int = 1) -> dict[str, Any]:
    """Keyword arguments of one transformer step: latents N(0,1), text N(0,1), the middle of the schedule."""
    config = model.config
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16)

    return {
        "hidden_states": normal(1, config.in_channels, *resolution.latent),
        "timestep": torch.tensor([500], device=device),
        "encoder_hidden_states": normal(1, TEXT_TOKENS, config.text_dim),
        "return_dict": False,
    }
