"""Finding and loading the pipeline."""

from __future__ import annotations

import importlib
import json
import re
import runpy
import warnings
from pathlib import Path
from typing import Any

import moon_diffusers
from moon_diffusers.generation.settings import GenerateError, Settings

__all__ = [
    "check_model",
    "default_sample",
    "denoisers",
    "find_sample",
    "first_prompt",
    "load_pipeline",
    "recommended_settings",
]

_SAMPLES = ("wan-emoji", "tiny-wan")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def find_sample() -> Path | None:
    """Return the sample pipeline's folder: in `samples/` of a checkout, or the copy inside an installed package."""
    package = Path(moon_diffusers.__file__).parent
    for root in (package.parent / "samples", package / "_samples"):
        for name in _SAMPLES:
            if (root / name / "model_index.json").is_file():
                return root / name
    return None


def default_sample() -> Path:
    """Return the sample pipeline's folder; a checkout that has none builds a tiny one, with random weights, in seconds.

    Raises:
        GenerateError: there is none, and nothing to build one with.
    """
    sample = find_sample()
    if sample is None:
        builder = Path(moon_diffusers.__file__).parents[1] / "samples" / "build_tiny_wan.py"
        if not builder.is_file():
            raise GenerateError("model is not given, and no sample pipeline is installed")
        sample = builder.with_name("tiny-wan")
        runpy.run_path(str(builder))["build"](sample)
    return sample


def check_model(model: str) -> None:
    """Check that `model` is a pipeline folder or may be a Hub id. Reads nothing but file names.

    Raises:
        GenerateError: it is neither.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "model_index.json").is_file():
            raise GenerateError(
                f"model is {model!r}: the folder has no model_index.json, so it is no diffusers pipeline"
            )
        _read_index(path)
    elif path.exists():
        raise GenerateError(f"model is {model!r}: a file; expected a pipeline folder or a Hub id")
    elif not _HUB_ID.fullmatch(model):
        raise GenerateError(f"model is {model!r}: no such folder, and not a Hub id of the form owner/name")


def recommended_settings(model: str) -> dict[str, Any]:
    """Return the content of `moon_sample.json` next to the pipeline's index; empty when there is none.

    Raises:
        GenerateError: the file is no JSON object.
    """
    path = Path(model).expanduser() / "moon_sample.json"
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text())
    except ValueError as error:
        raise GenerateError(f"model is {model!r}: moon_sample.json cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise GenerateError(f"model is {model!r}: moon_sample.json holds {type(value).__name__}; expected an object")
    return value


def first_prompt(recommended: dict[str, Any]) -> str:
    """Return the first prompt of a sample's recommendations.

    Raises:
        GenerateError: it recommends none.
    """
    prompts = recommended.get("prompts")
    if not isinstance(prompts, list) or not prompts or not isinstance(prompts[0], str):
        raise GenerateError("prompt is not given, and the model recommends none; give --prompt or --prompt-file")
    return prompts[0]


def load_pipeline(settings: Settings) -> Any:
    """Load the pipeline in the asked dtype onto the asked device.

    Raises:
        GenerateError: it cannot be loaded.
    """
    import torch
    from diffusers.utils import deprecation_utils

    # diffusers renamed the argument; an unknown one would be ignored, and the pipeline would be fp32.
    argument = "dtype" if hasattr(deprecation_utils, "_TORCH_DTYPE_DEPRECATION_MESSAGE") else "torch_dtype"
    loader: Any = importlib.import_module("diffusers").DiffusionPipeline
    dtype = getattr(torch, settings.dtype)
    path = Path(settings.model).expanduser()
    source = str(path) if path.is_dir() else settings.model
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            index = loader.load_config(source, revision=settings.revision)
            # Wan decodes visibly wrong in 16 bits; its pipelines cast the latents to the VAE's dtype themselves.
            has_wan_vae = index.get("vae", [None, None])[1] == "AutoencoderKLWan"
            by_component = {"default": dtype, "vae": torch.float32} if has_wan_vae else dtype
            pipe = loader.from_pretrained(source, revision=settings.revision, **{argument: by_component})
            pipe.to(settings.device)
    except Exception as error:  # each library has errors of its own for what is missing or half written
        reason = " ".join(str(error).split())[:300]
        raise GenerateError(f"model is {settings.model!r}: cannot be loaded: {reason}") from error
    pipe.set_progress_bar_config(disable=True)
    for name, module in denoisers(pipe).items():
        if module.dtype != dtype:
            raise GenerateError(f"model is {settings.model!r}: {name} loaded as {module.dtype}; expected {dtype}")
    return pipe


def denoisers(pipe: Any) -> dict[str, Any]:
    """Return the pipeline's denoising networks by component name.

    Raises:
        GenerateError: it has none.
    """
    present = {
        name: module
        for name, module in pipe.components.items()
        if name.startswith(("transformer", "unet")) and hasattr(module, "dtype")
    }
    if not present:
        raise GenerateError(f"model: a {type(pipe).__name__} has no transformer and no unet to accelerate")
    return present


def _read_index(path: Path) -> dict[str, Any]:
    try:
        index = json.loads((path / "model_index.json").read_text())
    except (OSError, ValueError) as error:
        raise GenerateError(f"model is {str(path)!r}: model_index.json cannot be read: {error}") from error
    if not isinstance(index, dict):
        raise GenerateError(f"model is {str(path)!r}: model_index.json is no JSON object")
    return index
