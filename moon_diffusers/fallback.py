"""What computes a call that the kernel does not serve: torch SDPA, never with a score matrix that fills the memory."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

#: Score elements up to which any SDPA backend may be used, and which one chunk of the chunked path may have.
MAX_SCORES = 2**27

_FUSED = [
    getattr(SDPBackend, name)
    for name in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION")
    if hasattr(SDPBackend, name)
]


def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    seqlens_k: Tensor | None = None,
    attn_mask: Tensor | None = None,
) -> Tensor:
    """Attention by torch, differentiable.

    Args:
        q: (B, H, Sq, D), any strides.
        k, v: (B, Hkv, Sk, D), H a multiple of Hkv.
        softmax_scale: None for D ** -0.5.
        causal: bottom-right aligned, unlike torch's own `is_causal`.
        seqlens_k: int (B,), valid keys per batch entry.
        attn_mask: what torch SDPA takes, broadcastable to (B, H, Sq, Sk).

    Returns:
        (B, H, Sq, D). Rows without any valid key are 0.
    """
    seqlen_q, seqlen_k = q.shape[2], k.shape[2]
    k, v = _expand_heads(q, k), _expand_heads(q, v)
    if q.is_cuda:
        q, k, v = _aligned(q), _aligned(k), _aligned(v)
        q, softmax_scale = _positive_scale(q, softmax_scale)
    # With equal lengths top-left and bottom-right are the same mask, and torch needs no tensor for it.
    builtin_causal = causal and seqlen_q == seqlen_k and seqlens_k is None and attn_mask is None
    if q.shape[0] * q.shape[1] * seqlen_q * seqlen_k <= MAX_SCORES:
        mask = None if builtin_causal else _mask(q, k, causal, seqlens_k, attn_mask, 0, seqlen_q)
        return _call(q, k, v, mask, builtin_causal, softmax_scale)

    masked_by_row = causal and not builtin_causal
    if not masked_by_row:
        mask = None if builtin_causal else _mask(q, k, False, seqlens_k, attn_mask, 0, seqlen_q)
        try:
            with sdpa_kernel(_FUSED):
                return _call(q, k, v, mask, builtin_causal, softmax_scale)
        except RuntimeError as error:
            # "No available kernel" and its variants; out of memory must not be retried more slowly.
            if isinstance(error, torch.cuda.OutOfMemoryError):
                raise
    rows = max(1, MAX_SCORES // (q.shape[0] * q.shape[1] * seqlen_k))
    parts = []
    for start in range(0, seqlen_q, rows):
        stop = min(start + rows, seqlen_q)
        mask = _mask(q, k, causal, seqlens_k, attn_mask, start, stop)
        parts.append(_call(q[:, :, start:stop], k, v, mask, False, softmax_scale))
    return torch.cat(parts, dim=2)


def logsumexp(
    q: Tensor,
    k: Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    seqlens_k: Tensor | None = None,
    attn_mask: Tensor | None = None,
) -> Tensor:
    """Natural log of the softmax denominators, fp32 (B, H, Sq); arguments as `sdpa`. Rows without keys are -inf."""
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    batch, heads, seqlen_q, _ = q.shape
    seqlen_k, heads_kv = k.shape[2], k.shape[1]
    group = heads // heads_kv
    rows = max(1, MAX_SCORES // (batch * heads * seqlen_k))
    parts = []
    with torch.autocast(device_type=q.device.type, enabled=False):
        keys = k.float().transpose(-1, -2).unsqueeze(2)
        for start in range(0, seqlen_q, rows):
            stop = min(start + rows, seqlen_q)
            queries = q[:, :, start:stop].float().reshape(batch, heads_kv, group, stop - start, q.shape[-1])
            scores = (queries @ keys).reshape(batch, heads, stop - start, seqlen_k) * scale
            mask = _mask(q, k, causal, seqlens_k, attn_mask, start, stop)
            if mask is not None:
                scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask.float()
            parts.append(torch.logsumexp(scores, dim=-1))
    return torch.cat(parts, dim=2)


def _call(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> Tensor:
    out = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale)
    if mask is not None and mask.dtype == torch.bool:
        # Backends and versions differ on rows without keys (0 or NaN); here they are always 0.
        out = out.masked_fill(~mask.any(dim=-1, keepdim=True), 0.0)
    return out


def _aligned(tensor: Tensor) -> Tensor:
    """`tensor`, or a copy where its rows are not 16-byte aligned.

    Torch does not look: there, on an H200 with torch 2.11, cuDNN's attention returns wrong numbers, and the flash and
    memory-efficient kernels fail with a misaligned address that ends the process's use of the GPU.
    """
    steps = [step for step, length in zip(tensor.stride()[:-1], tensor.shape[:-1], strict=True) if length > 1]
    if all(address % 16 == 0 for address in (_address(tensor), *(step * tensor.element_size() for step in steps))):
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _address(tensor: Tensor) -> int:
    """Where a tensor lies, 1 where it does not say: under `torch.func`'s transforms, while tracing, in subclasses."""
    if type(tensor) not in (Tensor, torch.nn.Parameter):
        return 1
    try:
        return tensor.data_ptr()
    except RuntimeError:
        return 1


