"""Before a kernel serves its first call on real hardware it must get a small problem right there.

The problems are those of `selftest_cases`: one for each thing that the kernel claims to serve. Passing is remembered on
disk under driver, GPU and code-object hash; failing is not, so a repaired machine heals by itself.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import MoonError, PlanError
from ..planning import plan
from ..routing import Route
from .device import Device
from .memory import HostArray, staging
from .selftest_cases import Case, cases, from_bf16

#: Relative L2 error of the output, by rounding: of the whole, and of the worst row.
TOLERANCE = {"rtne": 3e-3, "rtna": 3e-3, "rtz": 8e-3}
ROW_TOLERANCE = {"rtne": 2e-2, "rtna": 2e-2, "rtz": 4e-2}
LSE_TOLERANCE = 5e-3


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a self-test found.

    Attributes:
        error: relative L2 of the output, the worst of the problems.
        row_error: the same for the worst row.
        lse_error: largest absolute error of the log-sum-exp, 0 where the kernel gives none.
        seconds: for all of it, the reference included; 0 when remembered.
    """

    kernel: str
    passed: bool
    error: float
    row_error: float
    lse_error: float
    seconds: float
    problem: str = ""

    def line(self) -> str:
        """One line for people."""
        verdict = "passed" if self.passed else "FAILED"
        return (
            f"self-test of {self.kernel} {verdict}: relative L2 {self.error:.2e}, worst row {self.row_error:.2e}, "
            f"LSE {self.lse_error:.2e}"
        )


def ensure(device: Device, route: Route) -> bool:
    """Whether the kernels of `route` may serve on `device`; tests them on first use and warns loudly on failure.

    The emulator's kernels are not tested unless `MOON_SELFTEST=force`: there the test suite is the test.

    Raises:
        DriverError: there was no memory for the test; nothing is known of the kernel yet.
    """
    name = route.forward.name
    if name in device.tested:
        return True
    force = os.environ.get("MOON_SELFTEST") == "force"
    if device.emulated and not force:
        return True
    remembered = None if force else _recall(device, route)
    if remembered is None:
        try:
            outcome = run(device, route)
        except MoonError as error:
            if error.out_of_memory:
                raise
            return _refuse(device, route, f"self-test of {name} could not run: {error}")
        if not outcome.passed:
            return _refuse(device, route, outcome.line() + f" ({outcome.problem})")
        if not device.emulated:
            remember(device, route, outcome)
    device.mark_tested(frozenset({name}))
    return True


def passed_before(device: Device, route: Route) -> bool:
    """Whether the kernels of `route` passed on `device`, in this process or by the memory on disk."""
    return route.forward.name in device.tested or _recall(device, route) is not None


def _refuse(device: Device, route: Route, text: str) -> bool:
    device.disable(frozenset({route.forward.name}))
    info = device.info
    warnings.warn(
        f"moon_diffusers: {text}; on {info.name} ({info.arch}, {info.cu_count} CUs, driver {info.driver_version}). "
        "The kernel is switched off in this process; its calls fall back to torch.",
        RuntimeWarning,
        stacklevel=2,
    )
    return False


def run(device: Device, route: Route) -> Outcome:
    """Run the self-test now.

    Raises:
        DriverError, CodeObjectError, PlanError: the kernel could not be loaded or launched.
    """
    start = time.perf_counter()
    worst = Outcome(route.forward.name, True, 0.0, 0.0, 0.0, 0.0)
    chosen = cases(route.forward)
    if not chosen:
        raise PlanError(f"{route.forward.name}: no problem of the self-test has what it requires")
    for case in chosen:
        error, row_error, lse_error = _measure(device, route, case)
        rounding = route.forward.rounding
        passed = error <= TOLERANCE[rounding] and row_error <= ROW_TOLERANCE[rounding] and lse_error <= LSE_TOLERANCE
        if not passed or error >= worst.error:
            text = f"{case.name}, {case.problem.shape_text()}"
            worst = Outcome(route.forward.name, passed, error, row_error, lse_error, 0.0, text)
        if not passed:
            break
    seconds = time.perf_counter() - start
    return Outcome(worst.kernel, worst.passed, worst.error, worst.row_error, worst.lse_error, seconds, worst.problem)


