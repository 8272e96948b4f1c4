"""Calls that a kernel serves in another form: masks that only choose keys, and head dims below 128. Both are exact."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from . import masks
from .problem import HEAD_DIM
from .request import Request, Served, empty_output
from .routing import Fallback

if TYPE_CHECKING:
    from .dispatch import Session

_mask_cache = masks.MaskCache()


def serve(
    session: Session,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seqlens_k: Tensor | None,
    attn_mask: Tensor | None,
    request: Request,
    remember_mask: bool,
) -> Served | Fallback:
    """Run the call in a form that a kernel takes, or say why there is none.

    Args:
        attn_mask: as torch SDPA takes it, broadcastable to (B, H, Sq, Sk).
        remember_mask: nobody writes to the mask without torch's knowledge, so what was read of it may be kept.
    """
    head_dim = q.shape[3]
    if request.min_head_dim <= head_dim < HEAD_DIM and k.shape[3] == v.shape[3] == head_dim:
        return _serve_padded(session, q, k, v, seqlens_k, attn_mask, request, remember_mask)
    if attn_mask is not None:
        return _serve_masked(session, q, k, v, seqlens_k, attn_mask, request, remember_mask)
    return session.serve(q, k, v, seqlens_k, request)


def forget_masks() -> None:
    """Release the masks that are kept."""
    _mask_cache.clear()


def _serve_padded(
    session: Session,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seqlens_k: Tensor | None,
    attn_mask: Tensor | None,
    request: Request,
    remember_mask: bool,
) -> Served | Fallback:
    """Zeros behind the head dim change no score as long as the scale stays; what they add to the output is cut off."""
    if not q.dtype == k.dtype == v.dtype == torch.bfloat16:
        # Refused in any form: no need to copy first.
        return session.serve(q, k, v, seqlens_k, request)
    head_dim = q.shape[3]
    scale = head_dim**-0.5 if request.softmax_scale is None else request.softmax_scale
    wide = request._replace(softmax_scale=scale, min_head_dim=HEAD_DIM)
    wide_q, wide_k, wide_v = (pad(tensor, (0, HEAD_DIM - head_dim)) for tensor in (q, k, v))
    served = serve(session, wide_q, wide_k, wide_v, seqlens_k, attn_mask, wide, remember_mask)
    if isinstance(served, Fallback):
        return served
    return replace(served, out=empty_output(q, v, request.layout).copy_(served.out[..., :head_dim]))


def _serve_masked(
    session: Session,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seqlens_k: Tensor | None,
    attn_mask: Tensor,
    request: Request,
    remember_mask: bool,
) -> Served | Fallback:
    """A call whose mask only chooses keys is the call over those keys."""
    if request.causal or seqlens_k is not None:
        return Fallback("a mask together with causal or seqlens_k")
    if attn_mask.device != q.device:
        return Fallback("a mask on another device")
    if q.is_cuda and torch.cuda.is_current_stream_capturing():
        # The graph would keep what the mask says now.
        return Fallback("a mask during graph capture")
    ready = session.ready(q, k, v, None, request)
    if isinstance(ready, Fallback):
        # Not served with any mask: no need to wait for the device to read this one.
        return ready
    seq, head = (1, 2) if request.layout == "bshd" else (2, 1)
    # Reading host memory waits for nobody, and whoever else holds it (numpy) may write to it without torch's knowledge.
    remember = remember_mask and attn_mask.device.type != "cpu"
    read = _mask_cache.read if remember else masks.read_mask
    mask = read(attn_mask, q.shape[0], q.shape[head], q.shape[seq], k.shape[seq])
    if mask.reason:
        return Fallback(mask.reason)
    if mask.keys:
        k, v, seqlens_k = _select_keys(k, v, mask.keys, seq)
    served = session.serve(q, k, v, seqlens_k, request)
    if isinstance(served, Fallback) or mask.rows is None:
        return served
    hidden = ~mask.rows.to(q.device).expand(q.shape[0], -1)
    out = served.out if request.layout == "bshd" else served.out.transpose(1, 2)
    out.masked_fill_(hidden[:, :, None, None], 0.0)
    if served.lse is not None:
        served.lse.masked_fill_(hidden[:, None, :], -torch.inf)
    return served


def _select_keys(k: Tensor, v: Tensor, keys: tuple[masks.Keys, ...], seq: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """K and V of the chosen keys alone: views where they are neighbours, copies where there are gaps."""
    first = keys[0]
    if all(isinstance(entry, slice) and entry == first for entry in keys):
        assert isinstance(first, slice)
        length = first.stop - first.start
        return k.narrow(seq, first.start, length), v.narrow(seq, first.start, length), None
    if len(keys) == 1:
        assert isinstance(first, Tensor)
        return k.index_select(seq, first), v.index_select(seq, first), None
    lengths = [entry.stop - entry.start if isinstance(entry, slice) else entry.numel() for entry in keys]
    longest = max(lengths)
    valid = torch.tensor(lengths, dtype=torch.int32, device=k.device)
    if all(isinstance(entry, slice) and entry.start == 0 for entry in keys):
        return k.narrow(seq, 0, longest), v.narrow(seq, 0, longest), valid

    def pack(tensor: Tensor) -> Tensor:
        shape = list(tensor.shape)
        shape[seq] = longest
        # Zeros, not garbage: what lies behind the valid keys meets a weight of 0, and 0 x NaN is NaN.
        packed = tensor.new_zeros(shape)
        for entry, chosen in enumerate(keys):
            source, target = tensor[entry], packed[entry].narrow(seq - 1, 0, lengths[entry])
            if isinstance(chosen, slice):
                target.copy_(source.narrow(seq - 1, chosen.start, lengths[entry]))
            else:
                target.copy_(source.index_select(seq - 1, chosen))
        return packed

    return pack(k), pack(v), valid
