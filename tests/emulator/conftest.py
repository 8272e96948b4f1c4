"""The emulator's devices and the code objects that its tests run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from moon_diffusers.errors import CodeObjectError, LibraryError
from moon_diffusers.evidence import aiter
from moon_diffusers.evidence.device import RawDevice, emulator_library, open_emulator

COMPILED = Path(__file__).resolve().parents[2] / "moon_diffusers" / "_compiled"
# Tests say which matrix mode, checks and order they use; everything else starts from here.
DEFAULTS = {
    "mma": "fast",
    "checks": "on",
    "order": "forward",
    "threads": "1",
    "budget": "0",
    "counts": "off",
    "trace": "",
}


def library_path() -> Path:
    """The emulator that this CPU runs."""
    try:
        return Path(emulator_library().path)
    except (CodeObjectError, LibraryError) as error:
        pytest.fail(f"the emulator cannot be had: {error}")


@pytest.fixture
def emulator() -> Iterator[Callable[[str], RawDevice]]:
    """Opens the emulator's device of an architecture, with checks on and everything else at its default."""
    opened: list[RawDevice] = []

    def open_device(arch: str, **options: str) -> RawDevice:
        device = open_emulator(arch)
        device.set_options({**DEFAULTS, **options})
        opened.append(device)
        return device

    yield open_device
    for device in opened:
        device.set_options(DEFAULTS)


def peer_code_object(kernel: aiter.Kernel) -> bytes:
    """AITER's code object, or a skip that says why there is none."""
    try:
        return aiter.code_object(kernel)
    except aiter.AiterUnavailableError as error:
        pytest.skip(str(error))


def own_code_objects() -> dict[str, bytes]:
    """The project's own code objects by file name, and those that MOON_TEST_CODE_OBJECTS names (a folder)."""
    folders = [COMPILED, *map(Path, filter(None, [os.environ.get("MOON_TEST_CODE_OBJECTS")]))]
    return {path.name: path.read_bytes() for folder in folders for path in sorted(folder.glob("*.co"))}
