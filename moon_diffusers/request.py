"""What travels with the tensors of a call, and the tensors that it gives back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import NamedTuple

import torch
from torch import Tensor

from .errors import ArgumentError
from .problem import HEAD_DIM


class Request(NamedTuple):
    """The options of a call that are not tensors."""

    layout: str
    softmax_scale: float | None
    causal: bool
    rounding: str
    rescale: str
    return_lse: bool
    #: Smaller head dims than 128 are padded from here on.
    min_head_dim: int = HEAD_DIM
    #: Rows' bits must not depend on how many heads and batch entries are computed with them.
    batch_invariant: bool = False
    #: The kernel is wanted even where torch's own is known to be faster.
    forced: bool = False


@dataclass(frozen=True, slots=True)
class Served:
    """What a kernel computed; `kernel` is the forward kernel's name in its code object."""

    label: str
    out: Tensor
    lse: Tensor | None
    kernel: str = ""


def check_scale(softmax_scale: float | None) -> None:
    """Raise `ArgumentError` unless a scale is a finite number, or None.

    A tensor is none: what was planned for it would outlive its value, and its gradient would be lost.
    """
    if softmax_scale is None or torch.compiler.is_compiling():  # then it may be a symbol
        return
    try:
        usable = (type(softmax_scale) is float or isinstance(softmax_scale, Real)) and math.isfinite(softmax_scale)
    except OverflowError:
        usable = False
    if not usable:
        value = repr(softmax_scale) if isinstance(softmax_scale, Real) else f"a {type(softmax_scale).__name__}"
        raise ArgumentError("softmax_scale", value[:80], "a finite number, None for head_dim ** -0.5")


def check_tensors(**tensors: object) -> None:
    """Raise `ArgumentError` for the first that is no tensor."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise ArgumentError(name, f"a {type(tensor).__name__}", "a torch.Tensor")


def check_flag(name: str, value: object) -> bool:
    """A switch as `bool`; `ArgumentError` unless it is one, numpy's or 0 or 1. A tensor could change afterwards."""
    if isinstance(value, Tensor) or value not in (True, False):
        text = "a tensor" if isinstance(value, Tensor) else repr(value)
        raise ArgumentError(name, text, "True or False")
    return bool(value)


def check_flags(causal: object, batch_invariant: object, strict: object) -> tuple[bool, bool, bool | None]:
    """The switches of a call, each by `check_flag`; None leaves `strict` to its surroundings."""
    return (
        check_flag("causal", causal),
        check_flag("batch_invariant", batch_invariant),
        None if strict is None else check_flag("strict", strict),
    )


def empty_output(q: Tensor, v: Tensor, layout: str) -> Tensor:
    """Uninitialised output for `q`: dense, heads and rows in the memory order of q."""
    batch, second, third, _ = q.shape
    head_dim = v.shape[3]
    if layout == "bhsd" and q.stride(1) < q.stride(2):
        # A BSHD tensor seen as BHSD, as SDPA callers have it: they transpose back, which then costs no copy.
        out = torch.empty((batch, third, second, head_dim), dtype=q.dtype, device=q.device)
        return out.transpose(1, 2)
    return torch.empty((batch, second, third, head_dim), dtype=q.dtype, device=q.device)


def output_strides(q: Tensor, v: Tensor, layout: str) -> tuple[int, int, int]:
    """The strides of `empty_output`, without the tensor."""
    _, second, third, _ = q.shape
    head_dim = v.shape[3]
    if layout == "bhsd" and q.stride(1) < q.stride(2):
        return second * third * head_dim, head_dim, second * head_dim
    return second * third * head_dim, third * head_dim, head_dim


def empty_lse(q: Tensor, layout: str) -> Tensor:
    """Uninitialised log-sum-exp for `q`: fp32 (B, H, Sq)."""
    batch, second, third, _ = q.shape
    heads, rows = (third, second) if layout == "bshd" else (second, third)
    return torch.empty((batch, heads, rows), dtype=torch.float32, device=q.device)
