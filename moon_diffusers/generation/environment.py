"""What a report says about the machine and the model."""

from __future__ import annotations

import hashlib
import importlib
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from moon_diffusers.generation.models import denoisers
from moon_diffusers.generation.settings import Settings

__all__ = ["describe_environment", "describe_model"]

_PACKAGES = ("moon-diffusers", "torch", "diffusers", "transformers", "numpy", "scikit-image", "imageio-ffmpeg")


def describe_environment() -> dict[str, Any]:
    """Return versions and devices, JSON-able."""
    import torch

    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "torch_threads": torch.get_num_threads(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "hip": torch.version.hip,
        "cuda": torch.version.cuda,
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "code_objects": _code_objects(),
    }
    return facts


def describe_model(pipe: Any, settings: Settings) -> dict[str, Any]:
    """Return the pipeline's class, its parts' sizes, and hashes of the weights when it came from a folder."""
    path = Path(settings.model).expanduser()
    parts = {
        name: {
            "class": type(module).__name__,
            "parameters": sum(p.numel() for p in module.parameters()),
            "dtype": str(module.dtype).removeprefix("torch."),
        }
        for name, module in pipe.components.items()
        if hasattr(module, "parameters")
    }
    weights = {}
    if path.is_dir():
        for name in denoisers(pipe):
            for file in sorted((path / name).glob("*.safetensors")):
                weights[f"{name}/{file.name}"] = _sha256(file)
    return {
        "name": path.name if path.is_dir() else settings.model,
        "class": type(pipe).__name__,
        "parts": parts,
        "weights": weights,
    }


def _code_objects() -> dict[str, str]:
    """Hashes of the built code objects, from the manifest, by file name; empty before a build."""
    import json

    manifest = Path(importlib.import_module("moon_diffusers").__file__ or "").parent / "_compiled" / "manifest.json"
    try:
        return {entry["file"]: entry["sha256"] for entry in json.loads(manifest.read_text())["code_objects"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
