"""A fake HIP library and a manifest to go with it, so that the corridor is tested without the emulator."""

from __future__ import annotations

import ctypes
import hashlib
import json
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

RIGHT, NOTHING, WRONG, REFUSE, WRONG_LSE = range(5)


@pytest.fixture(autouse=True)
def clean_slate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No leftover of another test or of the environment decides a test here."""
    for name in (
        "MOON_EMULATE",
        "MOON_OFFLOAD",
        "MOON_STRICT",
        "MOON_HIP_LIBRARY",
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


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled fake of `libamdhip64`."""
    path = tmp_path_factory.mktemp("fake") / "libamdhip64.so.7"
    source = Path(__file__).with_name("fake_hip.c")
    subprocess.run(
        [sys.executable, "-m", "ziglang", "cc", "-O2", "-shared", "-fPIC", "-o", str(path), str(source), "-lm"],
        check=True,
    )
    return path


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
