"""torch.compile of routed models: one graph, the same numbers, and masks still read at run time."""

from __future__ import annotations

import diffusers
import pytest
import torch

from moon_diffusers import MoonAttnProcessor, counters, restore, set_attn_processor

from .test_calls import Watcher
from .zoo import CASES, qwen_inputs, run, to_bf16, wan_inputs


@pytest.fixture(autouse=True)
def no_old_graphs():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


MODELS = ["wan", "wan i2v", "sd3", "cogview4", "qwen image, mask with gaps", "hunyuan video"]


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *[(name, "eager") for name in ("wan", "sd3", "qwen image, mask with gaps")],
        ("wan", "aot_eager"),
        *[pytest.param(name, "eager", marks=pytest.mark.slow) for name in ("wan i2v", "cogview4", "hunyuan video")],
        *[pytest.param(name, "aot_eager", marks=pytest.mark.slow) for name in MODELS[1:]],
    ],
)
def test_fullgraph(name, backend, kernel):
    case = CASES[name]
    model, inputs = case.make()
    plain = run(model, inputs)
    set_attn_processor(model, MoonAttnProcessor())
    eager = run(model, inputs)
    counters.reset_summary()
    out = run(torch.compile(model, backend=backend, fullgraph=True), inputs)
    assert counters.snapshot().num_served == case.served, counters.summary()
    torch.testing.assert_close(out.float(), eager.float(), atol=2e-2, rtol=2e-2)
    assert (out - plain).abs().max() < 0.1


@pytest.mark.skipif(not hasattr(torch.compiler, "is_exporting"), reason="this torch cannot tell an export")
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", ["wan", "mochi"])
def test_an_exported_model_keeps_the_kernel(name, strict, kernel):
    """Its parameters may want gradients then, and torch.export's own function modes are about: plain SDPA was exported."""
    case = CASES[name]
    model, inputs = case.make()
    plain = run(model, inputs)
    set_attn_processor(model, MoonAttnProcessor())
    program = torch.export.export(model, (), kwargs=inputs, strict=strict)
    counters.reset_summary()
    out = run(program.module(), inputs)
    assert counters.snapshot().num_served == case.served, counters.summary()
    assert (out - plain).abs().max() < 0.1


def test_restoring_recompiles(kernel):
    model, inputs = CASES["wan"].make()
    plain = run(model, inputs)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(run(compiled, inputs), plain)
    set_attn_processor(compiled, MoonAttnProcessor())
    run(compiled, inputs)
    assert counters.snapshot().num_served == 4
    restore(compiled)
    assert torch.equal(run(compiled, inputs), plain)
    assert counters.snapshot().num_served == 4


def test_dynamic_shapes(kernel):
    model, _ = CASES["wan"].make()
    set_attn_processor(model, MoonAttnProcessor())
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    for size in (8, 12):
        inputs = to_bf16({**wan_inputs(), "hidden_states": torch.randn(1, 4, 2, size, size)})
        eager = run(model, inputs)
        torch.testing.assert_close(run(compiled, inputs).float(), eager.float(), atol=2e-2, rtol=2e-2)


def test_a_mask_is_read_at_run_time_not_at_compile_time(kernel):
    if diffusers.__version__ < "0.37":
        pytest.skip("this diffusers hands the model's attention no mask")
    model, _ = CASES["qwen image"].make()
    set_attn_processor(model, MoonAttnProcessor())
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for mask in ([1, 1, 1, 0, 0, 0], [1, 0, 1, 0, 1, 1], [1, 1, 1, 1, 1, 0]):
        torch.manual_seed(0)
        inputs = to_bf16(qwen_inputs(mask))
        eager = run(model, inputs)
        torch.testing.assert_close(run(compiled, inputs).float(), eager.float(), atol=2e-2, rtol=2e-2)
        lengths = {key[1] for _, key in kernel.calls}
        assert lengths == {16 + sum(mask)}
        kernel.calls.clear()


@pytest.mark.parametrize("name", [pytest.param("qwen image", marks=pytest.mark.slow), "sd3"])
def test_other_function_modes_still_see_the_call(name, kernel):
    """Also where the mode and the call are traced together."""
    model, inputs = CASES[name].make()

    @torch.compile(backend="eager", fullgraph=True)
    def watched(**inputs):
        with Watcher():
            return model(**inputs)

    with torch.no_grad():
        wanted = watched(**inputs)[0]
        set_attn_processor(model, MoonAttnProcessor())
        torch._dynamo.reset()
        assert torch.equal(watched(**inputs)[0], wanted)
        assert counters.snapshot().num_served == 0
        if name == "sd3":  # torch cannot trace unflatten under its own device mode
            with torch.device("cpu"):
                torch.compile(model, backend="eager", fullgraph=True)(**inputs)
            assert counters.snapshot().num_served == CASES[name].calls


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wan", "sd3"])
def test_inductor(name, kernel):
    model, inputs = CASES[name].make()
    set_attn_processor(model, MoonAttnProcessor())
    eager = run(model, inputs)
    counters.reset_summary()
    out = run(torch.compile(model, fullgraph=True), inputs)
    assert counters.snapshot().num_served == CASES[name].served
    torch.testing.assert_close(out.float(), eager.float(), atol=5e-2, rtol=5e-2)
