"""Capturing q, k and v: what is kept is what attention gets, and bad requests are refused before a run."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch.nn import functional

from moon_diffusers.cli import main
from moon_diffusers.evidence import capture

torch.set_num_threads(1)
ROOT = Path(__file__).resolve().parents[2]
STORED = ROOT / "tests" / "data" / "captured" / "wan-emoji.safetensors"


class Attention(torch.nn.Module):
    """Stands for a model's attention module: projections, then SDPA in (batch, heads, length, head dim)."""

    processor = None

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        q, k, v = (x.unflatten(-1, (2, 4)).transpose(1, 2) * factor for factor in (1, 2, 3))
        self.seen.append((q, k, v))
        return functional.scaled_dot_product_attention(q, k, v, scale=0.3).transpose(1, 2).flatten(2)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Attention(), Attention()

    def forward(self, x, timestep):
        return self.second(self.first(x)) + functional.scaled_dot_product_attention(x, x, x)


def run(model, steps=3, calls=2):
    for step in range(steps):
        for _ in range(calls):
            model(torch.randn(1, 5, 8), timestep=torch.tensor([1000.0 - step]))


def test_it_keeps_what_the_chosen_module_got_at_the_chosen_step():
    model = Model()
    with capture.capturing({"transformer": model}, steps=[1, 2], modules="second", calls=[1]) as captured:
        run(model)
    assert captured.steps_seen == 3
    assert [(c.module, c.step, c.call) for c in captured.calls] == [("transformer.second", s, 1) for s in (1, 2)]
    for call, seen in zip(captured.calls, (model.second.seen[3], model.second.seen[5]), strict=True):
        for kept, real in zip((call.q, call.k, call.v), seen, strict=True):
            assert torch.equal(kept, real.transpose(1, 2))
        assert call.softmax_scale == 0.3
    before = len(captured.calls)
    run(model)
    assert len(captured.calls) == before  # nothing is left behind


def test_a_file_reads_back_with_its_facts(tmp_path):
    model = Model()
    with capture.capturing({"transformer": model}, steps=[0], heads=[1]) as captured:
        run(model, steps=1)
    path = tmp_path / "a" / "c.safetensors"
    capture.save(path, captured.calls, {"prompt": "a cat"})
    back = capture.load(path)
    assert [c.name for c in back] == ["step000.call0.transformer.first", "step000.call0.transformer.second"]
    assert back[1].heads == [1] and back[1].q.shape == (1, 5, 1, 4)
    assert torch.equal(back[1].q, captured.calls[1].q)
    assert [file.name for file in path.parent.iterdir()] == ["c.safetensors"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": [0], "modules": "third"}, "modules is 'third': matches none of 2"),
        ({"steps": [0], "modules": "("}, "no regular expression"),
        ({"steps": []}, "at least one step"),
    ],
)
def test_bad_requests_are_refused(arguments, message):
    with pytest.raises(capture.CaptureError, match=message), capture.capturing({"transformer": Model()}, **arguments):
        pass


def test_an_unknown_head_is_named():
    with pytest.raises(capture.CaptureError, match=r"heads is \[2\]; transformer.first has heads 0 to 1"):
        model = Model()
        with capture.capturing({"transformer": model}, steps=[0], heads=[2]):
            run(model, steps=1)


def test_a_foreign_file_is_no_capture(tmp_path):
    from safetensors.torch import save_file

    save_file({"q": torch.zeros(1)}, tmp_path / "x.safetensors")
    with pytest.raises(capture.CaptureError, match="cannot be read"):
        capture.load(tmp_path / "x.safetensors")
    with pytest.raises(capture.CaptureError, match="nothing was captured"):
        capture.save(tmp_path / "y.safetensors", [], {})


def test_the_stored_captures_are_real_and_peaked():
    """Six calls of the trained sample, and scores that random inputs do not have."""
    calls = capture.load(STORED)
    assert {(c.module, c.step) for c in calls} == {
        (f"transformer.blocks.{name}", step) for name in ("0.attn1", "5.attn1", "2.attn2") for step in (0, 9)
    }
    assert STORED.stat().st_size < 2_000_000
    for call in calls:
        assert call.q.dtype == torch.bfloat16 and call.q.shape[-1] == 128 and torch.isfinite(call.q).all()
        q, k = (tensor.transpose(1, 2).double() for tensor in (call.q, call.k))
        weights = torch.softmax(q @ k.transpose(-1, -2) * call.softmax_scale, -1)
        if call.module.endswith("attn1"):
            assert weights.amax(-1).mean() > 3 / call.k.shape[1], call.name
    cross = next(c for c in calls if c.module.endswith("attn2"))
    assert cross.k.shape[1] == 512 and torch.equal(cross.k[:, 300], cross.k[:, 511])  # the prompt's padding


def test_the_command_captures_the_sample(tmp_path):
    output = tmp_path / "capture.safetensors"
    arguments = ["capture", "--model", str(ROOT / "samples" / "wan-emoji"), "--num-inference-steps", "2"]
    arguments += ["--num-frames", "5", "--modules", "blocks.3.attn", "--calls", "0,1", "--output", str(output)]
    done = CliRunner().invoke(main, [*arguments, "--steps", "2"])
    assert done.exit_code == 2 and "steps is '2'; the run has steps 0 to 1" in done.output
    done = CliRunner().invoke(main, [*arguments, "--steps", "1"])
    assert done.exit_code == 0, done.output
    calls = capture.load(output)
    assert [(c.module, c.call) for c in calls] == [
        (f"transformer.blocks.3.attn{n}", call) for call in (0, 1) for n in (1, 2)
    ]
    assert calls[0].q.shape == (1, 144, 3, 128)
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2 and "exists already" in done.output


def test_stored_facts_name_the_prompt():
    from safetensors import safe_open

    with safe_open(STORED, framework="pt") as file:
        about = json.loads(file.metadata()["moon_capture"])["about"]
    assert about["prompt"] == json.loads((ROOT / "samples/wan-emoji/moon_sample.json").read_text())["prompts"][0]
