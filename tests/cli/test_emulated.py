"""The whole way: the command, the diffusers integration, the compiled kernel's machine code in the emulator."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from moon_diffusers.cli import main
from moon_diffusers.errors import MoonError
from moon_diffusers.generation.models import find_sample
from moon_diffusers.runtime.device import open_emulated


@pytest.fixture(params=["gfx942", "gfx950"])
def arch(request):
    try:
        open_emulated(request.param)
    except MoonError as error:
        pytest.skip(str(error))
    return request.param


def test_the_kernel_serves_every_call_and_the_gate_notices_a_broken_one(arch, tiny_wan, tmp_path):
    size = ["--num-inference-steps", "1", "--num-frames", "5", "--height", "32", "--width", "32"]
    arguments = ["generate", "--model", str(tiny_wan), "--emulate", arch, *size, "--output", str(tmp_path / "run")]
    result = CliRunner().invoke(main, [*arguments, "--self-check"])
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["gate"]["passed"] and [row["noticed"] for row in report["self_check"]] == [True, True]
    (label,) = report["routing"]["served"]
    assert arch in label and "emulated" in label and report["routing"]["fallbacks"] == {}
    assert all(0 < layer["kernel"] < 3e-3 for layer in report["attention_errors"].values())
    assert report["environment"]["code_objects"]


def test_on_the_trained_sample_a_broken_kernel_shows_in_the_latents(arch, tmp_path):
    sample = find_sample()
    if sample is None or sample.name != "wan-emoji":
        pytest.skip("the trained sample is not there")
    arguments = ["generate", "--emulate", arch, "--num-inference-steps", "2", "--num-frames", "5"]
    result = CliRunner().invoke(main, [*arguments, "--self-check", "--output", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["routing"]["share"] == 1.0
    for row in report["self_check"]:
        assert {failure.split(":")[0] for failure in row["failures"]} == {"attention error", "latent error"}
