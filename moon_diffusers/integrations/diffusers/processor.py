"""MoonAttnProcessor: the choice that a user puts on a model, and how each module's own processor takes it on.

A model's processors hold its RoPE, norms and added projections, so none of them is replaced: each goes on as a shallow
copy of itself (same class, or a subclass of it) whose attention call is routed. The copy remembers its original.
"""

from __future__ import annotations

import copy
import functools
import logging
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from torch import nn

from moon_diffusers.errors import MoonError

from .backend import BACKEND_NAME, install_backend, is_ours
from .intercept import routed_class
from .options import MIN_HEAD_DIM, Options

_log = logging.getLogger(__name__)
_RECORD = "_moon_adoption"
# Written by diffusers or by `adopt` to select the route; never state of the processor's own.
_ROUTE_ATTRIBUTES = (_RECORD, "_attention_backend")


class MoonAttnProcessor:
    """Routes the attention of a diffusers model to the compiled kernels.

    Give it to `pipe.set_attn_processor(...)`, to a model's `set_attn_processor`, alone or as values of its dict, or to
    an attention module's `set_processor`. It only carries the options: the processors that do the work stay the
    model's own.

    Args:
        rounding: how fp32 becomes bf16 inside the kernel: `"rtne"` to nearest even, `"rtna"` to nearest, ties away
            from zero, `"rtz"` toward zero (fastest, least accurate).
        rescale: policy of the running maximum: `"auto"` (lazy), `"exact"` (AITER's bits on gfx942) or `"lazy"`.
        strict: raise `StrictError` when a call cannot be served, instead of torch SDPA; None takes
            `moon_diffusers.counters.strict()` or `MOON_STRICT`.
        min_head_dim: head dims from here up to 127 are padded with zeros to 128, smaller ones fall back.
        scope: label under which the calls are counted, see `moon_diffusers.summary(scope)`.
        batch_invariant: a row's bits must not depend on how many heads and batch entries are computed with it, so that
            a prompt gives the same video alone and in a batch, as far as attention goes; slower on small calls.

    Raises:
        ArgumentError: an option that does not exist.
    """

    def __init__(
        self,
        rounding: str = "rtne",
        *,
        rescale: str = "auto",
        strict: bool | None = None,
        min_head_dim: int = MIN_HEAD_DIM,
        scope: str = "",
        batch_invariant: bool = False,
    ) -> None:
        self.options = Options(rounding, rescale, strict, min_head_dim, scope, batch_invariant)

    def __repr__(self) -> str:
        return f"MoonAttnProcessor({self.options.key()})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Never reached on a model that took the processor by one of the ways above."""
        raise MoonError(
            "MoonAttnProcessor was assigned to a module as its processor and has lost the module's own; "
            "use moon_diffusers.set_attn_processor(pipe_or_model, MoonAttnProcessor())"
        )


@dataclass(frozen=True)
class Adoption:
    """What a routed processor was before.

    Attributes:
        options: how it is routed.
        original: the very processor that it replaced.
    """

    options: Options
    original: Any


def adopt(processor: Any, options: Options) -> Any:
    """The routed form of a module's processor; itself if it is already, or cannot be, routed.

    Idempotent; other options than before replace them.
    """
    if processor is None or isinstance(processor, MoonAttnProcessor):
        return processor
    record = adoption(processor)
    if record is not None:
        if record.options == options and is_routed(processor):
            return processor
        processor = release(processor)
    if isinstance(processor, (FunctionType, type)) or not hasattr(processor, "__dict__"):
        _log.warning("moon_diffusers: %r is no processor object, its attention stays as it is", processor)
        return processor
    supported = getattr(processor, "_SUPPORTED_BACKENDS", None)
    if supported is not None and BACKEND_NAME not in supported:
        _log_unsupported(type(processor).__name__, tuple(supported))
        return processor
    routed = copy.copy(processor)
    if hasattr(processor, "_attention_backend"):
        routed._attention_backend = install_backend(options)
    else:
        kind: Any = type(processor)
        try:
            routed.__class__ = routed_class(kind, options)
        except TypeError as error:
            _log.warning("moon_diffusers: cannot route %s: %s", type(processor).__name__, error)
            return processor
    routed.__dict__[_RECORD] = Adoption(options, processor)
    return routed


@functools.cache
def _log_unsupported(name: str, supported: tuple[Any, ...]) -> None:
    """Once a class: a model has dozens of them, and each would raise at its first call."""
    backends = ", ".join(map(str, supported))
    _log.warning("moon_diffusers: %s takes no backend but %s, its attention stays as it is", name, backends)


def release(processor: Any) -> Any:
    """The original of a routed processor, with whatever state the routed one has taken on since; else itself."""
    record = adoption(processor)
    if record is None:
        return processor
    original = record.original
    if original is None:
        original = copy.copy(processor)
        original.__dict__.pop(_RECORD, None)
        original.__class__ = type(processor)._moon_base
        return original
    for name, value in processor.__dict__.items():
        if name not in _ROUTE_ATTRIBUTES:
            original.__dict__[name] = value
    return original


def adoption(processor: Any) -> Adoption | None:
    """The record of a routed processor, None for others."""
    record = getattr(processor, "__dict__", {}).get(_RECORD)
    if record is None and hasattr(type(processor), "_moon_base"):
        # diffusers made it by `processor.__class__()`, as unload_ip_adapter does.
        return Adoption(type(processor)._moon_options, None)
    return record


def is_routed(processor: Any) -> bool:
    """Whether a processor's attention calls are routed: `set_attention_backend` may have chosen otherwise since."""
    if adoption(processor) is None:
        return False
    return not hasattr(processor, "_attention_backend") or is_ours(processor._attention_backend)


def accept_templates() -> None:
    """Make `set_processor` of diffusers' attention modules take a MoonAttnProcessor on top of the module's own."""
    from diffusers.models import attention, attention_processor

    for module in (attention, attention_processor):
        for name in ("AttentionModuleMixin", "Attention"):
            owner = getattr(module, name, None)
            if owner is not None and "set_processor" in owner.__dict__:
                _wrap_set_processor(owner)


def _wrap_set_processor(owner: type[nn.Module]) -> None:
    inner = owner.__dict__["set_processor"]
    if getattr(inner, "__moon__", False):
        return

    @functools.wraps(inner)
    def set_processor(self: Any, processor: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(processor, MoonAttnProcessor):
            processor = adopt(self.processor, processor.options)
        return inner(self, processor, *args, **kwargs)

    set_processor.__moon__ = True  # type: ignore[attr-defined]
    owner.set_processor = set_processor  # type: ignore[attr-defined]
