"""A device of a HIP library: its facts, its loaded code objects, what its self-tests said."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import LibraryError
from ..planning import DeviceInfo, LaunchPlan
from ..routing import KernelSpec
from . import library
from .code_objects import Manifest, compiled_folder, load_manifest
from .hip import ATTRIBUTE_NUMBER_OF_XCCS, Hip
from .launcher import PreparedLaunch, PreparedPlan

# CUs of one die, for a HIP that does not tell the number of dies (before 7).
_CUS_PER_XCD = {"gfx942": (38, 20, 19, 10), "gfx950": (32, 16)}


class Device:
    """One device, shared by all threads of the process.

    Attributes:
        hip: the library that drives it.
        ordinal: its number there.
        info: what it says of itself.
        manifest: what was built.
        kernels: the manifest's kernels for its architecture.
        disabled: names of kernels that failed their self-test here.
    """

    def __init__(self, hip: Hip, ordinal: int, manifest: Manifest) -> None:
        self.hip = hip
        self.ordinal = ordinal
        self.manifest = manifest
        self.info = read_info(hip, ordinal)
        self.kernels = manifest.kernels(self.info.arch)
        self.disabled: frozenset[str] = frozenset()
        self.tested: frozenset[str] = frozenset()
        self._lock = threading.RLock()
        self._modules: dict[str, int] = {}
        self._functions: dict[str, int] = {}

    @property
    def emulated(self) -> bool:
        """Whether the emulator plays this device."""
        return self.hip.is_emulator

    @contextmanager
    def current(self) -> Iterator[None]:
        """Makes this the thread's device within the block."""
        before = self.hip.get_device()
        if before == self.ordinal:
            yield
            return
        self.hip.set_device(self.ordinal)
        try:
            yield
        finally:
            self.hip.set_device(before)

    def function(self, kernel: KernelSpec) -> int:
        """The handle of a kernel, loading its code object on first use.

        Raises:
            CodeObjectError: the file is missing or damaged.
            HipError: HIP does not take it.
        """
        function = self._functions.get(kernel.name)
        if function is not None:
            return function
        with self._lock, self.current():
            item = self.manifest.code_object_of(kernel)
            module = self._modules.get(item.file)
            if module is None:
                module = self._modules[item.file] = self.hip.load_module(self.manifest.read(item))
            return self._functions.setdefault(kernel.name, self.hip.get_function(module, kernel.name))

    def prepare(self, plan: LaunchPlan) -> PreparedPlan:
        """Load the kernels of a plan and pack their arguments.

        Raises:
            CodeObjectError, HipError: a kernel cannot be loaded.
            PlanError: a launch cannot work here.
        """
        launches = tuple(
            PreparedLaunch(
                self.hip,
                self.function(launch.kernel),
                launch,
                self.manifest.layouts[launch.kernel.kernarg_layout],
                self.info.lds_bytes,
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


def read_info(hip: Hip, ordinal: int) -> DeviceInfo:
    """Ask a device what it is.

    Raises:
        HipError: HIP does not answer.
    """
    properties = hip.properties(ordinal)
    arch = properties.gcn_arch_name.decode().split(":")[0]
    cu_count = int(properties.multi_processor_count)
    return DeviceInfo(
        arch=arch,
        name=properties.name.decode(errors="replace"),
        cu_count=cu_count,
        xcd_count=hip.attribute(ATTRIBUTE_NUMBER_OF_XCCS, ordinal) or _guess_xcds(arch, cu_count),
        lds_bytes=int(properties.shared_mem_per_block),
        wavefront_size=int(properties.warp_size),
        driver_version=max(hip.versions()),
    )


def _guess_xcds(arch: str, cu_count: int) -> int:
    for per_die in _CUS_PER_XCD.get(arch, ()):
        if cu_count % per_die == 0 and cu_count // per_die <= 8:
            return cu_count // per_die
    return 1


_lock = threading.Lock()
_devices: dict[tuple[str, int, str], Device] = {}


def open_device(hip: Hip, ordinal: int) -> Device:
    """The one `Device` of this process for a library, an ordinal and the current build products.

    Raises:
        CodeObjectError: no usable manifest.
        HipError: HIP does not answer.
    """
    key = (hip.path, ordinal, str(compiled_folder()))
    with _lock:
        device = _devices.get(key)
        if device is None:
            device = _devices[key] = Device(hip, ordinal, load_manifest())
        return device


def open_emulated(arch: str) -> Device:
    """The emulator's device of an architecture.

    Raises:
        LibraryError: the emulator is not built or has no such device.
        CodeObjectError: no usable manifest.
    """
    manifest = load_manifest()
    hip = library.find_emulator(manifest.folder, list(manifest.emulators))
    for ordinal in range(hip.device_count()):
        if hip.properties(ordinal).gcn_arch_name.decode().split(":")[0] == arch:
            return open_device(hip, ordinal)
    raise LibraryError(f"the emulator {hip.path} has no device {arch!r}")


def open_real(ordinal: int = 0, *, mapped: bool = False) -> Device:
    """A device of the real HIP library.

    Args:
        mapped: only the library that the process has mapped already, whatever `MOON_HIP_LIBRARY` says.

    Raises:
        LibraryError: no HIP library, or no such device.
        CodeObjectError: no usable manifest.
    """
    hip = library.find_mapped() if mapped else library.find_hip()
    count = hip.device_count()
    if ordinal >= count:
        raise LibraryError(f"the HIP library {hip.path} sees {count} devices; device {ordinal} was asked for")
    return open_device(hip, ordinal)


def _after_fork() -> None:
    # A child opens its own: handles and threads of the parent's devices do not belong to it.
    global _lock
    _lock = threading.Lock()
    _devices.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
