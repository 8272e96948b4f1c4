"""The general kernel, which serves what the tuned ones do not take: every mode, all of the emulator's checks on."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from moon_diffusers import attention, attention_varlen, emulate

from .attention_cases import check, reference, tensors
from .conftest import Emulator

BOUNDS = {"rtne": 2.4e-3, "rtna": 2.4e-3, "rtz": 6.5e-3}
EDGES = (1, 16, 63, 64, 65, 127, 128, 129, 200)


@pytest.fixture(params=["gfx942", "gfx950"])
def emulator(request: pytest.FixtureRequest) -> Emulator:
    """Both architectures in turn."""
    found: Emulator = request.getfixturevalue(request.param)
    return found


def odd(x: Tensor) -> Tensor:
    """A copy of x that starts two bytes behind an aligned address: no tuned kernel takes it."""
    return torch.empty(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape).copy_(x)


def run(emulator: Emulator, q: Tensor, k: Tensor, v: Tensor, **options: object) -> tuple[Tensor, Tensor]:
    with emulate(emulator.device.info.arch):
        out, lse = attention(odd(q), k, v, return_lse=True, strict=True, **options)  # type: ignore[call-overload]
    assert emulator.kernels[-1] == f"moon_attention_general_{options.get('rounding', 'rtne')}"
    return out, lse


@pytest.mark.parametrize("rounding", BOUNDS)
def test_edges_of_every_tile(emulator: Emulator, rounding: str) -> None:
    for number, (seqlen_q, seqlen_k) in enumerate(itertools.product(EDGES, EDGES)):
        if (number + len(rounding)) % 3:  # a third of the pairs for each mode
            continue
        q, k, v = tensors(1 + number % 2, seqlen_q, seqlen_k, 2, 1 + number % 2)
        check(*run(emulator, q, k, v, rounding=rounding), reference(q, k, v), BOUNDS[rounding], 1e-5)


@pytest.mark.parametrize("seqlen_q, seqlen_k", [(1, 130), (130, 1), (129, 200), (200, 129), (128, 128)])
def test_causal(emulator: Emulator, seqlen_q: int, seqlen_k: int) -> None:
    q, k, v = tensors(2, seqlen_q, seqlen_k, 4, 2)
    check(*run(emulator, q, k, v, causal=True), reference(q, k, v, causal=True), lse_bound=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_key_lengths(emulator: Emulator, causal: bool) -> None:
    lengths = [150, 0, 1, 64]
    q, k, v = tensors(4, 140, 150, 2, 2)
    k[2, 1:], v[2, 1:] = torch.nan, torch.inf
    out, lse = run(emulator, q, k, v, causal=causal, seqlens_k=torch.tensor(lengths, dtype=torch.int32))
    for entry, keys in enumerate(lengths):
        here = slice(entry, entry + 1)
        if keys == 0:
            assert not out[entry].any() and bool((lse[entry] == -torch.inf).all())
            continue
        expected = reference(q[here], k[here], v[here], causal=causal, keys=keys)
        check(out[here], lse[here], expected, lse_bound=1e-5)


@pytest.mark.parametrize("group", [1, 3, 8])
def test_grouped_heads(emulator: Emulator, group: int) -> None:
    q, k, v = tensors(1, 33, 70, 2 * group, 2)
    check(*run(emulator, q, k, v), reference(q, k, v), lse_bound=1e-5)


def test_packed_sequences(emulator: Emulator) -> None:
    starts_q, starts_k = [0, 130, 130, 131, 200], [0, 64, 100, 101, 230]
    q, k, v = (
        torch.randn(200, 2, 128).bfloat16(),
        torch.randn(230, 1, 128).bfloat16(),
        torch.randn(230, 1, 128).bfloat16(),
    )
    with emulate(emulator.device.info.arch):
        out, lse = attention_varlen(
            odd(q),
            k,
            v,
            torch.tensor(starts_q, dtype=torch.int32),
            torch.tensor(starts_k, dtype=torch.int32),
            130,
            129,
            return_lse=True,
            strict=True,
        )
    assert emulator.kernels[-1] == "moon_attention_general_rtne"
    for entry in range(4):
        rows, keys = slice(*starts_q[entry : entry + 2]), slice(*starts_k[entry : entry + 2])
        if rows.start == rows.stop:
            continue
        expected = reference(q[None, rows], k[None, keys], v[None, keys])
        check(out[None, rows], lse[None, :, rows], expected, lse_bound=1e-5)


def test_difficult_scores(emulator: Emulator) -> None:
    q, k, v = tensors(1, 64, 200, 1, 1)
    peaky = k * 4
    rising = k * torch.linspace(0.1, 8, 200).view(1, 200, 1, 1).bfloat16()
    for keys in (peaky, rising, -rising, k * 64):
        check(*run(emulator, q, keys, v), reference(q, keys, v), lse_bound=2e-2)
    for scale in (0.0, -0.3, 2.0):
        check(*run(emulator, q, k, v, softmax_scale=scale), reference(q, k, v, scale=scale), lse_bound=1e-3)


@pytest.mark.parametrize("rounding", BOUNDS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_stays_where_it_belongs(emulator: Emulator, value: float, rounding: str) -> None:
    q, k, v = tensors(1, 40, 70, 2, 2)
    clean, _ = run(emulator, q, k, v, rounding=rounding)
    changed = q.clone()
    changed[0, 7, 1, 3] = value
    out, _ = run(emulator, changed, k, v, rounding=rounding)
    assert bool(out[0, 7, 1].isnan().all())
    out[0, 7, 1] = clean[0, 7, 1]
    assert torch.equal(out, clean)
    changed = v.clone()
    changed[0, 9, 1, 3] = value
    out, _ = run(emulator, q, k, changed, rounding=rounding)
    column = out[0, :, 1, 3].clone()
    assert bool(column.isnan().all()) if value != value else bool((column == value).all())
    out[0, :, 1, 3] = clean[0, :, 1, 3]
    assert torch.equal(out, clean)
    if rounding != "rtz" and value != value:
        assert set(column.view(torch.int16).tolist()) == {0x7FFF}


def test_same_bits_for_every_order_of_waves(emulator: Emulator) -> None:
    q, k, v = tensors(1, 140, 150, 2, 1)
    expected = None
    for order in ("forward", "reverse", "random:1", "random:2"):
        emulator.option("order", order)
        out, lse = run(emulator, q, k, v, causal=True)
        if expected is None:
            expected = out, lse
        assert torch.equal(out, expected[0]) and torch.equal(lse, expected[1])


def test_same_bits_in_any_company(emulator: Emulator) -> None:
    q, k, v = tensors(3, 40, 100, 4, 2)
    out, _ = run(emulator, q, k, v)
    alone, _ = run(emulator, q[1:2, :, 2:3], k[1:2, :, 1:2], v[1:2, :, 1:2])
    assert torch.equal(alone, out[1:2, :, 2:3])
