"""The torch operators: tensors in, tensors out; kernel or torch SDPA, decided and counted inside the operator.

`attention` here is the entry for integrations: what the kernel cannot serve falls back, only nonsense raises.
Operators (all work under `torch.compile(fullgraph=True)`, dynamic shapes included):

* `moon_diffusers::attention(q, k, v, ...) -> out`
* `moon_diffusers::attention_lse(q, k, v, ...) -> (out, lse)`
* `moon_diffusers::attention_backward(...)`: gradients for compiled graphs, computed by torch in chunks
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from . import counters, dispatch, fallback
from .dispatch import check_shapes
from .eager import (
    below_autograd,
    carries_tangents,
    compound,
    in_transform,
    is_plain,
    is_traced,
    requires_grad,
    wants_gradients,
)
from .errors import StrictError
from .problem import HEAD_DIM, RESCALES, ROUNDINGS, check_choice
from .request import Request, Served, check_scale, empty_lse, empty_output
from .routing import SLOWER, Fallback

_OPTIONS = (
    "Tensor q, Tensor k, Tensor v, Tensor? seqlens_k, Tensor? attn_mask, float? softmax_scale, str layout, "
    "bool causal, str rounding, str rescale, bool? strict, str scope, str refusal, bool remember_mask, "
    "int min_head_dim, bool batch_invariant=False"
)

# torch.library.custom_op would cost some 20 us a call here; the same operators made by hand cost 5.
__all__ = ["attention", "autocast", "check_shapes"]

_library: Any = torch.library.Library("moon_diffusers", "DEF")  # type: ignore[no-untyped-call]
_library.define(f"attention({_OPTIONS}) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
_library.define(f"attention_lse({_OPTIONS}) -> (Tensor, Tensor)", tags=(torch.Tag.pt2_compliant_tag,))
_library.define(
    "attention_backward(Tensor? grad_out, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor? seqlens_k, "
    "Tensor? attn_mask, float? softmax_scale, str layout, bool causal) -> (Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    layout: str = ...,
    rounding: str = ...,
    rescale: str = ...,
    softmax_scale: float | None = ...,
    return_lse: Literal[False] = ...,
    causal: bool = ...,
    seqlens_k: Tensor | None = ...,
    attn_mask: Tensor | None = ...,
    strict: bool | None = ...,
    scope: str = ...,
    refusal: str = ...,
    min_head_dim: int = ...,
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
    rescale: str = ...,
    softmax_scale: float | None = ...,
    return_lse: Literal[True],
    causal: bool = ...,
    seqlens_k: Tensor | None = ...,
    attn_mask: Tensor | None = ...,
    strict: bool | None = ...,
    scope: str = ...,
    refusal: str = ...,
    min_head_dim: int = ...,
    batch_invariant: bool = ...,
) -> tuple[Tensor, Tensor]: ...
@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    layout: str = ...,
    rounding: str = ...,
    rescale: str = ...,
    softmax_scale: float | None = ...,
    return_lse: bool,
    causal: bool = ...,
    seqlens_k: Tensor | None = ...,
    attn_mask: Tensor | None = ...,
    strict: bool | None = ...,
    scope: str = ...,
    refusal: str = ...,
    min_head_dim: int = ...,
    batch_invariant: bool = ...,
) -> Tensor | tuple[Tensor, Tensor]: ...
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    layout: str = "bshd",
    rounding: str = "rtne",
    rescale: str = "auto",
    softmax_scale: float | None = None,
    return_lse: bool = False,
    causal: bool = False,
    seqlens_k: Tensor | None = None,
    attn_mask: Tensor | None = None,
    strict: bool | None = None,
    scope: str = "",
    refusal: str = "",
    min_head_dim: int = HEAD_DIM,
    batch_invariant: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention for integrations: falls back, counted, wherever the kernel cannot serve.

    Args:
        q, k, v, layout, rounding, rescale, softmax_scale, return_lse, causal, seqlens_k, strict, batch_invariant: as
            `moon_diffusers.attention`, but any float dtype and head dim are taken (torch computes them).
        attn_mask: as torch SDPA takes it, broadcastable to (B, H, Sq, Sk). A mask that only chooses keys (and query
            rows) is served exactly: all true is no mask, a prefix becomes key lengths, gaps are taken out. Any other
            mask falls back and is honoured there.
        scope: label under which the call is counted.
        refusal: a reason of the caller's own why this call must fall back, empty for none.
        min_head_dim: head dims from here up to 127 are padded with zeros to 128; by default none is.

    Returns:
        (B, Sq, H, D) or (B, H, Sq, D) like q; with `return_lse` also fp32 (B, H, Sq), natural log.

    Raises:
        ArgumentError: shapes that do not fit together, or an unknown choice.
        StrictError: strict, and the kernel cannot serve the call.
    """
    return routed(
        *autocast(q, k, v),
        seqlens_k,
        _autocast_mask(q, attn_mask),
        softmax_scale,
        layout,
        causal,
        rounding,
        rescale,
        strict,
        scope,
        refusal,
        min_head_dim,
        batch_invariant,
        return_lse,
    )