def _positive_scale(q: Tensor, scale: float | None) -> tuple[Tensor, float | None]:
    """q and a scale above 0 with the same scores: cuDNN's attention in torch 2.11 answers NaN to any other scale."""
    if scale is None or scale > 0:
        return q, scale
    return (-q, -scale) if scale < 0 else (q * 0, 1.0)


def _expand_heads(q: Tensor, k: Tensor) -> Tensor:
    group = q.shape[1] // k.shape[1]
    # Not every backend of every torch version takes enable_gqa; K and V are small beside the scores.
    return k if group == 1 else k.repeat_interleave(group, dim=1)


def _mask(
    q: Tensor,
    k: Tensor,
    causal: bool,
    seqlens_k: Tensor | None,
    attn_mask: Tensor | None,
    start: int,
    stop: int,
) -> Tensor | None:
    """All masks of the query rows [start, stop) joined to one, broadcastable to (B, H, rows, Sk)."""
    seqlen_q, seqlen_k = q.shape[2], k.shape[2]
    allowed: Tensor | None = None
    if causal or seqlens_k is not None:
        columns = torch.arange(seqlen_k, device=q.device)
        # Clamped as the kernels do: the causal diagonal ends at the last key that there is.
        lengths = None if seqlens_k is None else seqlens_k.to(q.device).long().clamp(0, seqlen_k).reshape(-1, 1, 1, 1)
        if lengths is not None:
            allowed = columns < lengths
        if causal:
            rows = torch.arange(start, stop, device=q.device).unsqueeze(1)
            # Bottom-right of the valid keys: the last query sees the last valid key.
            shift = seqlen_k - seqlen_q if lengths is None else lengths - seqlen_q
            triangle = columns <= rows + shift
            allowed = triangle if allowed is None else allowed & triangle
    if attn_mask is None:
        return allowed
    if attn_mask.dim() >= 2 and attn_mask.shape[-2] != 1:
        attn_mask = attn_mask[..., start:stop, :]
    if attn_mask.dtype == torch.bool:
        return attn_mask if allowed is None else attn_mask & allowed
    return attn_mask if allowed is None else attn_mask.masked_fill(~allowed, -math.inf)


def sdpa_backward(
    grad_out: Tensor | None,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    seqlens_k: Tensor | None = None,
    attn_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `sdpa` and `logsumexp` for q, k and v, in fp32 over chunks of query rows; arguments as `sdpa`."""
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    batch, heads, seqlen_q, head_dim = q.shape
    heads_kv, seqlen_k = k.shape[1], k.shape[2]
    group = heads // heads_kv
    rows = max(1, MAX_SCORES // (batch * heads * seqlen_k))
    dq = torch.empty(q.shape, dtype=torch.float32, device=q.device)
    with torch.autocast(device_type=q.device.type, enabled=False):
        keys, values = _expand_heads(q, k).float(), _expand_heads(q, v).float()
        dk, dv = torch.zeros_like(keys), torch.zeros_like(values)
        for start in range(0, seqlen_q, rows):
            stop = min(start + rows, seqlen_q)
            queries = q[:, :, start:stop].float()
            scores = queries @ keys.transpose(-1, -2) * scale
            mask = _mask(q, k, causal, seqlens_k, attn_mask, start, stop)
            if mask is not None:
                scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask.float()
            weights = torch.softmax(scores, dim=-1)
            if mask is not None and mask.dtype == torch.bool:
                # A row without keys has no gradient; its softmax is NaN.
                weights = weights.masked_fill(~mask.any(dim=-1, keepdim=True), 0.0)
            dscores = torch.zeros_like(weights)
            if grad_out is not None:
                grad = grad_out[:, :, start:stop].float()
                dv += weights.transpose(-1, -2) @ grad
                dweights = grad @ values.transpose(-1, -2)
                dscores = weights * (dweights - (dweights * weights).sum(dim=-1, keepdim=True))
            if grad_lse is not None:
                dscores = dscores + weights * grad_lse[:, :, start:stop].unsqueeze(-1)
            dq[:, :, start:stop] = dscores @ keys * scale
            dk += dscores.transpose(-1, -2) @ queries * scale
    if group > 1:
        dk = dk.reshape(batch, heads_kv, group, seqlen_k, head_dim).sum(dim=2)
        dv = dv.reshape(batch, heads_kv, group, seqlen_k, v.shape[-1]).sum(dim=2)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)
