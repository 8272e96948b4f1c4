"""Gates: each check passes and fails on the right side of its limit."""

from __future__ import annotations

import math

import pytest

from moon_diffusers.quality.gates import (
    Gate,
    attention_checks,
    finite_check,
    initial_check,
    latent_check,
    share_check,
)
from moon_diffusers.quality.metrics import LatentMetrics


def latents(relative_l2: float, nonfinite: int = 0) -> LatentMetrics:
    return LatentMetrics(relative_l2, relative_l2, nonfinite, relative_l2 == 0)


@pytest.mark.parametrize(
    ("error", "floor", "passed"),
    [(0.0, 1e-3, True), (2e-3, 1e-3, True), (2.01e-3, 1e-3, False), (math.inf, 1e-3, False), (0.0, 0.0, False),
     (1e-3, math.inf, False), (math.nan, 1e-3, False)],
)  # fmt: skip
def test_latent_check(error, floor, passed):
    assert latent_check(latents(error), latents(floor), 2.0).passed is passed


@pytest.mark.parametrize(
    ("served", "calls", "minimum", "passed"),
    [(10, 10, 1.0, True), (9, 10, 1.0, False), (9, 10, 0.9, True), (0, 0, 1.0, False), (0, 10, 0.0, False), (1, 10, 0.0, True)],
)  # fmt: skip
def test_share_check(served, calls, minimum, passed):
    assert share_check(served, calls, minimum).passed is passed


def test_finite_and_initial():
    assert finite_check(latents(0.1)).passed and not finite_check(latents(math.inf, 3)).passed
    assert (
        initial_check("ab", "ab").passed and not initial_check("ab", "cd").passed and not initial_check("", "").passed
    )


@pytest.mark.parametrize("kernel", [4.1e-3, math.inf, math.nan])
def test_attention_check_fails_on_the_worst_layer(kernel):
    (check,) = attention_checks({"a": (2e-3, 2e-3), "b": (kernel, 2e-3)}, 2.0)
    assert not check.passed and "b" in check.value
    (check,) = attention_checks({"a": (2e-3, 2e-3), "b": (3.9e-3, 2e-3)}, 2.0)
    assert check.passed


def test_attention_check_without_layers_is_no_check():
    assert attention_checks({}, 2.0) == []


def test_an_empty_gate_does_not_pass():
    assert not Gate(()).passed
    gate = Gate((share_check(1, 1, 1.0), share_check(0, 1, 1.0)))
    assert not gate.passed and len(gate.failures()) == 1