def routed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seqlens_k: Tensor | None,
    attn_mask: Tensor | None,
    softmax_scale: float | None,
    layout: str,
    causal: bool,
    rounding: str,
    rescale: str,
    strict: bool | None,
    scope: str,
    refusal: str,
    min_head_dim: int,
    batch_invariant: bool,
    return_lse: bool,
) -> Tensor | tuple[Tensor, Tensor]:
    """`attention` once autocast has had its say."""
    check_scale(softmax_scale)
    compiling = torch.compiler.is_compiling()
    plain = not compiling and is_plain(q, k, v, seqlens_k, attn_mask)
    differentiable = wants_gradients(q, k, v, attn_mask)
    if differentiable and not refusal:
        refusal = "requires grad"
    kind = "" if plain else compound(q, k, v)
    if kind or (differentiable and not compiling):
        # Torch's own graph: no recomputation in the backward pass.
        check_shapes(q, k, v, layout)
        check_choice("rounding", rounding, ROUNDINGS)
        check_choice("rescale", rescale, RESCALES)
        _count_by_torch(refusal or kind, strict, scope)
        return _sdpa(q, k, v, seqlens_k, attn_mask, softmax_scale, layout, causal, return_lse)
    # Compiled code reuses buffers behind torch's back, so a mask that it made is read anew each time.
    remember_mask = not compiling
    options: tuple[Any, ...] = softmax_scale, layout, causal, rounding, rescale, strict, scope, refusal, remember_mask
    options = (*options, min_head_dim, batch_invariant)
    if plain:
        return _run(return_lse, q, k, v, seqlens_k, attn_mask, *options)
    op: Any = torch.ops.moon_diffusers.attention_lse if return_lse else torch.ops.moon_diffusers.attention
    result: Tensor | tuple[Tensor, Tensor] = op.default(q, k, v, seqlens_k, attn_mask, *options)
    return result


def autocast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Under `torch.autocast`, all three in autocast's dtype, as torch does for its own SDPA; else unchanged."""
    dtype = _autocast_dtype(q)
    return (q, k, v) if dtype is None else (q.to(dtype), k.to(dtype), v.to(dtype))


def _autocast_dtype(q: Tensor) -> torch.dtype | None:
    kind = q.device.type
    # Torch does not answer for devices that have no autocast, the meta device for one.
    if kind not in ("cpu", "cuda") and not torch.amp.is_autocast_available(kind):
        return None
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def _autocast_mask(q: Tensor, attn_mask: Tensor | None) -> Tensor | None:
    """The mask as torch's SDPA would have it under autocast, which compiled code has no more when it runs."""
    if attn_mask is None or not attn_mask.is_floating_point() or not torch.compiler.is_compiling():
        return attn_mask
    dtype = _autocast_dtype(q)
    return attn_mask if dtype is None else attn_mask.to(dtype)


