"""Other ways to compute the baseline's attention, for the noise floor.

A denoiser's own processors are kept; only `scaled_dot_product_attention`, while one of its forwards runs, is computed
differently. The text encoder and the VAE are left alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

__all__ = ["attention_in_fp32", "inside_forward", "math_attention"]


class _Fp32Attention(TorchFunctionMode):
    """Computes SDPA on float32 copies of q, k and v, and rounds the result back once."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is not functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        names = ("query", "key", "value", "attn_mask")
        kwargs |= dict(zip((*names, "dropout_p", "is_causal"), args, strict=False))
        dtype = kwargs["query"].dtype
        for name in names:
            tensor = kwargs.get(name)
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                kwargs[name] = tensor.float()
        return func(**kwargs).to(dtype)


@contextmanager
def inside_forward(modules: Iterable[Any], enter: Callable[[], Any]) -> Iterator[None]:
    """Enter a context from `enter` around every forward of these modules, for the time of the block."""

    def wrapped(forward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(forward)
        def call(*args: Any, **kwargs: Any) -> Any:
            with enter():
                return forward(*args, **kwargs)

        return call

    with ExitStack() as stack:
        for module in modules:
            had = module.__dict__.get("forward")
            module.forward = wrapped(module.forward)
            stack.callback(_put_back, module, had)
        yield


def _put_back(module: Any, had: Any) -> None:
    if had is None:
        del module.forward
    else:
        module.forward = had


def attention_in_fp32() -> Any:
    """Return a context in which SDPA computes in float32."""
    return _Fp32Attention()


def math_attention() -> Any:
    """Return a context in which SDPA uses its plain (unfused) backend."""
    return sdpa_kernel(SDPBackend.MATH)
