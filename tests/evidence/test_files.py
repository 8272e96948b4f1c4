"""Output files: whole or not there, and never in the place of something that is no file."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from moon_diffusers.cli import main
from moon_diffusers.errors import ArgumentError
from moon_diffusers.evidence import capture
from moon_diffusers.evidence.files import check_file, check_folder, whole_file


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    with whole_file(tmp_path / "a") as path:
        path.write_text("all")
        assert not (tmp_path / "a").exists()
    with pytest.raises(KeyboardInterrupt), whole_file(tmp_path / "a") as path:
        path.write_text("half")
        raise KeyboardInterrupt
    assert (tmp_path / "a").read_text() == "all" and len([*tmp_path.iterdir()]) == 1


def test_a_device_is_never_replaced(tmp_path: Path) -> None:
    """As root, a rename would put a regular file in the place of /dev/null."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ArgumentError, match="pipe"), whole_file(pipe):
        raise AssertionError("the block must not run")
    for path in (pipe, tmp_path, tmp_path / "gone" / "a", pipe / "a"):
        with pytest.raises(ArgumentError, match="output: "):
            check_file(path)
    check_file(tmp_path / "new")
    check_folder(tmp_path / "gone" / "deeper")
    with pytest.raises(ArgumentError, match="folder: "):
        check_folder(pipe / "deeper", "folder")
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--output", "gone/a.json"], "output: 'gone/a.json'"),
        (["--output", "pipe"], "output: 'pipe'"),
        (["--timeline", "gone/a.svg"], "timeline: 'gone/a.svg'"),
        (["--timeline", "a.xyz"], "ends in .png or .svg"),
        (["--captured", "list.safetensors"], "capture is 'list.safetensors'"),
        (["--captured", "flat.safetensors"], "of shapes [(3,), (3,), (3,)]"),
        (["--constants", "list.json"], "--constants list.json"),
    ],
)
def test_model_timing_refuses_before_it_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("list.json").write_text("[]")
    row = {"name": "n", "module": "m", "step": 0, "call": 0, "part": 0, "softmax_scale": 0.1}
    tensors = {f"n.{part}": torch.ones(3) for part in "qkv"}
    for name, calls in (("list", ["n"]), ("flat", [row])):
        save_file(tensors, f"{name}.safetensors", {"moon_capture": json.dumps({"calls": calls})})
    done = CliRunner().invoke(main, ["model-timing", *options])
    assert done.exit_code == 2 and words in done.output and "reproduce" not in done.output, done.output


@pytest.mark.parametrize("command", [["bench", "--emulate", "gfx942"], ["reproduce-wan21", "--dry-run"], ["capture"]])
def test_commands_refuse_an_output_before_they_run(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(main, [*command, "--output", str(tmp_path / "file" / "below")])
    assert done.exit_code == 2 and "output: " in done.output and done.output.count("\n") == 1, done.output


def test_a_capture_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object, path: Path, __: object) -> None:
        path.write_text("half")
        raise KeyboardInterrupt

    monkeypatch.setattr(capture, "save_file", interrupted)
    q = torch.ones(1, 2, 1, 128)
    with pytest.raises(KeyboardInterrupt):
        capture.save(tmp_path / "a.safetensors", [capture.CapturedCall("m", 0, 0, 0, q, q, q, 0.1)], {})
    assert [*tmp_path.iterdir()] == []
