"""A stand-in for the kernel behind the operator, so that routes are tested fast and without build products."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import moon_diffusers
from moon_diffusers import dispatch
from moon_diffusers.request import Request, Served, empty_lse, empty_output
from moon_diffusers.routing import FEATURES, Fallback, KernelSpec, Route, Target, route


class StandIn:
    """A session whose device is fp32 arithmetic; what it serves is decided by the real routing."""

    def __init__(self, features: frozenset[str] = frozenset(FEATURES)) -> None:
        kernels = tuple(
            KernelSpec(f"stand_in_{rounding}", "gfx942", "forward", "forward", kernarg_size=256,
                       block=(256, 1, 1), rows=64, rounding=rounding, features=features)
            for rounding in ("rtne", "rtna", "rtz")
        )  # fmt: skip
        self.target = Target("gfx942", kernels)
        self.calls: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self.broken = False

    def ready(self, q: Tensor, k: Tensor, v: Tensor, seqlens_k: Tensor | None, request: Request) -> Route | Fallback:
        problem = dispatch.describe(q, k, v, seqlens_k, request, 0)
        return problem if isinstance(problem, Fallback) else route(problem, self.target)

    def serve(self, q: Tensor, k: Tensor, v: Tensor, seqlens_k: Tensor | None, request: Request) -> Served | Fallback:
        chosen = self.ready(q, k, v, seqlens_k, request)
        if isinstance(chosen, Fallback):
            return chosen
        self.calls.append((tuple(q.shape), tuple(k.shape)))
        bshd = request.layout == "bshd"
        heads_first = [(x.transpose(1, 2) if bshd else x).float() for x in (q, k, v)]
        group = heads_first[0].shape[1] // heads_first[1].shape[1]
        query, key, value = heads_first[0], *(x.repeat_interleave(group, 1) for x in heads_first[1:])
        scale = q.shape[-1] ** -0.5 if request.softmax_scale is None else request.softmax_scale
        scores = query @ key.transpose(-1, -2) * scale
        if request.causal:
            scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
        if seqlens_k is not None:
            columns = torch.arange(scores.shape[-1])
            scores = scores.masked_fill(columns >= seqlens_k.reshape(-1, 1, 1, 1), -torch.inf)
        result = torch.softmax(scores, -1) @ value
        if self.broken:
            result = 10 * result.flip(-1)
        out = empty_output(q, v, request.layout)
        out.copy_(result.transpose(1, 2) if bshd else result)
        lse = empty_lse(q, request.layout).copy_(torch.logsumexp(scores, -1)) if request.return_lse else None
        return Served(f"stand-in {request.rounding}", out, lse)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("MOON_EMULATE", "MOON_OFFLOAD", "MOON_STRICT"):
        monkeypatch.delenv(name, raising=False)
    torch.set_num_threads(1)
    moon_diffusers.reset_summary()
    yield
    moon_diffusers.reset_summary()


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """CPU tensors go to the stand-in."""
    stand_in = StandIn()
    monkeypatch.setattr(dispatch, "_session", lambda device: stand_in)
    return stand_in
