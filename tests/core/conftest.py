"""A fake HIP library and a manifest to go with it, so that the corridor is tested without the emulator."""

from __future__ import annotations

import ctypes
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import moon_diffusers
from moon_diffusers import dispatch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "csrc" / "build"))
import layouts  # noqa: E402
import targets  # noqa: E402

RIGHT, NOTHING, WRONG, REFUSE, WRONG_LSE = range(5)


@pytest.fixture(autouse=True)
def clean_slate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No leftover of another test or of the environment decides a test here."""
    for name in (
        "MOON_EMULATE",
        "MOON_OFFLOAD",
        "MOON_STRICT",
        "MOON_HIP_LIBRARY",
        "MOON_CUDA_LIBRARY",
        "MOON_FORCE",
        "MOON_SELFTEST",
        "MOON_EMULATION_LIMIT",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MOON_CACHE", str(tmp_path / "cache"))
    moon_diffusers.reset_summary()
    dispatch.reset()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    yield
    dispatch.reset()
    moon_diffusers.reset_summary()


def compile_fake(path: Path, source: str) -> Path:
    command = [sys.executable, "-m", "ziglang", "cc", "-O3", "-fno-sanitize=all", "-shared", "-fPIC"]
    command += ["-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math"]
    subprocess.run([*command, "-o", str(path), str(Path(__file__).with_name(source)), "-lm"], check=True)
    return path


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled fake of `libamdhip64`."""
    return compile_fake(tmp_path_factory.mktemp("fake") / "libamdhip64.so.7", "fake_hip.c")


