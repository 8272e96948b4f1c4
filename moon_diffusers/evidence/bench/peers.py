"""Who is measured: our kernel and every attention kernel found on the machine.

A peer says for each case either how to call its kernel or why it cannot serve the case. Nothing here is a dependency:
what cannot be imported is not there, and the report says so.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from .grid import HEAD_DIM, Case
from .inputs import TOLERANCE, TOLERANCE_8_BIT, TOLERANCE_RTZ, Inputs

Call = Callable[[], Tensor]


class Unsupported(Exception):
    """The peer does not serve this case; the text says why."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One kernel to measure. `prepare` returns a call that gives the output in BSHD, or raises Unsupported."""

    name: str
    version: str
    prepare: Callable[[Case, Inputs], Call]
    bound: float = TOLERANCE  # largest relative L2 that is not called wrong


def ours(rounding: str, rescale: str) -> Peer:
    """Our kernel with everything that its call costs: the V pre-pass is inside."""
    import moon_diffusers

    def prepare(case: Case, x: Inputs) -> Call:
        options: dict[str, Any] = {"rounding": rounding, "rescale": rescale, "causal": case.causal, "strict": True}
        if case.seqlens:
            packed = x.q[0], x.k[0], x.v[0], x.cu_seqlens, x.cu_seqlens
            varlen: Any = moon_diffusers.attention_varlen
            return lambda: varlen(*packed, **options)[None]
        return lambda: moon_diffusers.attention(x.q, x.k, x.v, **options)

    label = f"moon {rounding}" + ("" if rescale == "auto" else f" {rescale}")
    return Peer(label, moon_diffusers.__version__, prepare, bound=bound_of(rounding))


def torch_sdpa(backend: SDPBackend) -> Peer:
    """One backend of torch SDPA, on views: no copy is timed that a model would not make."""

    def prepare(case: Case, x: Inputs) -> Call:
        if case.seqlens:
            raise Unsupported("torch SDPA takes no packed sequences")
        if case.causal and case.seqlen_q != case.seqlen_k:
            raise Unsupported("torch SDPA aligns the causal mask top-left")
        q, k, v = (t.transpose(1, 2) for t in (x.q, x.k, x.v))
        gqa = case.num_heads != case.num_heads_kv

        def call() -> Tensor:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(q, k, v, is_causal=case.causal, enable_gqa=gqa).transpose(1, 2)

        return call

    name = backend.name.removesuffix("_ATTENTION").lower()
    version = str(torch.__version__)
    if name == "cudnn" and (number := torch.backends.cudnn.version()):  # type: ignore[no-untyped-call, unused-ignore]
        version += f", cuDNN {number // 10000}.{number // 100 % 100}.{number % 100}"
    return Peer(f"torch {name}", version, prepare)


def bound_of(rounding: str) -> float:
    """The error bound of a rounding mode: truncation has its own."""
    return TOLERANCE_RTZ if rounding == "rtz" else TOLERANCE


def aiter(cvt: int, label: str) -> Peer:
    """AITER's `flash_attn_func`; for bf16 and head dim 128 it takes the v3 assembly (v4 where the release has it)."""
    module = importlib.import_module("aiter")

    def prepare(case: Case, x: Inputs) -> Call:
        options = {"causal": case.causal, "how_v3_bf16_cvt": cvt}
        if case.seqlens:
            longest = max(case.seqlens)
            return lambda: module.flash_attn_varlen_func(
                x.q[0], x.k[0], x.v[0], x.cu_seqlens, x.cu_seqlens, longest, longest, **options
            )[None]
        return lambda: first(module.flash_attn_func(x.q, x.k, x.v, **options))

    return Peer(f"aiter {label}", version_of("aiter", "amd-aiter"), prepare, bound=bound_of(label))


