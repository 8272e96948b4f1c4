"""A small Wan transformer of diffusers on the device under test, with torch SDPA and with the kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import moon_diffusers
from moon_diffusers.end_to_end import rounds, step, wan
from moon_diffusers.end_to_end.video import measure_video
from moon_diffusers.evidence.budget import Budget

from .machine import MACHINE

SIZE = MACHINE.pick(wan.Size("small", num_heads=6, num_layers=3, ffn_dim=1024, text_dim=256), wan.SIZES["tiny"])
VIDEO = MACHINE.pick(wan.Resolution("small", 416, 240, frames=21), wan.RESOLUTIONS["tiny"])
CALLS = 2 * SIZE.num_layers


def setup(**changes: Any) -> step.Setup:
    method = rounds.Method(1, 1, 0.0, 0.0)
    emulate = {} if MACHINE.gpu else {"emulate": MACHINE.arch}
    given = {"sdpa": "default"} | emulate | changes
    return step.Setup(MACHINE.device, rounds.HostClock(), None, None, method, Budget(None), **given)


def difference_from_torch(mode: str, **changes: Any) -> step.Row:
    torch.use_deterministic_algorithms(False)
    model = wan.build(SIZE, None, MACHINE.device)
    row = step.measure_step(model, SIZE, VIDEO, mode, setup(**changes))
    assert row.note == "", row.note
    # Two attention layers that differ by bf16 rounding, in each of the blocks.
    assert row.difference is not None and 0 < row.difference < 8e-3
    return row


def test_every_call_runs_on_the_kernel() -> None:
    row = difference_from_torch("eager")
    assert row.served == 3 * CALLS and row.fallbacks == 0, row.summary


def test_self_attention_alone() -> None:
    row = difference_from_torch("eager", self_only=True)
    assert row.served == 3 * CALLS // 2 and row.fallbacks == 0, row.summary


@pytest.mark.gpu
def test_compiled() -> None:
    row = difference_from_torch("compile")
    assert row.served >= 3 * CALLS and row.fallbacks == 0, row.summary


def test_a_whole_pipeline() -> None:
    torch.use_deterministic_algorithms(False)
    model = wan.build(SIZE, None, MACHINE.device)
    row = measure_video(model, SIZE, VIDEO, setup(), None, steps=2)
    assert row["note"] == "" and row["fallbacks"] == 0 and row["served"] == 2 * 2 * CALLS
    assert 0 < row["difference"] < 0.05


@pytest.mark.gpu
def test_a_whole_model_in_a_cuda_graph() -> None:
    torch.use_deterministic_algorithms(False)
    model = wan.build(SIZE, None, MACHINE.device)
    moon_diffusers.set_attn_processor(model, moon_diffusers.MoonAttnProcessor(strict=True))
    inputs = wan.inputs(model, VIDEO, MACHINE.device)
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                model(**inputs)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = model(**inputs)[0]
        for seed in (5, 6):
            fresh = wan.inputs(model, VIDEO, MACHINE.device, seed)
            for name in ("hidden_states", "encoder_hidden_states"):
                inputs[name].copy_(fresh[name])
            graph.replay()
            torch.cuda.synchronize()
            # Bits may differ where a library chooses other products under capture; old inputs would give about 1.
            assert rounds.difference(model(**fresh)[0], captured) < 1e-3
