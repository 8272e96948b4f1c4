"""Clock and power of the GPU while kernels run, from whatever the machine offers: amdsmi, NVML or rocm-smi."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from types import TracebackType
from typing import Any, NamedTuple


class Sample(NamedTuple):
    """One reading: host monotonic seconds, core clock in MHz, board power in W, the energy counter in J (NaN: none)."""

    time: float
    mhz: float
    watt: float
    joule: float = math.nan


#: Longer than an energy counter's step.
SETTLE_SECONDS = 0.25

Reader = Callable[[], tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Source:
    """A way to read clock and power, with its name for the report."""

    name: str
    read: Reader


def nvml(index: int) -> Source:
    """NVIDIA's library, by the package nvidia-ml-py."""
    pynvml, handle = nvml_handle(index)

    def read() -> tuple[float, float]:
        mhz = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
        return float(mhz), pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3

    return Source("NVML", read)


def nvml_handle(index: int) -> tuple[Any, Any]:
    """The library and its handle of torch's GPU `index`, which CUDA_VISIBLE_DEVICES may have renumbered."""
    import pynvml  # type: ignore[import-not-found, import-untyped, unused-ignore]
    import torch

    pynvml.nvmlInit()
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None) if torch.cuda.is_available() else None
    if uuid is not None:
        with contextlib.suppress(pynvml.NVMLError):
            return pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    return pynvml, pynvml.nvmlDeviceGetHandleByIndex(index)


def amdsmi_handle(index: int) -> tuple[Any, Any]:
    """AMD's library, which ROCm ships, and its handle of GPU `index`."""
    import amdsmi as smi  # type: ignore[import-not-found, import-untyped, unused-ignore]

    smi.amdsmi_init()
    return smi, smi.amdsmi_get_processor_handles()[index]


def amdsmi(index: int) -> Source:
    """Clock and power by amdsmi."""
    smi, handle = amdsmi_handle(index)

    def read() -> tuple[float, float]:
        clock: dict[str, Any] = smi.amdsmi_get_clock_info(handle, smi.AmdSmiClkType.GFX)
        power: dict[str, Any] = smi.amdsmi_get_power_info(handle)
        watt = next(
            (power[key] for key in ("current_socket_power", "average_socket_power") if is_number(power.get(key))), 0
        )
        return float(clock.get("clk", clock.get("cur_clk", 0))), float(watt)

    return Source("amdsmi", read)


def rocm_smi(index: int) -> Source:
    """The command line tool: slow, but everywhere where ROCm is."""
    tool = shutil.which("rocm-smi")
    if tool is None:
        raise FileNotFoundError("rocm-smi")
    command = [tool, "-d", str(index), "--showclocks", "--showpower", "--json"]

    def read() -> tuple[float, float]:
        out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout
        card = next(iter(json.loads(out).values()))
        clock = next(value for key, value in card.items() if key.startswith("sclk clock speed"))
        watt = next(value for key, value in card.items() if "Power (W)" in key)
        return float(clock.strip("()Mhz ")), float(watt)

    return Source("rocm-smi", read)


def is_number(value: object) -> bool:
    """True for what a library gives as a figure; "N/A" is not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def find_source(index: int) -> Source | None:
    """The first source that gives a reading for GPU `index`; None if there is none."""
    for make in (amdsmi, nvml, rocm_smi):
        try:
            source = make(index)
            source.read()
        except Exception:  # whatever a vendor's library raises when its hardware is not there
            continue
        return source
    return None


@dataclass(frozen=True, slots=True)
class EnergyCounter:
    """The card's own meter: joules since some moment in the past. It is brought up to date some ten times a second."""

    name: str
    read: Callable[[], float]


def nvml_energy(index: int) -> EnergyCounter:
    """NVML's total energy consumption (Volta and later), millijoules."""
    pynvml, handle = nvml_handle(index)
    return EnergyCounter("NVML total energy", lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3)


def amdsmi_energy(index: int) -> EnergyCounter:
    """amdsmi's accumulator, in units of so many microjoules."""
    smi, handle = amdsmi_handle(index)

    def read() -> float:
        count: dict[str, Any] = smi.amdsmi_get_energy_count(handle)
        ticks = count.get("energy_accumulator", count.get("power"))
        return float(ticks or 0) * float(count["counter_resolution"]) / 1e6

    return EnergyCounter("amdsmi energy count", read)


def find_energy(index: int) -> EnergyCounter | None:
    """The first counter that gives a reading above 0 for GPU `index`; None if there is none."""
    for make in (amdsmi_energy, nvml_energy):
        try:
            counter = make(index)
            if counter.read() > 0:
                return counter
        except Exception:  # as in find_source
            continue
    return None


def interpolate(steps: list[Sample], moment: float) -> float | None:
    """The counter at `moment`; None outside of its steps."""
    for before, after in itertools.pairwise(steps):
        if before.time <= moment <= after.time:
            part = (moment - before.time) / (after.time - before.time)
            return before.joule + part * (after.joule - before.joule)
    return None


class Sampler:
    """Reads a source, and the energy counter, every 20 ms in the background while the `with` block runs."""

    def __init__(self, source: Source | None, interval: float = 0.02, counter: EnergyCounter | None = None) -> None:
        self.source = source
        self.counter = counter
        self.interval = interval
        self.samples: list[Sample] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while (self.source or self.counter) and not self._stop.is_set():
            with contextlib.suppress(Exception):  # a lost reading costs a sample, not the measurement
                joule = self.counter.read() if self.counter else math.nan
                mhz, watt = self.source.read() if self.source else (0.0, 0.0)
                self.samples.append(Sample(time.monotonic(), mhz, watt, joule))
            self._stop.wait(self.interval)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.counter:
            time.sleep(SETTLE_SECONDS)  # the counter's next step tells what the last block took
        self._stop.set()
        self._thread.join()

    def joules(self, begin: float, end: float) -> float | None:
        """Energy between two moments; None where the counter did not step on both sides of each.

        The counter steps about ten times a second. Between its steps energy is taken to grow evenly.
        """
        steps: list[Sample] = []
        for sample in self.samples:
            if not math.isnan(sample.joule) and (not steps or sample.joule > steps[-1].joule):
                steps.append(sample)
        values = [interpolate(steps, moment) for moment in (begin, end)]
        return None if values[0] is None or values[1] is None else values[1] - values[0]

    def during(self, spans: list[tuple[float, float]]) -> tuple[float, float] | None:
        """Median MHz and W over the second half of each span (power readings lag); None without samples there."""
        inside = [s for s in self.samples if any((a + b) / 2 <= s.time <= b for a, b in spans)]
        if not inside:
            return None
        return median(s.mhz for s in inside), median(s.watt for s in inside)
