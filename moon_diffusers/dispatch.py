"""From tensors to a launch: the key of the call, its cached route and plan, the output tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .emulation import current_placement
from .routing import Fallback


class Request(NamedTuple):
    """The options of a call that are not tensors."""

    layout: str
    softmax_scale: float | None
    causal: bool
    rounding: str
    rescale: str
    return_lse: bool


@dataclass(frozen=True, slots=True)
class Served:
    """What a kernel computed."""

    label: str
    out: Tensor
    lse: Tensor | None


def serve(
    q: Tensor, k: Tensor, v: Tensor, seqlens_k: Tensor | None, attn_mask: Tensor | None, request: Request
) -> Served | Fallback:
    """Run the call on a kernel, or say why not. Raises nothing for calls that torch SDPA would take."""
    kind = q.device.type
    if kind == "cpu":
        placement = current_placement()
        if placement is None:
            return Fallback("CPU tensors outside emulate() and offload()")
        return Fallback("no kernel built")
    if kind != "cuda" or torch.version.hip is None:
        return Fallback(f"{kind} tensors in a torch without ROCm" if kind == "cuda" else f"{kind} tensors")
    return Fallback("no kernel built")


def empty_output(q: Tensor, v: Tensor, layout: str) -> Tensor:
    """Uninitialised output for `q`: dense, heads and rows in the memory order of q."""
    batch, second, third, _ = q.shape
    head_dim = v.shape[3]
    if layout == "bhsd" and q.stride(1) < q.stride(2):
        # A BSHD tensor seen as BHSD, as SDPA callers have it: they transpose back, which then costs no copy.
        out = torch.empty((batch, third, second, head_dim), dtype=q.dtype, device=q.device)
        return out.transpose(1, 2)
    return torch.empty((batch, second, third, head_dim), dtype=q.dtype, device=q.device)


def empty_lse(q: Tensor, layout: str) -> Tensor:
    """Uninitialised log-sum-exp for `q`: fp32 (B, H, Sq)."""
    batch, second, third, _ = q.shape
    heads, rows = (third, second) if layout == "bshd" else (second, third)
    return torch.empty((batch, heads, rows), dtype=torch.float32, device=q.device)