def _run(
    want_lse: bool,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seqlens_k: Tensor | None,
    attn_mask: Tensor | None,
    softmax_scale: float | None,
    layout: str,
    causal: bool,
    rounding: str,
    rescale: str,
    strict: bool | None,
    scope: str,
    refusal: str,
    remember_mask: bool,
    min_head_dim: int,
    batch_invariant: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    request = Request(layout, softmax_scale, causal, rounding, rescale, want_lse, min_head_dim, batch_invariant)
    outcome: Served | Fallback
    outcome = Fallback(refusal) if refusal else dispatch.serve(q, k, v, seqlens_k, attn_mask, request, remember_mask)
    if isinstance(outcome, Fallback) and outcome.reason == SLOWER and counters.is_strict(strict):
        request = request._replace(forced=True)
        outcome = dispatch.serve(q, k, v, seqlens_k, attn_mask, request, remember_mask)
    if not isinstance(outcome, Fallback):
        counters.record_served(outcome.label, scope, outcome.kernel)
        return outcome.out if outcome.lse is None else (outcome.out, outcome.lse)
    check_shapes(q, k, v, layout)
    check_choice("rounding", rounding, ROUNDINGS)
    check_choice("rescale", rescale, RESCALES)
    counters.refuse_or_count(outcome.reason, outcome.detail, strict=strict, scope=scope)
    result = _sdpa(q, k, v, seqlens_k, attn_mask, softmax_scale, layout, causal, want_lse)
    out = result if isinstance(result, Tensor) else result[0]
    if isinstance(result, Tensor):
        return _conform(out, q, v, layout)
    return _conform(out, q, v, layout), result[1]


def _sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seqlens_k: Tensor | None,
    attn_mask: Tensor | None,
    softmax_scale: float | None,
    layout: str,
    causal: bool,
    want_lse: bool,
) -> Tensor | tuple[Tensor, Tensor]:
    bshd = layout == "bshd"
    if bshd:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    out = fallback.sdpa(q, k, v, softmax_scale=softmax_scale, causal=causal, seqlens_k=seqlens_k, attn_mask=attn_mask)
    out = out.transpose(1, 2) if bshd else out
    if not want_lse:
        return out
    lse = fallback.logsumexp(q, k, softmax_scale=softmax_scale, causal=causal, seqlens_k=seqlens_k, attn_mask=attn_mask)
    return out, lse


def _conform(out: Tensor, q: Tensor, v: Tensor, layout: str) -> Tensor:
    """`out` with the strides that the fake kernel promises."""
    promised = empty_output(q, v, layout)
    if promised.stride() == out.stride() and out.storage_offset() == 0:
        return out
    return promised.copy_(out)


def _attention(*arguments: Any) -> Tensor:
    result = _run(False, *arguments)
    assert isinstance(result, Tensor)
    return result


def _attention_lse(*arguments: Any) -> tuple[Tensor, Tensor]:
    result = _run(True, *arguments)
    assert not isinstance(result, Tensor)
    return result


