"""Where `generate` runs unless it is told: on a GPU that the kernels are made for, else in the emulator; who counts there."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from moon_diffusers.generation import place as module
from moon_diffusers.generation.kernel import Routing, kernel_attention
from moon_diffusers.generation.settings import GenerateError, Settings


@pytest.mark.parametrize(
    ("hip", "capability", "gpu"),
    [("7.2", (9, 4), True), (None, (9, 0), True), (None, (8, 9), False), (None, (10, 0), False)],
)
def test_the_gpu_is_taken_where_a_kernel_serves_it(monkeypatch, hip, capability, gpu):
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch, "empty", lambda *a, **k: None)
    monkeypatch.delenv("MOON_EMULATE", raising=False)
    settings = Settings(model="a model", prompt="a heron")
    if gpu:
        assert module.place(settings, None, None, is_sample=True).device == "cuda"
    else:
        with pytest.raises(GenerateError, match="torch sees no AMD or Hopper GPU"):
            module.place(settings, None, None, is_sample=False)


def test_calls_left_to_a_faster_torch_do_not_lower_the_share():
    slower = "slower than torch's own kernel here"
    assert Routing({"a": 3}, {slower: 5}).share == 1.0 and Routing({"a": 3}, {slower: 5}).calls == 8
    assert Routing({"a": 3}, {slower: 5, "additive mask": 1}).share == 0.75
    assert Routing({}, {slower: 5}).share == 0.0


@pytest.mark.parametrize("given", [None, "0"])
def test_the_kernel_is_compared_even_where_torch_is_faster(monkeypatch, given):
    monkeypatch.delenv("MOON_FORCE", raising=False)
    if given is not None:
        monkeypatch.setenv("MOON_FORCE", given)
    pipe = SimpleNamespace(set_attn_processor=lambda processor: None)
    monkeypatch.setattr("moon_diffusers.restore", lambda pipe: None)
    with kernel_attention(pipe, Settings(model="a model", prompt="a heron")):
        assert os.environ["MOON_FORCE"] == (given or "1")
    assert os.environ.get("MOON_FORCE") == given
