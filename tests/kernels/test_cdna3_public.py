"""The public function on gfx942: addresses beyond 4 GiB, what goes to the general kernel, random calls."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from moon_diffusers import attention, counters, emulate

from .attention_cases import check, reference, tensors
from .conftest import Emulator

TUNED = ["moon_attention_cdna3_values", "moon_attention_cdna3_rtne_lazy"]


def far(x: Tensor, stride: int, axis: int, offset: int = 0) -> Tensor:
    """A copy of x whose `axis` has a stride of its own, in memory that is else never touched."""
    strides = [0, x.shape[2] * x.shape[3], x.shape[3], 1]
    strides[axis] = stride
    if axis == 1:
        strides[0] = stride * x.shape[1]
    span = sum((n - 1) * s for n, s in zip(x.shape, strides, strict=True)) + 1
    return torch.empty(offset + span, dtype=x.dtype).as_strided(x.shape, strides, offset).copy_(x)


# The last is the largest row stride that the tuned kernel takes, but for the alignment.
@pytest.mark.parametrize("stride", [2**23, 2**25 - 2])
def test_rows_far_apart(gfx942: Emulator, stride: int) -> None:
    q, k, v = tensors(1, 100, 140, 1, 1)
    with emulate("gfx942"):
        out, lse = attention(far(q, stride, 1), far(k, stride, 1), far(v, stride, 1), return_lse=True, strict=True)
    check(out, lse, reference(q, k, v))
    assert gfx942.kernels[:2] == TUNED


def test_entries_far_apart(gfx942: Emulator) -> None:
    """Batch entries 2^31 elements, 4 GiB, behind one another and more."""
    q, k, v = tensors(3, 30, 70, 2, 1)
    with emulate("gfx942"):
        out, lse = attention(
            far(q, 2**31, 0), far(k, 2**31 + 256, 0), far(v, 3 * 2**30, 0, 128), return_lse=True, strict=True
        )
    check(out, lse, reference(q, k, v))
    assert gfx942.kernels[:2] == TUNED


def test_what_the_tuned_kernel_does_not_take_goes_to_the_general_one(gfx942: Emulator) -> None:
    q, k, v = tensors(1, 20, 40, 1, 1)
    odd_rows = torch.randn(40 * 129 + 1).bfloat16().as_strided((1, 40, 1, 128), (1, 129, 1, 1))
    odd_start = torch.randn(40 * 128 + 1).bfloat16()[1:].view(1, 40, 1, 128)
    too_far = far(k, 2**25, 1)
    with emulate("gfx942"):
        for keys in (odd_rows, odd_start, too_far):
            out, lse = attention(q, keys, v, return_lse=True, strict=True)
            check(out, lse, reference(q, keys, v))
        for scale in (0.0, -0.2):
            out, lse = attention(q, k, v, softmax_scale=scale, return_lse=True, strict=True)
            check(out, lse, reference(q, k, v, scale=scale))
    assert gfx942.kernels == ["moon_attention_general_rtne"] * 5
    assert counters.snapshot().num_fallbacks == 0


def test_rescale_chooses_the_kernel(gfx942: Emulator) -> None:
    q, k, v = tensors(1, 20, 40, 1, 1)
    with emulate("gfx942"):
        for rescale in ("auto", "exact", "lazy"):
            attention(q, k, v, rescale=rescale, rounding="rtz", strict=True)
    assert [name for name in gfx942.kernels if "rtz" in name] == [
        "moon_attention_cdna3_rtz_lazy",
        "moon_attention_cdna3_rtz_exact",
        "moon_attention_cdna3_rtz_lazy",
    ]


def random_call(gfx942: Emulator, seed: int, longest: int) -> None:
    draw = random.Random(seed)
    heads_kv = draw.choice([1, 2, 3])
    heads = heads_kv * draw.choice([1, 2, 4])
    sizes = draw.choice([1, 2]), draw.randint(1, longest), draw.randint(1, longest)
    q, k, v = tensors(*sizes, heads, heads_kv)
    causal = draw.random() < 0.4
    options = {"causal": causal, "rescale": draw.choice(["exact", "lazy"]), "return_lse": True, "strict": True}
    gfx942.limit_cus(draw.choice([1, 3, 8, 304]))
    if draw.random() < 0.5:
        layout, tensors_in = "bhsd", [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    else:
        layout, tensors_in = "bshd", [q, k, v]
    with emulate("gfx942"):
        out, lse = attention(*tensors_in, layout=layout, **options)  # type: ignore[call-overload]
    check(out.transpose(1, 2) if layout == "bhsd" else out, lse, reference(q, k, v, causal=causal))
    assert gfx942.kernels[-1] != "moon_attention_general_rtne"


@pytest.mark.parametrize("seed", range(8))
def test_random_calls(gfx942: Emulator, seed: int) -> None:
    random_call(gfx942, seed, 130)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 220))
def test_many_random_calls(gfx942: Emulator, seed: int) -> None:
    random_call(gfx942, seed, 900)