def _attention_backward(
    grad_out: Tensor | None,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seqlens_k: Tensor | None,
    attn_mask: Tensor | None,
    softmax_scale: float | None,
    layout: str,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    bshd = layout == "bshd"

    def heads_first(tensor: Tensor) -> Tensor:
        return tensor.transpose(1, 2) if bshd else tensor

    gradients = fallback.sdpa_backward(
        None if grad_out is None else heads_first(grad_out),
        grad_lse,
        heads_first(q),
        heads_first(k),
        heads_first(v),
        softmax_scale=softmax_scale,
        causal=causal,
        seqlens_k=seqlens_k,
        attn_mask=attn_mask,
    )
    dq, dk, dv = (heads_first(gradient).contiguous() for gradient in gradients)
    return dq, dk, dv


def _fake_attention(q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> Tensor:
    layout: str = arguments[3]
    check_shapes(q, k, v, layout)
    return empty_output(q, v, layout)


def _fake_attention_lse(q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    layout: str = arguments[3]
    return _fake_attention(q, k, v, *arguments), empty_lse(q, layout)


def _fake_backward(
    grad_out: Tensor | None, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device) for tensor in (q, k, v))
    return dq, dk, dv


class _Differentiable(torch.autograd.Function):
    """An operator's forward with `attention_backward` behind it."""

    @staticmethod
    def forward(ctx: Any, operator: Any, *arguments: Any) -> Any:
        q, k, v, seqlens_k, attn_mask, softmax_scale, layout, causal = arguments[:8]
        ctx.save_for_backward(q, k, v, seqlens_k, attn_mask)
        ctx.options = (softmax_scale, layout, causal)
        ctx.num_inputs = 1 + len(arguments)
        return below_autograd(operator, arguments)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None = None) -> tuple[Tensor | None, ...]:
        gradients = torch.ops.moon_diffusers.attention_backward.default(
            grad_out, grad_lse, *ctx.saved_tensors, *ctx.options
        )
        return (None, *gradients, *([None] * (ctx.num_inputs - 4)))


def _autograd(operator: Any, want_lse: bool) -> Callable[..., Any]:
    """What graphs reach first: eager calls that want gradients are torch's before they get to an operator."""

    def differentiate(*arguments: Any) -> Any:
        q, k, v, seqlens_k, attn_mask, softmax_scale, layout, causal = arguments[:8]
        reverse = requires_grad(q, k, v, attn_mask)
        beyond = reverse and (in_transform() or requires_grad(attn_mask))
        if beyond or carries_tangents(q, k, v, attn_mask):
            # Only torch's own operators have these derivatives; by this one they were lost in silence.
            _count_by_torch("requires grad", strict=arguments[10], scope=arguments[11])
            return _sdpa(q, k, v, seqlens_k, attn_mask, softmax_scale, layout, causal, want_lse)
        if reverse:
            # An exported program learns only here that it is to be differentiated.
            arguments = (*arguments[:12], arguments[12] or "requires grad", *arguments[13:])
            return _Differentiable.apply(operator, *arguments)  # type: ignore[no-untyped-call]
        return below_autograd(operator, arguments)

    return differentiate


def _count_by_torch(reason: str, strict: bool | None, scope: str) -> None:
    """Count a call that torch's own operators compute, unless it is only traced; raise `StrictError` when strict."""
    if torch.compiler.is_compiling():
        if strict:
            raise StrictError(reason)
    elif not is_traced():
        counters.refuse_or_count(reason, strict=strict, scope=scope)
    elif counters.is_strict(strict):
        raise StrictError(reason)


for _name, _kernel, _fake in (
    ("attention", _attention, _fake_attention),
    ("attention_lse", _attention_lse, _fake_attention_lse),
    ("attention_backward", _attention_backward, _fake_backward),
):
    _library.impl(_name, _kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"moon_diffusers::{_name}", _fake, lib=_library)
for _name, _want_lse in (("attention", False), ("attention_lse", True)):
    _operator: Any = getattr(torch.ops.moon_diffusers, _name).default
    _library.impl(_name, _autograd(_operator, _want_lse), "Autograd")


@register_flop_formula([torch.ops.moon_diffusers.attention, torch.ops.moon_diffusers.attention_lse])
def _flops(
    q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], *arguments: Any, out_shape: Any = None, **keywords: Any
) -> int:
    """What torch counts for its own attention, from the shapes: masks and causality save nothing."""
    layout: str = arguments[3]
    seq, head = (1, 2) if layout == "bshd" else (2, 1)
    return 2 * q[0] * q[head] * q[seq] * k[seq] * (q[3] + v[3])
