"""Looking at, or breaking, the results of this package's attention operator while a pipeline runs.

Both work from outside, as a torch dispatch mode: the operator, its routing and the kernel are the ones a user gets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from moon_diffusers.generation.settings import GenerateError

__all__ = ["AttentionErrors", "LayerErrors", "Sabotage", "layer_names"]

NAMESPACE = "moon_diffusers"
_TILE = 64


@dataclass
class _Call:
    """One call of an attention operator, its arguments by name."""

    func: Any
    arguments: dict[str, Any]

    @property
    def head_axis(self) -> int:
        return 1 if self.arguments.get("layout") == "bhsd" else 2

    @property
    def row_axis(self) -> int:
        return 2 if self.arguments.get("layout") == "bhsd" else 1

    def run(self) -> Any:
        return self.func(**self.arguments)


class _AttentionTap(TorchDispatchMode):
    """Hands every call of a dense attention operator of this package to `handle`."""

    def __init__(self, handle: Callable[[_Call], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.handle = handle
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "namespace", None) != NAMESPACE:
            return func(*args, **(kwargs or {}))
        names = [argument.name for argument in func._schema.arguments]
        arguments = dict(zip(names, args, strict=False)) | (kwargs or {})
        if not {"q", "k", "v"} <= arguments.keys() or arguments["q"].dim() != 4:
            return func(*args, **(kwargs or {}))
        self.calls += 1
        return self.handle(_Call(func, arguments))


class Sabotage(_AttentionTap):  # type: ignore[no-untyped-call]
    """A context that breaks attention the way a kernel with a classic mistake would.

    `swap-heads` exchanges the results of the first two heads; `drop-last-tile` leaves out the last tile of 64 keys
    (half of the keys when there is only one tile).
    """

    def __init__(self, kind: str) -> None:
        super().__init__({"swap-heads": _swap_heads, "drop-last-tile": _drop_last_tile}[kind])
        self.kind = kind


def _swap_heads(call: _Call) -> Any:
    result = call.run()
    out = result[0] if isinstance(result, (tuple, list)) else result
    if out.shape[call.head_axis] < 2:
        raise GenerateError("sabotage is 'swap-heads': the model has a single head; use drop-last-tile")
    order = [1, 0, *range(2, out.shape[call.head_axis])]
    swapped = out.index_select(call.head_axis, torch.tensor(order, device=out.device))
    return type(result)([swapped, *result[1:]]) if isinstance(result, (tuple, list)) else swapped


def _drop_last_tile(call: _Call) -> Any:
    length = call.arguments["k"].shape[call.row_axis]
    kept = (length - 1) // _TILE * _TILE or max(1, length // 2)
    for name in ("k", "v"):
        call.arguments[name] = call.arguments[name].narrow(call.row_axis, 0, kept)
    return call.run()


@dataclass
class LayerErrors:
    """Errors of one layer's attention output against float64, over all its calls.

    Attributes:
        calls: how many.
        kernel, sdpa: the largest relative L2 error of a call, of the kernel and of torch SDPA in the same dtype.
        shape: `BxHxSqxSkxD` of the last call.
    """

    calls: int = 0
    kernel: float = 0.0
    sdpa: float = 0.0
    shape: str = ""


@dataclass
class _Layers:
    current: str = ""
    errors: dict[str, LayerErrors] = field(default_factory=dict)


class AttentionErrors(_AttentionTap):  # type: ignore[no-untyped-call]
    """A context that measures each attention call against float64 on the very q, k and v that the kernel got.

    At most `rows` query rows a call are compared, evenly spread: the reference needs all keys, but not all queries.
    """

    def __init__(self, rows: int = 128) -> None:
        super().__init__(self._measure)
        self.rows = rows
        self.layers = _Layers()

    @property
    def errors(self) -> dict[str, LayerErrors]:
        """Errors by layer name."""
        return self.layers.errors

    def _measure(self, call: _Call) -> Any:
        result = call.run()
        if any(isinstance(call.arguments.get(name), torch.Tensor) for name in ("attn_mask", "seqlens_k")):
            return result  # the reference below knows no mask
        out = result[0] if isinstance(result, (tuple, list)) else result
        q, k, v, o = (
            t if call.head_axis == 1 else t.transpose(1, 2)
            for t in (*(call.arguments[name] for name in ("q", "k", "v")), out)
        )
        if k.shape[1] != q.shape[1]:
            k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for t in (k, v))
        shape = "x".join(map(str, (*q.shape[:3], k.shape[2], q.shape[3])))
        chosen = torch.linspace(0, q.shape[2] - 1, min(self.rows, q.shape[2]), device=q.device).round().long()
        q, o = q.index_select(2, chosen), o.index_select(2, chosen)
        if call.arguments.get("causal"):
            return result
        scale = call.arguments.get("softmax_scale") or 1.0 / math.sqrt(q.shape[-1])
        reference = _float64_attention(q, k, v, scale)
        sdpa = functional.scaled_dot_product_attention(q, k, v, scale=scale)
        layer = self.errors.setdefault(self.layers.current or "attention", LayerErrors())
        layer.calls += 1
        layer.kernel = max(layer.kernel, _relative_l2(o, reference))
        layer.sdpa = max(layer.sdpa, _relative_l2(sdpa, reference))
        layer.shape = shape
        return result


@contextmanager
def layer_names(tap: AttentionErrors, modules: dict[str, Any]) -> Iterator[None]:
    """Tell `tap` which attention layer is running, for the time of the block."""

    def enter(name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            tap.layers.current = name

        return hook

    handles = [
        layer.register_forward_pre_hook(enter(f"{component}.{name}"))
        for component, module in modules.items()
        for name, layer in module.named_modules()
        if hasattr(layer, "processor")
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _float64_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    # One head at a time: a long video's keys in float64 need not all be there at once.
    heads = []
    for head in range(q.shape[1]):
        qh, kh, vh = (t[:, head].double() for t in (q, k, v))
        heads.append(torch.softmax(qh @ kh.transpose(-1, -2) * scale, dim=-1) @ vh)
    return torch.stack(heads, dim=1)


def _relative_l2(value: torch.Tensor, reference: torch.Tensor) -> float:
    difference = torch.linalg.vector_norm(value.double() - reference)
    error = float(difference / torch.linalg.vector_norm(reference))
    return error if math.isfinite(error) else math.inf
