"""References and tensors shared by the tests of the core."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def reference(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, allowed: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention in fp64, BHSD; also the log-sum-exp. Rows without keys: 0 and -inf."""
    q, k, v = q.double(), k.double(), v.double()
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -math.inf)
    lse = scores.logsumexp(-1)
    weights = torch.where(lse.isinf().unsqueeze(-1), torch.zeros_like(scores), (scores - lse.unsqueeze(-1)).exp())
    return weights @ v, lse


def bhsd(
    batch: int,
    heads: int,
    heads_kv: int,
    seqlen_q: int,
    seqlen_k: int,
    dim: int = 128,
    dtype: torch.dtype = torch.bfloat16,
) -> tuple[Tensor, Tensor, Tensor]:
    """Random q, k, v."""
    return (
        torch.randn(batch, heads, seqlen_q, dim, dtype=dtype),
        torch.randn(batch, heads_kv, seqlen_k, dim, dtype=dtype),
        torch.randn(batch, heads_kv, seqlen_k, dim, dtype=dtype),
    )


def relative(actual: Tensor, expected: Tensor) -> float:
    """Relative L2 error."""
    return float((actual.double() - expected).norm() / expected.norm())


def visible(batch: int, seqlen_q: int, seqlen_k: int, causal: bool, lengths: list[int] | None) -> Tensor:
    """Which keys each query sees, (B, 1, Sq, Sk), written out one by one."""
    allowed = torch.ones(batch, 1, seqlen_q, seqlen_k, dtype=torch.bool)
    for entry in range(batch):
        valid = seqlen_k if lengths is None else min(lengths[entry], seqlen_k)
        for row in range(seqlen_q):
            for column in range(seqlen_k):
                seen = column < valid and (not causal or column - (valid - seqlen_q) <= row)
                allowed[entry, 0, row, column] = seen
    return allowed
