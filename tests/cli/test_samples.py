"""The example programs run as they are, and the sample's builder is repeatable."""

from __future__ import annotations

import hashlib
import runpy
import sys
from pathlib import Path

import pytest

from moon_diffusers import counters
from moon_diffusers.errors import MoonError
from moon_diffusers.generation import models
from moon_diffusers.quality.video import read_video

SAMPLES = Path(__file__).parents[2] / "samples"


def test_builder_is_repeatable_and_replaces_only_pipelines(tiny_wan, tmp_path):
    build = runpy.run_path(str(SAMPLES / "build_tiny_wan.py"))["build"]
    build(tmp_path / "again")

    def digest(folder: Path) -> str:
        return hashlib.sha256((folder / "transformer" / "diffusion_pytorch_model.safetensors").read_bytes()).hexdigest()

    assert digest(tmp_path / "again") == digest(tiny_wan)
    (tmp_path / "other").mkdir()
    with pytest.raises(SystemExit, match="holds no pipeline"):
        build(tmp_path / "other")
    assert [file.name for file in sorted(tmp_path.iterdir())] == ["again", "other"]


@pytest.mark.parametrize("name", ["one_line", "compare_roundings"])
def test_example_programs(name, tiny_wan, standin_kernel, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{name}.py"])
    monkeypatch.setattr(models, "default_sample", lambda: tiny_wan)
    runpy.run_path(str(SAMPLES / f"{name}.py"), run_name="__main__")
    text = capsys.readouterr().out
    assert "attention calls ran on the kernel" in text and "fell back" not in text
    if name == "one_line":
        assert read_video(tmp_path / "one_line.mp4")[0].shape == (13, 96, 96, 3)


def test_functional_example(monkeypatch, capsys):
    counters.reset_summary()
    try:
        runpy.run_path(str(SAMPLES / "functional_api.py"), run_name="__main__")
    except MoonError as error:
        pytest.skip(str(error))
    text = capsys.readouterr().out
    assert "1 of 1 attention calls ran on the kernel" in text
