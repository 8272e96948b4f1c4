"""The device under test, found once."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

import moon_diffusers

NO_GPU = "no supported GPU (gfx942, gfx950 or compute capability 9.0); the emulator cannot show this"
ARCHS = ("gfx942", "gfx950")


@dataclass(frozen=True)
class Machine:
    """`arch` is an emulated architecture, empty on a GPU."""

    device: torch.device
    arch: str = ""

    @property
    def gpu(self) -> bool:
        return self.device.type == "cuda"

    def placed(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.gpu else moon_diffusers.emulate(self.arch, work_limit=0)

    def pick(self, gpu: Any, emulated: Any) -> Any:
        """Parameters for the GPU, or the few that the emulator has time for."""
        return gpu if self.gpu else emulated


def supported() -> bool:
    """Whether torch's first GPU is one that kernels are compiled for. A broken kernel there must fail, not skip."""
    if not torch.cuda.is_available():
        return False
    properties = torch.cuda.get_device_properties(0)
    arch = getattr(properties, "gcnArchName", "").split(":")[0]
    return arch in ARCHS if torch.version.hip else (properties.major, properties.minor) == (9, 0)


def find() -> Machine:
    """What the environment asks for, else the GPU, else the emulator."""
    wanted = os.environ.get("MOON_GPU_TESTS_DEVICE", "")
    kind, _, arch = wanted.partition(":")
    if kind == "cuda" or (not wanted and supported()):
        return Machine(torch.device("cuda", 0))
    if kind not in ("", "cpu") or arch not in ("", *ARCHS):
        raise ValueError(f"MOON_GPU_TESTS_DEVICE: {wanted!r}; accepted: cuda, cpu, cpu:gfx942, cpu:gfx950")
    return Machine(torch.device("cpu"), arch or "gfx942")


MACHINE = find()
