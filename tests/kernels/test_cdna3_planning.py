"""The gfx942 family's plan: what is split and into what, the workspace's parts, and which calls reach the kernel at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moon_diffusers.errors import PlanError
from moon_diffusers.planning import DeviceInfo, LaunchPlan, Pointer, plan
from moon_diffusers.planning_cdna3 import MERGES_PER_BLOCK, PARTIAL_O_BYTES, VALUE_TILE_BYTES, split_tail
from moon_diffusers.problem import Problem
from moon_diffusers.routing import KernelSpec, Route, Target, route

DEVICE = DeviceInfo("gfx942", "test", 304, 8, 65536, 64, 0)
FEATURES = frozenset({"lse", "gqa", "causal", "seqlens_k", "cu_seqlens"})


def spec(name: str, **changes: object) -> KernelSpec:
    base = KernelSpec(
        name, "gfx942", "forward", "cdna3", 240, (512, 1, 1), "cdna3", rows=384, alignment=4, grid="linear",
        features=FEATURES, value_prepass="values", merge="merge", scales=(1e-18, 1e18),
    )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]


EXACT, LAZY = spec("exact"), spec("lazy", rescale="lazy")
GENERAL = spec("general", family="general", rows=128, alignment=2, value_prepass="", merge="", scales=(-1e300, 1e300))
VALUES, MERGE = spec("values", role="value_prepass"), spec("merge", role="merge")
TARGET = Target("gfx942", (EXACT, LAZY, VALUES, MERGE, GENERAL))


def problem(batch: int = 1, num_heads: int = 12, seqlen: int = 32760, **changes: object) -> Problem:
    strides = (seqlen * num_heads * 128, 128, num_heads * 128)
    base = Problem(
        batch, num_heads, num_heads, seqlen, seqlen, 128, "bfloat16", *[strides] * 4, softmax_scale=128**-0.5
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def name(call: Problem) -> str:
    chosen = route(call, TARGET)
    assert isinstance(chosen, Route)
    return chosen.forward.name


def planned(call: Problem, device: DeviceInfo = DEVICE) -> LaunchPlan:
    chosen = route(call, TARGET)
    assert isinstance(chosen, Route)
    return plan(call, chosen, device)


def test_each_call_reaches_its_kernel() -> None:
    assert name(problem()) == "exact"
    assert name(problem(rescale="lazy")) == "lazy"
    assert name(problem(causal=True, return_lse=True, has_seqlens_k=True, num_heads_kv=3)) == "exact"
    assert name(problem(alignment=2)) == "general"
    for scale in (0.0, -0.1, 1e-30, 1e30):
        assert name(problem(softmax_scale=scale)) == "general"


@pytest.mark.parametrize(
    ("batch", "num_heads", "seqlen", "parts"),
    # Wan 2.1 1.3B and 14B at 480p, 14B at 720p; one that was slower than its peer without a split.
    [(1, 12, 32760, 5), (1, 40, 32760, 3), (1, 40, 75600, 1), (4, 16, 16384, 19)],
)
def test_known_shapes(batch: int, num_heads: int, seqlen: int, parts: int) -> None:
    blocks = batch * num_heads * -(-seqlen // 384)
    whole, found = split_tail(blocks, -(-seqlen // 64), 304)
    assert found == parts
    assert whole == (blocks // 304 * 304 if parts > 1 else blocks)


@pytest.mark.parametrize("cu_count", [1, 2, 38, 80, 228, 304])
@pytest.mark.parametrize("tiles", [1, 7, 8, 63, 64, 512, 2048])
def test_split_covers_every_block_and_tile(cu_count: int, tiles: int) -> None:
    for blocks in (1, 2, 7, 37, 38, 39, 303, 304, 305, 911, 912, 1000):
        whole, parts = split_tail(blocks, tiles, cu_count)
        assert 0 <= whole <= blocks and parts >= 1
        if parts == 1:
            assert whole == blocks
            continue
        assert whole == blocks // cu_count * cu_count < blocks
        each = -(-tiles // parts)
        assert each >= 4 and (parts - 1) * each < tiles <= parts * each  # no part is empty
        rounds = -(-(blocks - whole) * parts // cu_count)
        assert rounds * each < tiles  # it pays before any overhead is counted


def test_launches_and_workspace() -> None:
    tiles, blocks = 512, 12 * 86
    plans = planned(problem())
    assert [launch.kernel.name for launch in plans.launches] == ["values", "exact", "merge"]
    values, forward, merge = plans.launches
    assert values.grid == (12 * tiles, 1, 1)
    tail = blocks - 912
    assert forward.grid == (912 + 5 * tail, 1, 1) and forward.values["whole_blocks"] == 912
    assert forward.values["num_splits"] == 5 and forward.values["split_tiles"] == 103
    assert merge.grid == (tail * MERGES_PER_BLOCK, 1, 1)
    partial_o, stats = forward.values["partial_o"], forward.values["partial_stats"]
    assert forward.values["value_tiles"] == Pointer("workspace")
    assert isinstance(partial_o, Pointer) and partial_o.offset == 12 * tiles * VALUE_TILE_BYTES
    assert isinstance(stats, Pointer) and stats.offset == partial_o.offset + 5 * tail * PARTIAL_O_BYTES
    assert plans.workspace_bytes == stats.offset + 5 * tail * 384 * 8


@pytest.mark.parametrize(
    "changes", [{"batch_invariant": True}, {"causal": True}, {"has_seqlens_k": True}, {"has_cu_seqlens": True}]
)
def test_calls_that_are_never_split(changes: dict[str, bool]) -> None:
    plans = planned(problem(**changes))
    assert [launch.kernel.name for launch in plans.launches] == ["values", "exact"]
    assert plans.workspace_bytes == 12 * 512 * VALUE_TILE_BYTES
    assert plans.launches[1].values["partial_o"] == 0


def test_a_manifest_without_the_helpers_is_refused() -> None:
    with pytest.raises(PlanError, match="a pre-pass and a merge"):
        plan(problem(), Route(EXACT), DEVICE)
