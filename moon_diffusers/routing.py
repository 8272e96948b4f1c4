"""Can the kernel serve this call, and which one? The only place that decides; pure, touches no device."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from .problem import HEAD_DIM, Problem

#: What a forward kernel may declare as its variant's "features"; a call that needs another one falls back.
FEATURES = ("lse", "gqa", "causal", "seqlens_k", "cu_seqlens", "paged")


#: Keys a page of a paged cache may have.
PAGE_SIZES = (16, 32, 64, 128, 256, 512, 1024)


#: Kernels take the scale as float32.
FLOAT32_MAX = (2 - 2**-23) * 2.0**127

#: Why a call falls back that a kernel could serve, only later than torch; strict calls take the kernel all the same.
SLOWER = "slower than torch's own kernel here"


@dataclass(frozen=True, slots=True)
class Slower:
    """Calls of which it was measured that torch's own kernel is faster: those for which all that is given holds.

    Attributes:
        rows_below, keys_below: query rows and keys of an entry are fewer than this; 0 for any number.
        keys_from: keys of an entry are at least as many.
        row_blocks_below: the same of the kernel's row blocks, all heads and batch entries together.
        scores_below: the same of `Problem.scores`.
        causal: causal calls alone, or all others alone; None for both.
    """

    rows_below: int = 0
    keys_below: int = 0
    keys_from: int = 0
    row_blocks_below: int = 0
    scores_below: int = 0
    causal: bool | None = None

    def covers(self, problem: Problem, kernel: KernelSpec) -> bool:
        """Whether `problem` is one of them on `kernel`."""
        limits = (
            (self.rows_below, problem.seqlen_q),
            (self.keys_below, problem.seqlen_k),
            (self.row_blocks_below, workgroups(problem, kernel)),
            (self.scores_below, problem.scores),
        )
        if problem.seqlen_k < self.keys_from or (self.causal is not None and self.causal != problem.causal):
            return False
        return all(not limit or value < limit for limit, value in limits)


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One kernel of the manifest, as far as routing and planning need it.

    Attributes:
        role: `forward`, `value_prepass`, `merge` or `measurement`.
        family: which planner of `planning` knows its grid and workspace.
        lds_bytes, dynamic_lds: bytes of LDS that it declares, and that a launch must give it on top.
        rows: query rows a workgroup computes; where workgroups form clusters, a cluster.
        cluster: workgroups of a cluster; a grid is a multiple of it.
        alignment: bytes that tensors' addresses and strides must be multiples of.
        row_strides: smallest and largest stride, in elements, of the rows of k and v.
        strides: the same of every dimension of q, k and v that is longer than one.
        features: what it honours beyond dense attention, of `FEATURES`.
        requires: those without which it cannot run.
        scales: smallest and largest softmax_scale.
        grid: how workgroups are numbered, see `planning`.
        value_prepass, merge: names of the kernels that must run before and after it, empty for none.
        least_keys, least_row_blocks: keys of an entry, and row blocks of all together, from which on it is better than the
            next kernel that fits.
        key_cost: time a key, those that fill the last tile included, relative to the architecture's other kernels; the
            cheaper one is taken. 0 where it does not matter.
        slower: calls that it leaves to torch, which is faster there.
    """

    name: str
    arch: str
    role: str
    kernarg_layout: str
    kernarg_size: int
    block: tuple[int, int, int]
    family: str = "general"
    lds_bytes: int = 0
    dynamic_lds: int = 0
    cluster: int = 1
    rounding: str = "rtne"
    rescale: str = "exact"
    rows: int = 0
    keys: int = 64
    alignment: int = 2
    row_strides: tuple[int, int] = (0, 2**62)
    strides: tuple[int, int] = (0, 2**62)
    scales: tuple[float, float] = (-math.inf, math.inf)
    grid: str = "rows_heads_batch"
    features: frozenset[str] = frozenset()
    requires: frozenset[str] = frozenset()
    value_prepass: str = ""
    merge: str = ""
    least_keys: int = 0
    least_row_blocks: int = 0
    key_cost: float = 0.0
    slower: tuple[Slower, ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """Where a call would run.

    Attributes:
        arch: e.g. `gfx942`.
        kernels: the manifest's kernels for that architecture, in its order.
        disabled: names of kernels whose self-test failed.
        scores_per_second: what this target computes, 0 where time is no concern (real hardware).
        work_limit: seconds that one call may take by that estimate, 0 for no limit.
        forced: kernels serve even where torch's own is known to be faster.
    """

    arch: str
    kernels: tuple[KernelSpec, ...]
    disabled: frozenset[str] = frozenset()
    scores_per_second: float = 0.0
    work_limit: float = 0.0
    forced: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """The kernels that serve a call."""

    forward: KernelSpec
    value_prepass: KernelSpec | None = None
    merge: KernelSpec | None = None

    @property
    def label(self) -> str:
        """Name for the summary."""
        return f"{self.forward.arch} {self.forward.rounding}"


@dataclass(frozen=True, slots=True)
class Fallback:
    """Why the kernel does not serve a call.

    Attributes:
        reason: short, the same for all calls of a kind: the key of the counters.
        detail: this call's particulars.
    """

    reason: str
    detail: str = field(default="", compare=False)


def needed_features(problem: Problem) -> frozenset[str]:
    """The features that a forward kernel must declare to serve `problem`."""
    needed = {
        "lse": problem.return_lse,
        "gqa": problem.num_heads != problem.num_heads_kv,
        "causal": problem.causal,
        "seqlens_k": problem.has_seqlens_k,
        "cu_seqlens": problem.has_cu_seqlens,
        "paged": problem.page_size > 0,
    }
    return frozenset(name for name, wanted in needed.items() if wanted)


def workgroups(problem: Problem, kernel: KernelSpec) -> int:
    """Workgroups of a forward kernel, all dimensions of its grid together."""
    return -(-problem.seqlen_q // kernel.rows) * problem.num_heads * problem.batch


def _is_large_enough(problem: Problem, kernel: KernelSpec) -> bool:
    return problem.seqlen_k >= kernel.least_keys and workgroups(problem, kernel) >= kernel.least_row_blocks


def _key_cost(problem: Problem, kernel: KernelSpec) -> float:
    return kernel.key_cost * kernel.keys * -(-problem.seqlen_k // kernel.keys)


def _reaches_rows(problem: Problem, kernel: KernelSpec) -> bool:
    if problem.rows_of_keys == 1:  # then the stride is never used
        return True
    least, most = kernel.row_strides
    return all(least <= strides[2] <= most for strides in (problem.k_strides, problem.v_strides))


def _reaches(problem: Problem, kernel: KernelSpec) -> bool:
    least, most = kernel.strides
    batch = 1 if problem.has_cu_seqlens else problem.batch
    for strides, heads, rows in (
        (problem.q_strides, problem.num_heads, problem.total_q or problem.seqlen_q),
        (problem.k_strides, problem.num_heads_kv, problem.rows_of_keys),
        (problem.v_strides, problem.num_heads_kv, problem.rows_of_keys),
    ):
        used = [stride for stride, length in zip(strides, (batch, heads, rows), strict=True) if length > 1]
        if not all(least <= stride <= most for stride in used):
            return False
    return True


def route(problem: Problem, target: Target) -> Route | Fallback:
    """Choose the kernels for `problem` on `target`, or say why there are none.

    Preference among those that fit: the manifest's order, which lists an architecture's best kernel first.
    """
    if problem.dtype != "bfloat16":
        return Fallback(f"dtype {problem.dtype} is not bfloat16")
    if problem.head_dim != HEAD_DIM:
        return Fallback(f"head_dim {problem.head_dim} is not {HEAD_DIM}")
    if max(problem.batch, problem.num_heads) > 65535:
        return Fallback("more than 65535 heads or batch entries", problem.shape_text())
    if max(problem.seqlen_q, problem.seqlen_k) > 2**30 - 1024:
        return Fallback("a sequence of 2^30 rows or more", problem.shape_text())
    if problem.page_size and problem.page_size not in PAGE_SIZES:
        return Fallback(f"page size {problem.page_size} is not a power of two from 16 to 1024")

    forward = [kernel for kernel in target.kernels if kernel.role == "forward"]
    if not forward:
        return Fallback(f"no kernel for {target.arch}")
    candidates = [kernel for kernel in forward if kernel.rounding == problem.rounding]
    if not candidates:
        return Fallback(f"no {target.arch} kernel rounds by {problem.rounding}")
    if problem.rescale != "auto":
        candidates = [kernel for kernel in candidates if kernel.rescale == problem.rescale]
        if not candidates:
            return Fallback(f"no {target.arch} kernel rescales by {problem.rescale}")
    needed = needed_features(problem)
    able = [kernel for kernel in candidates if kernel.requires <= needed <= kernel.features]
    if not able:
        missing = min((needed - kernel.features for kernel in candidates), key=len)
        text = ", ".join(sorted(missing)) or "dense calls"
        return Fallback(f"no {target.arch} kernel for {text}")
    aligned = [kernel for kernel in able if problem.alignment % kernel.alignment == 0]
    if not aligned:
        return Fallback(f"tensors aligned to {problem.alignment} bytes only", problem.shape_text())
    aligned = [kernel for kernel in aligned if _reaches_rows(problem, kernel)]
    if not aligned:
        return Fallback("row strides of k or v that no kernel takes", problem.shape_text())
    aligned = [kernel for kernel in aligned if _reaches(problem, kernel)]
    if not aligned:
        return Fallback("strides of q, k or v that no kernel takes", problem.shape_text())
    if abs(problem.softmax_scale) > FLOAT32_MAX:
        return Fallback("a softmax_scale that no kernel takes", f"{problem.softmax_scale:g}")
    aligned = [kernel for kernel in aligned if kernel.scales[0] <= problem.softmax_scale <= kernel.scales[1]]
    if not aligned:
        return Fallback("a softmax_scale that no kernel takes", f"{problem.softmax_scale:g}")
    if not (problem.forced or target.forced):
        aligned = [kernel for kernel in aligned if not any(rule.covers(problem, kernel) for rule in kernel.slower)]
        if not aligned:
            return Fallback(SLOWER, problem.shape_text())
    # Kernels made for larger calls come last, so that they still serve where nothing else can.
    aligned.sort(key=lambda kernel: (not _is_large_enough(problem, kernel), _key_cost(problem, kernel)))
    by_name = {kernel.name: kernel for kernel in target.kernels}
    chosen: Route | None = None
    too_large = False
    for kernel in aligned:
        parts = [name for name in (kernel.name, kernel.value_prepass, kernel.merge) if name]
        if any(name in target.disabled or name not in by_name for name in parts):
            continue
        if workgroups(problem, kernel) * kernel.block[0] >= 2**32:
            too_large = True
            continue
        chosen = Route(kernel, by_name.get(kernel.value_prepass), by_name.get(kernel.merge))
        break
    if chosen is None and too_large:
        return Fallback("more threads than a launch can have", problem.shape_text())
    if chosen is None:
        return Fallback("the kernel failed its self-test on this device")

    if target.work_limit and target.scores_per_second:
        seconds = problem.scores / target.scores_per_second
        if seconds > target.work_limit:
            return Fallback(
                "too much work for the emulator",
                f"{problem.shape_text()}: about {seconds:.0f} s, the limit is {target.work_limit:g} s a call; "
                "raise it by emulate(..., work_limit=SECONDS) or MOON_EMULATION_LIMIT, 0 for none",
            )
    return chosen
