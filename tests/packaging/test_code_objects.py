"""The build: what it compiles, what its manifest says, and how it fails."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "csrc" / "build"))

import layouts  # noqa: E402
import metadata  # noqa: E402
import targets  # noqa: E402
import toolchain  # noqa: E402


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All code objects, built from scratch, without the emulator."""
    folder = tmp_path_factory.mktemp("compiled")
    command = [sys.executable, str(ROOT / "csrc/build/build.py"), "--output", str(folder), "--emulator", "none"]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def test_manifest_tells_the_truth_about_the_files(compiled: Path) -> None:
    manifest = json.loads((compiled / "manifest.json").read_text())
    assert {entry["arch"] for entry in manifest["code_objects"]} == {"gfx942", "gfx950"}
    for entry in manifest["code_objects"]:
        data = (compiled / entry["file"]).read_bytes()
        assert entry["sha256"] == hashlib.sha256(data).hexdigest()
        found = metadata.read_kernels(compiled / entry["file"])
        for kernel in entry["kernels"]:
            assert kernel["name"] in found
            assert found[kernel["name"]][".vgpr_count"] == kernel["vgpr_count"]
            assert kernel["kernarg_layout"] in manifest["kernarg_layouts"]


def test_no_kernel_spills(compiled: Path) -> None:
    limits = {"gfx942": 65536, "gfx950": 163840}
    for entry in json.loads((compiled / "manifest.json").read_text())["code_objects"]:
        for kernel in entry["kernels"]:
            where = f"{entry['file']}: {kernel['name']}"
            assert kernel["scratch_bytes"] == 0, where
            assert kernel["vgpr_spills"] == 0 and kernel["sgpr_spills"] == 0, where
            assert kernel["vgpr_count"] <= 256 and kernel["agpr_count"] == 0, where
            assert kernel["lds_bytes"] <= limits[entry["arch"]], where


def test_code_objects_are_reproducible(compiled: Path, tmp_path: Path) -> None:
    target = targets.CODE_OBJECTS[0]
    again = tmp_path / target.file
    toolchain.hip_compiler().compile_hip(target.source, target.arch, targets.HIP_FLAGS + target.flags, again)
    assert again.read_bytes() == (compiled / target.file).read_bytes()


def test_compile_error_shows_the_compilers_words(tmp_path: Path) -> None:
    source = tmp_path / "broken.hip"
    source.write_text("not_a_type x;\n")
    with pytest.raises(toolchain.BuildError, match=r"broken\.hip:1:1: error: unknown type name 'not_a_type'"):
        toolchain.PinnedClang().compile_hip(source, "gfx942", targets.HIP_FLAGS, tmp_path / "broken.co")
    assert not (tmp_path / "broken.co").exists()


def test_missing_hipcc_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MOON_HIPCC", "/nowhere/hipcc")
    with pytest.raises(toolchain.BuildError, match=r"cannot run /nowhere/hipcc: No such file"):
        toolchain.hip_compiler().compile_hip(tmp_path / "a.hip", "gfx942", (), tmp_path / "a.co")


def test_layout_aligns_as_the_compiler(tmp_path: Path) -> None:
    path = tmp_path / "mixed_args.def"
    path.write_text("// words\nMOON_ARG(i32, a)\nMOON_ARG(u64, b)  // more words\n\nMOON_ARG(f32, c)\n")
    assert layouts.read_layouts(tmp_path)["mixed"] == {
        "size": 24,
        "fields": [
            {"name": "a", "type": "i32", "offset": 0},
            {"name": "b", "type": "u64", "offset": 8},
            {"name": "c", "type": "f32", "offset": 16},
        ],
    }


@pytest.mark.parametrize(("line", "words"), [("MOON_ARG(i8, a)", "unknown type 'i8'"), ("int a;", "expected MOON_ARG")])
def test_layout_rejects_what_it_does_not_know(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "bad_args.def"
    path.write_text(line + "\n")
    with pytest.raises(ValueError, match=words):
        layouts.read_layout(path)


def test_manifest_layout_is_the_struct_that_the_kernel_takes(compiled: Path) -> None:
    """The struct's size as the compiler made it, from the code object, is the size that the layout says."""
    manifest = json.loads((compiled / "manifest.json").read_text())
    for entry in manifest["code_objects"]:
        found = metadata.read_kernels(compiled / entry["file"])
        for kernel in entry["kernels"]:
            explicit = [a for a in found[kernel["name"]][".args"] if not a[".value_kind"].startswith("hidden")]
            size = max(a[".offset"] + a[".size"] for a in explicit)
            assert size == manifest["kernarg_layouts"][kernel["kernarg_layout"]]["size"]
