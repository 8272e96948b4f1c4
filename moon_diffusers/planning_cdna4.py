"""The launches of the gfx950 family `cdna4`: a linear grid whose last row blocks may be split over the key axis."""

from __future__ import annotations

from .errors import PlanError
from .planning import DeviceInfo, Launch, LaunchPlan, Pointer, Value, align_workspace, arguments
from .problem import Problem
from .routing import KernelSpec, Route

#: Bytes of one split part's results: O, row sum and reference of each row, fp32.
PARTIAL_BYTES = 384 * (128 + 2) * 4
#: Workgroups of the merge kernel per split row block, each 32 rows.
MERGE_WORKGROUPS = 12

# The cost model, in the time of one 64-key tile. Modelled from the schedule, not measured on hardware.
_WORKGROUP_COST = 4  # first loads until the first tile, and the rows' store
_PART_COST = 2  # a part stores fp32 instead
_MERGE_COST = 8  # the merge's launch and traffic
_LEAST_TILES = 4  # a shorter part is not worth its start


def plan_cdna4(problem: Problem, route: Route, device: DeviceInfo) -> LaunchPlan:
    """One forward launch, and a merge behind it where row blocks are split.

    Raises:
        PlanError: the manifest names no merge kernel, or one of another number of rows.
    """
    forward = route.forward
    if forward.rows != 384 or route.merge is None:
        raise PlanError(f"{forward.name}: the family 'cdna4' has 384 rows a workgroup and a merge kernel")
    blocks = row_blocks(problem, forward)
    tiles = -(-problem.seqlen_k // forward.keys)
    first_split, parts = blocks, 1
    if not problem.batch_invariant:
        first_split, parts = split(blocks, tiles, device.cu_count, causal=problem.causal)

    values: dict[str, Value] = {**arguments(problem), "first_split": first_split, "num_splits": parts}
    values["xcd_count"] = max(device.xcd_count, 1)
    values["page_shift"] = max(problem.page_size.bit_length() - 1, 0)
    if problem.rows_of_keys == 1:
        # A stride that nothing uses may be anything; the kernel takes its ranges from it.
        values["k_stride_row"] = values["v_stride_row"] = problem.head_dim
    if parts == 1:
        return LaunchPlan((Launch(forward, (blocks, 1, 1), values),))
    values["workspace"] = Pointer("workspace")
    split_blocks = blocks - first_split
    return LaunchPlan(
        (
            Launch(forward, (first_split + split_blocks * parts, 1, 1), values),
            Launch(route.merge, (split_blocks * MERGE_WORKGROUPS, 1, 1), values),
        ),
        workspace_bytes=align_workspace(split_blocks * parts * PARTIAL_BYTES),
    )


def row_blocks(problem: Problem, kernel: KernelSpec) -> int:
    """Row blocks of all heads; for packed sequences, as if each were as long as the longest."""
    return -(-problem.seqlen_q // kernel.rows) * problem.num_heads * problem.batch


def split(blocks: int, tiles: int, cu_count: int, *, causal: bool) -> tuple[int, int]:
    """How to cut the key axis of the row blocks that do not fill the device.

    One workgroup runs on a compute unit at a time, so `blocks` take whole rounds of `cu_count`, and a last round that
    leaves units idle is cut into parts that fill them. Causal blocks differ in length and start longest first, which
    fills the units by itself: only a grid smaller than the device is cut.

    Returns:
        the number of row blocks left whole (the first ones), and the parts of each of the others, 1 for no cut.
    """
    tail = blocks % cu_count
    if tail == 0 or (causal and blocks > cu_count):
        return blocks, 1

    def cost(parts: int) -> int:
        rounds = -(-tail * parts // cu_count)
        return rounds * (-(-tiles // parts) + _WORKGROUP_COST + _PART_COST) + _MERGE_COST

    most = min(tiles // _LEAST_TILES, 4 * -(-cu_count // tail))
    best = min(range(2, most + 1), key=cost, default=1)
    if best == 1 or cost(best) >= tiles + _WORKGROUP_COST:
        return blocks, 1
    return blocks - tail, best