def aiter_ck() -> Peer:
    """AITER's composable-kernel attention: `flash_attn_func` takes no assembly where a window is asked for, and this
    window hides no key."""
    module = importlib.import_module("aiter")

    def prepare(case: Case, x: Inputs) -> Call:
        if case.seqlens or case.causal:
            raise Unsupported("the window that keeps AITER from its assembly is for dense calls")
        longest = max(case.seqlen_q, case.seqlen_k)
        return lambda: first(module.flash_attn_func(x.q, x.k, x.v, window_size=(longest, longest, 0)))

    return Peer("aiter ck", version_of("aiter", "amd-aiter"), prepare)


def named(module_name: str, attribute: str = "") -> Peer:
    """A kernel that is looked for and not called: raises ImportError, saying what was found, in every case."""
    module = importlib.import_module(module_name)
    if attribute and not hasattr(module, attribute):
        raise ImportError(f"{module_name} has no {attribute}")
    raise ImportError(f"{module_name} is here; no call of it is wired, run its own benchmark beside this one")


def flash_attn() -> Peer:
    """FlashAttention 2 (on ROCm: its CK or Triton backend)."""
    module = importlib.import_module("flash_attn")

    def prepare(case: Case, x: Inputs) -> Call:
        if case.seqlens:
            longest = max(case.seqlens)
            return lambda: module.flash_attn_varlen_func(
                x.q[0], x.k[0], x.v[0], x.cu_seqlens, x.cu_seqlens, longest, longest, causal=case.causal
            )[None]
        return lambda: first(module.flash_attn_func(x.q, x.k, x.v, causal=case.causal))

    return Peer("flash-attn 2", version_of("flash_attn", "flash-attn"), prepare)


def flash_attn_3() -> Peer:
    """FlashAttention 3 (Hopper)."""
    return _flash_attn_dense("flash_attn_interface", "flash-attn 3", "flash_attn_3", "flash-attn-3")


def flash_attn_4() -> Peer:
    """FlashAttention 4, written in CuTe DSL, whose forward also runs on Hopper."""
    return _flash_attn_dense("flash_attn.cute", "flash-attn 4", "flash_attn.cute", "flash-attn-4")


def _flash_attn_dense(entry: str, name: str, versioned: str, package: str) -> Peer:
    module = importlib.import_module(entry)

    def prepare(case: Case, x: Inputs) -> Call:
        if case.seqlens:
            raise Unsupported("not wired for packed sequences")
        return lambda: first(module.flash_attn_func(x.q, x.k, x.v, causal=case.causal))

    return Peer(name, version_of(versioned, package), prepare)


def flashinfer() -> Peer:
    """FlashInfer: single prefill for one sequence, the ragged batch otherwise, planned outside of what is timed."""
    module = importlib.import_module("flashinfer")

    def prepare(case: Case, x: Inputs) -> Call:
        if case.batch == 1 and not case.seqlens:
            return lambda: module.single_prefill_with_kv_cache(x.q[0], x.k[0], x.v[0], causal=case.causal)[None]
        lengths = case.seqlens or (case.seqlen_q,) * case.batch
        lengths_k = case.seqlens or (case.seqlen_k,) * case.batch
        starts, starts_k = (torch.tensor([0, *n], device=x.q.device).cumsum(0).int() for n in (lengths, lengths_k))
        workspace = torch.empty(256 << 20, dtype=torch.uint8, device=x.q.device)
        wrapper = module.BatchPrefillWithRaggedKVCacheWrapper(workspace, kv_layout="NHD")
        wrapper.plan(starts, starts_k, case.num_heads, case.num_heads_kv, HEAD_DIM, causal=case.causal,
                     q_data_type=torch.bfloat16)  # fmt: skip
        q, k, v = (t.flatten(0, 1) for t in (x.q, x.k, x.v))
        return lambda: wrapper.run(q, k, v).view(x.q.shape)

    return Peer("flashinfer", version_of("flashinfer", "flashinfer-python"), prepare)


