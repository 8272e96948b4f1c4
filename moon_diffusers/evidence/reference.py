"""Attention in float64 by numpy, the errors of a kernel against it, and the inputs that both are given.

Independent of torch and of every kernel here. Tensors are BSHD (batch, sequence, heads, head dim); LSE is the natural
logarithm of the sum of exponentials, (batch, heads, queries).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from moon_diffusers.evidence import bf16

Floats = NDArray[np.floating[Any]]
Kind = Literal["normal", "peaky", "lognormal"]
KINDS: tuple[Kind, ...] = ("normal", "peaky", "lognormal")


def attention(
    q: Floats,
    k: Floats,
    v: Floats,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    seqlens_k: Sequence[int] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Attention of ``q`` (B, Sq, Hq, D) over ``k``, ``v`` (B, Sk, Hk, D): output (B, Sq, Hq, D) and LSE (B, Hq, Sq).

    ``Hq`` is a multiple of ``Hk``; query head h reads key head ``h // (Hq // Hk)``. ``causal`` is aligned at the bottom
    right: query i sees keys up to ``i + Sk - Sq``; ``Sk`` counts the batch entry's valid keys (``seqlens_k``).
    A row that sees no key, or only scores of -Inf, gives zeros and an LSE of -Inf. NaN and +Inf scores give NaN.
    Raises ValueError for shapes that do not fit together.
    """
    batch, seqlen_q, num_heads, head_dim = q.shape
    if k.shape != v.shape or k.shape[0] != batch or k.shape[3] != head_dim:
        raise ValueError(f"q {q.shape}, k {k.shape}, v {v.shape}: expected (B, Sq, Hq, D) and twice (B, Sk, Hk, D)")
    num_heads_kv = k.shape[2]
    if num_heads % num_heads_kv:
        raise ValueError(f"q has {num_heads} heads, k has {num_heads_kv}: expected a multiple")
    group = num_heads // num_heads_kv
    scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
    out = np.zeros(q.shape, np.float64)
    lse = np.full((batch, num_heads, seqlen_q), -np.inf)
    for b in range(batch):
        seqlen_k = k.shape[1] if seqlens_k is None else int(seqlens_k[b])
        if not 0 <= seqlen_k <= k.shape[1]:
            raise ValueError(f"seqlens_k[{b}]={seqlen_k}: expected 0 to {k.shape[1]}")
        hidden = None
        if causal:
            hidden = np.arange(seqlen_k)[None, :] > np.arange(seqlen_q)[:, None] + (seqlen_k - seqlen_q)
        for h in range(num_heads):
            keys, values = k[b, :seqlen_k, h // group], v[b, :seqlen_k, h // group]
            out[b, :, h], lse[b, h] = _one_head(q[b, :, h], keys, values, scale, hidden)
    return out, lse


def _one_head(
    q: Floats, k: Floats, v: Floats, scale: float, hidden: NDArray[np.bool_] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    q, k, v = q.astype(np.float64), k.astype(np.float64), v.astype(np.float64)
    if not len(k):
        return np.zeros((len(q), v.shape[1])), np.full(len(q), -np.inf)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore", under="ignore"):
        scores = q @ k.T * scale
        if hidden is not None:
            scores = np.where(hidden, -np.inf, scores)
        maximum = scores.max(axis=1, keepdims=True)
        empty = maximum[:, 0] == -np.inf
        p = np.exp(scores - np.where(empty[:, None], 0.0, maximum))
        if hidden is not None:
            p[hidden] = 0.0
        total = p.sum(axis=1)
        out = np.array([row[row != 0] @ v[row != 0] for row in p]) if not np.isfinite(v).all() else p @ v
        out = out / total[:, None]
        lse = np.where(empty, -np.inf, maximum[:, 0] + np.log(total))
    out[empty] = 0.0
    return out, lse


@dataclass(frozen=True)
class Errors:
    """How a bfloat16 result differs from what it should be; shares are of the elements, 0 to 1.

    ``relative_l2``: norm of the difference over the norm of the expected, finite elements only.
    ``max_row_relative``: the largest difference as a share of the largest element of its row (last axis).
    ``nonfinite_equal``: whether NaN and the two infinities stand in the same places.
    """

    relative_l2: float
    identical: float
    within_1_ulp: float
    max_ulp: int
    max_row_relative: float
    nonfinite_equal: bool


def compare(actual: NDArray[np.uint16], expected: NDArray[np.uint16] | Floats) -> Errors:
    """Compare bfloat16 bits with other bits, or with real numbers (rounded to nearest even where bits are compared).

    Raises ValueError for shapes that differ.
    """
    if actual.shape != expected.shape:
        raise ValueError(f"actual {actual.shape}, expected {expected.shape}: shapes differ")
    if expected.dtype == np.uint16:
        bits = expected.astype(np.uint16)
        real = bf16.to_float(bits).astype(np.float64)
    else:
        real = expected.astype(np.float64)
        with np.errstate(over="ignore"):
            bits = bf16.from_float(real.astype(np.float32))
    got = bf16.to_float(actual).astype(np.float64)
    finite = np.isfinite(real) & np.isfinite(got)
    difference = np.where(finite, got - np.where(finite, real, 0), 0)
    norm = float(np.linalg.norm(np.where(finite, real, 0)))
    error = float(np.linalg.norm(difference))
    row = np.abs(np.where(finite, real, 0)).max(axis=-1, keepdims=True)
    row_relative = np.abs(difference) / np.where(row == 0, 1, row)
    ulps = bf16.ulp_distance(actual, bits)
    same_kind = (
        (np.isnan(got) == np.isnan(real))
        & ((got == np.inf) == (real == np.inf))
        & ((got == -np.inf) == (real == -np.inf))
    )
    return Errors(
        relative_l2=error / norm if norm else error,
        identical=float(np.mean(actual == bits)),
        within_1_ulp=float(np.mean(ulps <= 1)),
        max_ulp=int(np.max(ulps, initial=0)),
        max_row_relative=float(np.max(row_relative, initial=0.0)),
        nonfinite_equal=bool(same_kind.all()),
    )


def inputs(
    batch: int,
    seqlen_q: int,
    seqlen_k: int,
    num_heads: int,
    num_heads_kv: int,
    *,
    head_dim: int = 128,
    kind: Kind = "normal",
    seed: int = 0,
) -> tuple[NDArray[np.uint16], NDArray[np.uint16], NDArray[np.uint16]]:
    """Seeded q, k, v as bfloat16 bits, BSHD.

    ``normal``: N(0, 1). ``peaky``: keys four times as large, so that few keys carry a row. ``lognormal``: key rows with
    log-normal norms, so that the running maximum jumps. Raises ValueError for another kind.
    """
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((batch, seqlen_q, num_heads, head_dim))
    k = rng.standard_normal((batch, seqlen_k, num_heads_kv, head_dim))
    v = rng.standard_normal((batch, seqlen_k, num_heads_kv, head_dim))
    if kind == "peaky":
        k *= 4
    elif kind == "lognormal":
        k *= rng.lognormal(0.0, 1.0, (batch, seqlen_k, num_heads_kv, 1))
    elif kind != "normal":
        raise ValueError(f"kind={kind!r}: expected one of {', '.join(KINDS)}")
    return bf16.from_float(q), bf16.from_float(k), bf16.from_float(v)


NONFINITE: dict[str, int] = {
    "quiet NaN": 0x7FC0,
    "negative NaN": 0xFFC1,
    "signalling NaN": 0x7F81,
    "full payload": 0x7FFF,
    "+Inf": 0x7F80,
    "-Inf": 0xFF80,
}
"""bfloat16 bits to plant in q, k or v, by name."""


def plant(bits: NDArray[np.uint16], index: tuple[int, ...], value: str) -> NDArray[np.uint16]:
    """A copy of ``bits`` with one element set to a member of `NONFINITE`."""
    planted = bits.copy()
    planted[index] = NONFINITE[value]
    return planted
