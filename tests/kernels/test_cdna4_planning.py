"""The gfx950 family's plan: which row blocks are split, and into what; and which calls reach the tuned kernel at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moon_diffusers.errors import PlanError
from moon_diffusers.planning import DeviceInfo, Pointer, plan
from moon_diffusers.planning_cdna4 import PARTIAL_BYTES, split
from moon_diffusers.problem import Problem
from moon_diffusers.routing import Fallback, KernelSpec, Route, Target, route

FEATURES = frozenset({"lse", "gqa", "causal", "seqlens_k", "cu_seqlens"})
DEVICE = DeviceInfo("gfx950", "test", 256, 8, 163840, 64, 0)


def spec(name: str, **changes: object) -> KernelSpec:
    base = KernelSpec(
        name, "gfx950", "forward", "cdna4", 240, (512, 1, 1), "cdna4", rescale="lazy", rows=384, alignment=16,
        row_strides=(128, 2**24 - 1), grid="linear", features=FEATURES, merge="merge",
    )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]


TUNED = spec("tuned")
PAGED = spec("paged", features=FEATURES | {"paged"})
GENERAL = spec("general", family="general", rescale="exact", rows=128, alignment=2, row_strides=(0, 2**62), merge="")
MERGE = spec("merge", role="merge", merge="")
TARGET = Target("gfx950", (TUNED, PAGED, MERGE, GENERAL))


def problem(**changes: object) -> Problem:
    base = Problem(
        1, 24, 24, 4096, 4096, 128, "bfloat16", *[(4096 * 24 * 128, 128, 24 * 128)] * 4, softmax_scale=128**-0.5
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def name(call: Problem) -> str:
    chosen = route(call, TARGET)
    return chosen.forward.name if isinstance(chosen, Route) else chosen.reason


def test_each_call_reaches_its_kernel() -> None:
    assert name(problem()) == "tuned"
    assert name(problem(causal=True, return_lse=True, has_cu_seqlens=True)) == "tuned"
    assert name(problem(rescale="exact")) == "general"
    assert name(problem(alignment=8)) == "general"
    assert name(problem(k_strides=(0, 128, 0))) == "general"  # expanded rows
    assert name(problem(v_strides=(2**40, 128, 2**24))) == "general"
    assert name(problem(seqlen_k=1, k_strides=(1, 1, 1), v_strides=(1, 1, 1))) == "tuned"
    assert name(problem(page_size=64, has_seqlens_k=True)) == "paged"
    assert name(problem(page_size=48)) == "page size 48 is not a power of two from 16 to 1024"
    assert name(problem(page_size=2048)).startswith("page size 2048")
    on_gfx942 = route(problem(page_size=64), Target("gfx942", (replace(GENERAL, arch="gfx942"),)))
    assert on_gfx942 == Fallback("no gfx942 kernel for paged")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tiles", [1, 3, 8, 64, 512, 2000])
@pytest.mark.parametrize("blocks", [1, 7, 100, 255, 256, 257, 1032, 7880])
def test_split_covers_all_blocks_and_never_costs_more(blocks: int, tiles: int, causal: bool) -> None:
    first, parts = split(blocks, tiles, 256, causal=causal)
    assert 0 <= first <= blocks and parts >= 1
    if parts == 1:
        assert first == blocks
        return
    assert blocks - first == blocks % 256  # whole rounds stay whole
    assert tiles // parts >= 4
    rounds = -(-(blocks - first) * parts // 256)
    assert rounds * -(-tiles // parts) < tiles
    assert not (causal and blocks > 256)


def test_split_known_cases() -> None:
    assert split(256, 512, 256, causal=False) == (256, 1)  # fills the device
    assert split(250, 512, 256, causal=False) == (250, 1)  # nearly fills it
    assert split(100, 512, 256, causal=False) == (0, 5)
    assert split(3440, 512, 256, causal=False) == (3328, 9)
    assert split(100, 8, 256, causal=False) == (100, 1)  # too short to cut
    assert split(300, 512, 256, causal=True) == (300, 1)


def test_plan_of_a_split_call() -> None:
    call = problem(num_heads=1, num_heads_kv=1, seqlen_q=500, seqlen_k=4096)
    made = plan(call, Route(TUNED, merge=MERGE), DEVICE)
    forward, merge = made.launches
    parts = forward.values["num_splits"]
    assert isinstance(parts, int) and parts > 1 and forward.values["first_split"] == 0
    assert forward.grid == (2 * parts, 1, 1) and merge.grid == (24, 1, 1)
    assert made.workspace_bytes >= 2 * parts * PARTIAL_BYTES
    assert forward.values["workspace"] == Pointer("workspace") and merge.values == forward.values


def test_plan_without_split_has_one_launch_and_no_workspace() -> None:
    made = plan(problem(num_heads=256, num_heads_kv=16, seqlen_q=384), Route(TUNED, merge=MERGE), DEVICE)
    assert len(made.launches) == 1 and made.workspace_bytes == 0
    assert made.launches[0].grid == (256, 1, 1) and made.launches[0].values["first_split"] == 256


def test_plan_of_packed_and_paged_calls() -> None:
    packed = plan(problem(has_cu_seqlens=True, total_q=5000), Route(TUNED, merge=MERGE), DEVICE).launches[0].values
    assert packed["lse_stride_batch"] == 0 and packed["lse_stride_head"] == 5000
    assert packed["cu_seqlens_k"] == Pointer("cu_seqlens_k") and packed["block_table"] == 0
    paged = plan(
        problem(page_size=256, block_table_stride=40, has_seqlens_k=True), Route(PAGED, merge=MERGE), DEVICE
    ).launches[0].values  # fmt: skip
    assert paged["page_shift"] == 8 and paged["block_table_stride"] == 40
    assert paged["block_table"] == Pointer("block_table")


def test_an_unused_row_stride_is_made_sane() -> None:
    values = plan(problem(seqlen_k=1, k_strides=(1, 1, 1)), Route(TUNED, merge=MERGE), DEVICE).launches[0].values
    assert values["k_stride_row"] == values["v_stride_row"] == 128


def test_a_manifest_without_the_merge_is_refused() -> None:
    with pytest.raises(PlanError, match="tuned: the family 'cdna4' has 384 rows a workgroup and a merge kernel"):
        plan(problem(), Route(TUNED), DEVICE)