def sage_attention() -> Peer:
    """SageAttention: 8-bit, so its error stands beside its speed."""
    module = importlib.import_module("sageattention")

    def prepare(case: Case, x: Inputs) -> Call:
        if case.seqlens:
            raise Unsupported("not wired for packed sequences")
        k = x.k.clone()  # some versions subtract its mean in place, which changes no output but everybody's input
        return lambda: module.sageattn(x.q, k, x.v, tensor_layout="NHD", is_causal=case.causal)

    version = version_of("sageattention", "sageattention")
    return Peer("sageattention (8 bit)", version, prepare, bound=TOLERANCE_8_BIT)


def flex_attention() -> Peer:
    """torch's flex_attention, compiled: a Triton kernel on either vendor."""
    from torch.nn.attention.flex_attention import flex_attention as flex

    compiled = torch.compile(flex, dynamic=False)

    def prepare(case: Case, x: Inputs) -> Call:
        if case.causal or case.seqlens:
            raise Unsupported("wired for dense cases alone")
        q, k, v = (t.transpose(1, 2) for t in (x.q, x.k, x.v))
        gqa = case.num_heads != case.num_heads_kv
        return lambda: compiled(q, k, v, enable_gqa=gqa).transpose(1, 2)

    return Peer("triton (flex_attention)", version_of("triton", "triton"), prepare)


def first(result: Any) -> Tensor:
    """The output tensor where a function returns it alone or before others."""
    output: Tensor = result[0] if isinstance(result, tuple) else result
    return output


def version_of(module: str, package: str) -> str:
    """Version of an installed distribution, or of its module."""
    try:
        return package_version(package)
    except PackageNotFoundError:
        return str(getattr(importlib.import_module(module), "__version__", "unknown"))


def factories(rescales: tuple[str, ...]) -> Iterator[tuple[str, Callable[[], Peer]]]:
    """All peers that this project knows of, by name, not yet imported."""
    # The other rounding modes are AITER's, on AMD alone.
    for rounding in ("rtne",) if torch.cuda.is_available() and not torch.version.hip else ("rtne", "rtna", "rtz"):
        for rescale in rescales:
            yield f"moon {rounding} {rescale}", lambda a=rounding, b=rescale: ours(a, b)  # type: ignore[misc]
    for cvt, label in enumerate(("rtne", "rtna", "rtz")):
        yield f"aiter {label}", lambda a=cvt, b=label: aiter(a, b)  # type: ignore[misc]
    yield "aiter ck", aiter_ck
    yield "aiter v4", lambda: named("aiter", "fmha_v4_fwd")
    yield "aiter opus", lambda: named("aiter", "opus")
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
        yield f"torch {backend.name}", lambda a=backend: torch_sdpa(a)  # type: ignore[misc]
    yield "flash-attn 4", flash_attn_4
    yield "flash-attn 3", flash_attn_3
    yield "flash-attn 2", flash_attn
    yield "flashinfer", flashinfer
    yield "sageattention", sage_attention
    yield "triton", flex_attention
    # Last: it brings a runtime of its own, and wants a process of its own.
    yield "modular max", lambda: named("max")


@dataclass(frozen=True, slots=True)
class Found:
    """Peers that could be imported, and why others could not."""

    peers: tuple[Peer, ...]
    absent: dict[str, str]


def discover(only: tuple[str, ...] = (), rescales: tuple[str, ...] = ("auto",)) -> Found:
    """Import what is there. `only` keeps the peers whose name contains one of its words."""
    peers: list[Peer] = []
    absent: dict[str, str] = {}
    for name, make in factories(rescales):
        if only and not any(word in name.lower() for word in only):
            continue
        try:
            peers.append(make())
        except Exception as error:  # a broken install of a peer is a line in the report, not the end of the run
            absent[name] = f"{type(error).__name__}: {error}".splitlines()[0]
    return Found(tuple(peers), absent)
