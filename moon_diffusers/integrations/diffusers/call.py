"""One attention call of a model: what torch SDPA would be asked, asked of the operator where their meanings agree."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import _get_current_function_mode_stack
from torch.torch_version import TorchVersion
from torch.utils._device import DeviceContext

from moon_diffusers import counters, ops
from moon_diffusers.eager import compound
from moon_diffusers.errors import StrictError

from .options import Options

#: Before, Dynamo knew no function modes, and asking for them would break the graph.
_MODES_ARE_TRACED = TorchVersion(torch.__version__) >= "2.6"
_TRACERS = ("torch._export.", "torch.export.", "torch.fx.experimental.proxy_tensor")


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    layout: str,
    options: Options,
) -> Tensor:
    """What `torch.nn.functional.scaled_dot_product_attention` computes, on the kernel where that can serve.

    Args:
        q, k, v: (B, S, H, D) or (B, H, S, D), as `layout` says; anything else is left to torch.
        attn_mask, dropout_p, is_causal, scale, enable_gqa: as torch SDPA takes them.

    Returns:
        (B, Sq, H, D) or (B, H, Sq, D).

    Raises:
        StrictError: `options.strict`, and the kernel cannot serve the call.
        RuntimeError: what torch SDPA raises about arguments that it does not take.
    """
    reason = refusal(q, k, v, attn_mask, dropout_p, is_causal, enable_gqa, layout)
    if isinstance(scale, Tensor):
        # Torch takes one without gradients.
        reason = "scale in a tensor"
    if reason:
        count_fallback(reason, options)
        return _plain(q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa, layout)
    return ops.attention(
        q,
        k,
        v,
        layout=layout,
        rounding=options.rounding,
        rescale=options.rescale,
        softmax_scale=scale,
        causal=is_causal,
        attn_mask=attn_mask,
        strict=options.strict,
        scope=options.scope,
        min_head_dim=options.min_head_dim,
        batch_invariant=options.batch_invariant,
    )


def refusal(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    enable_gqa: bool,
    layout: str,
) -> str:
    """Why a call is not the operator's to answer, empty if it is. Whether a kernel serves it, the operator decides."""
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4:
        return "tensors without four dimensions"
    kind = compound(q, k, v)
    if kind:
        return kind
    if dropout_p > 0.0:
        return "dropout"
    seq, head = (1, 2) if layout == "bshd" else (2, 1)
    if not q.shape[0] == k.shape[0] == v.shape[0] or k.shape[head] != v.shape[head]:
        return "shapes that torch broadcasts"
    if q.shape[head] != k.shape[head] and not enable_gqa:
        return "shapes that torch broadcasts"
    if is_causal and (attn_mask is not None or q.shape[seq] != k.shape[seq]):
        # Torch aligns the causal mask to the first key, kernels to the last.
        return "causal with another mask or unequal lengths"
    if attn_mask is not None and attn_mask.requires_grad and torch.is_grad_enabled():
        return "mask that requires grad"
    if function_modes_active():
        return "another TorchFunctionMode wants to see the call"
    return ""


def function_modes_active() -> bool:
    """Whether code around the model intercepts torch functions, e.g. diffusers' guiders that skip attention scores.

    Such a mode finds the call only if it goes to torch SDPA.
    """
    if not _MODES_ARE_TRACED and torch.compiler.is_compiling():
        return False
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return any(not isinstance(mode, DeviceContext) and not _is_tracer(mode) for mode in modes)


def _is_tracer(mode: object) -> bool:
    # torch.export has such around all that it traces; they see every function, and this one no better than another.
    return type(mode).__module__.startswith(_TRACERS)


def count_fallback(reason: str, options: Options) -> None:
    """Count a call that never reaches the operator; raise `StrictError` when strict.

    A call in compiled code goes uncounted: a graph holds no side effects.
    """
    if not torch.compiler.is_compiling():
        counters.refuse_or_count(reason, strict=options.strict, scope=options.scope)
    elif options.strict:
        raise StrictError(reason)


def _plain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    layout: str,
) -> Tensor:
    bshd = layout == "bshd"
    if bshd:
        q, k, v = (tensor.permute(0, 2, 1, 3) for tensor in (q, k, v))
    # Older torch has no enable_gqa.
    extra: dict[str, Any] = {"enable_gqa": True} if enable_gqa else {}
    out = scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, is_causal, scale=scale, **extra)
    return out.permute(0, 2, 1, 3) if bshd else out
