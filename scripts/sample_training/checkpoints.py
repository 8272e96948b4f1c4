"""Checkpoints: whole ones on the machine that trains, small ones of averaged weights that travel between machines."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from .models import Networks


def save_whole(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint so that a cut leaves the old one or the new one, never half of one."""
    temporary = path.with_suffix(".tmp")
    torch.save(state, temporary)
    os.replace(temporary, path)


def load_whole(path: Path, device: torch.device) -> dict[str, Any]:
    """Read what :func:`save_whole` wrote."""
    state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    return state


def save_light(directory: Path, networks: Networks, extra: dict[str, dict[str, torch.Tensor]], limit: int) -> None:
    """Write the networks' weights as fp16 (autoencoder: fp32) safetensors files of at most ``limit`` bytes each.

    With them ``statistics.json``: the latents' mean and deviation.
    """
    directory.mkdir(parents=True, exist_ok=True)
    parts = {"transformer": networks.transformer.state_dict(), "text_encoder": networks.text_encoder.state_dict()}
    tensors = {
        f"{part}/{name}": value.half() for part, state in (parts | extra).items() for name, value in state.items()
    }
    tensors |= {f"autoencoder/{name}": value.float() for name, value in networks.autoencoder.state_dict().items()}
    pieces: list[dict[str, torch.Tensor]] = [{}]
    used = 0
    for name, value in tensors.items():
        size = value.numel() * value.element_size() + 512
        if used + size > limit and pieces[-1]:
            pieces.append({})
            used = 0
        pieces[-1][name] = value.contiguous().cpu()
        used += size
    for number, piece in enumerate(pieces):
        # UMT5 ties its embedding under two names; safetensors refuses shared storage.
        save_file({k: v.clone() for k, v in piece.items()}, directory / f"light-{number}.safetensors")
    statistics = {key: list(networks.autoencoder.config[key]) for key in ("latents_mean", "latents_std")}
    (directory / "statistics.json").write_text(json.dumps(statistics) + "\n")


def load_light(directory: Path) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, list[float]]]:
    """``({"transformer": {...}, "text_encoder": {...}, "autoencoder": {...}, ...}, statistics)`` in fp32."""
    parts: dict[str, dict[str, torch.Tensor]] = {}
    files = sorted(directory.glob("light-*.safetensors"))
    if not files:
        raise SystemExit(f"no light-*.safetensors in {directory}")
    for file in files:
        for name, value in load_file(file).items():
            part, key = name.split("/", 1)
            parts.setdefault(part, {})[key] = value.float()
    return parts, json.loads((directory / "statistics.json").read_text())
