"""The functional API of packed sequences and paged caches: strict about its arguments, then `ops_sequences`."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from . import ops_sequences
from .eager import wants_gradients
from .errors import ArgumentError
from .ops_sequences import Options, Paged, Varlen
from .problem import HEAD_DIM, RESCALES, ROUNDINGS, check_choice
from .request import check_flags, check_scale, check_tensors
from .routing import PAGE_SIZES


def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    return_lse: bool = False,
    rounding: str = "rtne",
    rescale: str = "auto",
    strict: bool | None = None,
    batch_invariant: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention within each of several sequences that lie packed behind one another.

    Sequence i has the rows `cu_seqlens_q[i]` to `cu_seqlens_q[i + 1]` of q and sees the rows `cu_seqlens_k[i]` to
    `cu_seqlens_k[i + 1]` of k and v. Sequences may be empty; rows without keys give 0 and an LSE of -inf.

    Args:
        q: bfloat16 (total_q, H, 128), head dim contiguous, other strides free.
        k, v: bfloat16 (total_k, Hkv, 128); H is a multiple of Hkv.
        cu_seqlens_q, cu_seqlens_k: int32 (B + 1,) on the device of q, from 0, never falling.
        max_seqlen_q, max_seqlen_k: length of the longest sequence. None reads the offsets, which on a GPU waits for it;
            too small a number leaves rows or keys out, and is found on the CPU only.
        softmax_scale, causal, rounding, rescale, strict, batch_invariant: as `moon_diffusers.attention`; `causal` is
            aligned at each sequence's bottom right.
        return_lse: also return the natural log of the softmax denominators. On gfx950 these sum bfloat16-rounded
            probabilities: within 3e-3 of the exact value on ordinary scores, never further than 2 ** -8 (3.9e-3), which
            a row that a single key dominates may reach.

    Returns:
        bfloat16 (total_q, H, 128); with `return_lse` also fp32 (H, total_q). Rows behind the last sequence are undefined.

    Raises:
        ArgumentError: an argument cannot be used; the text names it, its value and what is accepted.
        StrictError: strict, and no kernel can serve the call.
    """
    check_tensors(q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    _check_tensors(("q", q, 3), ("k", k, 3), ("v", v, 3))
    _check_heads("k", k.shape[1], q.shape[1])
    if v.shape != k.shape:
        raise ArgumentError("v", f"shape {tuple(v.shape)}", f"the shape of k, {tuple(k.shape)}")
    _check_indices("cu_seqlens_q", cu_seqlens_q, q.device, 1)
    _check_indices("cu_seqlens_k", cu_seqlens_k, q.device, 1)
    if cu_seqlens_q.shape[0] < 2:
        raise ArgumentError("cu_seqlens_q", f"shape {tuple(cu_seqlens_q.shape)}", "(B + 1,), B at least 1")
    if cu_seqlens_k.shape != cu_seqlens_q.shape:
        shape = tuple(cu_seqlens_q.shape)
        raise ArgumentError("cu_seqlens_k", f"shape {tuple(cu_seqlens_k.shape)}", f"the shape of cu_seqlens_q, {shape}")
    longest_q = _longest("cu_seqlens_q", cu_seqlens_q, "max_seqlen_q", max_seqlen_q, q.shape[0])
    longest_k = _longest("cu_seqlens_k", cu_seqlens_k, "max_seqlen_k", max_seqlen_k, k.shape[0])
    options = _options(softmax_scale, causal, rounding, rescale, strict, batch_invariant)
    return _serve(Varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, longest_q, longest_k, options), return_lse)


