"""What was asked: one attention call as plain data, without tensors and without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .errors import ArgumentError

LAYOUTS: Final = ("bshd", "bhsd")
ROUNDINGS: Final = ("rtne", "rtna", "rtz")
RESCALES: Final = ("auto", "exact", "lazy")
HEAD_DIM: Final = 128

Strides = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Problem:
    """One attention call.

    Strides are in elements, in the order (batch, head, row); the head dim is contiguous.

    Attributes:
        dtype: of q, k, v and the output, e.g. `"bfloat16"`.
        alignment: bytes, a power of two up to 16 that divides every tensor's address and every stride.
        causal: bottom-right aligned causal mask.
        softmax_scale: factor of the scores before the softmax.
        rounding: how fp32 becomes bf16, for P and for the output.
        rescale: policy of the running maximum.
        has_seqlens_k: valid keys per batch entry are given.
        has_cu_seqlens: packed sequences; `batch` counts sequences, `seqlen_q` and `seqlen_k` are the longest ones.
        total_q, total_k: rows and keys of all packed sequences together, 0 when they are not packed.
        page_size: keys a page of a paged K/V cache, 0 when K/V are dense. `batch` strides of k and v are then those from
            page to page, and `seqlen_k` is the most keys that a row of the block table holds.
        block_table_stride: elements from one batch entry's row of the block table to the next.
        batch_invariant: a row's bits must not depend on how many heads and batch entries are computed with it.
        forced: the kernel is wanted even where torch's own is known to be faster.
    """

    batch: int
    num_heads: int
    num_heads_kv: int
    seqlen_q: int
    seqlen_k: int
    head_dim: int
    dtype: str
    q_strides: Strides
    k_strides: Strides
    v_strides: Strides
    o_strides: Strides
    softmax_scale: float
    alignment: int = 16
    causal: bool = False
    rounding: str = "rtne"
    rescale: str = "auto"
    return_lse: bool = False
    has_seqlens_k: bool = False
    has_cu_seqlens: bool = False
    total_q: int = 0
    total_k: int = 0
    page_size: int = 0
    block_table_stride: int = 0
    batch_invariant: bool = False
    forced: bool = False

    @property
    def scores(self) -> int:
        """Elements of the score matrices, all heads together."""
        return self.batch * self.num_heads * self.seqlen_q * self.seqlen_k

    @property
    def rows_of_keys(self) -> int:
        """Rows of k and v that lie behind one another: of all packed sequences together, else of one entry."""
        return self.total_k if self.has_cu_seqlens else self.seqlen_k

    @property
    def flops(self) -> int:
        """Floating-point operations of both matrix products, masks not counted."""
        return 4 * self.scores * self.head_dim

    def shape_text(self) -> str:
        """The shape in one phrase, for messages."""
        heads = f"H={self.num_heads}"
        if self.num_heads_kv != self.num_heads:
            heads += f"/{self.num_heads_kv}"
        return f"B={self.batch} {heads} Sq={self.seqlen_q} Sk={self.seqlen_k} D={self.head_dim}"


def check_choice(argument: str, value: object, accepted: tuple[str, ...]) -> None:
    """Raise `ArgumentError` unless `value` is one of `accepted`."""
    if value not in accepted:
        raise ArgumentError(argument, repr(value), ", ".join(repr(choice) for choice in accepted))
