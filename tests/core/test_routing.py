"""Routing and planning: pure functions, so every decision is a line here."""

from dataclasses import replace

import pytest

from moon_diffusers.errors import PlanError
from moon_diffusers.planning import DeviceInfo, Pointer, align_workspace, plan
from moon_diffusers.problem import Problem
from moon_diffusers.routing import FEATURES, Fallback, KernelSpec, Route, Target, needed_features, route

STRIDES = (100 * 4 * 128, 128, 512)
PROBLEM = Problem(
    batch=2,
    num_heads=4,
    num_heads_kv=4,
    seqlen_q=100,
    seqlen_k=77,
    head_dim=128,
    dtype="bfloat16",
    q_strides=STRIDES,
    k_strides=STRIDES,
    v_strides=STRIDES,
    o_strides=STRIDES,
    softmax_scale=0.5,
)
KERNEL = KernelSpec("plain", "gfx942", "forward", "forward", 216, (256, 1, 1), rows=64)
INFO = DeviceInfo("gfx942", "a GPU", 304, 8, 65536, 64, 7)


def target(*kernels: KernelSpec, **options) -> Target:
    return Target("gfx942", kernels, **options)


def reason(problem: Problem, chosen: Target) -> str:
    outcome = route(problem, chosen)
    assert isinstance(outcome, Fallback)
    return outcome.reason


def name(problem: Problem, chosen: Target) -> str:
    outcome = route(problem, chosen)
    assert isinstance(outcome, Route), outcome
    return outcome.forward.name


def test_the_first_that_fits():
    other = replace(KERNEL, name="other")
    assert name(PROBLEM, target(KERNEL, other)) == "plain"
    assert name(PROBLEM, target(KERNEL, other, disabled=frozenset({"plain"}))) == "other"
    assert name(PROBLEM, target(replace(KERNEL, rounding="rtz"), other)) == "other"


def test_rescale_policies():
    lazy, exact = replace(KERNEL, name="lazy", rescale="lazy"), replace(KERNEL, name="exact")
    assert name(PROBLEM, target(lazy, exact)) == "lazy"
    assert name(PROBLEM, target(exact, lazy)) == "exact"
    assert name(PROBLEM, target(lazy)) == "lazy"
    assert name(replace(PROBLEM, rescale="lazy"), target(lazy, exact)) == "lazy"
    assert reason(replace(PROBLEM, rescale="exact"), target(lazy)) == "no gfx942 kernel rescales by exact"


NEEDS = {
    "lse": {"return_lse": True},
    "gqa": {"num_heads_kv": 2},
    "causal": {"causal": True},
    "seqlens_k": {"has_seqlens_k": True},
    "cu_seqlens": {"has_cu_seqlens": True},
    "paged": {"page_size": 64},
}


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_must_be_declared(feature):
    problem = replace(PROBLEM, **NEEDS[feature])
    assert needed_features(problem) == {feature}
    able = replace(KERNEL, name="able", features=frozenset({feature}))
    assert reason(problem, target(KERNEL)) == f"no gfx942 kernel for {feature}"
    assert name(problem, target(KERNEL, able)) == "able"
    assert name(PROBLEM, target(KERNEL, able)) == "plain"


def test_a_kernel_that_requires_a_feature_serves_nothing_else():
    paged = replace(KERNEL, name="paged", features=frozenset({"paged", "lse"}), requires=frozenset({"paged"}))
    assert reason(PROBLEM, target(paged)) == "no gfx942 kernel for dense calls"
    assert name(PROBLEM, target(paged, KERNEL)) == "plain"
    assert name(replace(PROBLEM, page_size=64, return_lse=True), target(paged, KERNEL)) == "paged"


