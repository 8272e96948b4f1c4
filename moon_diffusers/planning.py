"""From a route to launches: grids, arguments by name, workspace. Pure: no torch, no device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .errors import PlanError
from .problem import Problem
from .routing import KernelSpec, Route, workgroups

#: What a workspace is aligned to and rounded up to, bytes.
WORKSPACE_ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What a device says of itself.

    Attributes:
        arch: without feature suffixes, e.g. `gfx942`, `sm_90a`.
        cu_count: compute units; NVIDIA's SMs.
        xcd_count: dies that the workgroups are dealt to in turn.
        lds_bytes: LDS that one workgroup may have; NVIDIA's shared memory of a block.
        driver_version: as the library reports it.
        clusters: clusters of the kernel in question that run at once, 0 where nobody has asked.
    """

    arch: str
    name: str
    cu_count: int
    xcd_count: int
    lds_bytes: int
    wavefront_size: int
    driver_version: int
    clusters: int = 0


@dataclass(frozen=True, slots=True)
class Pointer:
    """The address of a buffer of the call plus `offset` bytes.

    Buffers: q, k, v, o, lse, seqlens_k, cu_seqlens_q, cu_seqlens_k, block_table, workspace.
    """

    buffer: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A buffer of bf16 as NVIDIA's copy engine sees it: boxes of it go to shared memory in 128-byte swizzle.

    Attributes:
        buffer: as a pointer's.
        dims: elements of each dimension, the contiguous one first.
        strides: bytes from one element to the next of every dimension but the first.
        box: elements of each dimension that one copy takes; those beyond the tensor are zeros.
    """

    buffer: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]


Value = int | float | Pointer | TensorMap


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch.

    Attributes:
        grid: workgroups in x, y, z.
        values: kernel arguments by name; a superset of what the kernel's layout asks for. 0 is a null pointer.
        dynamic_lds: bytes on top of the kernel's static LDS.
    """

    kernel: KernelSpec
    grid: tuple[int, int, int]
    values: Mapping[str, Value]
    dynamic_lds: int = 0


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Launches in stream order, sharing one workspace."""

    launches: tuple[Launch, ...]
    workspace_bytes: int = 0


def plan(problem: Problem, route: Route, device: DeviceInfo) -> LaunchPlan:
    """The launches that compute `problem` by `route` on `device`.

    Raises:
        PlanError: the manifest names a family, grid or role that no planner here knows.
    """
    planner = _PLANNERS.get(route.forward.family)
    if planner is None:
        raise PlanError(f"{route.forward.name}: no planner for the family {route.forward.family!r}")
    return planner(problem, route, device)


def arguments(problem: Problem) -> dict[str, Value]:
    """The kernel arguments that follow from the problem alone, by the names of the kernarg layouts."""
    values: dict[str, Value] = {
        "q": Pointer("q"),
        "k": Pointer("k"),
        "v": Pointer("v"),
        "o": Pointer("o"),
        "lse": Pointer("lse") if problem.return_lse else 0,
        "seqlens_k": Pointer("seqlens_k") if problem.has_seqlens_k else 0,
        "cu_seqlens_q": Pointer("cu_seqlens_q") if problem.has_cu_seqlens else 0,
        "cu_seqlens_k": Pointer("cu_seqlens_k") if problem.has_cu_seqlens and not problem.page_size else 0,
        "block_table": Pointer("block_table") if problem.page_size else 0,
        "workspace": 0,
        "lse_stride_batch": 0 if problem.has_cu_seqlens else problem.num_heads * problem.seqlen_q,
        "lse_stride_head": problem.total_q if problem.has_cu_seqlens else problem.seqlen_q,
        "block_table_stride": problem.block_table_stride,
        "batch": problem.batch,
        "num_heads": problem.num_heads,
        "num_heads_kv": problem.num_heads_kv,
        "seqlen_q": problem.seqlen_q,
        "seqlen_k": problem.seqlen_k,
        "causal": int(problem.causal),
        "num_splits": 1,
        "softmax_scale": problem.softmax_scale,
    }
    for tensor, strides in (
        ("q", problem.q_strides),
        ("k", problem.k_strides),
        ("v", problem.v_strides),
        ("o", problem.o_strides),
    ):
        for axis, stride in zip(("batch", "head", "row"), strides, strict=True):
            values[f"{tensor}_stride_{axis}"] = stride
    return values


def grid(problem: Problem, kernel: KernelSpec) -> tuple[int, int, int]:
    """The grid of a forward kernel, numbered as its variant says.

    Raises:
        PlanError: the variant names a numbering that is not known here.
    """
    if kernel.grid == "linear":
        return workgroups(problem, kernel), 1, 1
    if kernel.grid == "rows_heads_batch":
        return -(-problem.seqlen_q // kernel.rows), problem.num_heads, problem.batch
    raise PlanError(f"{kernel.name}: unknown grid {kernel.grid!r}; known: 'linear', 'rows_heads_batch'")


def _plan_general(problem: Problem, route: Route, device: DeviceInfo) -> LaunchPlan:
    """One launch; nothing beside the tensors."""
    if route.value_prepass is not None or route.merge is not None:
        raise PlanError(f"{route.forward.name}: the family 'general' has neither a pre-pass nor a merge")
    return LaunchPlan((Launch(route.forward, grid(problem, route.forward), arguments(problem)),))


def align_workspace(size: int) -> int:
    """`size` bytes rounded up so that the next part of a workspace starts aligned."""
    return -(-size // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT


def _plan_cdna4(problem: Problem, route: Route, device: DeviceInfo) -> LaunchPlan:
    from .planning_cdna4 import plan_cdna4

    return plan_cdna4(problem, route, device)


def _plan_cdna3(problem: Problem, route: Route, device: DeviceInfo) -> LaunchPlan:
    from .planning_cdna3 import plan_cdna3

    return plan_cdna3(problem, route, device)


def _plan_sm90a(problem: Problem, route: Route, device: DeviceInfo) -> LaunchPlan:
    from .planning_sm90a import plan_sm90a

    return plan_sm90a(problem, route, device)


_PLANNERS: dict[str, Callable[[Problem, Route, DeviceInfo], LaunchPlan]] = {
    "general": _plan_general,
    "cdna3": _plan_cdna3,
    "cdna4": _plan_cdna4,
    "sm90a": _plan_sm90a,
}
