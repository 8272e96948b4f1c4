"""diffusers' own model classes: routed output against the plain one, and who served which call."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import moon_diffusers
from moon_diffusers import counters
from moon_diffusers.integrations.diffusers import MoonAttnProcessor, routed_modules

from .zoo import CASES, CPU, run


def error(out: Tensor, wanted: Tensor) -> float:
    return float((out.double() - wanted.double()).norm() / wanted.double().norm())


@pytest.mark.parametrize("name", CASES)
def test_routed_output_is_the_plain_one_within_bf16_noise(name, kernel):
    case = CASES[name]
    model, inputs = case.make()
    plain = run(model, inputs)
    processors = dict(getattr(model, "attn_processors", {}))
    exact = run(model.float(), floats(inputs))
    model.bfloat16()

    moon_diffusers.set_attn_processor(model, MoonAttnProcessor())
    routed = run(model, inputs)
    counts = counters.snapshot()
    assert counts.num_served == case.served and counts.fallbacks == case.reasons, counts.line()
    assert counts.num_served + counts.num_fallbacks == case.calls
    assert routed.isfinite().all()
    # bf16's own distance from fp32 is the measure; the stand-in keeps more bits than torch does.
    assert error(routed, exact) <= 1.5 * error(plain, exact) + 1e-3
    if not case.served:
        assert torch.equal(routed, plain)

    moon_diffusers.restore(model)
    assert torch.equal(run(model, inputs), plain)
    assert all(model.attn_processors[key] is value for key, value in processors.items())


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.served])
def test_a_wrong_kernel_is_seen(name, kernel):
    """The comparison above can fail: the attention does reach these models' outputs."""
    case = CASES[name]
    model, inputs = case.make()
    plain = run(model, inputs)
    exact = run(model.float(), floats(inputs))
    model.bfloat16()
    moon_diffusers.set_attn_processor(model, MoonAttnProcessor())
    kernel.broken = True
    assert error(run(model, inputs), exact) > 1.5 * error(plain, exact) + 1e-3


@pytest.mark.parametrize("name", CASES)
def test_fallback_is_bit_identical(name):
    case = CASES[name]
    model, inputs = case.make()
    plain = run(model, inputs)
    moon_diffusers.set_attn_processor(model, MoonAttnProcessor())
    assert routed_modules(model)
    assert torch.equal(run(model, inputs), plain)
    assert counters.snapshot().fallbacks == {CPU: case.calls}


@pytest.mark.parametrize(
    ("name", "min_head_dim", "served"), [("cogvideox", 64, 1), ("ltx", 64, 1), ("pixart", 72, 1), ("ltx 2", 64, 6)]
)
def test_small_head_dims_are_padded_when_asked(name, min_head_dim, served, kernel):
    model, inputs = CASES[name].make()
    plain = run(model, inputs)
    exact = run(model.float(), floats(inputs))
    model.bfloat16()
    moon_diffusers.set_attn_processor(model, MoonAttnProcessor(min_head_dim=min_head_dim))
    routed = run(model, inputs)
    assert counters.snapshot().num_served == served
    assert error(routed, exact) <= 1.5 * error(plain, exact) + 1e-3


def floats(value):
    if isinstance(value, Tensor) and value.dtype == torch.bfloat16:
        return value.float()
    if isinstance(value, (list, tuple)):
        return type(value)(floats(item) for item in value)
    return {key: floats(item) for key, item in value.items()} if isinstance(value, dict) else value
