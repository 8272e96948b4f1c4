"""Launches of a whole code object with raw kernel arguments, on the HIP binding that the package itself uses.

Works on the emulator and on libamdhip64 alike; the emulator adds options and a report.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moon_diffusers.errors import ArgumentError
from moon_diffusers.runtime import code_objects, library
from moon_diffusers.runtime.hip import LAUNCH_PARAM_BUFFER_POINTER, LAUNCH_PARAM_BUFFER_SIZE, LAUNCH_PARAM_END, Hip

Array = NDArray[Any]
EMULATED = {"gfx942": 0, "gfx950": 1}


class RawDevice:
    """One device of a HIP library by its ordinal. Every method raises HipError where HIP refuses."""

    def __init__(self, hip: Hip, ordinal: int) -> None:
        self.hip = hip
        self.ordinal = ordinal

    def select(self) -> None:
        """Make this the calling thread's device."""
        self.hip.set_device(self.ordinal)

    def upload(self, array: Array) -> int:
        """A copy of an array in new device memory, exactly as large (so that reads past its end are seen); its address."""
        self.select()
        array = np.ascontiguousarray(array)
        address = self.hip.malloc(max(array.nbytes, 1))
        if array.nbytes:
            self.hip.copy_to_device(address, array.ctypes.data, array.nbytes)
        return address

    def download(self, address: int, like: Array) -> Array:
        """The array at a device address, with the shape and dtype of ``like``."""
        out = np.empty_like(like, order="C")
        if out.nbytes:
            self.hip.copy_to_host(out.ctypes.data, address, out.nbytes)
        return out

    def load(self, image: bytes) -> int:
        """A module of a code object. The caller vouches that it is a whole ELF: the real runtime aborts on another."""
        self.select()
        return self.hip.load_module(image)

    def function(self, module: int, name: str) -> int:
        """A kernel's handle by its name, without ``.kd``."""
        return self.hip.get_function(module, name)

    def launch(
        self,
        function: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        kernarg: bytes,
        *,
        dynamic_lds: int = 0,
    ) -> None:
        """Launch ``grid`` workgroups of ``block`` work-items with raw kernel arguments, and wait for the end."""
        self.select()
        buffer = ctypes.create_string_buffer(kernarg, len(kernarg))
        size = ctypes.c_size_t(len(kernarg))
        extra = (ctypes.c_void_p * 5)(
            LAUNCH_PARAM_BUFFER_POINTER,
            ctypes.addressof(buffer),
            LAUNCH_PARAM_BUFFER_SIZE,
            ctypes.addressof(size),
            LAUNCH_PARAM_END,
        )
        code = self.hip.launch_kernel(function, *grid, *block, dynamic_lds, None, None, extra)
        self.hip.check("hipModuleLaunchKernel", code)
        self.hip.synchronize()

    def set_options(self, options: Mapping[str, str]) -> None:
        """Set the emulator's process-wide options. Raises LibraryError on a real library."""
        for key, value in options.items():
            self.hip.set_option(key, value)

    def report(self) -> dict[str, Any]:
        """What the emulator found and counted in this thread's last launch. Raises LibraryError on a real library."""
        report: dict[str, Any] = json.loads(self.hip.report() or "{}")
        return report


@contextmanager
def loaded(device: RawDevice, image: bytes) -> Iterator[int]:
    """A code object loaded for the time of a ``with`` block."""
    module = device.load(image)
    try:
        yield module
    finally:
        device.hip.unload_module(module)


@contextmanager
def uploaded(device: RawDevice, arrays: Mapping[str, Array]) -> Iterator[dict[str, int]]:
    """Arrays in device memory for the time of a ``with`` block; their addresses by name."""
    addresses: dict[str, int] = {}
    try:
        for name, array in arrays.items():
            addresses[name] = device.upload(array)
        yield addresses
    finally:
        for address in addresses.values():
            device.hip.free(address)


def emulator_library() -> Hip:
    """The emulator that was built for this CPU. Raises LibraryError or CodeObjectError where it was not."""
    manifest = code_objects.load_manifest()
    return library.find_emulator(manifest)


def open_emulator(arch: str) -> RawDevice:
    """The emulator's device of an architecture. Raises ArgumentError for one that it has not."""
    if arch not in EMULATED:
        raise ArgumentError("arch", repr(arch), ", ".join(EMULATED))
    return RawDevice(emulator_library(), EMULATED[arch])
