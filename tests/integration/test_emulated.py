"""The models' attention as machine code: the compiled kernels run in the emulator, through the same corridor as on a GPU."""

from __future__ import annotations

import pytest
import torch

import moon_diffusers
from moon_diffusers import MoonAttnProcessor, counters
from moon_diffusers.errors import LibraryError

from .test_models import error, floats
from .zoo import CASES, run


@pytest.fixture(params=["gfx942", "gfx950"])
def arch(request):
    try:
        with moon_diffusers.emulate(request.param):
            yield request.param
    except LibraryError as missing:
        pytest.skip(f"not built: {missing}")


EVERYWHERE = ("wan", "sd3", "qwen image, mask with gaps", "hunyuan video 1.5", "lumina2")


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.served])
def test_models_run_on_the_code_object(name, arch, request):
    if arch != "gfx942" and name not in EVERYWHERE and not request.config.getoption("--run-slow"):
        pytest.skip("slow: run with --run-slow")
    case = CASES[name]
    model, inputs = case.make()
    plain = run(model, inputs)
    exact = run(model.float(), floats(inputs))
    model.bfloat16()
    moon_diffusers.set_attn_processor(model, MoonAttnProcessor())
    routed = run(model, inputs)
    counts = counters.snapshot()
    assert counts.num_served == case.served and counts.fallbacks == case.reasons, counts.line()
    assert all(label.startswith(arch) and "emulated" in label for label in counts.served)
    assert error(routed, exact) <= 1.5 * error(plain, exact) + 1e-3


def test_a_compiled_model_runs_on_the_code_object(arch):
    torch._dynamo.reset()
    case = CASES["wan"]
    model, inputs = case.make()
    moon_diffusers.set_attn_processor(model, MoonAttnProcessor(strict=True))
    eager = run(model, inputs)
    compiled = run(torch.compile(model, backend="aot_eager", fullgraph=True), inputs)
    assert counters.snapshot().num_served == 2 * case.calls
    torch.testing.assert_close(compiled.float(), eager.float(), atol=2e-2, rtol=2e-2)