def attention_paged(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    seqlens_k: Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    return_lse: bool = False,
    rounding: str = "rtne",
    rescale: str = "auto",
    strict: bool | None = None,
    batch_invariant: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention over keys and values that lie in the pages of a cache.

    Key j of batch entry i is row `j % page_size` of page `block_table[i, j // page_size]`. Pages may be shared, and lie in
    any order; entries of the table behind the last valid key are never read.

    Args:
        q: bfloat16 (B, Sq, H, 128), head dim contiguous, other strides free.
        k_cache, v_cache: bfloat16 (pages, page_size, Hkv, 128); page_size a power of two from 16 to 1024; H is a
            multiple of Hkv.
        block_table: int32 (B, most pages of an entry), on the device of q.
        seqlens_k: int32 (B,): valid keys of each entry; 0 gives zeros and an LSE of -inf.
        softmax_scale, causal, return_lse, rounding, rescale, strict, batch_invariant: as `attention_varlen`.

    Returns:
        bfloat16 (B, Sq, H, 128); with `return_lse` also fp32 (B, H, Sq).

    Raises:
        ArgumentError: an argument cannot be used; the text names it, its value and what is accepted.
        StrictError: strict, and no kernel can serve the call (none does on gfx942).
    """
    check_tensors(q=q, k_cache=k_cache, v_cache=v_cache, block_table=block_table, seqlens_k=seqlens_k)
    _check_tensors(("q", q, 4), ("k_cache", k_cache, 4), ("v_cache", v_cache, 4))
    _check_heads("k_cache", k_cache.shape[2], q.shape[2])
    if v_cache.shape != k_cache.shape:
        raise ArgumentError("v_cache", f"shape {tuple(v_cache.shape)}", f"the shape of k_cache, {tuple(k_cache.shape)}")
    if k_cache.shape[1] not in PAGE_SIZES:
        raise ArgumentError("k_cache", f"page size {k_cache.shape[1]}", ", ".join(map(str, PAGE_SIZES)))
    _check_indices("block_table", block_table, q.device, 2)
    _check_indices("seqlens_k", seqlens_k, q.device, 1)
    for name, tensor in (("block_table", block_table), ("seqlens_k", seqlens_k)):
        if tensor.shape[0] != q.shape[0]:
            raise ArgumentError(name, f"{tensor.shape[0]} rows", f"the batch of q, {q.shape[0]}")
    _check_pages(block_table, seqlens_k, k_cache.shape[0], k_cache.shape[1])
    options = _options(softmax_scale, causal, rounding, rescale, strict, batch_invariant)
    return _serve(Paged(q, k_cache, v_cache, block_table, seqlens_k, options), return_lse)


def _serve(call: Varlen | Paged, return_lse: bool) -> Tensor | tuple[Tensor, Tensor]:
    tensors = [call.q, call.k, call.v] if isinstance(call, Varlen) else [call.q, call.k_cache, call.v_cache]
    if wants_gradients(*tensors):
        out, lse = ops_sequences.differentiable(call, return_lse)
        return out if lse is None else (out, lse)
    name = "attention_varlen" if isinstance(call, Varlen) else "attention_paged"
    operator: Any = getattr(torch.ops.moon_diffusers, name + ("_lse" if return_lse else ""))
    o = call.options
    options = (o.softmax_scale, o.causal, o.rounding, o.rescale, o.strict, o.scope, o.batch_invariant)
    tail: tuple[Any, ...]
    if isinstance(call, Varlen):
        tail = (call.cu_seqlens_q, call.cu_seqlens_k, call.max_seqlen_q, call.max_seqlen_k)
    else:
        tail = (call.block_table, call.seqlens_k)
    result: Tensor | tuple[Tensor, Tensor] = operator.default(*tensors, *tail, *options)
    return result


def _options(
    scale: float | None, causal: bool, rounding: str, rescale: str, strict: bool | None, batch_invariant: bool
) -> Options:
    check_choice("rounding", rounding, ROUNDINGS)
    check_choice("rescale", rescale, RESCALES)
    check_scale(scale)
    causal, batch_invariant, strict = check_flags(causal, batch_invariant, strict)
    return Options(scale, causal, rounding, rescale, strict, "", batch_invariant)


def _check_tensors(*tensors: tuple[str, Tensor, int]) -> None:
    device = tensors[0][1].device
    for name, tensor, dims in tensors:
        if tensor.dim() != dims:
            raise ArgumentError(name, f"shape {tuple(tensor.shape)}", f"{dims} dimensions")
        if tensor.dtype is not torch.bfloat16:
            raise ArgumentError(name, f"dtype {str(tensor.dtype).removeprefix('torch.')}", "bfloat16")
        if tensor.shape[-1] != HEAD_DIM:
            raise ArgumentError(name, f"head dim {tensor.shape[-1]}", str(HEAD_DIM))
        if tensor.stride(-1) != 1:
            raise ArgumentError(name, f"head-dim stride {tensor.stride(-1)}", "a contiguous head dim (stride 1)")
        if tensor.device != device:
            raise ArgumentError(name, f"device {tensor.device}", f"the device of q, {device}")


def _check_heads(name: str, heads_kv: int, heads: int) -> None:
    if heads_kv == 0 or heads % heads_kv:
        raise ArgumentError(name, f"{heads_kv} heads", f"a divisor of q's {heads} heads")


def _check_indices(name: str, tensor: Tensor, device: torch.device, dims: int) -> None:
    if tensor.dtype is not torch.int32:
        raise ArgumentError(name, f"dtype {str(tensor.dtype).removeprefix('torch.')}", "int32")
    if tensor.dim() != dims:
        raise ArgumentError(name, f"shape {tuple(tensor.shape)}", f"{dims} dimension{'s' if dims > 1 else ''}")
    if tensor.device != device:
        raise ArgumentError(name, f"device {tensor.device}", f"the device of q, {device}")


def _readable(tensor: Tensor) -> bool:
    # On a GPU reading waits for it, and under torch.compile there is nothing to read.
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def _longest(name: str, offsets: Tensor, limit_name: str, limit: int | None, rows: int) -> int:
    """The longest sequence: the caller's word, or read; where reading is free, everything is checked."""
    if limit is not None and not _readable(offsets):
        return limit
    values = offsets.tolist()
    lengths = [end - start for start, end in itertools.pairwise(values)]
    if values[0] != 0 or min(lengths) < 0 or values[-1] > rows:
        raise ArgumentError(name, str(values)[:80], f"offsets from 0, never falling, at most {rows} at the end")
    longest = max(lengths)
    if limit is not None and limit < longest:
        raise ArgumentError(limit_name, str(limit), f"at least {longest}, the longest sequence of {name}")
    return longest if limit is None else limit


def _check_pages(block_table: Tensor, seqlens_k: Tensor, pages: int, page_size: int) -> None:
    if not _readable(block_table):
        return
    most = block_table.shape[1] * page_size
    for entry, length in enumerate(seqlens_k.tolist()):
        if not 0 <= length <= most:
            raise ArgumentError("seqlens_k", f"{length} keys in entry {entry}", f"0 to {most}, what the table can hold")
        used = block_table[entry, : -(-length // page_size)]
        if used.numel() and not 0 <= int(used.min()) <= int(used.max()) < pages:
            raise ArgumentError("block_table", f"{used.tolist()} in entry {entry}"[:80], f"pages 0 to {pages - 1}")
