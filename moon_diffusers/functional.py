"""The functional API: strict about its arguments, otherwise `ops.attention`."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor

from . import ops
from .errors import ArgumentError
from .problem import HEAD_DIM, LAYOUTS, check_choice
from .request import check_flags, check_tensors


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    layout: str = ...,
    rounding: str = ...,
    softmax_scale: float | None = ...,
    return_lse: Literal[False] = ...,
    causal: bool = ...,
    seqlens_k: Tensor | None = ...,
    rescale: str = ...,
    strict: bool | None = ...,
    batch_invariant: bool = ...,
) -> Tensor: ...
@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    layout: str = ...,
    rounding: str = ...,
    softmax_scale: float | None = ...,
    return_lse: Literal[True],
    causal: bool = ...,
    seqlens_k: Tensor | None = ...,
    rescale: str = ...,
    strict: bool | None = ...,
    batch_invariant: bool = ...,
) -> tuple[Tensor, Tensor]: ...
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    layout: str = "bshd",
    rounding: str = "rtne",
    softmax_scale: float | None = None,
    return_lse: bool = False,
    causal: bool = False,
    seqlens_k: Tensor | None = None,
    rescale: str = "auto",
    strict: bool | None = None,
    batch_invariant: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Scaled dot-product attention on the compiled kernel, or on torch SDPA where the kernel cannot serve.

    Every call is counted; `moon_diffusers.summary()` tells how many ran on the kernel and why others did not.

    Args:
        q: bfloat16 (B, Sq, H, 128), or (B, H, Sq, 128) with `layout="bhsd"`. Any strides, head dim contiguous.
        k: bfloat16 (B, Sk, Hkv, 128) or (B, Hkv, Sk, 128); H is a multiple of Hkv. Sk need not equal Sq.
        v: as `k`.
        layout: `"bshd"` or `"bhsd"`, of q, k, v and the result.
        rounding: how fp32 becomes bfloat16 inside the kernel: `"rtne"` to nearest even, `"rtna"` to nearest, ties
            away from zero, `"rtz"` toward zero (fastest, least accurate).
        softmax_scale: factor of the scores; None for 128 ** -0.5.
        return_lse: also return the natural log of the softmax denominators. The tuned gfx950 kernel sums bfloat16-rounded
            probabilities: within 3e-3 of the exact value on ordinary scores, never further than 2 ** -8 (3.9e-3).
        causal: bottom-right aligned causal mask: the last query sees the last key.
        seqlens_k: int32 (B,) on the device of q: valid keys per batch entry; None for all.
        rescale: policy of the running maximum. `"lazy"`, what `"auto"` takes: a row's reference moves only when a key
            dominates its row, or its weight grows large. `"exact"` (gfx942): with every rise, which gives AITER's bits.
        strict: raise instead of falling back; None takes `counters.strict()` or `MOON_STRICT`.
        batch_invariant: a row's bits must not depend on how many heads and batch entries are computed with it. Switches
            off the split of the keys that fills a device's last round of workgroups: slower on small calls.

    Returns:
        bfloat16 in the shape of q; with `return_lse` also fp32 (B, H, Sq).

    Raises:
        ArgumentError: an argument cannot be used; the text names it, its value and what is accepted.
        StrictError: strict, and the kernel cannot serve the call.
    """
    if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)):
        check_tensors(q=q, k=k, v=v)
    if not (type(causal) is type(batch_invariant) is bool and (strict is None or type(strict) is bool)):
        causal, batch_invariant, strict = check_flags(causal, batch_invariant, strict)
    q, k, v = ops.autocast(q, k, v)
    if seqlens_k is not None:
        _check_seqlens_k(seqlens_k, q)
    check_choice("layout", layout, LAYOUTS)
    _check_tensors(q, k, v, layout)
    return ops.routed(
        q,
        k,
        v,
        seqlens_k,
        None,
        softmax_scale,
        layout,
        causal,
        rounding,
        rescale,
        strict,
        "",
        "",
        HEAD_DIM,
        batch_invariant,
        return_lse,
    )


def _check_tensors(q: Tensor, k: Tensor, v: Tensor, layout: str) -> None:
    # One condition for the good case, since this runs at every call; whether shapes fit together, the operator checks.
    if (
        q.dtype is k.dtype is v.dtype is torch.bfloat16
        and q.dim() == k.dim() == v.dim() == 4
        and q.shape[3] == k.shape[3] == v.shape[3] == HEAD_DIM
        and q.stride(3) == k.stride(3) == v.stride(3) == 1
        and q.device == k.device == v.device
        and 0 not in q.shape
        and 0 not in k.shape
        and 0 not in v.shape
    ):
        return
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != 4:
            raise ArgumentError(name, f"shape {tuple(tensor.shape)}", f"four dimensions ({', '.join(layout.upper())})")
        if tensor.dtype is not torch.bfloat16:
            raise ArgumentError(name, f"dtype {str(tensor.dtype).removeprefix('torch.')}", "bfloat16")
        if tensor.shape[3] != HEAD_DIM:
            raise ArgumentError(name, f"head dim {tensor.shape[3]}", str(HEAD_DIM))
        if 0 in tensor.shape:
            raise ArgumentError(name, f"shape {tuple(tensor.shape)}", "no empty dimension")
        if tensor.stride(3) != 1:
            raise ArgumentError(name, f"head-dim stride {tensor.stride(3)}", "a contiguous head dim (stride 1)")
        if tensor.device != q.device:
            raise ArgumentError(name, f"device {tensor.device}", f"the device of q, {q.device}")


def _check_seqlens_k(seqlens_k: Tensor, q: Tensor) -> None:
    check_tensors(seqlens_k=seqlens_k)
    if seqlens_k.dtype is not torch.int32:
        raise ArgumentError("seqlens_k", f"dtype {str(seqlens_k.dtype).removeprefix('torch.')}", "int32")
    if tuple(seqlens_k.shape) != (q.shape[0],):
        raise ArgumentError(
            "seqlens_k", f"shape {tuple(seqlens_k.shape)}", f"({q.shape[0]},), one length a batch entry"
        )
    if seqlens_k.device != q.device:
        raise ArgumentError("seqlens_k", f"device {seqlens_k.device}", f"the device of q, {q.device}")
