"""The small problems of the self-test: one for each thing that a kernel claims to serve, with their answers in fp32.

Data are laid out the hard way: ragged lengths, grouped heads, K and V as views of one wider buffer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..problem import HEAD_DIM, Problem
from ..routing import KernelSpec

Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint16]
Array = npt.NDArray[Any]

SCALE = 0.1
HEADS = 4
PAGE = 64


@dataclass(frozen=True, slots=True)
class Case:
    """One problem with its data.

    Attributes:
        inputs: by buffer name; bf16 as bit patterns.
        out_shape, lse_shape: of the results, in memory order.
        expected: fp32 output in the shape of the result.
        expected_lse: fp32, in the shape of the result.
    """

    name: str
    problem: Problem
    inputs: dict[str, Array]
    expected: Floats
    expected_lse: Floats


def cases(kernel: KernelSpec) -> list[Case]:
    """What `kernel` must get right before it serves: everything that its features claim."""
    rng = np.random.default_rng(7)
    chosen = []
    if "paged" not in kernel.requires:
        # Long enough in keys for planners to split them where a device has idle units.
        chosen += [_dense(kernel, rng, "ragged", 2, 200, 333), _dense(kernel, rng, "few rows, many keys", 1, 77, 1100)]
        if kernel.features & {"causal", "seqlens_k"}:
            chosen.append(_dense(kernel, rng, "masked", 2, 77, 129, masked=True))
        if "cu_seqlens" in kernel.features:
            chosen.append(_packed(kernel, rng))
        if kernel.family == "sm90a":
            # Its blocks are persistent: on today's cards, at least one gets two row blocks here.
            keys = 333 if "causal" in kernel.requires else 33
            chosen.append(_dense(kernel, rng, "several row blocks a cluster", 1, 6533, keys))
        if kernel.rescale == "lazy":
            chosen.append(_rising(kernel, rng))
    if "paged" in kernel.features:
        chosen.append(_paged(kernel, rng, False))
        if "causal" in kernel.features:
            chosen.append(_paged(kernel, rng, True))
    return chosen


def _heads_kv(kernel: KernelSpec) -> int:
    return HEADS // 2 if "gqa" in kernel.features else HEADS


def _problem(kernel: KernelSpec, **fields: Any) -> Problem:
    return Problem(
        num_heads=HEADS,
        num_heads_kv=_heads_kv(kernel),
        head_dim=HEAD_DIM,
        dtype="bfloat16",
        softmax_scale=SCALE,
        rounding=kernel.rounding,
        rescale=kernel.rescale,
        return_lse="lse" in kernel.features,
        **fields,
    )


def _normal(rng: np.random.Generator, *shape: int) -> Words:
    return to_bf16(rng.standard_normal(shape, dtype=np.float32))


def _dense(
    kernel: KernelSpec,
    rng: np.random.Generator,
    name: str,
    batch: int,
    seqlen_q: int,
    seqlen_k: int,
    masked: bool = False,
) -> Case:
    heads_kv = _heads_kv(kernel)
    q = _normal(rng, batch, seqlen_q, HEADS, HEAD_DIM)
    fused = _normal(rng, batch, seqlen_k, 3, heads_kv, HEAD_DIM)
    k, v = fused[:, :, 0], fused[:, :, 1]
    causal = "causal" in kernel.requires or (masked and "causal" in kernel.features)
    has_lengths = masked and "seqlens_k" in kernel.features
    lengths = np.array([seqlen_k, seqlen_k - 50][:batch], dtype=np.int32)
    valid = lengths if has_lengths else np.full(batch, seqlen_k)
    parts = [_attend(q[b], k[b, : valid[b]], v[b, : valid[b]], causal) for b in range(batch)]
    row = HEADS * HEAD_DIM
    problem = _problem(
        kernel,
        batch=batch,
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        q_strides=(seqlen_q * row, HEAD_DIM, row),
        k_strides=(seqlen_k * 3 * heads_kv * HEAD_DIM, HEAD_DIM, 3 * heads_kv * HEAD_DIM),
        v_strides=(seqlen_k * 3 * heads_kv * HEAD_DIM, HEAD_DIM, 3 * heads_kv * HEAD_DIM),
        o_strides=(seqlen_q * row, HEAD_DIM, row),
        causal=causal,
        has_seqlens_k=has_lengths,
    )
    inputs: dict[str, Array] = {"q": q, "k": k, "v": v, "seqlens_k": lengths}
    return Case(name, problem, inputs, np.stack([out for out, _ in parts]), np.stack([lse for _, lse in parts]))


def _rising(kernel: KernelSpec, rng: np.random.Generator) -> Case:
    """Scores that rise by 0.5 log2 units every 80 keys and fall again: far beyond fp32's range, and never much at once."""
    seqlen_q, seqlen_k, heads_kv = 33, 46_001, _heads_kv(kernel)
    q, k = (
        rng.standard_normal(shape, dtype=np.float32) * np.float32(0.3)
        for shape in ((1, seqlen_q, HEADS, HEAD_DIM), (1, seqlen_k, heads_kv, HEAD_DIM))
    )
    rise = np.abs(np.arange(seqlen_k) - seqlen_k // 2) * (0.5 / 80 * np.log(2))
    q[..., 0], k[..., 0] = 8, -(rise / (8 * SCALE)).astype(np.float32)[None, :, None]
    words_q, words_k, v = to_bf16(q), to_bf16(k), _normal(rng, 1, seqlen_k, heads_kv, HEAD_DIM)
    causal = "causal" in kernel.requires
    out, lse = _attend(words_q[0], words_k[0], v[0], causal)
    row, row_kv = HEADS * HEAD_DIM, heads_kv * HEAD_DIM
    problem = _problem(
        kernel,
        batch=1,
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        q_strides=(seqlen_q * row, HEAD_DIM, row),
        k_strides=(seqlen_k * row_kv, HEAD_DIM, row_kv),
        v_strides=(seqlen_k * row_kv, HEAD_DIM, row_kv),
        o_strides=(seqlen_q * row, HEAD_DIM, row),
        causal=causal,
        batch_invariant=True,  # else a planner cuts the keys, and the rise with them
    )
    return Case("slowly rising scores", problem, {"q": words_q, "k": words_k, "v": v}, out[None], lse[None])


def _packed(kernel: KernelSpec, rng: np.random.Generator) -> Case:
    heads_kv = _heads_kv(kernel)
    starts_q = np.array([0, 70, 71, 71, 201], dtype=np.int32)
    starts_k = np.array([0, 129, 193, 200, 201], dtype=np.int32)
    q = _normal(rng, int(starts_q[-1]), HEADS, HEAD_DIM)
    fused = _normal(rng, int(starts_k[-1]), 3, heads_kv, HEAD_DIM)
    k, v = fused[:, 0], fused[:, 1]
    causal = "causal" in kernel.requires
    parts = [
        _attend(q[q0:q1], k[k0:k1], v[k0:k1], causal)
        for q0, q1, k0, k1 in zip(starts_q, starts_q[1:], starts_k, starts_k[1:], strict=False)
    ]
    problem = _problem(
        kernel,
        batch=len(starts_q) - 1,
        seqlen_q=int(np.diff(starts_q).max()),
        seqlen_k=int(np.diff(starts_k).max()),
        q_strides=(0, HEAD_DIM, HEADS * HEAD_DIM),
        k_strides=(0, HEAD_DIM, 3 * heads_kv * HEAD_DIM),
        v_strides=(0, HEAD_DIM, 3 * heads_kv * HEAD_DIM),
        o_strides=(0, HEAD_DIM, HEADS * HEAD_DIM),
        causal=causal,
        has_cu_seqlens=True,
        total_q=int(starts_q[-1]),
        total_k=int(starts_k[-1]),
    )
    inputs: dict[str, Array] = {"q": q, "k": k, "v": v, "cu_seqlens_q": starts_q, "cu_seqlens_k": starts_k}
    outs, sums = [out for out, _ in parts], [lse for _, lse in parts]
    return Case("packed", problem, inputs, np.concatenate(outs), np.concatenate(sums, axis=1))


def _paged(kernel: KernelSpec, rng: np.random.Generator, causal: bool) -> Case:
    heads_kv, seqlen_q = _heads_kv(kernel), 77
    lengths = np.array([129, 200], dtype=np.int32)
    table = np.array([[5, 0, 3, 0], [1, 6, 2, 4]], dtype=np.int32)
    q = _normal(rng, 2, seqlen_q, HEADS, HEAD_DIM)
    k, v = _normal(rng, 7, PAGE, heads_kv, HEAD_DIM), _normal(rng, 7, PAGE, heads_kv, HEAD_DIM)
    k_rows, v_rows = (cache[table].reshape(2, -1, heads_kv, HEAD_DIM) for cache in (k, v))
    parts = [_attend(q[b], k_rows[b, : lengths[b]], v_rows[b, : lengths[b]], causal) for b in range(2)]
    row, row_kv = HEADS * HEAD_DIM, heads_kv * HEAD_DIM
    problem = _problem(
        kernel,
        batch=2,
        seqlen_q=seqlen_q,
        seqlen_k=table.shape[1] * PAGE,
        q_strides=(seqlen_q * row, HEAD_DIM, row),
        k_strides=(PAGE * row_kv, HEAD_DIM, row_kv),
        v_strides=(PAGE * row_kv, HEAD_DIM, row_kv),
        o_strides=(seqlen_q * row, HEAD_DIM, row),
        causal=causal,
        has_seqlens_k=True,
        page_size=PAGE,
        block_table_stride=table.shape[1],
    )
    inputs: dict[str, Array] = {"q": q, "k": k, "v": v, "seqlens_k": lengths, "block_table": table}
    return Case(
        "paged, causal" if causal else "paged",
        problem,
        inputs,
        np.stack([out for out, _ in parts]),
        np.stack([lse for _, lse in parts]),
    )


def _attend(q: Words, k: Words, v: Words, causal: bool) -> tuple[Floats, Floats]:
    """One sequence: q (Sq, H, D), k and v (Sk, Hkv, D); returns (Sq, H, D) and the LSE (H, Sq)."""
    seqlen_q, heads, _ = q.shape
    seqlen_k = k.shape[0]
    group = heads // k.shape[1]
    keys, values = (np.repeat(from_bf16(t), group, axis=1) for t in (k, v))
    # (H, Sq, D) x (H, D, Sk): matmul, which numpy hands to its BLAS.
    scores = from_bf16(q).transpose(1, 0, 2) @ keys.transpose(1, 2, 0) * np.float32(SCALE)
    if causal:
        rows = np.arange(seqlen_q)[:, None] + seqlen_k - seqlen_q
        scores[:, np.arange(seqlen_k) > rows] = -np.inf
    highest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isinf(highest), np.float32(0), highest))
    sums = weights.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (highest + np.log(sums))[..., 0]
    out = weights / np.where(sums == 0, np.float32(1), sums) @ values.transpose(1, 0, 2)
    return np.ascontiguousarray(out.transpose(1, 0, 2)), lse


def to_bf16(values: Floats) -> Words:
    """bf16 bit patterns, nearest even; finite values."""
    bits = values.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return rounded.astype(np.uint16)


def from_bf16(words: Words) -> Floats:
    """fp32 values of bf16 bit patterns."""
    return (words.astype(np.uint32) << np.uint32(16)).view(np.float32)
