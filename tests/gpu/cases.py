"""Tensors, fp64 references computed on the device under test, and the bounds."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import moon_diffusers

from .machine import MACHINE

HEAD_DIM = 128
#: Relative L2 of an output: P and O are rounded to bf16. Small samples scatter around the average.
BOUND, BOUND_SMALL, SMALL = 2.4e-3, 3.2e-3, 96 * HEAD_DIM
#: Absolute, of the natural log: kernels may sum bf16-rounded P; a row that one key dominates reaches 2 ** -8.
LSE_BOUND = 3.91e-3
#: Score elements that a chunk of the reference may have in fp64.
CHUNK = 2**28 if MACHINE.gpu else 2**24


def randn(*shape: int, seed: int | None = None) -> Tensor:
    """N(0, 1) in bf16 on the device."""
    generator = None if seed is None else torch.Generator(MACHINE.device).manual_seed(seed)
    return torch.randn(shape, device=MACHINE.device, generator=generator).bfloat16()


def tensors(batch: int, seqlen_q: int, seqlen_k: int, heads: int, heads_kv: int | None = None, kind: str = "normal"):
    """q, k, v in BSHD. `kind`: `normal`, `peaky` (q times 3), `outliers` (a key in fifty is six times as long)."""
    heads_kv = heads if heads_kv is None else heads_kv
    q = randn(batch, seqlen_q, heads, HEAD_DIM)
    k, v = randn(batch, seqlen_k, heads_kv, HEAD_DIM), randn(batch, seqlen_k, heads_kv, HEAD_DIM)
    if kind == "peaky":
        q *= 3
    if kind == "outliers":
        k[:, 7::50] *= 6
    return q, k, v


def ints(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=MACHINE.device)


def attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    """The product's function; strict, so that torch cannot pass for the kernel."""
    return moon_diffusers.attention(q, k, v, **({"strict": True} | options))


def reference(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, causal: bool = False, keys: int | None = None
) -> tuple[Tensor, Tensor]:
    """BSHD in: the output (B, Sq, H, D) and the log-sum-exp (B, H, Sq), both fp64, row chunk by row chunk.

    Only the first `keys` of k and v count. Rows without keys, or with scores of -inf alone, give 0 and -inf.
    """
    batch, seqlen_q, heads, dim = q.shape
    keys = k.shape[1] if keys is None else keys
    group = heads // k.shape[2]
    scale = dim**-0.5 if scale is None else scale
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    lse = torch.full((batch, heads, seqlen_q), -math.inf, dtype=torch.float64, device=q.device)
    if keys == 0:
        return out, lse
    columns = torch.arange(keys, device=q.device)
    rows = max(1, CHUNK // keys)
    for entry in range(batch):
        for head in range(heads):
            key, value = (t[entry, :keys, head // group].double() for t in (k, v))
            for start in range(0, seqlen_q, rows):
                stop = min(start + rows, seqlen_q)
                scores = q[entry, start:stop, head].double() @ key.T * scale
                if causal:
                    last = torch.arange(start, stop, device=q.device)[:, None] + keys - seqlen_q
                    scores.masked_fill_(columns > last, -math.inf)
                total = torch.logsumexp(scores, -1)
                weights = (scores - torch.where(total == -math.inf, 0.0, total)[:, None]).exp_()
                out[entry, start:stop, head] = weights @ value
                lse[entry, head, start:stop] = total
    return out, lse


def error(out: Tensor, expected: Tensor) -> float:
    """Relative L2; absolute where all that is expected is 0."""
    norm = expected.double().norm().item()
    return (out.double() - expected).norm().item() / (norm or 1.0)


def check(out: Tensor, lse: Tensor | None, expected: tuple[Tensor, Tensor], where: object = "") -> float:
    """Hold a result to the bounds; returns the error of the output."""
    assert out.dtype == torch.bfloat16 and out.shape == expected[0].shape
    assert out.isfinite().all(), f"{where}: {int((~out.isfinite()).sum())} cells are not finite or were not written"
    wrong = error(out, expected[0])
    bound = BOUND_SMALL if out.numel() < SMALL else BOUND
    assert wrong <= bound, f"{where}: relative L2 {wrong:.2e}, accepted {bound:.1e}"
    if lse is not None:
        assert lse.dtype == torch.float32 and lse.shape == expected[1].shape
        empty = expected[1] == -math.inf
        assert torch.equal(lse == -math.inf, empty), f"{where}: LSE of rows without keys"
        if not empty.all():
            off = (lse.double() - expected[1])[~empty].abs().max().item()
            assert off <= LSE_BOUND, f"{where}: LSE off by {off:.2e}"
    return wrong


def check_call(q: Tensor, k: Tensor, v: Tensor, where: object = "", causal: bool = False, **options: Any) -> float:
    """Both layouts of one call against fp64, LSE included; and the same bits with and without LSE."""
    out, lse = attend(q, k, v, causal=causal, return_lse=True, **options)
    expected = reference(q, k, v, causal=causal, scale=options.get("softmax_scale"))
    wrong = check(out, lse, expected, where)
    heads_first = attend(*(t.transpose(1, 2) for t in (q, k, v)), causal=causal, layout="bhsd", **options)
    assert torch.equal(heads_first.transpose(1, 2), out), f"{where}: BHSD and BSHD differ"
    return wrong


def sdpa_errors(q: Tensor, k: Tensor, v: Tensor, expected: Tensor) -> dict[str, float]:
    """Errors of torch's own backends on the same inputs, those that there are."""
    errors = {}
    heads_first = [t.transpose(1, 2) for t in (q, k, v)]
    for name in ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION"):
        try:
            with sdpa_kernel(getattr(SDPBackend, name)):
                out = scaled_dot_product_attention(*heads_first)
        except (AttributeError, RuntimeError):
            continue
        errors[name.removesuffix("_ATTENTION").lower()] = error(out.transpose(1, 2), expected)
    return errors


def sync() -> None:
    if MACHINE.gpu:
        torch.cuda.synchronize()
