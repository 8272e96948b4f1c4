"""Tensors as models hand them over: views of wider buffers, storage offsets, far apart rows."""

from __future__ import annotations

import pytest
import torch

from .cases import attend, check, check_call, randn, reference, tensors
from .machine import MACHINE

ROWS = MACHINE.pick(700, 90)


def test_fused_projections() -> None:
    """q, k and v of one buffer, interleaved by row, as fused QKV gives them; and by head."""
    check_call(*randn(2, ROWS, 3, 4, 128).unbind(2), "row stride 3 H D")
    check_call(*randn(2, ROWS, 4, 3, 128).unbind(3), "head stride 3 D")


@pytest.mark.parametrize("offset", [8, 24, 120])
def test_storage_offsets(offset: int) -> None:
    def moved(tensor: torch.Tensor) -> torch.Tensor:
        buffer = torch.full((offset + tensor.numel() + 64,), torch.nan, dtype=tensor.dtype, device=tensor.device)
        view = buffer[offset : offset + tensor.numel()].view(tensor.shape)
        return view.copy_(tensor)

    q, k, v = (moved(t) for t in tensors(1, ROWS, ROWS - 17, 2))
    assert k.storage_offset() == offset
    check_call(q, k, v, offset)


def test_every_second_row_and_part_of_the_heads() -> None:
    wide = randn(2, 2 * ROWS + 5, 6, 256)
    q, k, v = wide[:, 3 : 2 * ROWS + 3 : 2, 1:5, 64:192], wide[:, : 2 * ROWS : 2, ::3, :128], wide[:, 5::2, ::3, 128:]
    assert not q.is_contiguous() and k.stride(2) == 3 * 256
    check_call(q, k, v)


def test_rows_that_run_backwards_in_memory_order() -> None:
    """Sequence first, then batch: (S, B, H, D) seen as (B, S, H, D); and heads outermost."""
    q, k, v = (randn(ROWS, 3, 2, 128).transpose(0, 1) for _ in range(3))
    check_call(q, k, v, "sequence first")
    q, k, v = (randn(2, 3, ROWS, 128).permute(1, 2, 0, 3) for _ in range(3))
    check_call(q, k, v, "heads first")


def test_the_outputs_layout() -> None:
    """BHSD views of BSHD memory give BHSD views of BSHD memory: transposing back costs no copy."""
    q, k, v = (t.transpose(1, 2) for t in tensors(1, 40, 50, 3))
    assert attend(q, k, v, layout="bhsd").transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("form", ["odd offset", "odd stride", "one row repeated", "expanded batch"])
def test_what_a_kernel_may_refuse_is_right_all_the_same(form: str) -> None:
    """Served or fallen back, counted either way: addresses and strides that are no multiples of 16 bytes, or 0."""
    q, k, v = tensors(3, ROWS, 100, 2)
    if form == "odd offset":
        k = torch.zeros(k.numel() + 3, dtype=k.dtype, device=k.device)[3:].view(k.shape).copy_(k)
    elif form == "odd stride":
        k = torch.zeros(3, 100, 2, 131, dtype=k.dtype, device=k.device)[..., :128].copy_(k)
    elif form == "one row repeated":
        k = k[:, :1].expand(-1, 100, -1, -1)
    else:
        k, v = k[:1].expand(3, -1, -1, -1), v[:1].expand(3, -1, -1, -1)
    out = attend(q, k, v, strict=False)
    assert out.isfinite().all()
    expected = reference(q, k, v)[0]
    assert ((out.double() - expected).norm() / expected.norm()).item() < 4e-3


@pytest.mark.gpu
def test_rows_far_apart() -> None:
    """A row stride of 16 MB: a few hundred keys span more than 4 GiB, their last byte offset needs 33 bits."""
    stride = 2**23
    q, k, v = tensors(1, 400, 330, 1)
    far = torch.zeros(330 * stride, dtype=torch.bfloat16, device=MACHINE.device)
    k_far = far.as_strided((1, 330, 1, 128), (330 * stride, stride, 128, 1)).copy_(k)
    v_far = far.as_strided((1, 330, 1, 128), (330 * stride, stride, 128, 1), 4096).copy_(v)
    out, lse = attend(q, k_far, v_far, return_lse=True)
    check(out, lse, reference(q, k, v))


@pytest.mark.gpu
def test_more_than_two_to_the_31_elements() -> None:
    """Each of q, k, v and the output has 2.2e9 elements; the last heads and rows lie behind byte 2^32."""
    length, heads = 68_000, 256
    assert length * heads * 128 > 2**31
    q, k, v = (randn_large(length, heads) for _ in range(3))
    out, lse = attend(q, k, v, return_lse=True)
    for head in (0, 127, 128, heads - 1):
        rows = torch.cat([torch.arange(200), torch.arange(length - 400, length)]).to(MACHINE.device)
        expected = reference(q[:, rows, head : head + 1], *(t[:, :, head : head + 1] for t in (k, v)))
        check(out[:, rows, head : head + 1], lse[:, head : head + 1][..., rows], expected, head)


def randn_large(length: int, heads: int) -> torch.Tensor:
    """As `randn`, without a copy in fp32."""
    return torch.empty((1, length, heads, 128), dtype=torch.bfloat16, device=MACHINE.device).normal_()


@pytest.mark.gpu
def test_packed_sequences_behind_two_to_the_31_bytes() -> None:
    """A video's tokens and then a short sequence, of one buffer of fused projections."""
    import moon_diffusers

    lengths = [119_056, 21_504]
    total = sum(lengths)
    fused = torch.empty((total, 3, 24, 128), dtype=torch.bfloat16, device=MACHINE.device).normal_()
    assert fused.numel() * 2 > 2**31
    q, k, v = fused.unbind(1)
    starts = torch.tensor([0, lengths[0], total], dtype=torch.int32, device=MACHINE.device)
    out = moon_diffusers.attention_varlen(q, k, v, starts, starts, max(lengths), max(lengths), strict=True)
    for first, length in ((0, lengths[0]), (lengths[0], lengths[1])):
        keys = slice(first, first + length)
        rows = slice(first + length - 300, first + length)
        for head in (0, 23):
            one = slice(head, head + 1)
            expected = reference(q[None, rows, one], k[None, keys, one], v[None, keys, one])
            check(out[None, rows, one], None, expected, (first, head))
