"""A device of a driver library: its facts, its loaded code objects, what its self-tests said."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from ..errors import DriverError, LibraryError
from ..planning import DeviceInfo, LaunchPlan
from ..routing import KernelSpec, Route
from . import library
from .code_objects import CodeObject, Manifest, compiled_folder, load_manifest
from .driver import Driver
from .hip import Hip
from .launcher import PreparedLaunch, PreparedPlan


class Device:
    """One device, shared by all threads of the process.

    Attributes:
        driver: the library that drives it.
        ordinal: its number there.
        info: what it says of itself.
        manifest: what was built.
        kernels: the manifest's kernels for its architecture.
        disabled: names of kernels that failed their self-test here.
        compiled_here: files of code objects that the driver refused, and whose fallback it compiled itself.
    """

    def __init__(self, driver: Driver, ordinal: int, manifest: Manifest) -> None:
        self.driver = driver
        self.ordinal = ordinal
        self.manifest = manifest
        self.info = driver.device_info(ordinal)
        self.kernels = manifest.kernels(self.info.arch)
        self.disabled: frozenset[str] = frozenset()
        self.tested: frozenset[str] = frozenset()
        self._lock = threading.RLock()
        self._modules: dict[str, int] = {}
        self._functions: dict[str, int] = {}
        self._clusters: dict[str, int] = {}
        self.compiled_here: set[str] = set()

    @property
    def emulated(self) -> bool:
        """Whether the emulator plays this device."""
        return self.driver.is_emulator

    @property
    def hip(self) -> Hip:
        """The library, where it is HIP.

        Raises:
            LibraryError: it is another one.
        """
        if not isinstance(self.driver, Hip):
            raise LibraryError(f"{self.info.name}: driven by {self.driver.vendor}, not by HIP")
        return self.driver

    @contextmanager
    def current(self) -> Iterator[None]:
        """Makes this the thread's device within the block."""
        with self.driver.current(self.ordinal):
            yield

    def function(self, kernel: KernelSpec) -> int:
        """The handle of a kernel, loading its code object on first use.

        Raises:
            CodeObjectError: the file is missing or damaged.
            DriverError: the library does not take it.
        """
        function = self._functions.get(kernel.name)
        if function is not None:
            return function
        with self._lock, self.current():
            item = self.manifest.code_object_of(kernel)
            module = self._modules.get(item.file)
            if module is None:
                module = self._modules[item.file] = self._load(item)
            function = self.driver.get_function(module, kernel.name)
            self.driver.make_ready(function, kernel.dynamic_lds)
            return self._functions.setdefault(kernel.name, function)

    def _load(self, item: CodeObject) -> int:
        try:
            return self.driver.load_module(self.manifest.read(item))
        except DriverError as error:
            image = self.manifest.read_fallback(item) if error.code in self.driver.refused_image else None
            if image is None:
                raise
        module = self.driver.load_module(image)
        self.compiled_here.add(item.file)
        return module

    def load(self, route: Route) -> None:
        """Load all kernels of a route, those too that not every plan needs: a graph capture may be their next use.

        Raises:
            CodeObjectError, DriverError: one cannot be loaded.
        """
        for kernel in (route.forward, route.value_prepass, route.merge):
            if kernel is not None:
                self.function(kernel)

    def info_for(self, route: Route) -> DeviceInfo:
        """What planning must know of the device to plan `route`.

        Raises:
            CodeObjectError, DriverError: its kernel cannot be loaded.
        """
        kernel = route.forward
        if kernel.cluster == 1:
            return self.info
        clusters = self._clusters.get(kernel.name)
        if clusters is None:
            function = self.function(kernel)
            with self.current():
                clusters = self.driver.active_clusters(function, kernel.cluster, kernel.block[0], kernel.dynamic_lds)
            self._clusters[kernel.name] = clusters
        return replace(self.info, clusters=clusters)

    def prepare(self, plan: LaunchPlan) -> PreparedPlan:
        """Load the kernels of a plan and pack their arguments.

        Raises:
            CodeObjectError, DriverError: a kernel cannot be loaded.
            PlanError: a launch cannot work here.
        """
        with self.current():
            launches = tuple(
                PreparedLaunch(
                    self.driver,
                    self.function(launch.kernel),
                    launch,
                    self.manifest.layouts[launch.kernel.kernarg_layout],
                    self.info.lds_bytes,
                    self.ordinal,
                )
                for launch in plan.launches
            )
        return PreparedPlan(launches, plan)

    def disable(self, names: frozenset[str]) -> None:
        """Never route to these kernels again in this process."""
        with self._lock:
            self.disabled |= names

    def mark_tested(self, names: frozenset[str]) -> None:
        """Remember that these kernels need no further self-test in this process."""
        with self._lock:
            self.tested |= names

    def code_object_hash(self, kernel: KernelSpec) -> str:
        """sha256 of the code object that holds `kernel`."""
        return self.manifest.code_object_of(kernel).sha256


_lock = threading.Lock()
_devices: dict[tuple[str, int, str], Device] = {}


def open_device(driver: Driver, ordinal: int) -> Device:
    """The one `Device` of this process for a library, an ordinal and the current build products.

    Raises:
        CodeObjectError: no usable manifest.
        DriverError: the library does not answer.
    """
    key = (driver.path, ordinal, str(compiled_folder()))
    with _lock:
        device = _devices.get(key)
        if device is None:
            device = _devices[key] = Device(driver, ordinal, load_manifest())
        return device


def open_emulated(arch: str) -> Device:
    """The emulator's device of an architecture.

    Raises:
        LibraryError: the emulator is not built or has no such device.
        CodeObjectError: no usable manifest.
    """
    manifest = load_manifest()
    hip = library.find_emulator(manifest)
    for ordinal in range(hip.device_count()):
        if hip.device_info(ordinal).arch == arch:
            return open_device(hip, ordinal)
    raise LibraryError(f"the emulator {hip.path} has no device {arch!r}")


def open_real(ordinal: int = 0) -> Device:
    """A device of the real HIP library, else of the CUDA driver.

    Raises:
        LibraryError: neither library, or no such device.
        CodeObjectError: no usable manifest.
    """
    return _open(library.find_real(), ordinal)


def open_torch(ordinal: int, *, cuda: bool) -> Device:
    """The device that torch knows by a number.

    The library is the one that torch uses: no other one knows the addresses of its tensors, or its device numbers.

    Raises:
        LibraryError: no such library, or no such device.
        CodeObjectError: no usable manifest.
    """
    return _open(library.find_torch_cuda() if cuda else library.find_mapped(), ordinal)


def _open(driver: Driver, ordinal: int) -> Device:
    count = driver.device_count()
    if ordinal >= count:
        raise LibraryError(
            f"the {driver.vendor} library {driver.path} sees {count} devices; device {ordinal} was asked for"
        )
    return open_device(driver, ordinal)


def _after_fork() -> None:
    # A child opens its own: handles and threads of the parent's devices do not belong to it.
    global _lock
    _lock = threading.Lock()
    _devices.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
