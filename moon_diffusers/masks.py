"""What a mask means for a kernel that takes none: which keys remain, or why the call must fall back.

A mask that says the same to every query only selects keys, so the call without it, over those keys, is exact.
Everything here reads the mask's values, hence it runs inside a custom operator and never while a graph is traced.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor

#: A finite bias below this leaves a key no weight at all: exp() of it is 0 beside any score that bf16 inputs can give.
FLOOR = -1e30
#: Bytes of a mask that are looked at in one go, and the largest mask that the cache keeps alive.
CHUNK_BYTES = 64 << 20
#: Masks remembered: a model has a handful (self, cross, refiner), each used by every block of a step.
REMEMBERED = 8

Keys = slice | Tensor


@dataclass(frozen=True)
class MaskPlan:
    """How a call with a mask is computed without one.

    Attributes:
        reason: why that is impossible, empty otherwise.
        keys: per batch entry the keys that take part, as a slice or an index tensor; empty when all do.
        rows: bool (B or 1, Sq), False where a query sees no key and its output is 0; None when every query sees some.
    """

    reason: str = ""
    keys: tuple[Keys, ...] = ()
    rows: Tensor | None = None

    @property
    def is_trivial(self) -> bool:
        """Whether the mask masks nothing."""
        return not self.reason and not self.keys and self.rows is None


ALL = MaskPlan()


def read_mask(mask: Tensor, batch: int, num_heads: int, seqlen_q: int, seqlen_k: int) -> MaskPlan:
    """Say what `mask` does to a call of the given sizes.

    Args:
        mask: as torch's SDPA takes it: bool (True takes part) or a floating-point bias, broadcastable to
            (B, H, Sq, Sk).

    Returns:
        A plan; its `reason` is set for masks that differ by query or head, biases, masks that leave a batch entry
        without any key, and shapes or dtypes that SDPA itself refuses.
    """
    if mask.dtype != torch.bool and not mask.dtype.is_floating_point:
        return MaskPlan(f"mask of dtype {str(mask.dtype).removeprefix('torch.')}")
    if not 2 <= mask.dim() <= 4:
        return MaskPlan(f"mask of {mask.dim()} dimensions")
    mask = mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))
    for size, wanted in zip(mask.shape, (batch, num_heads, seqlen_q, seqlen_k), strict=True):
        if size not in (1, wanted):
            return MaskPlan("mask does not fit the call")
    # Broadcast dimensions carry one value: look at it once. (A mask of one key for all keys stays a full mask.)
    mask = mask.expand(-1, -1, -1, seqlen_k)
    for dim in range(3):
        if mask.stride(dim) == 0 and mask.shape[dim] > 1:
            mask = mask.narrow(dim, 0, 1)
    if mask.shape[1] > 1:
        if not _heads_agree(mask):
            return MaskPlan("mask differs by head")
        mask = mask.narrow(1, 0, 1)
    return _plan(mask[:, 0], batch)


def _heads_agree(mask: Tensor) -> bool:
    return all(torch.equal(mask[:, head], mask[:, 0]) for head in range(1, mask.shape[1]))


def _plan(mask: Tensor, batch: int) -> MaskPlan:
    """The plan of a mask (B or 1, Sq or 1, Sk)."""
    entries, rows, _ = mask.shape
    step = max(1, CHUNK_BYTES // max(1, mask[:1, :1].numel() * mask.element_size()))
    keys, queries, product = [], [], []
    for entry in range(entries):
        any_query = torch.zeros(mask.shape[-1], dtype=torch.bool, device=mask.device)
        counts = []
        for start in range(0, rows, step):
            part = mask[entry, start : start + step]
            if mask.dtype != torch.bool:
                valid = part == 0
                if not bool((valid | (part < FLOOR)).all()):
                    return MaskPlan("additive mask")
                part = valid
            any_query |= part.any(dim=0)
            counts.append(part.sum(dim=1))
        per_query = torch.cat(counts)
        keys.append(any_query)
        queries.append(per_query > 0)
        # Every valid (query, key) pair lies in (queries with a key) x (keys with a query): equal counts, equal sets.
        product.append(per_query.sum() == queries[-1].sum() * any_query.sum())
    if not bool(torch.stack(product).all()):
        return MaskPlan("mask differs by query")
    valid_keys = torch.stack(keys).cpu()
    valid_rows = torch.stack(queries)
    if not bool(valid_keys.any(dim=1).all()):
        return MaskPlan("mask leaves no key")
    every_row = bool(valid_rows.all())
    if not every_row and mask.dtype != torch.bool:
        # The same finite bias on every key of a query cancels out; only a bool mask surely leaves it nothing.
        return MaskPlan("additive mask")
    row_mask = None if every_row else valid_rows
    if bool(valid_keys.all()):
        return MaskPlan(rows=row_mask)
    selected = [_select(entry, mask.device) for entry in valid_keys]
    return MaskPlan(keys=tuple(selected * batch if len(selected) == 1 else selected), rows=row_mask)


def _select(valid: Tensor, device: torch.device) -> Keys:
    """The True positions of a bool vector on the host; neighbours as a slice, which needs no copy of K and V."""
    index = valid.nonzero().flatten()
    first, last = int(index[0]), int(index[-1])
    if last - first + 1 == index.numel():
        return slice(first, last + 1)
    return index.to(device)


class MaskCache:
    """Plans of the masks seen last, so that the blocks of a model do not each wait for the device to read one mask.

    An entry holds its mask's memory, thus no other mask can come to lie there, and its version counter, thus a write
    to the mask is noticed. Not for masks that compiled code made: that reuses buffers without a trace.
    """

    def __init__(self) -> None:
        self._plans: OrderedDict[tuple[object, ...], tuple[Tensor, int, MaskPlan]] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, mask: Tensor, batch: int, num_heads: int, seqlen_q: int, seqlen_k: int) -> MaskPlan:
        """As `read_mask`, from memory where possible."""
        sizes = (batch, num_heads, seqlen_q, seqlen_k)
        if mask.is_inference() or mask.untyped_storage().nbytes() > CHUNK_BYTES:
            return read_mask(mask, *sizes)
        key = (*sizes, mask.data_ptr(), mask.device, mask.dtype, tuple(mask.shape), mask.stride())
        with self._lock:
            entry = self._plans.get(key)
            if entry is not None and entry[0]._version == entry[1] == mask._version:
                self._plans.move_to_end(key)
                return entry[2]
        plan = read_mask(mask, *sizes)
        with self._lock:
            self._plans[key] = (mask.detach(), mask._version, plan)
            while len(self._plans) > REMEMBERED:
                self._plans.popitem(last=False)
        return plan

    def clear(self) -> None:
        """Forget all masks and release their memory."""
        with self._lock:
            self._plans.clear()
