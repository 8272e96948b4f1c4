"""Every pair of lengths around the kernels' tile sizes, against fp64, in both layouts, with the log-sum-exp."""

from __future__ import annotations

import itertools

import pytest

from .cases import check_call, tensors
from .machine import MACHINE

ALL = [1, 2, 63, 64, 65, 79, 80, 81, 128, 191, 192, 193, 383, 384, 385, 1000, 4097]
LENGTHS = MACHINE.pick(ALL, [1, 2, 64, 65, 80, 193, 385])
KEYS = MACHINE.pick(ALL, [1, 63, 64, 80, 81, 193, 385])
HEADS = [(1, 2, 2), (2, 3, 1), (1, 4, 2)]


@pytest.mark.parametrize("causal", [False, True], ids=["dense", "causal"])
@pytest.mark.parametrize("seqlen_q", LENGTHS)
def test_every_pair_of_lengths(seqlen_q: int, causal: bool, record_property) -> None:
    worst = 0.0
    shapes = itertools.cycle(HEADS)
    for seqlen_k in KEYS:
        batch, heads, heads_kv = next(shapes)
        q, k, v = tensors(batch, seqlen_q, seqlen_k, heads, heads_kv)
        worst = max(worst, check_call(q, k, v, (seqlen_q, seqlen_k, batch, heads, heads_kv), causal))
    record_property("largest_error", worst)


@pytest.mark.parametrize("seqlen_k", MACHINE.pick([77, 257, 512], [77]))
def test_cross_attention(seqlen_k: int) -> None:
    check_call(*tensors(2, MACHINE.pick(4680, 100), seqlen_k, MACHINE.pick(12, 2)), seqlen_k)


def test_one_row_over_many_keys_is_split() -> None:
    for batch, heads, seqlen_q in [(1, 1, 1), (1, 2, 17), (3, 1, 384)]:
        check_call(
            *tensors(batch, MACHINE.pick(seqlen_q, 1), MACHINE.pick(30_000, 900), heads, 1), (batch, heads, seqlen_q)
        )


@pytest.mark.gpu
def test_more_row_blocks_than_the_device_has_room_for() -> None:
    check_call(*tensors(3, 2000, 700, 40), "240 row blocks of 384")
    check_call(*tensors(70, 130, 300, 12, 4), "840 small ones")
