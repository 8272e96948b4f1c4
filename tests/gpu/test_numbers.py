"""Difficult scores, scales, and values that are not finite."""

from __future__ import annotations

import math

import pytest
import torch

from .cases import attend, check, check_call, error, reference, tensors
from .machine import MACHINE

ROWS, KEYS = MACHINE.pick((500, 900), (100, 200))


@pytest.mark.parametrize("scale", [0.3, 1e-3, 0.0, -0.1])
@pytest.mark.parametrize("causal", [False, True], ids=["dense", "causal"])
def test_scales(scale: float, causal: bool) -> None:
    # A kernel may leave scales to torch that no model has.
    check_call(*tensors(1, ROWS, KEYS, 2), scale, causal, softmax_scale=scale, strict=scale > 0)


@pytest.mark.parametrize("kind", ["peaky", "outliers"])
def test_difficult_inputs(kind: str) -> None:
    check_call(*tensors(1, ROWS, KEYS, 2, kind=kind), kind)


@pytest.mark.parametrize("step", [0.02, 0.3, 16.0])
def test_rising_maxima(step: float) -> None:
    """Every tile moves the reference of many rows, in each row at its own pace; the last by thousands of log2 units."""
    q, k, v = tensors(1, ROWS, KEYS, 1)
    k[0, :, 0, 0] = torch.arange(KEYS, device=k.device) * step
    q[0, :, 0, 0] = torch.linspace(0.2, 1, ROWS, device=k.device) * 11.3
    out, lse = attend(q, k, v, return_lse=True)
    expected = reference(q, k, v)
    check(out, lse if step < 1 else None, expected)
    assert ((lse.double() - expected[1]) / expected[1]).abs().max().item() < 4e-4


def test_slowly_rising_scores_over_many_keys() -> None:
    """Half a log2 unit every 80 keys, for longer than fp32's range: no key ever weighs much when it comes."""
    q, k, v = tensors(1, 33, 46_001, 1)
    q, k = q * 0.3, k * 0.3
    middle = k.shape[1] // 2
    rise = (torch.arange(k.shape[1], device=k.device) - middle).abs() * (0.5 / 80 * math.log(2))
    q[..., 0], k[0, :, 0, 0] = 8, -(rise / (8 * 0.1)).bfloat16()
    # Cut into parts, and whole, as rows that must not depend on the grid are.
    expected = reference(q, k, v, scale=0.1)
    for whole in (False, True):
        out, lse = attend(q, k, v, return_lse=True, softmax_scale=0.1, batch_invariant=whole)
        check(out, lse, expected, whole)


def test_falling_maxima_and_huge_scores() -> None:
    q, k, v = tensors(1, ROWS, KEYS, 2)
    falling = (k * torch.linspace(4, 0.1, KEYS, device=k.device)[None, :, None, None]).bfloat16()
    check_call(q, falling, v)
    q, k = q * 32, k * 32  # scores of about +-1e4
    out, lse = attend(q, k, v, return_lse=True)
    expected = reference(q, k, v)
    assert expected[1].abs().max() > 1e3
    # fp32 scores of this size have steps of 1e-3, and neighbouring weights that differ by as much.
    assert out.isfinite().all() and error(out, expected[0]) < 5e-3
    assert ((lse.double() - expected[1]).abs().max() / expected[1].abs().max()).item() < 1e-6


def test_scores_far_below_zero_everywhere() -> None:
    q, k, v = tensors(1, ROWS, KEYS, 1)
    q[..., 0], k[..., 0] = 64, -640
    expected = reference(q, k, v)
    assert expected[1].max() < -3000
    out, lse = attend(q, k, v, return_lse=True)
    assert error(out, expected[0]) < 3e-3 and (lse.double() - expected[1]).abs().max() < 5e-3


def test_minus_infinity_first_then_low_scores() -> None:
    """Whole first tiles of -inf scores must not leave a reference that later scores underflow against."""
    q, k, v = tensors(1, ROWS, KEYS, 1)
    q[..., 0], k[..., 0] = 8, -800
    k[:, :180, :, 0] = -math.inf
    out, lse = attend(q, k, v, return_lse=True)
    expected = reference(q, k, v)
    assert error(out, expected[0]) < 3e-3 and (lse.double() - expected[1]).abs().max() < 5e-3


def test_no_key_at_all_gives_zeros() -> None:
    q, k, v = tensors(1, ROWS, KEYS, 2)
    q[..., 0] = 1
    k[..., 0] = -math.inf
    out, lse = attend(q, k, v, return_lse=True)
    assert not out.any() and (lse == -math.inf).all()


PLACES = MACHINE.pick([(0, 0), (70, 70), (383, 79), (384, 80), (499, 899)], [(70, 170)])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["q", "k", "v"])
def test_what_is_not_finite_spoils_what_it_touches(where: str, value: float) -> None:
    """NaN, Inf and -Inf stand in the output exactly where arithmetic puts them, in whatever tile they begin."""
    for row, key in PLACES:
        q, k, v = tensors(1, ROWS, KEYS, 2)
        {"q": q, "k": k, "v": v}[where][0, row if where == "q" else key, 1, 5] = value
        out, lse = attend(q, k, v, return_lse=True)
        expected, expected_lse = reference(q, k, v)
        for name, test in (("NaN", torch.isnan), ("Inf", torch.isposinf), ("-Inf", torch.isneginf)):
            assert torch.equal(test(out), test(expected)), f"{name} of the output, {where}[{row}, {key}]"
        assert torch.equal(~lse.isfinite(), ~expected_lse.isfinite()), f"LSE, {where}[{row}, {key}]"
        finite = expected.isfinite()
        assert finite[:, :, 0].all()
        assert error(out[finite], expected[finite]) <= 2.8e-3


def test_large_values() -> None:
    """Values of 1e34, whose sums over the keys still fit fp32, are averaged without an overflow on the way."""
    q, k, v = tensors(1, ROWS, KEYS, 1)
    v = (v * 1e34).bfloat16()
    out = attend(q, k, v)
    expected = reference(q, k, v)
    check(out, None, expected)
