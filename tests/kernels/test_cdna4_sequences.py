"""Packed sequences and paged caches on the tuned gfx950 kernels in the emulator, against fp64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import moon_diffusers
from moon_diffusers import counters
from moon_diffusers.errors import StrictError
from tests.kernels.attention_cases import check, reference, tensors
from tests.kernels.conftest import Emulator

PAGED, MERGE = "moon_attention_cdna4_paged", "moon_attention_cdna4_merge"
NAN = float("nan")


def offsets(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


LENGTHS = [
    ([5, 0, 1, 390, 64], [64, 30, 1, 70, 0]),
    ([1], [1]),
    ([0, 3], [9, 0]),
    ([100, 7], [130, 900]),
    ([3, 2, 1], [1, 1, 0]),  # the row stride leads to the next sequence, if not to the next key
]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("lengths_q", "lengths_k"), LENGTHS)
def test_packed_sequences(gfx950: Emulator, lengths_q: list[int], lengths_k: list[int], causal: bool) -> None:
    q = torch.randn(sum(lengths_q), 4, 128).bfloat16()
    kv = torch.randn(sum(lengths_k) + 3, 2, 2, 128).bfloat16()  # K and V are views of one buffer
    k, v = kv[:, 0], kv[:, 1]
    starts_q, starts_k = offsets(lengths_q), offsets(lengths_k)
    with moon_diffusers.emulate("gfx950"):
        out, lse = moon_diffusers.attention_varlen(
            q, k, v, starts_q, starts_k, causal=causal, return_lse=True, strict=True
        )
    assert out.shape == q.shape and lse.shape == (4, q.shape[0])
    for i, length_q in enumerate(lengths_q):
        if length_q == 0:
            continue
        rows = slice(int(starts_q[i]), int(starts_q[i + 1]))
        keys = slice(int(starts_k[i]), int(starts_k[i + 1]))
        expected = reference(q[None, rows], k[None, keys], v[None, keys], causal=causal)
        check(out[None, rows], lse[None, :, rows], expected, bound=3e-3)
    assert gfx950.kernels[0] == "moon_attention_cdna4" and len(gfx950.kernels) <= 2


def cache_of(sequences: list[Tensor], page_size: int, table: Tensor, pages: int) -> Tensor:
    """The sequences (length, H, D) in the pages that `table` names; NaN wherever no valid key lies."""
    cache = torch.full((pages, page_size, *sequences[0].shape[1:]), NAN, dtype=torch.bfloat16)
    for entry, sequence in enumerate(sequences):
        for key in range(sequence.shape[0]):
            cache[table[entry, key // page_size], key % page_size] = sequence[key]
    return cache


def paged_case(
    page_size: int, lengths: list[int], seqlen_q: int, heads_kv: int = 2
) -> tuple[Tensor, list[Tensor], list[Tensor], Tensor, Tensor, Tensor]:
    """q, each entry's K and V, and the caches and table, pages out of order; unused entries of the table are wild."""
    q = torch.randn(len(lengths), seqlen_q, 4, 128).bfloat16()
    k, v = ([torch.randn(length, heads_kv, 128).bfloat16() for length in lengths] for _ in range(2))
    needed = [-(-length // page_size) for length in lengths]
    pages = sum(needed) + 3
    order = torch.randperm(pages)
    table = torch.full((len(lengths), max(needed) + 1), -(2**31), dtype=torch.int32)
    used = 0
    for entry, count in enumerate(needed):
        table[entry, :count] = order[used : used + count]
        used += count
    return q, k, v, cache_of(k, page_size, table, pages), cache_of(v, page_size, table, pages), table


@pytest.mark.parametrize("page_size", [16, 32, 64, 128, 256, 512, 1024])
@pytest.mark.parametrize("causal", [False, True])
def test_paged_caches(gfx950: Emulator, page_size: int, causal: bool) -> None:
    lengths = [0, 1, page_size, page_size + 17, 333]
    q, k, v, k_cache, v_cache, table = paged_case(page_size, lengths, seqlen_q=50)
    valid = torch.tensor(lengths, dtype=torch.int32)
    with moon_diffusers.emulate("gfx950"):
        out, lse = moon_diffusers.attention_paged(
            q, k_cache, v_cache, table, valid, causal=causal, return_lse=True, strict=True
        )
    assert gfx950.kernels[0] == PAGED
    for i in range(len(lengths)):
        expected = reference(q[i : i + 1], k[i][None], v[i][None], causal=causal)
        check(out[i : i + 1], lse[i : i + 1], expected, bound=3e-3)


def test_one_query_over_a_long_cache_is_split(gfx950: Emulator) -> None:
    lengths = [2000, 1111]
    q, k, v, k_cache, v_cache, table = paged_case(16, lengths, seqlen_q=1, heads_kv=1)
    valid = torch.tensor(lengths, dtype=torch.int32)
    with moon_diffusers.emulate("gfx950"):
        out, lse = moon_diffusers.attention_paged(q, k_cache, v_cache, table, valid, return_lse=True, strict=True)
    assert gfx950.kernels == [PAGED, MERGE]
    for i in range(2):
        check(out[i : i + 1], lse[i : i + 1], reference(q[i : i + 1], k[i][None], v[i][None]), bound=3e-3)


def test_batch_invariant_calls_are_not_split(gfx950: Emulator) -> None:
    lengths = [2000, 1111]
    q, _, _, k_cache, v_cache, table = paged_case(16, lengths, seqlen_q=1, heads_kv=1)
    valid = torch.tensor(lengths, dtype=torch.int32)
    with moon_diffusers.emulate("gfx950"):
        out = moon_diffusers.attention_paged(q, k_cache, v_cache, table, valid, strict=True, batch_invariant=True)
        alone = moon_diffusers.attention_paged(
            q[1:], k_cache, v_cache, table[1:], valid[1:], strict=True, batch_invariant=True
        )
    assert gfx950.kernels == [PAGED, PAGED] and torch.equal(out[1:], alone)


def test_pages_may_be_shared_and_lie_in_a_wider_buffer(gfx950: Emulator) -> None:
    both = torch.randn(9, 2, 32, 2, 128).bfloat16()  # K and V pages side by side, as some servers keep them
    k_cache, v_cache = both[:, 0], both[:, 1]
    table = torch.tensor([[4, 8, 1], [4, 8, 2]], dtype=torch.int32)
    q = torch.randn(2, 40, 4, 128).bfloat16()
    with moon_diffusers.emulate("gfx950"):
        out = moon_diffusers.attention_paged(
            q, k_cache, v_cache, table, torch.tensor([96, 70], dtype=torch.int32), strict=True
        )
    for i, length in enumerate((96, 70)):
        k, v = (cache[table[i].long()].flatten(0, 1)[None] for cache in (k_cache, v_cache))
        check(out[i : i + 1], None, reference(q[i : i + 1], k, v, keys=length))


def test_pages_far_apart(gfx950: Emulator) -> None:
    """Pages more than 4 GiB behind one another in one buffer."""
    far = torch.empty(3 * 2**31, dtype=torch.bfloat16)  # never touched but for the pages
    pages = far.as_strided((3, 64, 1, 128), (2**31 - 2**16, 128, 128, 1))
    k_cache, v_cache = pages, far.as_strided(pages.shape, pages.stride(), 64 * 128)
    q, k, v = tensors(1, 48, 192, 1, 1)
    table = torch.tensor([[2, 0, 1]], dtype=torch.int32)
    for cache, values in ((k_cache, k), (v_cache, v)):
        for i, page in enumerate(table[0].tolist()):
            cache[page] = values[0, 64 * i : 64 * i + 64]
    with moon_diffusers.emulate("gfx950"):
        out = moon_diffusers.attention_paged(
            q, k_cache, v_cache, table, torch.tensor([190], dtype=torch.int32), strict=True
        )
    check(out, None, reference(q, k, v, keys=190))


def test_gfx942_says_that_it_has_no_paged_kernel(gfx950: Emulator) -> None:
    q, k, v, k_cache, v_cache, table = paged_case(16, [40], seqlen_q=3)
    call = (q, k_cache, v_cache, table, torch.tensor([40], dtype=torch.int32))
    with moon_diffusers.emulate("gfx942"):
        check(moon_diffusers.attention_paged(*call), None, reference(q, k[0][None], v[0][None]), bound=6e-3)
        assert counters.snapshot().fallbacks == {"no gfx942 kernel for paged": 1}
        with pytest.raises(StrictError, match="no gfx942 kernel for paged"):
            moon_diffusers.attention_paged(*call, strict=True)


def test_packed_sequences_on_gfx942_take_the_general_kernel() -> None:
    q, k, v = (t[0] for t in tensors(1, 30, 50, 2, 1))
    starts_q, starts_k = offsets([10, 20]), offsets([50, 0])
    counters.reset_summary()
    with moon_diffusers.emulate("gfx942"):
        out = moon_diffusers.attention_varlen(q, k, v, starts_q, starts_k, strict=True)
    check(out[None, :10], None, reference(q[None, :10], k[None], v[None]), bound=3e-3)
    assert not out[10:].any()
