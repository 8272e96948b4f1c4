"""The torch operators of packed sequences and paged caches: kernel or torch, decided and counted inside the operator.

* `moon_diffusers::attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, ...) -> out`, `attention_varlen_lse -> (out, lse)`
* `moon_diffusers::attention_paged(q, k_cache, v_cache, block_table, seqlens_k, ...) -> out`, `attention_paged_lse`

All have fakes and work under `torch.compile(fullgraph=True)`; gradients take torch's own path outside of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from . import counters, dispatch, fallback
from .eager import below_autograd, carries_tangents, requires_grad
from .problem import Problem
from .request import Served
from .routing import SLOWER, Fallback

_OPTIONS = "float? softmax_scale, bool causal, str rounding, str rescale, bool? strict, str scope, bool batch_invariant"
_VARLEN = (
    "Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, "
    f"SymInt max_seqlen_q, SymInt max_seqlen_k, {_OPTIONS}"
)
_PAGED = f"Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor seqlens_k, {_OPTIONS}"


@dataclass(frozen=True, slots=True)
class Options:
    """What both kinds of call share; see `moon_diffusers.attention`."""

    softmax_scale: float | None
    causal: bool
    rounding: str
    rescale: str
    strict: bool | None
    scope: str
    batch_invariant: bool


# --- packed sequences ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Varlen:
    """One call over packed sequences: q (total_q, H, D), k and v (total_k, Hkv, D), int32 offsets (B + 1)."""

    q: Tensor
    k: Tensor
    v: Tensor
    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor
    max_seqlen_q: int
    max_seqlen_k: int
    options: Options

    def problem(self, out: Tensor, return_lse: bool) -> Problem | Fallback:
        """As the kernels see it."""
        refusal = _refuse_tensors(self.q, self.k, self.v)
        if refusal is not None:
            return refusal
        if self.max_seqlen_q < 1 or self.max_seqlen_k < 1:
            return Fallback("empty tensors")
        strides = [(0, t.stride(1), t.stride(0)) for t in (self.q, self.k, self.v, out)]
        return Problem(
            batch=self.cu_seqlens_q.shape[0] - 1,
            num_heads=self.q.shape[1],
            num_heads_kv=self.k.shape[1],
            seqlen_q=self.max_seqlen_q,
            seqlen_k=self.max_seqlen_k,
            **_common(self.options, self.q, return_lse),
            q_strides=strides[0],
            k_strides=strides[1],
            v_strides=strides[2],
            o_strides=strides[3],
            alignment=_alignment(self.q, self.k, self.v),
            has_cu_seqlens=True,
            total_q=self.q.shape[0],
            total_k=self.k.shape[0],
        )

    def inputs(self) -> dict[str, Tensor]:
        """Buffers by the names that plans use."""
        return {
            "q": self.q,
            "k": self.k,
            "v": self.v,
            "cu_seqlens_q": self.cu_seqlens_q.contiguous(),
            "cu_seqlens_k": self.cu_seqlens_k.contiguous(),
        }

    def empty(self) -> tuple[Tensor, Tensor]:
        """Uninitialised results: (total_q, H, D) and fp32 (H, total_q)."""
        out = torch.empty(self.q.shape, dtype=self.q.dtype, device=self.q.device)
        return out, torch.empty((self.q.shape[1], self.q.shape[0]), dtype=torch.float32, device=self.q.device)

    def by_torch(self, return_lse: bool) -> tuple[Tensor, Tensor | None]:
        """The same by torch, sequence after sequence; reads the offsets on the host."""
        outs, sums = [], []
        starts_q, starts_k = self.cu_seqlens_q.tolist(), self.cu_seqlens_k.tolist()
        for i in range(len(starts_q) - 1):
            q = self.q[starts_q[i] : starts_q[i + 1]].transpose(0, 1)[None]
            k, v = (t[starts_k[i] : starts_k[i + 1]].transpose(0, 1)[None] for t in (self.k, self.v))
            out, lse = _one_sequence(q, k, v, self.options, return_lse)
            outs.append(out[0].transpose(0, 1))
            sums.append(lse)
        behind = self.q.shape[0] - starts_q[-1]
        outs.append(self.q.new_zeros((behind, *self.q.shape[1:])))
        if not return_lse:
            return torch.cat(outs), None
        sums.append(self.q.new_full((1, self.q.shape[1], behind), -torch.inf, dtype=torch.float32))
        return torch.cat(outs), torch.cat([lse[0] for lse in sums if lse is not None], dim=1)


# --- paged caches ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Paged:
    """One call over a paged cache: q (B, Sq, H, D), caches (pages, page_size, Hkv, D), int32 table and lengths."""

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_table: Tensor
    seqlens_k: Tensor
    options: Options

    def problem(self, out: Tensor, return_lse: bool) -> Problem | Fallback:
        """As the kernels see it."""
        refusal = _refuse_tensors(self.q, self.k_cache, self.v_cache)
        if refusal is not None:
            return refusal
        if self.block_table.shape[1] == 0:
            return Fallback("empty tensors")
        strides = [(t.stride(0), t.stride(2), t.stride(1)) for t in (self.q, self.k_cache, self.v_cache, out)]
        page_size = self.k_cache.shape[1]
        return Problem(
            batch=self.q.shape[0],
            num_heads=self.q.shape[2],
            num_heads_kv=self.k_cache.shape[2],
            seqlen_q=self.q.shape[1],
            seqlen_k=self.block_table.shape[1] * page_size,
            **_common(self.options, self.q, return_lse),
            q_strides=strides[0],
            k_strides=strides[1],
            v_strides=strides[2],
            o_strides=strides[3],
            alignment=_alignment(self.q, self.k_cache, self.v_cache),
            has_seqlens_k=True,
            page_size=page_size,
            block_table_stride=self.block_table.shape[1],
        )

    def inputs(self) -> dict[str, Tensor]:
        """Buffers by the names that plans use."""
        return {
            "q": self.q,
            "k": self.k_cache,
            "v": self.v_cache,
            "block_table": self.block_table.contiguous(),
            "seqlens_k": self.seqlens_k.contiguous(),
        }

    def empty(self) -> tuple[Tensor, Tensor]:
        """Uninitialised results: (B, Sq, H, D) and fp32 (B, H, Sq)."""
        batch, rows, heads, _ = self.q.shape
        out = torch.empty(self.q.shape, dtype=self.q.dtype, device=self.q.device)
        return out, torch.empty((batch, heads, rows), dtype=torch.float32, device=self.q.device)

    def by_torch(self, return_lse: bool) -> tuple[Tensor, Tensor | None]:
        """The same by torch, with each entry's pages gathered; reads the lengths on the host."""
        outs, sums = [], []
        page_size = self.k_cache.shape[1]
        for i, length in enumerate(self.seqlens_k.tolist()):
            pages = self.block_table[i, : -(-length // page_size)].long()
            k, v = (cache[pages].flatten(0, 1)[:length].transpose(0, 1)[None] for cache in (self.k_cache, self.v_cache))
            out, lse = _one_sequence(self.q[i : i + 1].transpose(1, 2), k, v, self.options, return_lse)
            outs.append(out.transpose(1, 2))
            sums.append(lse)
        return torch.cat(outs), torch.cat([lse for lse in sums if lse is not None]) if return_lse else None


# --- both ------------------------------------------------------------------------------------------------------------


def run(call: Varlen | Paged, return_lse: bool) -> tuple[Tensor, Tensor | None]:
    """The call by a kernel, else, counted, by torch; not differentiable.

    Raises:
        StrictError: strict, and no kernel can serve the call.
    """
    out, lse = call.empty()
    problem = call.problem(out, return_lse)
    outcome: Served | Fallback
    if isinstance(problem, Fallback):
        outcome = problem
    else:
        outcome = dispatch.serve_problem(problem, call.inputs(), out, lse if return_lse else None)
        if isinstance(outcome, Fallback) and outcome.reason == SLOWER and counters.is_strict(call.options.strict):
            forced = replace(problem, forced=True)
            outcome = dispatch.serve_problem(forced, call.inputs(), out, lse if return_lse else None)
    options = call.options
    if isinstance(outcome, Fallback):
        counters.refuse_or_count(outcome.reason, outcome.detail, strict=options.strict, scope=options.scope)
        return call.by_torch(return_lse)
    counters.record_served(outcome.label, options.scope, outcome.kernel)
    return out, lse if return_lse else None


def differentiable(call: Varlen | Paged, return_lse: bool) -> tuple[Tensor, Tensor | None]:
    """The call by torch with a graph for gradients, counted as such.

    Raises:
        StrictError: strict.
    """
    counters.refuse_or_count("requires grad", strict=call.options.strict, scope=call.options.scope)
    return call.by_torch(return_lse)


def _one_sequence(q: Tensor, k: Tensor, v: Tensor, options: Options, return_lse: bool) -> tuple[Tensor, Tensor | None]:
    if q.shape[2] == 0 or k.shape[2] == 0:
        lse = q.new_full(q.shape[:3], -torch.inf, dtype=torch.float32)
        return torch.zeros_like(q), lse if return_lse else None
    shared: dict[str, Any] = {"softmax_scale": options.softmax_scale, "causal": options.causal}
    out = fallback.sdpa(q, k, v, **shared)
    return out, fallback.logsumexp(q, k, **shared) if return_lse else None


def _refuse_tensors(q: Tensor, k: Tensor, v: Tensor) -> Fallback | None:
    if 0 in q.shape or 0 in k.shape:
        return Fallback("empty tensors")
    if any(tensor.is_conj() or tensor.is_neg() for tensor in (q, k, v)):
        return Fallback("lazily negated tensors")
    return None


def _common(options: Options, q: Tensor, return_lse: bool) -> dict[str, Any]:
    scale = options.softmax_scale
    return {
        "head_dim": q.shape[-1],
        "dtype": str(q.dtype).removeprefix("torch."),
        "softmax_scale": float(q.shape[-1]) ** -0.5 if scale is None else float(scale),
        "causal": options.causal,
        "rounding": options.rounding,
        "rescale": options.rescale,
        "return_lse": return_lse,
        "batch_invariant": options.batch_invariant,
    }


def _alignment(*tensors: Tensor) -> int:
    bits = 16
    for tensor in tensors:
        bits |= tensor.data_ptr() & 15
        # Strides of a dimension of one are never used, and torch lets them be anything.
        for stride, length in zip(tensor.stride()[:-1], tensor.shape[:-1], strict=True):
            bits |= (stride * tensor.element_size()) & 15 if length > 1 else 0
    return bits & -bits


def _call_of(kind: Callable[..., Varlen | Paged], arguments: tuple[Any, ...]) -> Varlen | Paged:
    return kind(*arguments[:-7], Options(*arguments[-7:]))


def _implementation(kind: type[Varlen] | type[Paged], return_lse: bool) -> Callable[..., Any]:
    def run_operator(*arguments: Any) -> Any:
        out, lse = run(_call_of(kind, arguments), return_lse)
        return (out, lse) if return_lse else out

    return run_operator


def _autograd(kind: type[Varlen] | type[Paged], operator: Any, return_lse: bool) -> Callable[..., Any]:
    """What graphs reach first: eager calls that want gradients are torch's before they get to an operator."""

    def differentiate(*arguments: Any) -> Any:
        if requires_grad(*arguments[:3]) or carries_tangents(*arguments[:3]):
            out, lse = differentiable(_call_of(kind, arguments), return_lse)
            return (out, lse) if return_lse else out
        return below_autograd(operator, arguments)

    return differentiate


def _fake(kind: type[Varlen] | type[Paged], return_lse: bool) -> Callable[..., Any]:
    def describe_operator(*arguments: Any) -> Any:
        out, lse = _call_of(kind, arguments).empty()
        return (out, lse) if return_lse else out

    return describe_operator


_library: Any = torch.library.Library("moon_diffusers", "FRAGMENT")  # type: ignore[no-untyped-call]
_KINDS: tuple[tuple[str, str, type[Varlen] | type[Paged]], ...] = (
    ("attention_varlen", _VARLEN, Varlen),
    ("attention_paged", _PAGED, Paged),
)
for _name, _schema, _kind in _KINDS:
    for _suffix, _result, _lse in (("", "Tensor", False), ("_lse", "(Tensor, Tensor)", True)):
        _library.define(f"{_name}{_suffix}({_schema}) -> {_result}", tags=(torch.Tag.pt2_compliant_tag,))
        _library.impl(f"{_name}{_suffix}", _implementation(_kind, _lse), "CompositeExplicitAutograd")
        torch.library.register_fake(f"moon_diffusers::{_name}{_suffix}", _fake(_kind, _lse), lib=_library)
        _operator: Any = getattr(torch.ops.moon_diffusers, _name + _suffix).default
        _library.impl(f"{_name}{_suffix}", _autograd(_kind, _operator, _lse), "Autograd")
