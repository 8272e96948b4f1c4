"""set_attn_processor and restore for whole pipelines and for models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import nn

from moon_diffusers.errors import ArgumentError

from .processor import MoonAttnProcessor, adopt, adoption, is_routed, release

#: Components that denoise. The VAE (head dims up to 512), text encoders and the like are never touched.
DENOISERS = ("transformer", "unet", "controlnet")


def set_attn_processor(pipe_or_model: Any, processor: Any, *, components: Iterable[str] | None = None) -> None:
    """Set the attention processor of a diffusers pipeline's denoising models, or of one model.

    Importing moon_diffusers makes this a method of diffusers' pipelines: `pipe.set_attn_processor(...)`. Calling it
    again changes the options; `restore` undoes it. Call it again after `load_ip_adapter` and `fuse_qkv_projections`
    of models that then get other processors.

    Args:
        pipe_or_model: a pipeline, or a model with attention modules, compiled or offloaded or not.
        processor: a `MoonAttnProcessor`; or what the models' own `set_attn_processor` takes, which is then called.
        components: names of a pipeline's components; None for `transformer*`, `unet*` and `controlnet*`.

    Raises:
        ArgumentError: there are no attention modules to set, or no such component.
    """
    models = _models(pipe_or_model, components)
    if isinstance(processor, MoonAttnProcessor):
        for model in models.values():
            for _, module in _attention_modules(model):
                _replace(module, adopt(module.processor, processor.options))
        return
    for name, model in models.items():
        setter = getattr(model, "set_attn_processor", None)
        if setter is None:
            raise ArgumentError(name, type(model).__name__, "a model with set_attn_processor")
        # diffusers empties the dict that it is given.
        setter(dict(processor) if isinstance(processor, dict) else processor)


def restore(pipe_or_model: Any) -> None:
    """Undo `set_attn_processor`: every module gets back the very processor object that it had. Idempotent.

    Raises:
        ArgumentError: there are no attention modules.
    """
    for model in _models(pipe_or_model, None, everything=True).values():
        for _, module in _attention_modules(model):
            if adoption(module.processor) is not None:
                _replace(module, release(module.processor))
        for module in model.modules():
            # What fuse_qkv_projections laid aside for unfuse_qkv_projections to put back.
            laid_aside = getattr(module, "original_attn_processors", None)
            if isinstance(laid_aside, dict):
                laid_aside.update({name: release(processor) for name, processor in laid_aside.items()})


def routed_modules(pipe_or_model: Any) -> list[str]:
    """Names of the attention modules whose calls are routed, e.g. `transformer.blocks.0.attn1`."""
    names = []
    for name, model in _models(pipe_or_model, None, everything=True).items():
        for path, module in _attention_modules(model):
            if is_routed(module.processor):
                names.append(".".join(part for part in (name, path) if part))
    return names


def _models(target: Any, components: Iterable[str] | None, everything: bool = False) -> dict[str, nn.Module]:
    """The models of a pipeline by name, or one model under the empty name; each has attention modules."""
    if isinstance(target, nn.Module):
        if components is not None:
            raise ArgumentError("components", repr(components), "None, as the target is a model")
        if next(_attention_modules(target), None) is None:
            raise ArgumentError("pipe_or_model", type(target).__name__, "a model with diffusers attention modules")
        return {"": target}
    parts = getattr(target, "components", None)
    if not isinstance(parts, Mapping):
        raise ArgumentError("pipe_or_model", type(target).__name__, "a diffusers pipeline or a model")
    modules = {name: part for name, part in parts.items() if isinstance(part, nn.Module)}
    if components is not None:
        wanted = [components] if isinstance(components, str) else list(components)
        for name in wanted:
            if name not in modules:
                raise ArgumentError("components", repr(name), ", ".join(modules) or "nothing: no models are loaded")
        modules = {name: modules[name] for name in wanted}
    elif not everything:
        modules = {name: part for name, part in modules.items() if name.startswith(DENOISERS)}
    models = {name: part for name, part in modules.items() if next(_attention_modules(part), None) is not None}
    if not models:
        raise ArgumentError(
            "pipe_or_model",
            f"{type(target).__name__} with {', '.join(parts)}",
            f"a pipeline with attention modules in {', '.join(components or (f'{name}*' for name in DENOISERS))}",
        )
    return models


def _attention_modules(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for path, module in model.named_modules():
        if hasattr(module, "set_processor"):
            if getattr(module, "processor", None) is not None:
                yield path, module
        elif "Attention" in type(module).__name__ and callable(getattr(module, "processor", None)):
            # MochiAttention: a processor, but no method to set it.
            yield path, module


def _replace(module: Any, processor: Any) -> None:
    if processor is module.processor:
        return
    if hasattr(module, "set_processor"):
        module.set_processor(processor)
    else:
        module.processor = processor
