"""The build: what it compiles, what its manifest says, and how it fails."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "csrc" / "build"))

import build  # noqa: E402
import cubin  # noqa: E402
import layouts  # noqa: E402
import metadata  # noqa: E402
import ptx  # noqa: E402
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
    assert {entry["arch"] for entry in manifest["code_objects"]} == set(build.buildable()) >= {"gfx942", "gfx950"}
    for entry in manifest["code_objects"]:
        for item in (entry, *([entry["fallback"]] if "fallback" in entry else [])):
            assert item["sha256"] == hashlib.sha256((compiled / item["file"]).read_bytes()).hexdigest()
        found = build.resources(by_file(entry["file"]), compiled)
        for kernel in entry["kernels"]:
            assert kernel["name"] in found
            assert found[kernel["name"]]["vgpr_count"] == kernel["vgpr_count"] > 0
            assert kernel["kernarg_layout"] in manifest["kernarg_layouts"]


def by_file(file: str) -> targets.CodeObject:
    return next(target for target in targets.CODE_OBJECTS if target.file == file)


def test_no_kernel_spills(compiled: Path) -> None:
    limits = {"gfx942": 65536, "gfx950": 163840, "sm_90a": 49152}
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


@pytest.mark.parametrize("damage", [b"x", b""])
def test_a_damaged_product_is_built_again(compiled: Path, tmp_path: Path, damage: bytes) -> None:
    """The runtime refuses it and says to build again; that must not give it a manifest that vouches for it."""
    folder = tmp_path / "compiled"
    shutil.copytree(compiled, folder)
    file = targets.CODE_OBJECTS[0].file
    (folder / file).write_bytes(damage + (compiled / file).read_bytes()[1:] if damage else b"")
    build.build(folder, [targets.CODE_OBJECTS[0].arch], "none")
    assert (folder / file).read_bytes() == (compiled / file).read_bytes()


@pytest.mark.parametrize("keys", ["", "{", "[]", "null"])
def test_damaged_keys_build_anew(tmp_path: Path, keys: str) -> None:
    (tmp_path / ".build-keys.json").write_text(keys)
    assert build.Cache(tmp_path).keys == {}


@pytest.mark.parametrize(
    ("script", "words"),
    [("exit 0", "made no file"), ('for o; do :; done; echo text > "$o"', "cannot be read")],
)
def test_a_compiler_that_is_none_is_one_line(tmp_path: Path, script: str, words: str) -> None:
    hipcc = tmp_path / "hip cc"
    hipcc.write_text(f"#!/bin/sh\n{script}\n")
    hipcc.chmod(0o755)
    command = [sys.executable, str(ROOT / "csrc/build/build.py"), "--output", str(tmp_path / "out dir")]
    command += ["--arch", "gfx942", "--emulator", "none"]
    environment = {name: value for name, value in os.environ.items() if name != "MOON_BUILD_CACHE"}
    environment["MOON_HIPCC"] = str(hipcc)
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("build failed: ") and words in done.stderr
    assert done.stderr.count("\n") == 1 and not [*(tmp_path / "out dir").glob("*.tmp")]


def test_an_output_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    command = [sys.executable, str(ROOT / "csrc/build/build.py"), "--output", str(tmp_path / "file" / "out")]
    done = subprocess.run([*command, "--arch", "gfx942"], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("build failed: ") and done.stderr.count("\n") == 1


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
        if by_file(entry["file"]).is_cuda:
            for kernel in entry["kernels"]:
                assert kernel["kernarg_size"] == manifest["kernarg_layouts"][kernel["kernarg_layout"]]["size"]
            continue
        found = metadata.read_kernels(compiled / entry["file"])
        for kernel in entry["kernels"]:
            explicit = [a for a in found[kernel["name"]][".args"] if not a[".value_kind"].startswith("hidden")]
            size = max(a[".offset"] + a[".size"] for a in explicit)
            assert size == manifest["kernarg_layouts"][kernel["kernarg_layout"]]["size"]


# --- CUDA ------------------------------------------------------------------------------------------------------------

CUDA_SOURCE = """
struct alignas(64) tensor_map { unsigned long long opaque[16]; };
struct Args { tensor_map map; float *out; int n; };
extern "C" __attribute__((global)) void __attribute__((launch_bounds(384, 1)))
small(const __attribute__((grid_constant)) Args a) {
    static __attribute__((shared)) float kept[32];
    int thread = __nvvm_read_ptx_sreg_tid_x();
    kept[thread & 31] = thread;
    __nvvm_barrier_sync(0);
    asm volatile("prefetch.tensormap [%0];" ::"l"(&a.map));
    a.out[thread] = kept[(thread * 7) & 31] + a.n;
}
"""


@pytest.fixture(scope="session")
def ptxas() -> ptx.Ptxas:
    found = ptx.find_ptxas()
    if found is None:
        pytest.skip("no ptxas here")
    return found


def small_cuda(folder: Path, source: str = CUDA_SOURCE, cluster: int = 2) -> targets.CodeObject:
    """A source of our own, built as a code object of the table would be."""
    path = folder / "small.cu"
    path.write_text(source)
    kernel = targets.Kernel("small", "forward", "forward", {"cluster": cluster})
    return targets.CodeObject("small-sm_90a.cubin", "sm_90a", path, (kernel,))


def test_a_cuda_source_becomes_a_cubin_and_ptx(ptxas: ptx.Ptxas, tmp_path: Path) -> None:
    target = small_cuda(tmp_path)
    built: dict[str, str] = {}
    build.build_code_object(target, tmp_path, build.Cache(tmp_path), built)
    assert set(built) == {"small-sm_90a.cubin", "small-sm_90a.ptx"}
    assert build.resources(target, tmp_path)["small"] == {
        "kernarg_size": 192,
        "lds_bytes": 128,
        "scratch_bytes": 0,
        "vgpr_count": cubin.read_kernels(tmp_path / target.file)["small"]["vgpr_count"],
        "agpr_count": 0,
        "sgpr_count": 0,
        "vgpr_spills": 0,
        "sgpr_spills": 0,
        "wavefront_size": 32,
        "max_workgroup_size": 384,
        "cluster": 2,
    }
    text = (tmp_path / target.fallback).read_text()
    # What drivers from 525 on take.
    assert ".version 8.0\n.target sm_90a\n" in text and ".reqnctapercluster 2, 1, 1" in text


def test_without_clusters_none_are_declared(ptxas: ptx.Ptxas, tmp_path: Path) -> None:
    target = small_cuda(tmp_path, cluster=1)
    build.build_code_object(target, tmp_path, build.Cache(tmp_path), {})
    assert build.resources(target, tmp_path)["small"]["cluster"] == 1


def test_a_cluster_that_the_variant_does_not_know_fails_the_build(ptxas: ptx.Ptxas, tmp_path: Path) -> None:
    build.build_code_object(small_cuda(tmp_path), tmp_path, build.Cache(tmp_path), {})
    with pytest.raises(toolchain.BuildError, match="small has clusters of 2, its variant says otherwise"):
        build.describe(small_cuda(tmp_path, cluster=1), tmp_path, {"forward": {"size": 0, "fields": []}})


def test_spills_fail_the_build(ptxas: ptx.Ptxas, tmp_path: Path) -> None:
    # 1024 threads have 64 registers each; 200 live values do not fit.
    load = (
        'float x{0}; asm volatile("ld.global.f32 %0, [%1];" : "=f"(x{0}) : "l"(a.out + thread + {0} * 7) : "memory");'
    )
    body = "".join(load.format(i) for i in range(200)) + "__nvvm_barrier_sync(0);"
    body += "".join(f"a.out[thread * 3 + {i}] = x{i};" for i in range(200))
    source = CUDA_SOURCE.replace("(384, 1)", "(1024, 1)").replace("__nvvm_barrier_sync(0);", body)
    with pytest.raises(toolchain.BuildError, match=r"small-sm_90a\.ptx: ptxas spills registers: \d+ bytes"):
        build.build_code_object(small_cuda(tmp_path, source), tmp_path, build.Cache(tmp_path), {})
    assert not (tmp_path / "small-sm_90a.cubin").exists()


@pytest.mark.parametrize(
    ("words", "trouble"),
    [
        ("    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads", ""),
        ("    8 bytes stack frame, 0 bytes spill stores, 4 bytes spill loads", "ptxas spills registers: 4 bytes"),
        (
            "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
            "insufficient register resources for the wgmma pipeline in the function 'f'\n0 bytes spill stores",
            "ptxas serialises matrix instructions: ptxas info    : (C7510)",
        ),
        ("nothing of use", "ptxas does not say what it spills"),
    ],
)
def test_words_of_ptxas(words: str, trouble: str) -> None:
    found = ptx.check_words(words)
    assert found.startswith(trouble) and bool(found) == bool(trouble)


def test_compile_errors_of_cuda_show_the_compilers_words(ptxas: ptx.Ptxas, tmp_path: Path) -> None:
    with pytest.raises(toolchain.BuildError, match=r"small\.cu:1:1: error: unknown type name 'not_a_type'"):
        build.build_code_object(small_cuda(tmp_path, "not_a_type x;\n"), tmp_path, build.Cache(tmp_path), {})


def test_without_ptxas_amd_is_built_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(ptx, "find_ptxas", lambda: None)
    monkeypatch.setattr(build, "ARCHITECTURES", ["gfx942", "gfx950", "sm_90a"])
    assert build.buildable() == ["gfx942", "gfx950"]
    assert "sm_90a is left out, since there is no ptxas here: pip install nvidia-cuda-nvcc" in capsys.readouterr().out
    with pytest.raises(toolchain.BuildError, match="sm_90a needs ptxas: pip install nvidia-cuda-nvcc"):
        build.require_ptxas()


def test_a_named_ptxas_must_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOON_PTXAS", "/nowhere/ptxas")
    with pytest.raises(toolchain.BuildError, match="no ptxas at /nowhere/ptxas, which MOON_PTXAS asks for"):
        ptx.find_ptxas()


def test_tensor_maps_are_aligned_to_64(tmp_path: Path) -> None:
    path = tmp_path / "maps_args.def"
    path.write_text("MOON_ARG(i32, a)\nMOON_ARG(tensor_map, m)\nMOON_ARG(u64, b)\n")
    layout = layouts.read_layout(path)
    assert [field["offset"] for field in layout["fields"]] == [0, 64, 192] and layout["size"] == 256
