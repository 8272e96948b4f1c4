"""The route for processors that call torch SDPA themselves: the same processor under a TorchFunctionMode.

Such a processor gets a subclass of its own class, so that its RoPE, norms, weights, signature and every `isinstance`
check stay what they were.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from .call import attend
from .options import Options


class RouteSdpa(TorchFunctionMode):
    """Within the block `scaled_dot_product_attention` goes where `attend` sends it; nothing else changes."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.options = options

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Send an SDPA call to `attend`. Torch takes this mode off its stack meanwhile."""
        kwargs = kwargs or {}
        if func is scaled_dot_product_attention:
            return _routed(self.options, *args, **kwargs)
        if func is Tensor.unflatten:
            # Under any mode Dynamo cannot trace the method, which calls super(); the function is the same.
            return torch.unflatten(*args, **kwargs)
        return func(*args, **kwargs)


def _routed(
    options: Options,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    return attend(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, layout="bhsd", options=options)


@functools.cache
def routed_class(base: type, options: Options) -> type:
    """The subclass of a processor's class whose attention calls are routed; one per class and options."""
    inner: Callable[..., Any] = base.__call__

    @functools.wraps(inner)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with RouteSdpa(options):
            return inner(self, *args, **kwargs)

    def reduce(self: Any, protocol: Any) -> Any:
        # The class exists only in this process: pickle how to make it again.
        return _rebuild, (base, options), self.__dict__

    name = f"Moon{base.__name__}"
    members = {
        "__call__": call,
        "__reduce_ex__": reduce,
        "__doc__": f"`{base.__name__}` with its attention calls routed to moon_diffusers.",
        "__module__": __name__,
        "__qualname__": name,
        "_moon_base": base,
        "_moon_options": options,
    }
    routed = type(base)(name, (base,), members)
    _register(base, routed)
    return routed


def _rebuild(base: type, options: Options) -> Any:
    return object.__new__(routed_class(base, options))


def _register(base: type, routed: type) -> None:
    """Let diffusers' hooks, which look processors up by exact class, treat the subclass as its base."""
    try:
        from diffusers.hooks._helpers import AttentionProcessorRegistry

        metadata = AttentionProcessorRegistry.get(base)
    except (ImportError, AttributeError, ValueError):
        return
    AttentionProcessorRegistry.register(routed, metadata)
