"""The tuned gfx950 kernel in the emulator, against fp64: shapes, masks, strides, difficult scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import moon_diffusers
from moon_diffusers import counters
from tests.kernels.attention_cases import check, reference, tensors
from tests.kernels.conftest import Emulator

TUNED, MERGE = "moon_attention_cdna4", "moon_attention_cdna4_merge"


def attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    with moon_diffusers.emulate("gfx950"):
        return moon_diffusers.attention(q, k, v, strict=True, **options)


SHAPES = [(1, 1), (1, 64), (17, 65), (48, 63), (49, 127), (384, 64), (385, 129), (100, 700), (800, 320)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), SHAPES)
def test_shapes(gfx950: Emulator, seqlen_q: int, seqlen_k: int, causal: bool) -> None:
    q, k, v = tensors(1, seqlen_q, seqlen_k, 1, 1)
    out, lse = attention(q, k, v, causal=causal, return_lse=True)
    check(out, lse, reference(q, k, v, causal=causal), bound=2.8e-3 if seqlen_q < 48 else 2.4e-3)
    assert set(gfx950.kernels) <= {TUNED, MERGE} and TUNED in gfx950.kernels


@pytest.mark.parametrize("group", [1, 2, 3, 8, 16])
def test_grouped_heads(gfx950: Emulator, group: int) -> None:
    q, k, v = tensors(2, 60, 130, 2 * group if group < 8 else group, 2 if group < 8 else 1)
    check(*attention(q, k, v, return_lse=True), reference(q, k, v))


def test_lse_is_optional_and_changes_nothing(gfx950: Emulator) -> None:
    q, k, v = tensors(1, 70, 200, 2, 2)
    assert torch.equal(attention(q, k, v), attention(q, k, v, return_lse=True)[0])


@pytest.mark.parametrize("causal", [False, True])
def test_lengths_per_entry(gfx950: Emulator, causal: bool) -> None:
    q, k, v = tensors(6, 70, 200, 2, 1)
    lengths = [0, 1, 63, 64, 129, 200]
    for entry, length in enumerate(lengths):
        k[entry, length:] = torch.nan  # behind the valid keys lies what must not matter
        v[entry, length:] = torch.nan
    valid = torch.tensor(lengths, dtype=torch.int32)
    out, lse = attention(q, k, v, seqlens_k=valid, causal=causal, return_lse=True)
    for i, length in enumerate(lengths):
        one = slice(i, i + 1)
        expected = reference(q[one], k[one], v[one], keys=length, causal=causal)
        check(out[one], lse[one], expected, bound=2.8e-3)


def test_views_of_wider_buffers(gfx950: Emulator) -> None:
    fused = torch.randn(2, 100, 3, 4, 128).bfloat16()
    q, k, v = fused.unbind(2)
    check(*attention(q, k, v, return_lse=True), reference(q, k, v))
    k = torch.randn(2, 2, 150, 256).bfloat16()[:, :, 7:, 64:192]
    v = torch.randn(150, 2, 2, 128).bfloat16().permute(1, 2, 0, 3)[:, :, 7:]
    heads_first = fused.transpose(1, 3)[:, :, 1]
    out = attention(heads_first, k, v, layout="bhsd")
    expected = reference(heads_first.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    check(out.transpose(1, 2), None, expected)
    assert gfx950.kernels == [TUNED, TUNED]


def test_an_expanded_batch(gfx950: Emulator) -> None:
    q, k, v = tensors(3, 50, 90, 1, 1)
    k, v = k[:1].expand(3, -1, -1, -1), v[:1].expand(3, -1, -1, -1)
    check(*attention(q, k, v, return_lse=True), reference(q, k, v))


def test_rows_far_apart(gfx950: Emulator) -> None:
    """A row stride of 16 MB, so that a few hundred keys span more than 4 GiB."""
    stride = 2**23
    q, k, v = tensors(1, 48, 330, 1, 1)
    far = torch.empty(330 * stride, dtype=torch.bfloat16)  # never touched but for the rows
    k_far = far.as_strided((1, 330, 1, 128), (1, stride, 1, 1))
    v_far = far.as_strided((1, 330, 1, 128), (1, stride, 1, 1), 4096)
    k_far.copy_(k)
    v_far.copy_(v)
    check(*attention(q, k_far, v_far, return_lse=True), reference(q, k, v))
    assert gfx950.kernels[0] == TUNED


def test_what_the_tuned_kernel_does_not_take_goes_to_the_general_one(gfx950: Emulator) -> None:
    q, k, v = tensors(1, 20, 40, 1, 1)
    odd = torch.randn(20 * 40 * 129).bfloat16()[1:].as_strided((1, 40, 1, 128), (1, 129, 1, 1))
    repeated = k[:, :1].expand(-1, 40, -1, -1)
    for keys in (odd, repeated):
        check(*attention(q, keys, v, return_lse=True), reference(q, keys, v), bound=4e-3)
    assert gfx950.kernels == ["moon_attention_general_rtne"] * 2
    assert counters.snapshot().num_fallbacks == 0


@pytest.mark.parametrize("scale", [0.3, 1e-3, 0.0, -0.1])
@pytest.mark.parametrize("causal", [False, True])
def test_scales(gfx950: Emulator, scale: float, causal: bool) -> None:
    q, k, v = tensors(1, 90, 150, 1, 1)
    out, lse = attention(q, k, v, softmax_scale=scale, causal=causal, return_lse=True)
    check(out, lse, reference(q, k, v, scale=scale, causal=causal))


def rising(step: float) -> tuple[Tensor, Tensor, Tensor]:
    """Scores whose maximum rises from key to key by about `step`, in each row at its own pace."""
    q, k, v = tensors(1, 100, 640, 1, 1)
    k[0, :, 0, 0] = torch.arange(640) * step
    q[0, :, 0, 0] = torch.linspace(0.2, 1, 100) * 11.3
    return q, k, v


@pytest.mark.parametrize("step", [0.02, 0.3, 16.0])
def test_rising_maxima(gfx950: Emulator, step: float) -> None:
    """Every tile moves the reference of many rows; the last case by thousands of log2 units."""
    q, k, v = rising(step)
    expected = reference(q, k, v)
    out, lse = attention(q, k, v, return_lse=True)
    check(out, lse if step < 1 else None, expected)
    assert float(((lse.double() - expected[1]) / expected[1]).abs().max()) < 1e-4


def test_falling_maxima_and_huge_scores(gfx950: Emulator) -> None:
    q, k, v = tensors(1, 100, 640, 1, 1)
    check(*attention(q, k * torch.linspace(4, 0.1, 640)[None, :, None, None].bfloat16(), v, return_lse=True),
          reference(q, k * torch.linspace(4, 0.1, 640)[None, :, None, None].bfloat16(), v))  # fmt: skip
    q, k = q * 32, k * 32  # scores of about +-1e4
    out, lse = attention(q, k, v, return_lse=True)
    expected = reference(q, k, v)
    assert expected[1].abs().max() > 1e3
    check(out, None, expected)
    assert float((lse.double() - expected[1]).abs().max() / expected[1].abs().max()) < 1e-6


def test_scores_far_below_zero_everywhere(gfx950: Emulator) -> None:
    q, k, v = tensors(1, 60, 300, 1, 1)
    q[..., 0], k[..., 0] = 64, -640
    expected = reference(q, k, v)
    assert expected[1].max() < -3000
    check(*attention(q, k, v, return_lse=True), expected, bound=3e-3)  # fp32 scores of this size have coarse steps


def test_minus_infinity_first_then_low_scores(gfx950: Emulator) -> None:
    """A whole first tile of -inf scores must not leave a reference that later scores underflow against."""
    q, k, v = tensors(1, 60, 300, 1, 1)
    q[..., 0], k[..., 0] = 8, -800
    k[:, :130, :, 0] = -torch.inf
    out, lse = attention(q, k, v, return_lse=True)
    check(out, lse, reference(q, k, v))


def test_no_key_at_all_gives_zeros(gfx950: Emulator) -> None:
    q, k, v = tensors(1, 60, 70, 2, 2)
    q[..., 0] = 1
    k[..., 0] = -torch.inf
    out, lse = attention(q, k, v, return_lse=True)
    assert not out.any() and (lse == -torch.inf).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("where", ["q", "k", "v"])
def test_nonfinite_elements_spoil_what_they_touch(gfx950: Emulator, where: str, value: float) -> None:
    q, k, v = tensors(1, 100, 200, 1, 1)
    {"q": q, "k": k, "v": v}[where][0, 70, 0, 5] = value
    out, lse = attention(q, k, v, return_lse=True)
    expected, expected_lse = reference(q, k, v)
    finite = expected.isfinite() & out.isfinite()
    assert torch.equal(out.isnan(), expected.isnan())
    assert torch.equal(out == torch.inf, expected == torch.inf) and torch.equal(
        out == -torch.inf, expected == -torch.inf
    )
    assert torch.equal(lse.isnan() | lse.isinf(), expected_lse.isnan() | expected_lse.isinf())
    error = (out.double() - expected)[finite].norm() / expected[finite].norm() if finite.any() else 0
    assert float(error) <= 2.4e-3


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(20, 1000), (400, 1500), (384, 2048)])
def test_split_parts_merge_to_the_same(gfx950: Emulator, seqlen_q: int, seqlen_k: int, causal: bool) -> None:
    q, k, v = tensors(1, seqlen_q, seqlen_k, 2, 1)
    check(*attention(q, k, v, causal=causal, return_lse=True), reference(q, k, v, causal=causal))
    assert gfx950.kernels == [TUNED, MERGE]


def test_split_parts_without_keys_weigh_nothing(gfx950: Emulator) -> None:
    q, k, v = tensors(3, 30, 1000, 1, 1)
    valid = torch.tensor([0, 70, 1000], dtype=torch.int32)
    out, lse = attention(q, k, v, seqlens_k=valid, return_lse=True)
    assert gfx950.kernels == [TUNED, MERGE]
    for i, length in enumerate(valid.tolist()):
        one = slice(i, i + 1)
        check(out[one], lse[one], reference(q[one], k[one], v[one], keys=length), bound=2.8e-3)


def test_split_keeps_nan(gfx950: Emulator) -> None:
    q, k, v = tensors(1, 30, 1000, 1, 1)
    q[0, 3], k[0, 900, 0, 0] = torch.nan, -torch.inf
    out, lse = attention(q, k, v, return_lse=True)
    assert gfx950.kernels == [TUNED, MERGE]
    expected, expected_lse = reference(q, k, v)
    assert torch.equal(out.isnan(), expected.isnan()) and torch.equal(lse.isnan(), ~expected_lse.isfinite())


def test_a_tail_beyond_whole_rounds_is_split(gfx950: Emulator) -> None:
    """Six row blocks on a device of four compute units: four whole, two split, in one launch."""
    gfx950.limit_cus(4)
    q, k, v = tensors(1, 800, 2000, 2, 2)
    check(*attention(q, k, v, return_lse=True), reference(q, k, v))
    assert gfx950.kernels == [TUNED, MERGE] and gfx950.reports[0]["grid"][0] > 6


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_the_order_of_waves_does_not_matter(gfx950: Emulator, order: str) -> None:
    q, k, v = tensors(1, 390, 333, 1, 1)
    first = attention(q, k, v, causal=True)
    gfx950.option("order", order)
    assert torch.equal(attention(q, k, v, causal=True), first)


def test_waves_without_work_keep_the_others_supplied(gfx950: Emulator) -> None:
    """Causal, one workgroup: the first waves see one tile of ten, the last all; and a block with rows for one wave."""
    q, k, v = tensors(1, 384, 640, 1, 1)
    check(*attention(q, k, v, causal=True, return_lse=True), reference(q, k, v, causal=True))
    q = q[:, :40]
    check(*attention(q, k, v, return_lse=True), reference(q, k, v))


@pytest.mark.parametrize("xcds", [1, 3, 8])
def test_any_number_of_dies(gfx950: Emulator, xcds: int) -> None:
    """Which workgroup takes which rows follows the device's dies; none may be forgotten."""
    gfx950.device.info = replace(gfx950.device.info, xcd_count=xcds, cu_count=4)
    q, k, v = tensors(1, 800, 70, 3, 3)
    check(*attention(q, k, v, return_lse=True), reference(q, k, v))


