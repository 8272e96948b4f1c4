"""From tensors to launches: the key of a call, its cached route and plan, output tensors, addresses."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import adapt
from .counters import flag
from .emulation import Placement, current_placement
from .errors import ArgumentError, CodeObjectError, DriverError, LibraryError, PlanError
from .planning import plan
from .problem import HEAD_DIM, LAYOUTS, Problem, check_choice
from .request import Request, Served, check_scale, empty_lse, empty_output, output_strides
from .routing import Fallback, Route, Target, route
from .runtime import device as devices
from .runtime import selftest
from .runtime.device import Device
from .runtime.launcher import PreparedPlan
from .runtime.memory import HostArray, staging

#: What the emulator computes on one core, score elements a second, checks off: half of what was measured.
EMULATED_SCORES_PER_SECOND = 2e7
#: Kinds of calls remembered per session; a pipeline has a handful.
MAX_KINDS = 4096


@dataclass(frozen=True, slots=True)
class Ready:
    """Everything about one kind of call that does not depend on addresses."""

    label: str
    prepared: PreparedPlan
    return_lse: bool
    kernel: str = ""


class Session:
    """One device as the tensors of a process see it, with all kinds of calls met so far.

    Args:
        device: where kernels run.
        staged: tensors are in host memory and are copied; else their addresses are the device's own.
        work_limit: estimated seconds above which a call falls back, 0 for no limit.
        suffix: put behind the kernel's label in the summary.
    """

    def __init__(self, device: Device, *, staged: bool, work_limit: float = 0.0, suffix: str = "") -> None:
        self.device = device
        self.staged = staged
        self.work_limit = work_limit
        self.suffix = suffix
        self._kinds: dict[tuple[Any, ...], Ready | Fallback] = {}
        self._problems: dict[Problem, Ready | Fallback] = {}
        self._lock = threading.RLock()

    def serve(self, q: Tensor, k: Tensor, v: Tensor, seqlens_k: Tensor | None, request: Request) -> Served | Fallback:
        """Run one call, or say why not."""
        ready = self.ready(q, k, v, seqlens_k, request)
        if isinstance(ready, Fallback):
            return ready
        out = empty_output(q, v, request.layout)
        lse = empty_lse(q, request.layout) if ready.return_lse else None
        inputs = {"q": q, "k": k, "v": v}
        if seqlens_k is not None:
            if not (seqlens_k.dtype is torch.int32 and seqlens_k.is_contiguous()):
                seqlens_k = seqlens_k.to(torch.int32).contiguous()
            inputs["seqlens_k"] = seqlens_k
        self._run(ready, inputs, out, lse)
        return Served(ready.label, out, lse, ready.kernel)

    def ready(self, q: Tensor, k: Tensor, v: Tensor, seqlens_k: Tensor | None, request: Request) -> Ready | Fallback:
        """What a call of this kind will launch, or why nothing."""
        # Copies start at the same offset from 16 bytes as their originals.
        misaligned = (q.data_ptr() | k.data_ptr() | v.data_ptr()) & 15
        kind = (
            request,
            q.shape,
            k.shape,
            v.shape,
            q.stride(),
            k.stride(),
            v.stride(),
            q.dtype,
            k.dtype,
            v.dtype,
            k.device,
            v.device,
            seqlens_k is not None,
            misaligned,
        )
        ready = self._kinds.get(kind)
        if ready is None:
            ready = self._prepare(kind, q, k, v, seqlens_k, request, misaligned)
        return ready

    def serve_problem(
        self, problem: Problem, inputs: dict[str, Tensor], out: Tensor, lse: Tensor | None
    ) -> Served | Fallback:
        """Run a call that is a `Problem` already.

        Args:
            inputs: by buffer name, see `planning.Pointer`; index tensors are contiguous int32.
            out, lse: where the results go.
        """
        ready = self._problems.get(problem)
        if ready is None:
            with self._lock:
                try:
                    ready = self._choose(problem)
                except _NotNow as refusal:
                    return refusal.fallback
                if len(self._problems) >= MAX_KINDS:
                    self._problems.clear()
                self._problems[problem] = ready
        if isinstance(ready, Fallback):
            return ready
        self._run(ready, inputs, out, lse)
        return Served(ready.label, out, lse, ready.kernel)

    def _prepare(
        self,
        kind: tuple[Any, ...],
        q: Tensor,
        k: Tensor,
        v: Tensor,
        seqlens_k: Tensor | None,
        request: Request,
        misaligned: int,
    ) -> Ready | Fallback:
        with self._lock:
            ready = self._kinds.get(kind)
            if ready is None:
                try:
                    ready = self._decide(q, k, v, seqlens_k, request, misaligned)
                except _NotNow as refusal:
                    return refusal.fallback
                if len(self._kinds) >= MAX_KINDS:
                    self._kinds.clear()
                self._kinds[kind] = ready
            return ready

    def _decide(
        self, q: Tensor, k: Tensor, v: Tensor, seqlens_k: Tensor | None, request: Request, misaligned: int
    ) -> Ready | Fallback:
        problem = describe(q, k, v, seqlens_k, request, misaligned)
        return problem if isinstance(problem, Fallback) else self._choose(problem)

    def _choose(self, problem: Problem) -> Ready | Fallback:
        while True:
            chosen = route(problem, self._target())
            if isinstance(chosen, Fallback):
                return chosen
            if not self.staged and chosen.forward.name not in self.device.tested and _capturing():
                raise _NotNow(Fallback("first use of a kernel inside a graph capture: warm up before capturing"))
            if not self._passes(chosen):
                continue
            try:
                self.device.load(chosen)
                prepared = self.device.prepare(plan(problem, chosen, self.device.info_for(chosen)))
            except (CodeObjectError, PlanError, DriverError) as error:
                refusal = Fallback("the kernel could not be loaded", str(error))
                if error.out_of_memory:
                    raise _NotNow(refusal) from None
                return refusal
            label = chosen.label + self.suffix
            return Ready(label, prepared, problem.return_lse, chosen.forward.name)

    def _passes(self, chosen: Route) -> bool:
        """Whether the self-test lets the kernel serve."""
        try:
            try:
                return selftest.ensure(self.device, chosen)
            except DriverError:
                if self.staged:
                    raise
                # Torch keeps to itself what its tensors gave back.
                torch.cuda.empty_cache()
                return selftest.ensure(self.device, chosen)
        except DriverError as error:
            raise _NotNow(Fallback("no memory for a kernel's self-test", str(error))) from None

    def _target(self) -> Target:
        device = self.device
        speed = EMULATED_SCORES_PER_SECOND * _emulator_threads() if device.emulated else 0.0
        return Target(
            device.info.arch, device.kernels, device.disabled, speed, self.work_limit, forced=flag("MOON_FORCE")
        )

    def _run(self, ready: Ready, inputs: dict[str, Tensor], out: Tensor, lse: Tensor | None) -> None:
        results = {"o": out} if lse is None else {"o": out, "lse": lse}
        if self.staged:
            self._run_staged(ready, inputs, results)
        else:
            self._run_direct(ready, inputs, results)

    def _run_direct(self, ready: Ready, inputs: dict[str, Tensor], results: dict[str, Tensor]) -> None:
        addresses = {name: tensor.data_ptr() for name, tensor in inputs.items()}
        for name, tensor in results.items():
            addresses[name] = tensor.data_ptr()
        device = results["o"].device
        if ready.prepared.workspace_bytes:
            # Torch's allocator gives it back in stream order, so it may die before the kernel has run.
            workspace = torch.empty(ready.prepared.workspace_bytes, dtype=torch.uint8, device=device)
            addresses["workspace"] = workspace.data_ptr()
        if device.type == "cpu":
            ready.prepared(0, addresses)
            return
        stream = _raw_stream(device.index)
        if torch.cuda.current_device() == device.index:
            ready.prepared(stream, addresses)
        else:
            with torch.cuda.device(device.index):
                ready.prepared(stream, addresses)

    def _run_staged(self, ready: Ready, inputs: dict[str, Tensor], results: dict[str, Tensor]) -> None:
        with self.device.current(), staging(self.device.driver) as stage:
            addresses = {name: stage.upload(_host(tensor)) for name, tensor in inputs.items()}
            for name, tensor in results.items():
                addresses[name] = stage.output(_host(tensor))
            if ready.prepared.workspace_bytes:
                addresses["workspace"] = stage.allocate(ready.prepared.workspace_bytes)
            ready.prepared(0, addresses)
            for name, tensor in results.items():
                stage.download(_host(tensor), addresses[name])


class _NotNow(Exception):
    """A fallback that says nothing about the next call of the same kind."""

    def __init__(self, fallback: Fallback) -> None:
        super().__init__(fallback.reason)
        self.fallback = fallback


def check_shapes(q: Tensor, k: Tensor, v: Tensor, layout: str) -> None:
    """Raise `ArgumentError` where q, k and v do not fit together."""
    check_choice("layout", layout, LAYOUTS)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != 4:
            raise ArgumentError(name, f"shape {tuple(tensor.shape)}", f"four dimensions ({', '.join(layout.upper())})")
    seq, head = (1, 2) if layout == "bshd" else (2, 1)
    if k.shape[0] != q.shape[0]:
        raise ArgumentError("k", f"batch {k.shape[0]}", f"the batch of q, {q.shape[0]}")
    if k.shape[3] != q.shape[3]:
        raise ArgumentError("k", f"head dim {k.shape[3]}", f"the head dim of q, {q.shape[3]}")
    if v.shape[0] != k.shape[0]:
        raise ArgumentError("v", f"batch {v.shape[0]}", f"the batch of q, {q.shape[0]}")
    if v.shape[seq] != k.shape[seq]:
        raise ArgumentError("v", f"length {v.shape[seq]}", f"the length of k, {k.shape[seq]}")
    if v.shape[head] != k.shape[head]:
        raise ArgumentError("v", f"{v.shape[head]} heads", f"the heads of k, {k.shape[head]}")
    if k.shape[head] == 0 or q.shape[head] % k.shape[head]:
        raise ArgumentError("k", f"{k.shape[head]} heads", f"a divisor of q's {q.shape[head]} heads")


def describe(
    q: Tensor, k: Tensor, v: Tensor, seqlens_k: Tensor | None, request: Request, misaligned: int
) -> Problem | Fallback:
    """The call as a `Problem`, or why it cannot be one.

    Args:
        misaligned: the low four bits of all addresses, joined.

    Raises:
        ArgumentError: shapes that do not fit together, or a scale that is no number.
    """
    check_shapes(q, k, v, request.layout)
    check_scale(request.softmax_scale)
    seq, head = (1, 2) if request.layout == "bshd" else (2, 1)
    if 0 in q.shape or 0 in k.shape:
        return Fallback("empty tensors")
    if not q.dtype == k.dtype == v.dtype:
        return Fallback("q, k and v of different dtypes")
    if not q.device == k.device == v.device:
        return Fallback("q, k and v on different devices")
    if v.shape[3] != q.shape[3]:
        return Fallback("head dims of v and q differ")
    if any(tensor.stride(3) != 1 for tensor in (q, k, v)):
        return Fallback("head dim not contiguous")
    if any(tensor.is_conj() or tensor.is_neg() for tensor in (q, k, v)):
        return Fallback("lazily negated tensors")
    strides = [(t.stride(0), t.stride(head), t.stride(seq)) for t in (q, k, v)]
    # Strides of a dimension of one are never used, and torch lets them be anything.
    for tensor, used in zip((q, k, v), strides, strict=True):
        for dim, stride in zip((0, head, seq), used, strict=True):
            if tensor.shape[dim] > 1:
                misaligned |= (stride * q.element_size()) & 15
    out_strides = output_strides(q, v, request.layout)
    scale = request.softmax_scale
    return Problem(
        batch=q.shape[0],
        num_heads=q.shape[head],
        num_heads_kv=k.shape[head],
        seqlen_q=q.shape[seq],
        seqlen_k=k.shape[seq],
        head_dim=q.shape[3],
        dtype=str(q.dtype).removeprefix("torch."),
        q_strides=strides[0],
        k_strides=strides[1],
        v_strides=strides[2],
        o_strides=(out_strides[0], out_strides[head], out_strides[seq]),
        softmax_scale=float(q.shape[3]) ** -0.5 if scale is None else float(scale),
        alignment=16 if misaligned == 0 else misaligned & -misaligned,
        causal=request.causal,
        rounding=request.rounding,
        rescale=request.rescale,
        return_lse=request.return_lse,
        has_seqlens_k=seqlens_k is not None,
        batch_invariant=request.batch_invariant,
        forced=request.forced,
    )


def serve(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seqlens_k: Tensor | None,
    attn_mask: Tensor | None,
    request: Request,
    remember_mask: bool = False,
) -> Served | Fallback:
    """Run the call on a kernel, or say why not.

    Raises:
        DriverError: a launch failed; nothing was computed.
    """
    session = _session(q.device)
    if isinstance(session, Fallback):
        return session
    if attn_mask is None and q.shape[3] == HEAD_DIM:
        return session.serve(q, k, v, seqlens_k, request)
    return adapt.serve(session, q, k, v, seqlens_k, attn_mask, request, remember_mask)


def serve_problem(problem: Problem, inputs: dict[str, Tensor], out: Tensor, lse: Tensor | None) -> Served | Fallback:
    """Run a call that is a `Problem` already on the device of `out`; see `Session.serve_problem`.

    Raises:
        DriverError: a launch failed; nothing was computed.
    """
    session = _session(out.device)
    return session if isinstance(session, Fallback) else session.serve_problem(problem, inputs, out, lse)


# --- sessions --------------------------------------------------------------------------------------------------------

_sessions: dict[Placement | int, Session | Fallback] = {}
_sessions_lock = threading.Lock()


def _session(device: torch.device) -> Session | Fallback:
    key: Placement | int
    kind = device.type
    if kind == "cpu":
        placement = current_placement()
        if placement is None:
            return Fallback("CPU tensors outside emulate() and offload()")
        key = placement
    elif kind == "cuda":
        key = device.index
    else:
        return Fallback(f"{kind} tensors")
    session = _sessions.get(key)
    if session is None:
        with _sessions_lock:
            session = _sessions.get(key)
            if session is None:
                session = _sessions[key] = _open(key)
    return session


def _open(key: Placement | int) -> Session | Fallback:
    try:
        if isinstance(key, int):
            return Session(devices.open_torch(key, cuda=torch.version.hip is None), staged=False)
        if key.kind == "emulate":
            device = devices.open_emulated(key.arch)
            return Session(device, staged=True, work_limit=key.work_limit, suffix=", emulated")
        return Session(devices.open_real(), staged=True, suffix=", offloaded")
    except (LibraryError, CodeObjectError, DriverError) as error:
        vendor = "CUDA" if isinstance(key, int) and torch.version.hip is None else "HIP"
        return Fallback(f"no usable kernels or {vendor} library", str(error))


def reset() -> None:
    """Forget all sessions, e.g. after the build products or the environment changed."""
    with _sessions_lock:
        _sessions.clear()
    adapt.forget_masks()


def _after_fork() -> None:
    global _sessions_lock
    _sessions_lock = threading.Lock()
    _sessions.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# --- tensors ---------------------------------------------------------------------------------------------------------


def _host(tensor: Tensor) -> HostArray:
    # A dense view of another order (BHSD over BSHD memory) spans the same bytes.
    return HostArray(tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.element_size())


def _emulator_threads() -> int:
    named = os.environ.get("MOON_EMULATOR_THREADS", "")
    # Unset, 0 or nonsense: what the emulator does then is to take all cores.
    return int(named) if named.isdigit() and int(named) else os.cpu_count() or 1


def _capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _raw_stream(index: int) -> int:
    fast = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if fast is not None:
        return int(fast(index))
    return int(torch.cuda.current_stream(index).cuda_stream)
