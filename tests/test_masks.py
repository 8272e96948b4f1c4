"""Masks: the plan, carried out, must equal torch's SDPA with the mask, or the plan must refuse."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from moon_diffusers import masks
from moon_diffusers.masks import MaskCache, MaskPlan, read_mask

B, H, SQ, SK, D = 2, 3, 5, 7, 8


def carry_out(plan: MaskPlan, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    assert not plan.reason
    if plan.keys:
        parts = []
        for entry, keys in enumerate(plan.keys):
            one = slice(entry, entry + 1)
            parts.append(scaled_dot_product_attention(q[one], k[one][:, :, keys], v[one][:, :, keys]))
        out = torch.cat(parts)
    else:
        out = scaled_dot_product_attention(q, k, v)
    return out if plan.rows is None else out * plan.rows[:, None, :, None]


def key_mask(*rows: str) -> Tensor:
    return torch.tensor([[c == "1" for c in row] for row in rows])[:, None, None, :]


def outer(rows: str, keys: str) -> Tensor:
    r = torch.tensor([c == "1" for c in rows])
    return (r[:, None] & torch.tensor([c == "1" for c in keys])[None])[None, None]


def as_bias(mask: Tensor, floor: float) -> Tensor:
    return torch.zeros(mask.shape).masked_fill(~mask, floor)


SERVED = {
    "all true": key_mask("1111111"),
    "all true, materialised": torch.ones(B, H, SQ, SK, dtype=torch.bool),
    "one value": torch.ones(1, 1, dtype=torch.bool),
    "prefix": key_mask("1111000"),
    "suffix": key_mask("0001111"),
    "one key": key_mask("0000100"),
    "gaps": key_mask("1011001"),
    "differs by batch": key_mask("1111111", "1100000"),
    "prefix and gaps": key_mask("1111000", "1010101"),
    "no head dim": key_mask("1111000")[0, 0],
    "materialised": key_mask("1110011").expand(B, H, SQ, SK).clone(),
    "materialised rows": key_mask("1110011", "1111111").expand(B, 1, SQ, SK).clone(),
    "expanded": key_mask("1110011").expand(B, H, SQ, SK),
    "rows x keys": outer("11100", "1110000"),
    "rows x keys with gaps": outer("10110", "1010011"),
    "rows only": outer("11100", "1111111"),
    "rows alone, one column": outer("11100", "1"),
    "zero bias": torch.zeros(B, 1, 1, SK),
    "zero bias bf16": torch.zeros(B, 1, SQ, SK, dtype=torch.bfloat16),
    "-inf bias": as_bias(key_mask("1111000"), -math.inf),
    "lowest bias": as_bias(key_mask("1011000"), torch.finfo(torch.float32).min),
    "lowest and -inf": as_bias(key_mask("1011000"), -math.inf).clamp(min=-3e38),
}
REFUSED = {
    "causal": (torch.ones(SQ, SK, dtype=torch.bool).tril(), "mask differs by query"),
    "block causal": (torch.block_diag(torch.ones(2, 3), torch.ones(3, 4)).bool(), "mask differs by query"),
    "same count, other keys": (torch.eye(SK, dtype=torch.bool)[:SQ], "mask differs by query"),
    "by head": (
        torch.stack([key_mask("1110000")[0, 0], *[key_mask("0111000")[0, 0]] * 2])[None],
        "mask differs by head",
    ),
    "bias": (as_bias(key_mask("1111000"), -10000.0), "additive mask"),
    "0 and 1": (key_mask("1111000").float(), "additive mask"),
    "nan": (as_bias(key_mask("1111000"), math.nan), "additive mask"),
    "rows of lowest": (as_bias(outer("11100", "1110000"), torch.finfo(torch.float32).min), "additive mask"),
    "nothing": (key_mask("0000000"), "mask leaves no key"),
    "nothing in one entry": (key_mask("1111111", "0000000"), "mask leaves no key"),
    "integers": (key_mask("1111000").long(), "mask of dtype int64"),
    "too long": (key_mask("11110001"), "mask does not fit the call"),
    "1-D": (key_mask("1111000")[0, 0, 0], "mask of 1 dimensions"),
    "5-D": (torch.ones(1, 1, 1, 1, SK, dtype=torch.bool), "mask of 5 dimensions"),
}


@pytest.fixture
def qkv() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(B, H, SQ, D), torch.randn(B, H, SK, D), torch.randn(B, H, SK, D)


@pytest.mark.parametrize("chunk_bytes", [8, masks.CHUNK_BYTES])
@pytest.mark.parametrize("name", SERVED)
def test_plan_equals_the_mask(name, chunk_bytes, qkv, monkeypatch):
    monkeypatch.setattr(masks, "CHUNK_BYTES", chunk_bytes)
    mask = SERVED[name]
    plan = read_mask(mask, B, H, SQ, SK)
    wanted = scaled_dot_product_attention(*qkv, attn_mask=mask.float() if mask.dtype == torch.bfloat16 else mask)
    if mask.dtype == torch.bool:
        wanted = wanted.masked_fill(~mask.expand(B, H, SQ, SK).any(-1, keepdim=True), 0.0)
    torch.testing.assert_close(carry_out(plan, *qkv), wanted)


@pytest.mark.parametrize("name", ["all true", "all true, materialised", "one value", "zero bias", "zero bias bf16"])
def test_mask_that_masks_nothing_is_no_mask(name):
    assert read_mask(SERVED[name], B, H, SQ, SK).is_trivial


def test_neighbouring_keys_are_a_slice_and_gaps_an_index():
    assert read_mask(SERVED["prefix"], B, H, SQ, SK).keys == (slice(0, 4),) * B
    assert read_mask(SERVED["suffix"], B, H, SQ, SK).keys == (slice(3, 7),) * B
    index = read_mask(SERVED["gaps"], B, H, SQ, SK).keys[0]
    assert isinstance(index, Tensor) and index.tolist() == [0, 2, 3, 6]


@pytest.mark.parametrize("chunk_bytes", [8, masks.CHUNK_BYTES])
@pytest.mark.parametrize("name", REFUSED)
def test_refusal(name, chunk_bytes, monkeypatch):
    monkeypatch.setattr(masks, "CHUNK_BYTES", chunk_bytes)
    mask, reason = REFUSED[name]
    plan = read_mask(mask, B, H, SQ, SK)
    assert plan.reason == reason and not plan.is_trivial


def test_random_masks_are_served_exactly_or_refused(qkv):
    generator = torch.Generator().manual_seed(0)
    served = 0
    for _ in range(300):
        rows = torch.rand(1, 1, SQ, 1, generator=generator) < 0.8
        mask = rows & (torch.rand(B, 1, 1, SK, generator=generator) < 0.7)
        if torch.rand(1, generator=generator) < 0.3:
            mask = mask.clone()
            mask[0, 0, 0, 0] ^= True
        plan = read_mask(mask, B, H, SQ, SK)
        if plan.reason:
            continue
        served += 1
        wanted = scaled_dot_product_attention(*qkv, attn_mask=mask).masked_fill(~mask.any(-1, keepdim=True), 0.0)
        torch.testing.assert_close(carry_out(plan, *qkv), wanted)
    assert served > 100


def test_cache_reads_a_mask_once(monkeypatch):
    calls = []
    monkeypatch.setattr(masks, "read_mask", lambda *a: calls.append(a) or read_mask(*a))
    cache, mask = MaskCache(), key_mask("1111000").clone()
    first = cache.read(mask, B, H, SQ, SK)
    assert cache.read(mask, B, H, SQ, SK) is first
    assert cache.read(mask.expand(B, 1, SQ, SK)[:, :, :1].narrow(0, 0, 1), B, H, SQ, SK) == first
    assert len(calls) == 2  # the second view has other strides


def test_cache_notices_writes_views_and_new_memory():
    cache, mask = MaskCache(), key_mask("1111000").clone()
    assert cache.read(mask, B, H, SQ, SK).keys[0] == slice(0, 4)
    mask[..., 3] = False
    assert cache.read(mask, B, H, SQ, SK).keys[0] == slice(0, 3)
    mask[..., :1].fill_(False)
    assert cache.read(mask, B, H, SQ, SK).keys[0] == slice(1, 3)
    for length in range(1, SK):
        # Freed memory of this size is handed out again at the same address, unless the cache holds it.
        fresh = torch.ones(1, 1, 1, 2**20, dtype=torch.bool)
        fresh[..., length:] = False
        assert cache.read(fresh, 1, 1, 1, 2**20).keys[0] == slice(0, length)
        del fresh
    with torch.inference_mode():
        assert cache.read(key_mask("1100000"), B, H, SQ, SK).keys[0] == slice(0, 2)
        assert cache.read(key_mask("1000000"), B, H, SQ, SK).keys[0] == slice(0, 1)


def test_cache_keeps_only_a_few_small_masks(monkeypatch):
    cache = MaskCache()
    for _ in range(3 * masks.REMEMBERED):
        cache.read(key_mask("1100000"), B, H, SQ, SK)
    assert len(cache._plans) == masks.REMEMBERED
    cache.clear()
    monkeypatch.setattr(masks, "CHUNK_BYTES", 4)
    cache.read(key_mask("1100000"), B, H, SQ, SK)
    assert not cache._plans
