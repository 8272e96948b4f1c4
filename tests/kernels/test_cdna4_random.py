"""Random calls of every kind on the tuned gfx950 kernels in the emulator, against fp64."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import moon_diffusers
from moon_diffusers import dispatch
from tests.kernels.attention_cases import check, reference
from tests.kernels.conftest import Emulator
from tests.kernels.test_cdna4_sequences import offsets, paged_case


def strided(choose: random.Random, shape: tuple[int, int, int, int]) -> Tensor:
    """N(0, 1) of (B, S, H, 128) in a random memory order with random gaps, 16-byte aligned."""
    order = [0, 1, 2]
    choose.shuffle(order)
    pads = [choose.choice([0, 0, 1]) for _ in order]
    sizes = [shape[axis] + pad for axis, pad in zip(order, pads, strict=True)]
    buffer = torch.randn(*sizes, 128 + choose.choice([0, 8, 64])).bfloat16()
    for dim, axis in enumerate(order):
        buffer = buffer.narrow(dim, choose.randint(0, pads[dim]), shape[axis])
    return buffer[..., :128].permute(*(order.index(axis) for axis in range(3)), 3)


def plan_for_a_random_device(gfx950: Emulator, choose: random.Random) -> None:
    info = gfx950.device.info
    gfx950.device.info = replace(info, cu_count=choose.choice([2, 5, 64, 256]), xcd_count=choose.choice([1, 2, 8]))
    dispatch.reset()


def run_dense(choose: random.Random) -> None:
    batch, heads_kv, group = choose.randint(1, 3), choose.randint(1, 2), choose.choice([1, 1, 2, 5])
    seqlen_q, seqlen_k = choose.choice([1, 30, 100, 400, 500]), choose.choice([1, 63, 64, 100, 500, 900])
    q = strided(choose, (batch, seqlen_q, heads_kv * group, 128))
    k, v = (strided(choose, (batch, seqlen_k, heads_kv, 128)) for _ in range(2))
    lengths = [choose.randint(0, seqlen_k) for _ in range(batch)] if choose.random() < 0.4 else [seqlen_k] * batch
    causal, scale = choose.random() < 0.5, choose.choice([None, 0.2, 0.02])
    valid = torch.tensor(lengths, dtype=torch.int32) if min(lengths) < seqlen_k else None
    with moon_diffusers.emulate("gfx950"):
        out, lse = moon_diffusers.attention(
            q, k, v, causal=causal, softmax_scale=scale, seqlens_k=valid, return_lse=True, strict=True
        )
    for i, length in enumerate(lengths):
        expected = reference(q[i : i + 1], k[i : i + 1], v[i : i + 1], keys=length, causal=causal, scale=scale)
        check(out[i : i + 1], lse[i : i + 1], expected, bound=3.2e-3, lse_bound=2**-8)


def run_packed(choose: random.Random) -> None:
    heads_kv, group, causal = choose.randint(1, 2), choose.choice([1, 3]), choose.random() < 0.5
    count = choose.randint(1, 4)
    lengths_q = [choose.choice([0, 1, 40, 390]) for _ in range(count)]
    lengths_k = [choose.choice([0, 1, 64, 200, 700]) for _ in range(count)]
    lengths_q[0], lengths_k[-1] = 17, 130
    q = strided(choose, (1, sum(lengths_q), heads_kv * group, 128))[0]
    k, v = (strided(choose, (1, sum(lengths_k), heads_kv, 128))[0] for _ in range(2))
    starts_q, starts_k = offsets(lengths_q), offsets(lengths_k)
    with moon_diffusers.emulate("gfx950"):
        out, lse = moon_diffusers.attention_varlen(
            q, k, v, starts_q, starts_k, causal=causal, return_lse=True, strict=True
        )
    for i in range(count):
        rows, keys = slice(starts_q[i], starts_q[i + 1]), slice(starts_k[i], starts_k[i + 1])
        if lengths_q[i]:
            expected = reference(q[None, rows], k[None, keys], v[None, keys], causal=causal)
            check(out[None, rows], lse[None, :, rows], expected, bound=3.2e-3, lse_bound=2**-8)


def run_paged(choose: random.Random) -> None:
    page_size, causal = choose.choice([16, 32, 64, 128, 256]), choose.random() < 0.5
    lengths = [choose.choice([0, 1, page_size - 1, 3 * page_size, 777]) for _ in range(choose.randint(1, 3))]
    q, k, v, k_cache, v_cache, table = paged_case(
        page_size, lengths, choose.choice([1, 20, 400]), heads_kv=choose.choice([1, 2, 4])
    )
    with moon_diffusers.emulate("gfx950"):
        out, lse = moon_diffusers.attention_paged(
            q, k_cache, v_cache, table, torch.tensor(lengths, dtype=torch.int32), causal=causal, return_lse=True,
            strict=True,
        )  # fmt: skip
    for i in range(len(lengths)):
        expected = reference(q[i : i + 1], k[i][None], v[i][None], causal=causal)
        check(out[i : i + 1], lse[i : i + 1], expected, bound=3.2e-3, lse_bound=2**-8)


def run_one(gfx950: Emulator, seed: int) -> None:
    choose = random.Random(seed)
    torch.manual_seed(seed)
    plan_for_a_random_device(gfx950, choose)
    choose.choice([run_dense, run_packed, run_paged])(choose)
    assert all(kernel.startswith("moon_attention_cdna4") for kernel in gfx950.kernels)


@pytest.mark.parametrize("seed", range(12))
def test_random_calls(gfx950: Emulator, seed: int) -> None:
    run_one(gfx950, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 400))
def test_many_random_calls(gfx950: Emulator, seed: int) -> None:
    run_one(gfx950, seed)
