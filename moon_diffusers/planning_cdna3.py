"""The launches of the gfx942 family `cdna3`: V pre-pass, attention, and a merge where the last query blocks are split."""

from __future__ import annotations

import math

from .errors import PlanError
from .planning import DeviceInfo, Launch, LaunchPlan, Pointer, Value, align_workspace, arguments
from .problem import Problem
from .routing import Route, workgroups

ROWS = 384
KEYS = 64
HEAD_DIM = 128
#: One tile of V, bf16.
VALUE_TILE_BYTES = KEYS * HEAD_DIM * 2
#: O of one split workgroup, fp32; its references and row sums.
PARTIAL_O_BYTES = ROWS * HEAD_DIM * 4
PARTIAL_STATS_BYTES = ROWS * 2 * 4
#: Workgroups of the merge for one query block, 8 rows each.
MERGES_PER_BLOCK = ROWS // 8

# The cost model, in the time of one 64-key tile: 384 matrix instructions a SIMD, 6144 cycles, 2.9 us at 2.1 GHz.
# From the schedule and the published bandwidth, not measured on hardware.
_WORKGROUP_TILES = 3.0  # from the start to the first tile, and from the last to the rows' store
_MERGE_TILES = 2.0  # the merge's launch and tail
_BYTES_PER_TILE = 15e6  # what 5.3 TB/s carry in that time
_LEAST_TILES = 4  # a shorter part is not worth its start
_MOST_PARTS = 32


def split_tail(blocks: int, tiles: int, cu_count: int) -> tuple[int, int]:
    """How to cut the keys of the query blocks that do not fill a last round of compute units.

    A compute unit runs one workgroup at a time, so `blocks` equal workgroups take ceil(blocks / cu_count) rounds, the last
    one with idle units. Its blocks may be cut into parts that fill them; the parts' fp32 results are then merged.

    Args:
        blocks: query blocks of 384 rows, all heads and batch entries.
        tiles: 64-key tiles of a block.
        cu_count: compute units of the device.

    Returns:
        query blocks left whole, and parts of each of the others; `(blocks, 1)` where a cut does not pay.
    """
    tail = blocks % cu_count
    if tail == 0:
        return blocks, 1
    best_parts, best = 1, tiles + _WORKGROUP_TILES
    for parts in range(2, min(_MOST_PARTS, tiles // _LEAST_TILES) + 1):
        each = math.ceil(tiles / parts)
        if math.ceil(tiles / each) < parts:  # the last part would be empty
            continue
        rounds = math.ceil(tail * parts / cu_count)
        traffic = 2 * tail * parts * (PARTIAL_O_BYTES + PARTIAL_STATS_BYTES) / _BYTES_PER_TILE
        cost = rounds * (each + _WORKGROUP_TILES) + _MERGE_TILES + traffic
        if cost < best:
            best_parts, best = parts, cost
    return (blocks - tail, best_parts) if best_parts > 1 else (blocks, 1)


def plan_cdna3(problem: Problem, route: Route, device: DeviceInfo) -> LaunchPlan:
    """The pre-pass of V, the attention launch, and the merge of what is split.

    Raises:
        PlanError: the manifest lacks the pre-pass or the merge, or names another block of rows.
    """
    forward, prepass, merge = route.forward, route.value_prepass, route.merge
    if forward.rows != ROWS or forward.keys != KEYS or prepass is None or merge is None:
        raise PlanError(f"{forward.name}: the family 'cdna3' has {ROWS} rows, {KEYS} keys, a pre-pass and a merge")

    tiles = -(-problem.seqlen_k // KEYS)
    blocks = workgroups(problem, forward)
    # Lengths that only the device knows, and the triangle of a causal call, are no even rounds to begin with.
    even = not (problem.causal or problem.has_seqlens_k or problem.has_cu_seqlens or problem.batch_invariant)
    whole, parts = split_tail(blocks, tiles, device.cu_count) if even else (blocks, 1)
    split_workgroups = (blocks - whole) * parts

    value_tiles = problem.batch * problem.num_heads_kv * tiles
    partial_o = align_workspace(value_tiles * VALUE_TILE_BYTES)
    partial_stats = partial_o + align_workspace(split_workgroups * PARTIAL_O_BYTES)
    values: dict[str, Value] = {
        **arguments(problem),
        "value_tiles": Pointer("workspace"),
        "partial_o": Pointer("workspace", partial_o) if split_workgroups else 0,
        "partial_stats": Pointer("workspace", partial_stats) if split_workgroups else 0,
        "workgroups": whole + split_workgroups,
        "whole_blocks": whole,
        "num_splits": parts,
        "split_tiles": -(-tiles // parts),
        "xcds": device.xcd_count,
    }
    launches = [
        Launch(prepass, (value_tiles, 1, 1), values),
        Launch(forward, (whole + split_workgroups, 1, 1), values),
    ]
    if split_workgroups:
        launches.append(Launch(merge, ((blocks - whole) * MERGES_PER_BLOCK, 1, 1), values))
    return LaunchPlan(
        tuple(launches), workspace_bytes=align_workspace(partial_stats + split_workgroups * PARTIAL_STATS_BYTES)
    )
