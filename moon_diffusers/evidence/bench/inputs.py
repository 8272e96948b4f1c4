"""The tensors of a case, and the check of an output against fp64 on sampled rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .grid import HEAD_DIM, Case

# Twice the error of a bf16 attention with fp32 accumulation on N(0,1) inputs (2.3e-3): catches a wrong kernel, passes
# every rounding mode but truncation, which has its own bound.
TOLERANCE = 5e-3
TOLERANCE_RTZ = 1.2e-2
# Kernels that compute in 8 bits by design: their error is a figure beside their speed; this catches a wrong kernel.
TOLERANCE_8_BIT = 0.15


@dataclass(frozen=True, slots=True)
class Inputs:
    """q, k, v in BSHD, bf16. For packed cases batch is 1 and `cu_seqlens` (i32) holds the offsets."""

    q: Tensor
    k: Tensor
    v: Tensor
    cu_seqlens: Tensor | None


def make_inputs(case: Case, device: torch.device, seed: int = 0) -> Inputs:
    """N(0,1) values: the same for the same case, seed and kind of device."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(rows: int, heads: int) -> Tensor:
        shape = (case.batch, rows, heads, HEAD_DIM)
        return torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16)

    cu_seqlens = None
    if case.seqlens:
        offsets = [0]
        for length in case.seqlens:
            offsets.append(offsets[-1] + length)
        cu_seqlens = torch.tensor(offsets, dtype=torch.int32, device=device)
    q = normal(sum(case.seqlens) or case.seqlen_q, case.num_heads)
    k, v = (normal(sum(case.seqlens) or case.seqlen_k, case.num_heads_kv) for _ in range(2))
    return Inputs(q, k, v, cu_seqlens)


def sampled_error(case: Case, inputs: Inputs, out: Tensor, rows: int = 32, heads: int = 4) -> float:
    """Relative L2 error of `out` (BSHD) on evenly spread query rows and heads, against fp64 softmax attention.

    A missing or non-finite output gives infinity.
    """
    sequences = sequence_spans(case)
    per_sequence = max(1, rows // len(sequences))
    group = case.num_heads // case.num_heads_kv
    wrong = right = 0.0
    for batch in range(case.batch):
        for first, length_q, length_k in sequences:
            picked = torch.tensor(spread(length_q, per_sequence))
            for head in spread(case.num_heads, heads):
                keys = slice(first, first + length_k)
                k = inputs.k[batch, keys, head // group].double()
                v = inputs.v[batch, keys, head // group].double()
                at = (picked + first).to(out.device)
                scores = inputs.q[batch, at, head].double() @ k.T / math.sqrt(HEAD_DIM)
                if case.causal:
                    limit = picked.to(out.device)[:, None] + length_k - length_q
                    scores.masked_fill_(torch.arange(length_k, device=out.device)[None] > limit, -math.inf)
                reference = scores.softmax(-1) @ v
                wrong += (out[batch, at, head].double() - reference).square().sum().item()
                right += reference.square().sum().item()
    error = math.sqrt(wrong / right)
    return error if math.isfinite(error) else math.inf


def spread(length: int, count: int) -> list[int]:
    """At most `count` indices below `length`, evenly spread, first and last among them."""
    return sorted({round(i * (length - 1) / max(1, count - 1)) for i in range(min(count, length))} | {length - 1})


def sequence_spans(case: Case) -> list[tuple[int, int, int]]:
    """(first row, query rows, key rows) of each sequence; one for a dense case."""
    if not case.seqlens:
        return [(0, case.seqlen_q, case.seqlen_k)]
    spans, first = [], 0
    for length in case.seqlens:
        spans.append((first, length, length))
        first += length
    return spans
