"""The Hopper family's plans: grids of persistent clusters, what is split, tensor maps, and which calls reach which kernel."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from moon_diffusers.errors import PlanError
from moon_diffusers.planning import DeviceInfo, LaunchPlan, Pointer, TensorMap, plan
from moon_diffusers.planning_sm90a import PARTIAL_BYTES, split
from moon_diffusers.problem import Problem
from moon_diffusers.routing import SLOWER, Fallback, KernelSpec, Route, Slower, Target, route

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "csrc" / "build"))

import targets

DEVICE = DeviceInfo("sm_90a", "test", 132, 1, 232448, 32, 0)
KERNEL = KernelSpec(
    "attention", "sm_90a", "forward", "sm90a", 576, (512, 1, 1), "sm90a", dynamic_lds=225808, cluster=2, rescale="lazy",
    rows=384, keys=80, alignment=16, strides=(0, 2**39 - 8), grid="linear",
    features=frozenset({"lse", "gqa", "causal", "seqlens_k", "cu_seqlens"}), merge="merge",
)  # fmt: skip
MERGE = KernelSpec("merge", "sm_90a", "merge", "sm90a", 576, (128, 1, 1))
TARGET = Target("sm_90a", (KERNEL, MERGE))


def problem(batch: int = 1, num_heads: int = 12, seqlen: int = 32760, **changes: object) -> Problem:
    strides = (seqlen * num_heads * 128, 128, num_heads * 128)
    base = Problem(
        batch, num_heads, num_heads, seqlen, seqlen, 128, "bfloat16", *[strides] * 4, softmax_scale=128**-0.5
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def planned(call: Problem, device: DeviceInfo = DEVICE) -> LaunchPlan:
    chosen = route(call, TARGET)
    assert isinstance(chosen, Route)
    return plan(call, chosen, device)


def reason(call: Problem, kernel: KernelSpec = KERNEL, **options: bool) -> str:
    outcome = route(call, Target("sm_90a", (kernel, MERGE), **options))  # type: ignore[arg-type]
    return outcome.reason if isinstance(outcome, Fallback) else ""


def test_persistent_clusters_and_the_tail() -> None:
    # 1032 row blocks are 15 rounds of 66 clusters and 42 more.
    forward, merge = planned(problem()).launches
    assert forward.grid == (132, 1, 1) and forward.dynamic_lds == 225808
    assert forward.values["first_split"] == 990
    parts = forward.values["num_splits"]
    assert isinstance(parts, int) and parts > 1
    assert merge.grid == (42 * 6, 1, 1) and merge.kernel is MERGE and merge.dynamic_lds == 0
    assert forward.values["workspace"] == Pointer("workspace")
    assert planned(problem()).workspace_bytes == 42 * parts * 6 * PARTIAL_BYTES == 42 * parts * 208_896


def test_single_blocks_are_planned_alike() -> None:
    solo = replace(KERNEL, name="solo", cluster=1, rows=192)
    launches = plan(problem(seqlen=4608, num_heads=24), Route(solo, merge=MERGE), DEVICE).launches
    # 576 row blocks are 4 rounds of 132 blocks and 48 more.
    assert launches[0].grid == (132, 1, 1) and launches[0].values["first_split"] == 528
    assert launches[1].grid == (48 * 3, 1, 1)


@pytest.mark.parametrize(
    ("limit", "large", "small"),
    [
        ({"least_keys": 40_000}, {"seqlen_k": 40_000}, {"seqlen_k": 39_999}),
        ({"least_row_blocks": 24}, {"seqlen_q": 385}, {"seqlen_q": 384}),
    ],
)
def test_the_kernel_for_large_calls_serves_them_and_others_where_it_is_alone(
    limit: dict[str, int], large: dict[str, int], small: dict[str, int]
) -> None:
    big = replace(KERNEL, name="big", **limit)  # type: ignore[arg-type]
    for call, name in ((large, "big"), (small, "attention")):
        outcome = route(problem(**call), Target("sm_90a", (big, KERNEL, MERGE)))
        assert isinstance(outcome, Route) and outcome.forward.name == name
    outcome = route(problem(**small), Target("sm_90a", (big, MERGE)))
    assert isinstance(outcome, Route) and outcome.forward.name == "big"


def test_a_small_grid_has_no_idle_clusters() -> None:
    (launch,) = planned(problem(num_heads=3, seqlen=384)).launches
    assert launch.grid == (6, 1, 1)
    assert launch.values["workspace"] == 0 and launch.values["num_splits"] == 1 and launch.values["first_split"] == 3
    assert planned(problem(num_heads=3, seqlen=384)).workspace_bytes == 0
    # Parts are work too: 22 row blocks in 3 parts each fill all clusters.
    split_launch = planned(problem(num_heads=1, seqlen=8192)).launches[0]
    assert split_launch.values["num_splits"] == 3 and split_launch.values["first_split"] == 0
    assert split_launch.grid == (132, 1, 1)
    # What the device runs at once is asked of the driver where there is one.
    (few,) = planned(problem(num_heads=3, seqlen=384), replace(DEVICE, clusters=2)).launches
    assert few.grid == (4, 1, 1)


@pytest.mark.parametrize("clusters", [1, 2, 39, 57, 66])
@pytest.mark.parametrize("tiles", [1, 7, 8, 63, 410, 1489])
def test_split_covers_every_block_and_tile(clusters: int, tiles: int) -> None:
    for blocks in (1, 2, 7, 38, 39, 57, 65, 66, 67, 131, 132, 133, 1000):
        whole, parts = split(blocks, tiles, clusters, 6 * PARTIAL_BYTES)
        assert 0 <= whole <= blocks and parts >= 1
        if parts == 1:
            assert whole == blocks
            continue
        assert whole == blocks // clusters * clusters < blocks
        each = -(-tiles // parts)
        assert each >= 4 and (parts - 1) * each < tiles <= parts * each  # no part is empty
        assert -(-(blocks - whole) * parts // clusters) * each < tiles  # it pays before any overhead is counted


@pytest.mark.parametrize(
    "changes",
    [{"causal": True}, {"has_seqlens_k": True}, {"has_cu_seqlens": True, "total_q": 9, "total_k": 9}],
)
def test_uneven_calls_are_split_on_an_idle_device_only(changes: dict[str, object]) -> None:
    assert len(planned(problem(**changes)).launches) == 1
    few = problem(num_heads=1, seqlen=8192, **changes)
    assert len(planned(few).launches) == 2
    assert len(planned(replace(few, batch_invariant=True)).launches) == 1


@pytest.mark.parametrize(
    ("keys", "name"),
    [(64, "short"), (77, "attention"), (128, "short"), (257, "attention"), (512, "short"), (8192, "attention")],
)
def test_tiles_that_end_with_the_keys_are_preferred(keys: int, name: str) -> None:
    short = replace(KERNEL, name="short", cluster=1, rows=192, keys=64, key_cost=1.05)
    target = Target("sm_90a", (replace(KERNEL, key_cost=1.0), short, MERGE))
    outcome = route(problem(seqlen_k=keys), target)
    assert isinstance(outcome, Route) and outcome.forward.name == name
    maps = plan(problem(seqlen_k=keys), outcome, DEVICE).launches[0].values
    assert isinstance(maps["k_map"], TensorMap) and maps["k_map"].box == (64, outcome.forward.keys, 1, 1)


def test_maps_are_the_tensors() -> None:
    call = problem(batch=2, num_heads=12, seqlen=1000, num_heads_kv=3, seqlen_k=77)
    values = planned(replace(call, k_strides=(5000 * 8, 384, 392))).launches[0].values
    assert values["q_map"] == TensorMap("q", (128, 1000, 12, 2), (3072, 256, 3_072_000), (64, 64, 1, 1))
    assert values["k_map"] == TensorMap("k", (128, 77, 3, 2), (784, 768, 80_000), (64, 80, 1, 1))
    assert isinstance(values["v_map"], TensorMap) and values["v_map"].buffer == "v"


def test_strides_of_a_single_element_are_legal_ones() -> None:
    odd = (3, 5, 7)
    one = problem(1, 1, 1, q_strides=odd, k_strides=odd, v_strides=odd)
    for name in ("q_map", "k_map", "v_map"):
        item = planned(one).launches[0].values[name]
        assert isinstance(item, TensorMap) and item.strides == (256, 256, 256) and item.dims == (128, 1, 1, 1)


def test_packed_sequences_are_one_entry_with_all_rows() -> None:
    call = problem(batch=5, seqlen=100, has_cu_seqlens=True, total_q=301, total_k=77, q_strides=(0, 128, 1536))
    values = planned(call).launches[0].values
    assert values["q_map"] == TensorMap("q", (128, 301, 12, 1), (3072, 256, 256), (64, 64, 1, 1))
    assert isinstance(values["k_map"], TensorMap) and values["k_map"].dims == (128, 77, 12, 1)
    with pytest.raises(PlanError, match="301 rows and 0 keys together"):
        planned(replace(call, total_k=0))


def test_what_no_map_describes_falls_back() -> None:
    text = "strides of q, k or v that no kernel takes"
    far = (2**39, 128, 1536)
    assert reason(problem(batch=2, v_strides=far)) == text
    assert reason(problem(batch=1, v_strides=far)) == ""
    assert reason(problem(batch=2, q_strides=(2**39 - 8, 128, 1536))) == ""
    # Packed sequences have one batch entry, whatever the stride says.
    assert reason(problem(batch=2, has_cu_seqlens=True, total_q=9, total_k=9, k_strides=far)) == ""
    assert reason(problem(batch=2, k_strides=(0, 128, 1536))) == ""
    assert reason(problem(batch=2, k_strides=(0, 128, 1536)), replace(KERNEL, strides=(8, 2**39 - 8))) == text
    assert reason(problem(alignment=8)) == "tensors aligned to 8 bytes only"


def test_a_manifest_of_another_shape_is_refused() -> None:
    for kernel, merge in (
        (KERNEL, None),
        (replace(KERNEL, rows=192), MERGE),
        (replace(KERNEL, cluster=1), MERGE),
    ):
        with pytest.raises(PlanError, match="the family 'sm90a' has 192 rows a block and a merge"):
            plan(problem(), Route(kernel, merge=merge), DEVICE)


@pytest.mark.parametrize(
    ("rule", "covered", "others"),
    [
        (Slower(keys_below=512), {"seqlen_k": 511}, {"seqlen_k": 512}),
        (Slower(keys_from=81, keys_below=129), {"seqlen_k": 128}, {"seqlen_k": 80}),
        (Slower(keys_from=81, keys_below=129), {"seqlen_k": 81}, {"seqlen_k": 129}),
        (Slower(rows_below=512), {"seqlen_q": 511}, {"seqlen_q": 512}),
        (Slower(row_blocks_below=12), {"seqlen_q": 384, "num_heads": 11}, {"seqlen_q": 384}),
        (Slower(scores_below=12 * 32760), {"seqlen_q": 1, "seqlen_k": 32759}, {"seqlen_q": 1}),
        (Slower(causal=True), {"causal": True}, {"causal": False}),
        (Slower(causal=False), {"causal": False}, {"causal": True}),
        (Slower(keys_below=512, rows_below=99), {"seqlen_k": 2, "seqlen_q": 1}, {"seqlen_k": 2}),
    ],
)
def test_slower_calls_are_left_to_torch(rule: Slower, covered: dict[str, int], others: dict[str, int]) -> None:
    kernel = replace(KERNEL, slower=(Slower(keys_below=2), rule))
    assert reason(problem(**covered), kernel) == SLOWER
    assert reason(problem(**others), kernel) == ""
    assert reason(problem(**covered, forced=True), kernel) == ""
    assert reason(problem(**covered), kernel, forced=True) == ""
    # Another kernel that does not know better may still serve.
    outcome = route(problem(**covered), Target("sm_90a", (kernel, replace(KERNEL, name="other"), MERGE)))
    assert isinstance(outcome, Route) and outcome.forward.name == "other"


#: Kernels' work on an H200, by heads, rows and keys, beside what a call costs the host there: 65 us, torch's 32.
MEASURED = [
    # Self- and cross-attention of Wan2.1 and Flux.
    (12, 32760, 32760, True), (12, 32760, 512, True), (40, 32760, 257, True), (24, 4608, 4608, True),
    # 65 us of work: 1.19 or 0.84 of cuDNN's speed, as the host happens to be.
    (12, 32760, 77, False), (40, 32760, 77, True),
    # cuDNN does them in one tile.
    (12, 32760, 128, False), (12, 32760, 129, True),
    # The host decides.
    (12, 2048, 2048, False), (12, 8192, 512, False), (1, 8192, 8192, False), (12, 4096, 4096, True),
]  # fmt: skip


@pytest.mark.parametrize(("heads", "rows", "keys", "served"), MEASURED)
def test_the_measured_rules(heads: int, rows: int, keys: int, served: bool) -> None:
    rules = tuple(Slower(**rule) for rule in targets.HOPPER_SLOWER)  # type: ignore[arg-type]
    call = problem(num_heads=heads, num_heads_kv=heads, seqlen=rows, seqlen_k=keys)
    assert reason(call, replace(KERNEL, slower=rules)) == ("" if served else SLOWER)
