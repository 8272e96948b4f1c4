"""Attention in fp64 and the bounds that a bf16 kernel with rounded row sums is held to."""

from __future__ import annotations

import torch
from torch import Tensor

#: Relative L2 of the output: P and O are rounded to bf16, each with an error of 2^-9 at most.
OUTPUT_BOUND = 2.4e-3
#: Absolute, of the log-sum-exp: row sums are of bf16-rounded P.
LSE_BOUND = 3e-3


def reference(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, causal: bool = False, keys: int | None = None
) -> tuple[Tensor, Tensor]:
    """q (B, Sq, H, D) over the first `keys` of k, v (B, Sk, Hkv, D): the output and the (B, H, Sq) log-sum-exp, fp64.

    Rows without keys, or with scores of -inf alone, give 0 and -inf. Weights of 0 ignore their value.
    """
    keys = k.shape[1] if keys is None else keys
    q, k, v = q.double().transpose(1, 2), k[:, :keys].double().transpose(1, 2), v[:, :keys].double().transpose(1, 2)
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        hidden = torch.arange(keys)[None] > torch.arange(q.shape[2])[:, None] + keys - q.shape[2]
        scores = scores.masked_fill(hidden, -torch.inf)
    lse = torch.logsumexp(scores, -1)
    weights = (scores - torch.where(lse == -torch.inf, 0.0, lse)[..., None]).exp()
    return (weights @ v).transpose(1, 2), lse


def check(
    out: Tensor,
    lse: Tensor | None,
    expected: tuple[Tensor, Tensor],
    bound: float = OUTPUT_BOUND,
    lse_bound: float = LSE_BOUND,
) -> None:
    """Hold a result to the bounds; every cell must have been written."""
    assert not out.isnan().any(), f"{int(out.isnan().sum())} cells are NaN or were not written"
    norm = expected[0].norm()
    error = float((out.double() - expected[0]).norm() / (norm if norm > 0 else 1))
    assert error <= bound, f"relative L2 {error:.2e}"
    if lse is None:
        return
    empty = expected[1] == -torch.inf
    assert torch.equal(lse == -torch.inf, empty), "rows without keys"
    worst = float((lse.double() - expected[1])[~empty].abs().max()) if (~empty).any() else 0.0
    assert worst <= lse_bound, f"LSE off by {worst:.2e}"


def tensors(batch: int, seqlen_q: int, seqlen_k: int, heads: int, heads_kv: int) -> tuple[Tensor, Tensor, Tensor]:
    """N(0, 1), BSHD, bfloat16."""
    return (
        torch.randn(batch, seqlen_q, heads, 128).bfloat16(),
        torch.randn(batch, seqlen_k, heads_kv, 128).bfloat16(),
        torch.randn(batch, seqlen_k, heads_kv, 128).bfloat16(),
    )
