"""Packed sequences and paged caches without a kernel: torch's answer, the checks, fakes and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import moon_diffusers
from moon_diffusers.errors import ArgumentError, StrictError
from moon_diffusers.fallback import logsumexp, sdpa

LENGTHS_Q, LENGTHS_K = [10, 0, 1, 39], [20, 7, 0, 33]


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def offsets(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def packed() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "q": torch.randn(sum(LENGTHS_Q), 4, 128, dtype=torch.bfloat16),
        "k": torch.randn(sum(LENGTHS_K), 2, 128, dtype=torch.bfloat16),
        "v": torch.randn(sum(LENGTHS_K), 2, 128, dtype=torch.bfloat16),
        "cu_seqlens_q": offsets(LENGTHS_Q),
        "cu_seqlens_k": offsets(LENGTHS_K),
    }


def paged() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "q": torch.randn(3, 5, 4, 128, dtype=torch.bfloat16),
        "k_cache": torch.randn(7, 16, 2, 128, dtype=torch.bfloat16),
        "v_cache": torch.randn(7, 16, 2, 128, dtype=torch.bfloat16),
        "block_table": torch.tensor([[6, 0, -1], [99, 99, 99], [3, 6, 1]], dtype=torch.int32),
        "seqlens_k": ints(17, 0, 48),
    }


@pytest.mark.parametrize("causal", [False, True])
def test_packed_sequences_are_the_sequences_one_by_one(causal: bool) -> None:
    call = packed()
    out, lse = moon_diffusers.attention_varlen(**call, causal=causal, return_lse=True, softmax_scale=0.2)
    assert torch.equal(out, moon_diffusers.attention_varlen(**call, causal=causal, softmax_scale=0.2))
    start_q = start_k = 0
    for length_q, length_k in zip(LENGTHS_Q, LENGTHS_K, strict=True):
        rows, keys = slice(start_q, start_q + length_q), slice(start_k, start_k + length_k)
        if length_k == 0:
            assert not out[rows].any() and (lse[:, rows] == -torch.inf).all()
        elif length_q:
            q, k, v = (
                t[part].transpose(0, 1)[None]
                for t, part in ((call["q"], rows), (call["k"], keys), (call["v"], keys))
            )  # fmt: skip
            expected = sdpa(q, k, v, causal=causal, softmax_scale=0.2)
            assert torch.equal(out[rows], expected[0].transpose(0, 1))
            assert torch.allclose(lse[:, rows], logsumexp(q, k, causal=causal, softmax_scale=0.2)[0])
        start_q, start_k = start_q + length_q, start_k + length_k


def test_pages_are_gathered_in_the_tables_order() -> None:
    call = paged()
    out, lse = moon_diffusers.attention_paged(**call, return_lse=True)
    k, v = (call[name][[3, 6, 1]].flatten(0, 1)[None].transpose(1, 2) for name in ("k_cache", "v_cache"))
    q = call["q"][2:].transpose(1, 2)
    assert torch.equal(out[2:], sdpa(q, k, v).transpose(1, 2))
    assert torch.allclose(lse[2:], logsumexp(q, k))
    assert not out[1].any() and (lse[1] == -torch.inf).all()


@pytest.mark.parametrize("return_lse", [False, True])
def test_operators_keep_torchs_contract(return_lse: bool) -> None:
    suffix = "_lse" if return_lse else ""
    options = (None, True, "rtne", "auto", None, "", False)
    call = packed()
    torch.library.opcheck(
        getattr(torch.ops.moon_diffusers, "attention_varlen" + suffix).default, (*call.values(), 39, 33, *options)
    )
    torch.library.opcheck(
        getattr(torch.ops.moon_diffusers, "attention_paged" + suffix).default, (*paged().values(), *options)
    )


def test_compiles_without_a_graph_break() -> None:
    def run(call: dict[str, Any], cache: dict[str, Any]) -> tuple[Tensor, Tensor]:
        lengths = {"max_seqlen_q": 39, "max_seqlen_k": 33}
        return moon_diffusers.attention_varlen(**call, **lengths), moon_diffusers.attention_paged(**cache)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    for got, expected in zip(compiled(packed(), paged()), run(packed(), paged()), strict=True):
        assert torch.equal(got, expected)


def test_compiles_with_a_scale_that_varies() -> None:
    torch._dynamo.reset()
    call = packed()

    def run(scale: float) -> Tensor:
        return moon_diffusers.attention_varlen(**call, max_seqlen_q=39, max_seqlen_k=33, softmax_scale=scale)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    for scale in (0.1, 0.2, 0.3):
        assert torch.equal(compiled(scale), run(scale))


def test_gradients_flow_through_torch() -> None:
    call, cache = packed(), paged()
    call["k"].requires_grad_()
    cache["v_cache"].requires_grad_()
    moon_diffusers.attention_varlen(**call).float().sum().backward()
    moon_diffusers.attention_paged(**cache).float().sum().backward()
    assert call["k"].grad.shape == call["k"].shape and call["k"].grad.abs().max() > 0
    assert not cache["v_cache"].grad[[2, 4, 5]].any() and cache["v_cache"].grad[6].any()


def test_strict_names_the_reason() -> None:
    with pytest.raises(StrictError, match="CPU tensors outside emulate"):
        moon_diffusers.attention_varlen(**packed(), strict=True)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"q": torch.zeros(4, 2, 2, 128, dtype=torch.bfloat16)}, r"q: shape \(4, 2, 2, 128\) .* 3 dimensions"),
        ({"k": torch.zeros(60, 3, 128, dtype=torch.bfloat16)}, "k: 3 heads .* a divisor of q's 4 heads"),
        ({"v": torch.zeros(9, 2, 128, dtype=torch.bfloat16)}, r"v: shape \(9, 2, 128\) .* the shape of k"),
        ({"cu_seqlens_q": torch.zeros(5, dtype=torch.int64)}, "cu_seqlens_q: dtype int64 .* int32"),
        ({"cu_seqlens_q": ints(0)}, r"cu_seqlens_q: shape \(1,\) .* B at least 1"),
        ({"cu_seqlens_k": ints(0, 60)}, r"cu_seqlens_k: shape \(2,\) .* the shape of cu_seqlens_q"),
        ({"cu_seqlens_q": ints(0, 20, 10, 11, 50)}, r"cu_seqlens_q: \[0, 20, 10, 11, 50\] .* never falling"),
        ({"cu_seqlens_k": ints(0, 20, 27, 27, 61)}, "cu_seqlens_k: .* at most 60"),
        ({"max_seqlen_k": 32}, "max_seqlen_k: 32 .* at least 33, the longest sequence of cu_seqlens_k"),
        ({"softmax_scale": float("nan")}, "softmax_scale: nan"),
        ({"rounding": "up"}, "rounding: 'up'"),
    ],
)
def test_bad_packed_arguments_are_named(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        moon_diffusers.attention_varlen(**{**packed(), **changes})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"k_cache": torch.zeros(7, 48, 2, 128, dtype=torch.bfloat16)}, "v_cache: shape"),
        ({"block_table": torch.zeros(2, 3, dtype=torch.int32)}, "block_table: 2 rows .* the batch of q, 3"),
        (
            {"block_table": torch.full((3, 3), 7, dtype=torch.int32)},
            r"block_table: \[7, 7\] in entry 0 .* pages 0 to 6",
        ),
        ({"seqlens_k": ints(17, 0, 49)}, "seqlens_k: 49 keys in entry 2 .* 0 to 48"),
        ({"seqlens_k": ints(17, -1, 9)}, "seqlens_k: -1 keys in entry 1"),
    ],
)
def test_bad_paged_arguments_are_named(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        moon_diffusers.attention_paged(**{**paged(), **changes})


def test_page_sizes_are_named() -> None:
    call = paged()
    call["k_cache"] = call["v_cache"] = torch.zeros(7, 48, 2, 128, dtype=torch.bfloat16)
    with pytest.raises(ArgumentError, match=r"k_cache: page size 48 .* 16, 32, 64"):
        moon_diffusers.attention_paged(**call)
