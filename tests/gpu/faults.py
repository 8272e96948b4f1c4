"""Deliberate faults under the product's functions: each of these tests must fail under at least one of them.

`MOON_GPU_TESTS_FAULT=NAME` switches one on; `scripts/test_gpu.py --fault NAME` does the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from moon_diffusers import dispatch
from moon_diffusers.request import Served

Change = Callable[[Tensor, "Tensor | None"], None]


def last_row_missing(out: Tensor, lse: Tensor | None) -> None:
    out[..., -1, :, :] = 0
    out[..., -1, :] = 0


def heads_swapped(out: Tensor, lse: Tensor | None) -> None:
    axis = out.dim() - 2
    out.copy_(out.roll(1, axis))


def one_cell_unwritten(out: Tensor, lse: Tensor | None) -> None:
    out.view(-1)[-1] = torch.nan


def lse_to_the_base_2(out: Tensor, lse: Tensor | None) -> None:
    if lse is not None:
        lse *= 1.4427


def noise(out: Tensor, lse: Tensor | None) -> None:
    out *= 1 + 0.01 * torch.randn_like(out)


def not_finite_hidden(out: Tensor, lse: Tensor | None) -> None:
    out.nan_to_num_(0.0, 1.0, -1.0)


CHANGES: dict[str, Change] = {
    change.__name__: change
    for change in (last_row_missing, heads_swapped, one_cell_unwritten, lse_to_the_base_2, noise, not_finite_hidden)
}
REQUESTS = (
    "masks_ignored",
    "scale_wrong",
    "default_stream",
    "stale",
    "inputs_spoilt",
    "written_beyond",
    "layout_copied",
)
NAMES = (*CHANGES, *REQUESTS, "neighbours_seen")


def answer_again(kept: dict[Any, Tensor], key: Any, out: Tensor) -> None:
    """The first answer to a call of this kind, which lies on the host: a graph's pool takes its memory back."""
    if key in kept:
        out.copy_(kept[key], non_blocking=True)
    elif not (out.is_cuda and torch.cuda.is_current_stream_capturing()):
        kept[key] = out.cpu().pin_memory() if out.is_cuda else out.clone()


def chosen_fault() -> AbstractContextManager[None]:
    """The fault that the environment asks for."""
    name = os.environ.get("MOON_GPU_TESTS_FAULT", "")
    return fault(name) if name else nullcontext()


@contextmanager
def fault(name: str) -> Iterator[None]:
    """Everything that is served inside is served wrongly."""
    if name not in NAMES:
        raise ValueError(f"MOON_GPU_TESTS_FAULT: {name!r}; accepted: {', '.join(NAMES)}")
    serve, serve_problem = dispatch.serve, dispatch.serve_problem
    kept: dict[Any, Tensor] = {}

    def dense(q: Tensor, k: Tensor, v: Tensor, seqlens_k: Any, mask: Any, request: Any, remember: bool) -> Any:
        if name == "masks_ignored":
            seqlens_k, request = None, request._replace(causal=False)
        if name == "scale_wrong":
            request = request._replace(softmax_scale=1.1 * (request.softmax_scale or 128**-0.5) + 1e-2)
        if name == "default_stream" and q.is_cuda:
            with torch.cuda.stream(torch.cuda.default_stream(q.device)):
                result = serve(q, k, v, seqlens_k, mask, request, remember)
        else:
            result = serve(q, k, v, seqlens_k, mask, request, remember)
        if isinstance(result, Served):
            if name in CHANGES:
                CHANGES[name](result.out, result.lse)
            if name == "inputs_spoilt":
                q[..., -1] += 1
            if name == "written_beyond" and q.is_cuda:
                # Nothing but another tensor of torch's lies there; on the CPU it would be the heap's own.
                storage = result.out.untyped_storage()
                wider: Any = torch._C._construct_storage_from_data_pointer(
                    storage.data_ptr(), q.device, storage.nbytes() + 512
                )
                torch.empty(0, dtype=torch.uint8, device=q.device).set_(wider)[storage.nbytes() :] = 3
            if name == "layout_copied":
                result = replace(result, out=result.out.contiguous())
            if name == "stale":
                answer_again(kept, (q.shape, k.shape, request), result.out)
        return result

    def sequences(problem: Any, inputs: dict[str, Tensor], out: Tensor, lse: Tensor | None) -> Any:
        if name == "masks_ignored":
            problem = replace(problem, causal=False)
        if name == "neighbours_seen":
            starts = torch.zeros_like(inputs["cu_seqlens_k"])
            starts[1:] = inputs["cu_seqlens_k"][-1]
            inputs = inputs | {"cu_seqlens_k": starts}
        result = serve_problem(problem, inputs, out, lse)
        if name in CHANGES:
            CHANGES[name](out, lse)
        return result

    dispatch.serve, dispatch.serve_problem = dense, sequences
    try:
        yield
    finally:
        dispatch.serve, dispatch.serve_problem = serve, serve_problem
