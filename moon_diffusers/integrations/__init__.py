"""Integrations with other libraries; importing this package imports none of them.

`install_import_hook()` adds `set_attn_processor` to diffusers' pipelines as soon as diffusers is imported: a program
that never touches diffusers does not wait for it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

#: diffusers' modules, and the pipeline class in each that gets the method.
_PIPELINES = {
    "diffusers.pipelines.pipeline_utils": "DiffusionPipeline",
    "diffusers.modular_pipelines.modular_pipeline": "ModularPipeline",
}


def install_import_hook() -> None:
    """Give diffusers' pipelines `set_attn_processor`, now or as soon as diffusers is imported. Idempotent."""
    for name in _PIPELINES:
        module = sys.modules.get(name)
        if module is not None:
            _add_method(module)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _add_method(module: ModuleType) -> None:
    pipeline = getattr(module, _PIPELINES[module.__name__], None)
    # A module that is still being imported has no class yet; the finder wrapped its loader and comes back.
    if pipeline is None or getattr(pipeline.__dict__.get("set_attn_processor"), "__moon__", False):
        return
    theirs: Callable[..., Any] | None = getattr(pipeline, "set_attn_processor", None)

    def set_attn_processor(self: Any, processor: Any, *args: Any, **kwargs: Any) -> Any:
        """Set the attention processor of the pipeline's denoising models (`transformer*`, `unet*`, `controlnet*`).

        See `moon_diffusers.set_attn_processor`.
        """
        from moon_diffusers.integrations import diffusers as integration

        if theirs is not None and not isinstance(processor, integration.MoonAttnProcessor):
            return theirs(self, processor, *args, **kwargs)
        return integration.set_attn_processor(self, processor, *args, **kwargs)

    set_attn_processor.__moon__ = True  # type: ignore[attr-defined]
    pipeline.set_attn_processor = set_attn_processor


class _Finder(MetaPathFinder):
    """Lets the other finders find diffusers' modules, and runs `_add_method` after each was executed."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in _PIPELINES:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                _run_after(spec)
                return spec
        return None


def _run_after(spec: ModuleSpec) -> None:
    loader = spec.loader
    if loader is None:
        return
    execute = loader.exec_module

    @functools.wraps(execute)
    def exec_module(module: ModuleType) -> None:
        execute(module)
        _add_method(module)

    loader.exec_module = exec_module  # type: ignore[method-assign]