@pytest.fixture(scope="session")
def fake_cuda_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled fake of `libcuda`."""
    return compile_fake(tmp_path_factory.mktemp("fake") / "libcuda.so.1", "fake_cuda.c")


def write_manifest(folder: Path, **changes: Any) -> dict[str, Any]:
    """A manifest of fake code objects with the repository's real kernarg layouts."""
    folder.mkdir(parents=True, exist_ok=True)
    image = b"\x7fELF fake code object"
    (folder / "fake.co").write_bytes(image)
    known = layouts.read_layouts(ROOT / "csrc" / "kernels" / "common")
    kernels = [
        {
            "name": f"fake_{rounding}",
            "role": "forward",
            "variant": {
                "family": "general",
                "rounding": rounding,
                "rescale": "exact",
                "rows_per_workgroup": 128,
                "grid": "linear",
                "features": ["lse", "gqa", "causal", "seqlens_k"],
            },
            "kernarg_layout": "forward",
            "kernarg_size": known["forward"]["size"],
            "block": [256, 1, 1],
            "lds_bytes": 35840,
        }
        for rounding in ("rtne", "rtz")
    ]
    manifest = {
        "schema": 1,
        "compiler": {"name": "none", "version": "0", "flags": []},
        "code_objects": [
            {"file": "fake.co", "arch": "gfx942", "sha256": hashlib.sha256(image).hexdigest(), "kernels": kernels}
        ],
        "kernarg_layouts": known,
        "emulator": [],
        **changes,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return manifest


class Fake:
    """The fake library's own controls, and the manifest beside it."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path, self.folder = path, folder
        self.library: Any = ctypes.CDLL(str(path))
        self.library.fakeStream.restype = ctypes.c_int64

    def mode(self, mode: int) -> None:
        self.library.fakeMode(mode)

    @property
    def launches(self) -> int:
        return int(self.library.fakeLaunches())

    @property
    def allocations(self) -> int:
        return int(self.library.fakeAllocations())


@pytest.fixture
def fake(fake_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    """The process sees the fake library as its HIP, and fake code objects as what was built."""
    folder = tmp_path / "compiled"
    write_manifest(folder)
    monkeypatch.setenv("MOON_HIP_LIBRARY", str(fake_library))
    monkeypatch.setenv("MOON_COMPILED", str(folder))
    control = Fake(fake_library, folder)
    control.mode(RIGHT)
    control.library.fakeArch(0)
    yield control
    control.mode(RIGHT)
    control.library.fakeArch(0)
    control.library.fakeMemory(-1)


PTX = b".version 8.0\n.target sm_90a\n"


def write_cuda_manifest(folder: Path, every: bool = False, **variant: Any) -> dict[str, Any]:
    """A manifest of fake Hopper kernels.

    Args:
        every: all kernels, just as `csrc/build/targets.py` declares the real ones; else one forward kernel that does all
            that any of them does, and its merge.
        variant: changes to the forward kernels' variants.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known = layouts.read_layouts(ROOT / "csrc" / "kernels" / "common")
    declared = {kernel.name: kernel for target in targets.sm90a() for kernel in target.kernels}
    code_objects = []
    for name, kernel in declared.items():
        if not every and name not in ("moon_attention_sm90a", "moon_attention_sm90a_merge"):
            continue
        general = {} if every else FAKE_VARIANT
        files = {f"{name}.cubin": b"\x7fELF " + name.encode(), f"{name}.ptx": PTX + name.encode()}
        hashes = {}
        for file, content in files.items():
            (folder / file).write_bytes(content)
            hashes[file] = hashlib.sha256(content).hexdigest()
        entry = {
            "name": name,
            "role": kernel.role,
            "variant": {**kernel.variant, **general, **variant} if kernel.role == "forward" else {},
            "kernarg_layout": "sm90a",
            "kernarg_size": known["sm90a"]["size"],
            "block": [512 if kernel.role == "forward" else 128, 1, 1],
            "cluster": kernel.variant.get("cluster", 1),
            "lds_bytes": 0,
            "vgpr_count": 128,
        }
        code_objects.append(
            {
                "file": f"{name}.cubin",
                "arch": "sm_90a",
                "sha256": hashes[f"{name}.cubin"],
                "fallback": {"file": f"{name}.ptx", "sha256": hashes[f"{name}.ptx"]},
                "kernels": [entry],
            }
        )
    manifest = {
        "schema": 1,
        "compiler": {"name": "none", "version": "0", "flags": []},
        "assembler": {"name": "ptxas", "version": "12.9.86"},
        "code_objects": code_objects,
        "kernarg_layouts": known,
        "emulator": [],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return manifest


#: What the fake's kernel is, whatever the real one has become.
FAKE_VARIANT = {
    "family": "sm90a",
    "rounding": "rtne",
    "rescale": "lazy",
    "rows_per_workgroup": 384,
    "cluster": 2,
    "keys_per_tile": 80,
    "alignment": 16,
    "strides": [0, 2**39 - 8],
    "dynamic_lds": 214528,
    "features": ["lse", "gqa", "causal", "seqlens_k", "cu_seqlens"],
    "merge": "moon_attention_sm90a_merge",
    "requires": [],
    "least_keys": 0,
    "least_row_blocks": 0,
    "slower": [],
}


class FakeCuda(Fake):
    """The fake driver's own controls."""

    def __init__(self, path: Path, folder: Path) -> None:
        super().__init__(path, folder)
        self.reset()

    def reset(self) -> None:
        self.library.fakeMode(RIGHT)
        self.library.fakeRefuseCubin(0)
        self.library.fakeCapability(9, 0)
        self.library.fakeDevices(2)
        self.library.fakeClusters(66)
        self.library.fakeCapturedElsewhere(0)
        self.library.fakeKernels(None)
        self.library.fakeDropContexts()


@pytest.fixture
def fake_cuda(fake_cuda_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """The process sees the fake library as its CUDA driver, and fake code objects as what was built."""
    folder = tmp_path / "compiled"
    write_cuda_manifest(folder)
    monkeypatch.setenv("MOON_CUDA_LIBRARY", str(fake_cuda_library))
    monkeypatch.setenv("MOON_COMPILED", str(folder))
    control = FakeCuda(fake_cuda_library, folder)
    yield control
    control.reset()


@pytest.fixture
def fake_hopper(fake_cuda: FakeCuda) -> FakeCuda:
    """The same with all kernels that are built for Hopper, as they are routed."""
    write_cuda_manifest(fake_cuda.folder, every=True, slower=[])
    return fake_cuda


@pytest.fixture(scope="session")
def hopper_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sm_90a kernels' own sources, compiled for the host on a machine of fibers; see tests/core/hopper/machine.h."""
    folder = tmp_path_factory.mktemp("hopper")
    kernels = ROOT / "csrc" / "kernels"
    shutil.copytree(kernels / "sm90a", folder / "sm90a")
    (folder / "common").mkdir()
    for name in ("sm90a_args.def", "types.h"):
        shutil.copy(kernels / "common" / name, folder / "common")
    # Its isa.h takes the place of theirs.
    shutil.copytree(Path(__file__).with_name("hopper"), folder / "sm90a", dirs_exist_ok=True)
    sources = [str(folder / "sm90a" / name) for name in ("launch.cpp", "merge.cu", "machine.cpp")]
    compiler = [sys.executable, "-m", "ziglang", "c++", "-std=c++17", "-O1", "-fno-sanitize=all", "-fPIC", "-shared"]
    output = folder / "libhopper.so"
    subprocess.run([*compiler, "-x", "c++", *sources, "-o", str(output)], check=True, capture_output=True, text=True)
    return output


@pytest.fixture
def host_hopper(fake_hopper: FakeCuda, hopper_library: Path) -> FakeCuda:
    """The fake driver with all Hopper kernels, their own code behind it."""
    assert fake_hopper.library.fakeKernels(str(hopper_library).encode())
    return fake_hopper
