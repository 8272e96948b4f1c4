"""Kernels run in the emulator; every launch's report is kept and judged."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from moon_diffusers import counters, dispatch
from moon_diffusers.errors import LibraryError
from moon_diffusers.runtime import device as devices
from moon_diffusers.runtime.launcher import PreparedLaunch


@dataclass
class Emulator:
    """The emulated device and what its launches reported."""

    device: devices.Device
    reports: list[dict[str, Any]] = field(default_factory=list)

    def option(self, key: str, value: str) -> None:
        """Set one of the emulator's options until the end of the test."""
        self.device.hip.set_option(key, value)

    def limit_cus(self, count: int) -> None:
        """Plan as for a device of `count` compute units until the end of the test."""
        self.device.info = replace(self.device.info, cu_count=count)
        dispatch.reset()

    @property
    def kernels(self) -> list[str]:
        """Names of the kernels launched so far."""
        return [report["kernel"] for report in self.reports]


@pytest.fixture
def gfx942(monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    """An emulated MI300X with all checks on. At the end of a test no launch may have had an error or a warning."""
    yield from _emulated("gfx942", monkeypatch)


@pytest.fixture
def gfx950(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Emulator]:
    """An emulated MI355X with all checks on. At the end of a test no launch may have had an error or a warning.

    Each test runs its waves in an order of its own, so that races have many chances to be seen.
    """
    yield from _emulated("gfx950", monkeypatch, f"random:{zlib.crc32(request.node.name.encode()) % 1000}")


def _emulated(arch: str, monkeypatch: pytest.MonkeyPatch, order: str = "forward") -> Iterator[Emulator]:
    try:
        emulator = Emulator(devices.open_emulated(arch))
    except LibraryError as error:
        pytest.skip(str(error))
    launch = PreparedLaunch.__call__

    def launch_and_keep_report(self: PreparedLaunch, stream: int, addresses: Any) -> None:
        launch(self, stream, addresses)
        emulator.reports.append(json.loads(emulator.device.hip.report()))

    monkeypatch.setattr(PreparedLaunch, "__call__", launch_and_keep_report)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dispatch.reset()
    counters.reset_summary()
    info = emulator.device.info
    defaults = {"threads": "1", "checks": "on", "counts": "off", "order": order, "mma": "fast"}
    for key, value in defaults.items():
        emulator.option(key, value)
    yield emulator
    for key, value in {**defaults, "checks": "off", "order": "forward"}.items():
        emulator.option(key, value)
    emulator.device.info = info
    dispatch.reset()
    counters.reset_summary()
    for report in emulator.reports:
        assert report["errors"] == 0 and report["warnings"] == 0, report["findings"][:3]
