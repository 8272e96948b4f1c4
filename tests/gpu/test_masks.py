"""Key lengths, packed sequences, shared heads; what lies in memory behind the valid keys must not matter."""

from __future__ import annotations

import math

import pytest
import torch

import moon_diffusers

from .cases import attend, check, check_call, ints, randn, reference, tensors
from .machine import MACHINE


@pytest.mark.parametrize("group", MACHINE.pick([1, 2, 3, 5, 8, 16], [3]))
@pytest.mark.parametrize("causal", [False, True], ids=["dense", "causal"])
def test_grouped_heads(group: int, causal: bool) -> None:
    length = MACHINE.pick(600, 90)
    check_call(*tensors(2, length, length + 41, 2 * group, 2), group, causal)
    check_call(*tensors(1, 70, 50, group, 1), f"one head of keys for {group}", causal)


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("causal", [False, True], ids=["dense", "causal"])
def test_lengths_per_entry(causal: bool, garbage: float) -> None:
    lengths = MACHINE.pick([0, 1, 63, 64, 79, 80, 81, 160, 383, 384, 500, 1000], [0, 1, 81, 150])
    q, k, v = tensors(len(lengths), MACHINE.pick(400, 70), max(lengths), 4, 2)
    for entry, length in enumerate(lengths):
        k[entry, length:] = garbage
        v[entry, length:] = garbage
    out, lse = attend(q, k, v, seqlens_k=ints(lengths), causal=causal, return_lse=True)
    for entry, length in enumerate(lengths):
        one = slice(entry, entry + 1)
        check(out[one], lse[one], reference(q[one], k[one], v[one], causal=causal, keys=length), (length, garbage))


PACKED = MACHINE.pick(
    [
        ([5, 0, 1, 390, 64], [64, 30, 1, 70, 0]),
        ([1], [1]),
        ([0, 3], [9, 0]),
        ([384, 384, 100], [80, 160, 1000]),
        ([100, 7, 2000], [130, 900, 1999]),
        ([1] * 200, [3] * 200),
    ],
    [([5, 0, 1, 130], [64, 30, 1, 0]), ([100, 7], [130, 200])],
)


@pytest.mark.parametrize("garbage", [math.nan, math.inf])
@pytest.mark.parametrize("causal", [False, True], ids=["dense", "causal"])
@pytest.mark.parametrize(("lengths_q", "lengths_k"), PACKED, ids=lambda x: f"{len(x)} of {sum(x)}")
def test_packed_sequences(lengths_q: list[int], lengths_k: list[int], causal: bool, garbage: float) -> None:
    """K and V are views of one buffer; behind the last sequence, and in front of the first, lies garbage."""
    total_q, total_k = sum(lengths_q), sum(lengths_k)
    q = randn(total_q, 4, 128)
    buffer = randn(total_k + 90, 2, 2, 128)
    buffer[:40] = garbage
    buffer[40 + total_k :] = garbage
    k, v = buffer[40:, 0], buffer[40:, 1]
    starts_q, starts_k = ([0, *torch.tensor(x).cumsum(0).tolist()] for x in (lengths_q, lengths_k))
    out, lse = moon_diffusers.attention_varlen(
        q, k, v, ints(starts_q), ints(starts_k), causal=causal, return_lse=True, strict=True
    )
    assert out.shape == q.shape and lse.shape == (4, total_q)
    for i, length in enumerate(lengths_q):
        if length:
            rows, keys = slice(starts_q[i], starts_q[i + 1]), slice(starts_k[i], starts_k[i + 1])
            expected = reference(q[None, rows], k[None, keys], v[None, keys], causal=causal)
            check(out[None, rows], lse[None, :, rows], expected, (i, length, lengths_k[i]))


def test_a_sequence_never_sees_its_neighbours() -> None:
    """Each sequence spoils its own rows alone."""
    lengths = MACHINE.pick([70, 384, 90, 500], [70, 100, 90])
    starts = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    q, k, v = (randn(sum(lengths), 2, 128) for _ in range(3))
    for spoilt in range(len(lengths)):
        rows = slice(starts[spoilt], starts[spoilt + 1])
        bad_k, bad_v = k.clone(), v.clone()
        bad_k[rows] = math.nan
        bad_v[rows] = math.nan
        out = moon_diffusers.attention_varlen(q, bad_k, bad_v, ints(starts), ints(starts), strict=True)
        wrong = out.isnan().any(-1).any(-1)
        assert wrong[rows].all() and int(wrong.sum()) == lengths[spoilt], spoilt


def test_rows_without_keys() -> None:
    """Causal with more queries than keys: the first rows see nothing."""
    q, k, v = tensors(2, MACHINE.pick(500, 90), 40, 2)
    out, lse = attend(q, k, v, causal=True, return_lse=True)
    empty = q.shape[1] - 40
    assert not out[:, :empty].any() and (lse[..., :empty] == -math.inf).all()
    assert out[:, empty:].any(-1).all() and lse[..., empty:].isfinite().all()
    out, lse = attend(q, k, v, seqlens_k=ints([0, 0]), return_lse=True)
    assert not out.any() and (lse == -math.inf).all()