def test_workgroups_do_not_depend_on_their_neighbours(gfx950: Emulator) -> None:
    """Without a split, a head gives the same bits alone and among others."""
    gfx950.limit_cus(1)
    q, k, v = tensors(2, 500, 200, 3, 3)
    together = attention(q, k, v)
    for b in range(2):
        for h in range(3):
            alone = attention(*(t[b : b + 1, :, h : h + 1].contiguous() for t in (q, k, v)))
            assert torch.equal(alone, together[b : b + 1, :, h : h + 1])


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["normal", "peaky", "lognormal"])
@pytest.mark.parametrize(
    ("seqlen_q", "seqlen_k", "heads", "heads_kv"),
    [(1500, 1500, 3, 1), (4096, 4096, 1, 1), (777, 9001, 2, 2), (2500, 300, 4, 2), (64, 40000, 1, 1)],
)
def test_large(
    gfx950: Emulator, seqlen_q: int, seqlen_k: int, heads: int, heads_kv: int, kind: str, causal: bool
) -> None:
    q, k, v = tensors(1, seqlen_q, seqlen_k, heads, heads_kv)
    if kind == "peaky":
        k = k * 4
    if kind == "lognormal":
        k = k * torch.randn(seqlen_k).exp()[None, :, None, None].bfloat16()
    out, lse = attention(q, k, v, causal=causal, return_lse=True)
    # A row that one key dominates has the LSE error of that key's rounding, 2^-8 at most.
    check(out, lse, reference(q, k, v, causal=causal), lse_bound=3e-3 if kind == "normal" else 2**-8)


@pytest.mark.slow
def test_more_than_2_to_the_31_elements(gfx950: Emulator) -> None:
    """Two batch entries more than 4 GiB apart in each tensor, the output included."""
    gap = 2**31 + 4096
    far = torch.empty(gap + 2**20, dtype=torch.bfloat16)
    parts = [far.as_strided((2, 100, 1, 128), (gap, 128, 128, 1), 100 * 128 * i) for i in range(3)]
    values = tensors(2, 100, 100, 1, 1)
    for part, value in zip(parts, values, strict=True):
        part.copy_(value)
    check(*attention(*parts, return_lse=True), reference(*values))