def _measure(device: Device, route: Route, case: Case) -> tuple[float, float, float]:
    problem = case.problem
    out = np.zeros(case.expected.shape, dtype=np.uint16)
    lse = np.zeros(case.expected_lse.shape, dtype=np.float32)
    prepared = device.prepare(plan(problem, route, device.info_for(route)))
    with device.current(), staging(device.driver) as stage:
        addresses = {name: stage.upload(_host(array)) for name, array in case.inputs.items()}
        addresses |= {"o": stage.output(_host(out)), "lse": stage.output(_host(lse))}
        addresses["workspace"] = stage.allocate(prepared.workspace_bytes)
        prepared(0, addresses)
        device.driver.synchronize()
        stage.download(_host(out), addresses["o"])
        if problem.return_lse:
            stage.download(_host(lse), addresses["lse"])

    difference = from_bf16(out) - case.expected
    row_norms = np.linalg.norm(case.expected, axis=-1)
    row_error = float(np.max(np.linalg.norm(difference, axis=-1) / np.maximum(row_norms, 1e-6)))
    error = float(np.linalg.norm(difference) / np.linalg.norm(case.expected))
    lse_error = 0.0
    if problem.return_lse:
        # Equal infinities are no difference; any other is one without bound.
        with np.errstate(invalid="ignore"):
            lse_error = float(np.max(np.where(lse == case.expected_lse, 0, np.abs(lse - case.expected_lse))))
    # NaN compares false with every bound; make it fail by name.
    error, row_error, lse_error = (math.inf if math.isnan(x) else x for x in (error, row_error, lse_error))
    return error, row_error, lse_error


def _host(array: npt.NDArray[Any]) -> HostArray:
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return HostArray(array.ctypes.data, array.shape, strides, array.itemsize)


# --- the memory of passed tests --------------------------------------------------------------------------------------


def cache_file() -> Path:
    """Where passed self-tests are remembered: `MOON_CACHE`, else `XDG_CACHE_HOME`, else `~/.cache`."""
    named = os.environ.get("MOON_CACHE")
    if named:
        return Path(named) / "selftest.json"
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "moon_diffusers" / "selftest.json"


def _key(device: Device, route: Route) -> str:
    info = device.info
    parts = [str(info.driver_version), info.name, info.arch, str(info.cu_count), route.forward.name]
    for kernel in (route.forward, route.value_prepass, route.merge):
        if kernel is not None:
            parts.append(device.code_object_hash(kernel))
    if device.driver.build():
        parts.append(device.driver.build())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _read() -> dict[str, Any]:
    try:
        data = json.loads(cache_file().read_text())
    except (OSError, ValueError, RuntimeError):
        # RuntimeError: a user without a home, as in some containers.
        return {}
    return data if isinstance(data, dict) else {}


def _recall(device: Device, route: Route) -> dict[str, Any] | None:
    entry = _read().get(_key(device, route))
    return entry if isinstance(entry, dict) and entry.get("passed") is True else None


def remember(device: Device, route: Route, outcome: Outcome) -> None:
    """Note on disk that the kernels of `route` passed on `device`, so that later processes need not test them."""
    try:
        path = cache_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        data = _read()
        data[_key(device, route)] = {
            "passed": True,
            "kernel": outcome.kernel,
            "device": device.info.name,
            "driver": device.info.driver_version,
            "error": outcome.error,
            "lse_error": outcome.lse_error,
            "seconds": outcome.seconds,
        }
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as stream:
            try:
                json.dump(data, stream, indent=1)
                stream.flush()
                os.replace(stream.name, path)
            except OSError:
                Path(stream.name).unlink(missing_ok=True)
                raise
    except (OSError, RuntimeError):
        # A read-only home, or none, costs a few milliseconds a process, nothing else.
        return