@pytest.mark.parametrize(
    "change, expected",
    [
        ({"dtype": "float16"}, "dtype float16 is not bfloat16"),
        ({"head_dim": 64}, "head_dim 64 is not 128"),
        ({"rounding": "rtz"}, "no gfx942 kernel rounds by rtz"),
        ({"page_size": 24}, "page size 24 is not a power of two from 16 to 1024"),
        ({"batch": 65536}, "more than 65535 heads or batch entries"),
        ({"num_heads": 65536, "num_heads_kv": 65536}, "more than 65535 heads or batch entries"),
        ({"seqlen_k": 2**31}, "a sequence of 2^30 rows or more"),
        ({"seqlen_q": 2**29}, "more threads than a launch can have"),
    ],
)
def test_refusals(change, expected):
    assert reason(replace(PROBLEM, **change), target(KERNEL)) == expected


def test_no_kernels_at_all():
    assert reason(PROBLEM, target()) == "no kernel for gfx942"
    assert reason(PROBLEM, target(replace(KERNEL, role="merge"))) == "no kernel for gfx942"


def test_row_strides():
    near = replace(KERNEL, name="near", row_strides=(128, 512))
    assert name(PROBLEM, target(near)) == "near"
    far = replace(PROBLEM, v_strides=(STRIDES[0], 128, 513))
    assert name(far, target(near, KERNEL)) == "plain"
    assert reason(far, target(near)) == "row strides of k or v that no kernel takes"
    assert name(replace(far, seqlen_k=1), target(near)) == "near"


def test_alignment():
    wide, narrow = replace(KERNEL, name="wide", alignment=16), replace(KERNEL, name="narrow")
    assert name(PROBLEM, target(wide, narrow)) == "wide"
    assert name(replace(PROBLEM, alignment=4), target(wide, narrow)) == "narrow"
    assert reason(replace(PROBLEM, alignment=4), target(wide)) == "tensors aligned to 4 bytes only"


def test_helpers_must_be_there_and_sound():
    prepass = KernelSpec("prepass", "gfx942", "value_prepass", "forward", 216, (256, 1, 1))
    tuned = replace(KERNEL, name="tuned", value_prepass="prepass")
    outcome = route(PROBLEM, target(tuned, KERNEL, prepass))
    assert isinstance(outcome, Route) and outcome.value_prepass is prepass
    assert name(PROBLEM, target(tuned, KERNEL)) == "plain"
    assert name(PROBLEM, target(tuned, KERNEL, prepass, disabled=frozenset({"prepass"}))) == "plain"


def test_work_limit():
    slow = target(KERNEL, scores_per_second=1000.0, work_limit=60.0)
    outcome = route(PROBLEM, slow)
    assert isinstance(outcome, Fallback)
    assert outcome.reason == "too much work for the emulator"
    assert "about 62 s, the limit is 60 s" in outcome.detail and "MOON_EMULATION_LIMIT" in outcome.detail
    assert name(PROBLEM, replace(slow, work_limit=62.0)) == "plain"
    assert name(PROBLEM, replace(slow, work_limit=0.0)) == "plain"


def test_plan_of_the_general_family():
    problem = replace(PROBLEM, return_lse=True)
    (launch,) = plan(problem, Route(KERNEL), INFO).launches
    assert launch.grid == (2, 4, 2)
    (linear,) = plan(problem, Route(replace(KERNEL, grid="linear")), INFO).launches
    assert linear.grid == (16, 1, 1)
    assert launch.values["lse"] == Pointer("lse") and launch.values["seqlens_k"] == 0
    assert launch.values["lse_stride_batch"] == 400 and launch.values["lse_stride_head"] == 100
    assert plan(PROBLEM, Route(KERNEL), INFO).launches[0].values["lse"] == 0
    assert launch.values["softmax_scale"] == 0.5


def test_what_no_planner_knows_is_an_error():
    for kernel, message in (
        (replace(KERNEL, family="odd"), "no planner for the family 'odd'"),
        (replace(KERNEL, grid="odd"), "unknown grid 'odd'"),
    ):
        with pytest.raises(PlanError, match=message):
            plan(PROBLEM, Route(kernel), INFO)
    with pytest.raises(PlanError, match="neither a pre-pass nor a merge"):
        plan(PROBLEM, Route(KERNEL, value_prepass=KERNEL), INFO)


def test_workspace_alignment():
    assert [align_workspace(size) for size in (0, 1, 256, 257)] == [0, 256, 256, 512]
