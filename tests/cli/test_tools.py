"""The front door itself, `doctor` and `plan`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from moon_diffusers.cli import COMMANDS, main
from moon_diffusers.runtime.code_objects import compiled_folder

built = pytest.mark.skipif(not (compiled_folder() / "manifest.json").is_file(), reason="kernels are not built")


def call(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, list(map(str, arguments)))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_help_imports_no_torch():
    program = "import sys; from moon_diffusers.cli import main; main(['--help'], standalone_mode=False); " \
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[2], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_exists_and_explains_itself(name):
    code, text = call(name, "--help")
    assert code == 0 and "Usage:" in text


def test_unknown_command():
    assert call("generat")[0] == 2


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (OSError(28, "No space left on device", "/full/file"), 2, "Error: /full/file: No space left on device"),
        (MemoryError("Unable to allocate 2.00 TiB"), 2, "Error: out of memory: Unable to allocate 2.00 TiB"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_what_the_system_refuses_is_one_line(monkeypatch, error, code, words):
    def stops(**_):
        raise error

    monkeypatch.setattr(main.get_command(None, "plan"), "callback", stops)
    got, text = call("plan", "--seqlen-q", 1)
    assert got == code and text.strip() == words


def test_a_reader_that_has_seen_enough_gets_no_traceback():
    command = f"{sys.executable} -m moon_diffusers plan --seqlen-q 9 --json | true"
    done = subprocess.run(command, shell=True, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.stderr == ""


def test_doctor():
    code, text = call("doctor")
    assert code == 0 and "torch" in text and "sample" in text
    content = json.loads(call("doctor", "--json")[1])
    assert {"versions", "libraries", "kernels", "video_packages"} <= content.keys()


@built
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_plan_serves_a_video(arch):
    code, text = call("plan", "--arch", arch, "--seqlen-q", 32760, "--json")
    facts = json.loads(text)
    assert code == 0 and facts["route"].startswith(arch)
    assert facts["flops"] == 4 * 40 * 32760 * 32760 * 128
    forward = next(launch for launch in facts["launches"] if launch["role"] == "forward")
    x, y, z = forward["grid"]
    assert x * y * z >= 40 * 32760 / 512


@built
def test_plan_says_why_not():
    code, text = call("plan", "--seqlen-q", 100, "--head-dim", 64)
    assert code == 1 and "head_dim 64 is not 128" in text
    assert call("plan", "--seqlen-q", 100, "--dtype", "bf16")[0] == 0
    code, text = call("plan", "--seqlen-q", 100, "--dtype", "bfloat")
    assert code == 2 and "'bfloat' is not one of" in text
    code, text = call("plan", "--seqlen-q", 100, "--num-heads", 12, "--num-heads-kv", 5)
    assert code == 2 and "num_heads_kv" in text


@built
def test_a_trace_needs_a_name(tmp_path, monkeypatch):
    inside = tmp_path / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)
    for output in (".", "..", ""):
        code, text = call("trace", "--seqlen-q", 8, "--seqlen-k", 8, "--output", output)
        assert code == 2 and "a prefix of file names" in text
    assert [*tmp_path.iterdir()] == [inside] and not [*inside.iterdir()]


@built
def test_disassemble_offers_what_it_reads():
    code, text = call("disassemble", "attention-sm_90a.cubin")
    assert code == 2 and "general-gfx942.co" in text and text.count("cubin") == 1


@built
def test_a_trace_that_fails_leaves_no_part_of_it(tmp_path):
    (tmp_path / "t.wave3.bin").mkdir()
    (tmp_path / "t.wave3.bin.more").write_text("")
    code, text = call("trace", "--seqlen-q", 8, "--seqlen-k", 8, "--output", tmp_path / "t")
    assert code == 1 and "cannot be written" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.wave3.bin", "t.wave3.bin.more"]
