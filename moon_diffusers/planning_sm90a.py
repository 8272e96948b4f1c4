"""The launches of the sm_90a family: persistent clusters of one or two blocks, whose last row blocks may be split."""

from __future__ import annotations

from .errors import PlanError
from .planning import DeviceInfo, Launch, LaunchPlan, Pointer, TensorMap, Value, align_workspace, arguments
from .problem import HEAD_DIM, Problem, Strides
from .routing import Route, workgroups

#: Query rows of a block, of the warpgroups of which each has 64.
BLOCK_ROWS = 192
#: Rows of one copy of q, those of a warpgroup; one of k or v is a tile of keys.
QUERY_BOX = 64
#: A copy takes half of the head dim: 128 bytes, the swizzle's width.
BOX_DIMS = HEAD_DIM // 2
ELEMENT_BYTES = 2

#: Bytes of one split part's results a warpgroup: O, and a row sum and a reference twice for each thread, fp32.
PARTIAL_BYTES = (QUERY_BOX * HEAD_DIM + 4 * 128) * 4

# The cost model, in the time of one 80-key tile of a block: 7.9 MFLOP, 1.4 us where 132 of them compute 730 TFLOP/s.
_WORK_TILES = 2.0  # a work item's first loads until the first tile, and its rows' store
_MERGE_TILES = 4.0  # the merge's launch and its tail
_BYTES_PER_TILE = 5e6  # what the memory carries in that time, partials written and read again
_LEAST_TILES = 4  # a shorter part is not worth its start
_MOST_PARTS = 32


def plan_sm90a(problem: Problem, route: Route, device: DeviceInfo) -> LaunchPlan:
    """One forward launch, and a merge behind it where row blocks are split.

    Raises:
        PlanError: the manifest names another block of rows or keys, another cluster, or no merge.
    """
    forward, merge = route.forward, route.merge
    if forward.rows != BLOCK_ROWS * forward.cluster or merge is None:
        raise PlanError(f"{forward.name}: the family 'sm90a' has {BLOCK_ROWS} rows a block and a merge")
    clusters = device.clusters or max(device.cu_count // forward.cluster, 1)
    blocks = workgroups(problem, forward)
    tiles = -(-problem.seqlen_k // forward.keys)
    # Blocks of unequal lengths fill the device by themselves, once there are enough of them.
    uneven = problem.causal or problem.has_seqlens_k or problem.has_cu_seqlens
    part_bytes = forward.rows // QUERY_BOX * PARTIAL_BYTES
    first_split, parts = blocks, 1
    if not problem.batch_invariant and not (uneven and blocks > clusters):
        first_split, parts = split(blocks, tiles, clusters, part_bytes)

    split_blocks = blocks - first_split
    work = first_split + split_blocks * parts
    values: dict[str, Value] = {
        **arguments(problem),
        **tensor_maps(problem, forward.keys),
        "first_split": first_split,
        "num_splits": parts,
        "workspace": Pointer("workspace") if parts > 1 else 0,
    }
    grid = (forward.cluster * min(work, clusters), 1, 1)
    launches = [Launch(forward, grid, values, forward.dynamic_lds)]
    if parts > 1:
        launches.append(Launch(merge, (split_blocks * (forward.rows // QUERY_BOX), 1, 1), values, merge.dynamic_lds))
    return LaunchPlan(
        tuple(launches), workspace_bytes=align_workspace(split_blocks * parts * part_bytes) if parts > 1 else 0
    )


def split(blocks: int, tiles: int, clusters: int, part_bytes: int) -> tuple[int, int]:
    """How to cut the keys of the row blocks that do not fill a last round of clusters.

    A cluster computes one row block at a time, so `blocks` equal ones take whole rounds of `clusters`, the last with idle
    ones. Its blocks may be cut into parts that fill them; the parts' fp32 results are then merged.

    Args:
        blocks: row blocks, all heads and batch entries.
        tiles: tiles of keys of a block.
        clusters: those that run at once.
        part_bytes: what one part of a row block leaves for the merge.

    Returns:
        row blocks left whole, the first ones, and parts of each of the others; `(blocks, 1)` where a cut does not pay.
    """
    tail = blocks % clusters
    if tail == 0:
        return blocks, 1
    best_parts, best = 1, tiles + _WORK_TILES
    for parts in range(2, min(_MOST_PARTS, tiles // _LEAST_TILES) + 1):
        each = -(-tiles // parts)
        rounds = -(-tail * parts // clusters)
        traffic = 2 * tail * parts * part_bytes / _BYTES_PER_TILE
        # Parts of which the last would be empty lose to fewer of the same size.
        cost = rounds * (each + _WORK_TILES) + _MERGE_TILES + traffic
        if cost < best:
            best_parts, best = parts, cost
    return (blocks - tail, best_parts) if best_parts > 1 else (blocks, 1)


def tensor_maps(problem: Problem, keys: int) -> dict[str, Value]:
    """q, k and v as (head dim, rows, heads, batch entries); packed sequences are one entry with all rows.

    Args:
        keys: of a tile.
    """
    packed = problem.has_cu_seqlens
    batch = 1 if packed else problem.batch
    rows_q, rows_k = (problem.total_q, problem.total_k) if packed else (problem.seqlen_q, problem.seqlen_k)
    if min(rows_q, rows_k) < 1:
        raise PlanError(f"{problem.shape_text()}: packed sequences of {rows_q} rows and {rows_k} keys together")
    return {
        "q_map": _map("q", rows_q, problem.num_heads, batch, problem.q_strides, QUERY_BOX),
        "k_map": _map("k", rows_k, problem.num_heads_kv, batch, problem.k_strides, keys),
        "v_map": _map("v", rows_k, problem.num_heads_kv, batch, problem.v_strides, keys),
    }


def _map(buffer: str, rows: int, heads: int, batch: int, strides: Strides, box_rows: int) -> TensorMap:
    stride_batch, stride_head, stride_row = strides
    dims = (rows, heads, batch)
    # A stride that nothing uses may be anything in torch, but not in a map.
    steps = tuple(
        stride * ELEMENT_BYTES if length > 1 else HEAD_DIM * ELEMENT_BYTES
        for length, stride in zip(dims, (stride_row, stride_head, stride_batch), strict=True)
    )
    return TensorMap(buffer, (HEAD_DIM, *dims), steps, (BOX_DIMS, box_rows, 1, 1))
