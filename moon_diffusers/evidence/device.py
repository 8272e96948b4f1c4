"""A device behind the HIP C ABI, for launches that take a whole code object and raw kernel arguments.

Works on the emulator and on libamdhip64 alike. Its emulator subclass adds options and reports.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2
_EXTRA_POINTER, _EXTRA_SIZE, _EXTRA_END = 1, 2, 3


class DeviceError(RuntimeError):
    """A HIP call answered an error; ``code`` is the hipError_t, ``call`` the function."""

    def __init__(self, call: str, code: int, message: str) -> None:
        super().__init__(f"{call}: {message} (hipError_t {code})")
        self.call, self.code = call, code


class Module:
    """A loaded code object; unloaded by `Device.unload`."""

    def __init__(self, handle: int) -> None:
        self.handle = handle


class Device:
    """One HIP device by its ordinal. Every method raises DeviceError when the runtime refuses."""

    def __init__(self, library: ctypes.CDLL, ordinal: int) -> None:
        self._lib = library
        self.ordinal = ordinal
        p, i, u, z = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_size_t
        signatures: dict[str, list[Any]] = {
            "hipSetDevice": [i],
            "hipMalloc": [ctypes.POINTER(p), z],
            "hipFree": [p],
            "hipMemcpy": [p, p, z, i],
            "hipMemset": [p, i, z],
            "hipDeviceSynchronize": [],
            "hipModuleLoadData": [ctypes.POINTER(p), p],
            "hipModuleUnload": [p],
            "hipModuleGetFunction": [ctypes.POINTER(p), p, ctypes.c_char_p],
            "hipModuleLaunchKernel": [p, u, u, u, u, u, u, u, p, p, p],
        }
        for name, arguments in signatures.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, ctypes.c_int
        library.hipGetErrorString.argtypes = [ctypes.c_int]
        library.hipGetErrorString.restype = ctypes.c_char_p

    def call(self, name: str, *arguments: Any) -> None:
        """Call a HIP function on this device and raise on any error."""
        code = self._lib.hipSetDevice(self.ordinal)
        code = code or getattr(self._lib, name)(*arguments)
        if code:
            raise DeviceError(name, code, self.describe(code))

    def describe(self, code: int) -> str:
        """One line about an error code."""
        text: bytes = self._lib.hipGetErrorString(code)
        return text.decode()

    def malloc(self, size: int) -> int:
        """Device memory of ``size`` bytes, as an address."""
        pointer = ctypes.c_void_p()
        self.call("hipMalloc", ctypes.byref(pointer), size)
        return int(pointer.value or 0)

    def free(self, address: int) -> None:
        """Give memory of `malloc` or `upload` back."""
        self.call("hipFree", address)

    def upload(self, array: Array) -> int:
        """A copy of an array in new device memory, as an address."""
        array = np.ascontiguousarray(array)
        address = self.malloc(max(array.nbytes, 1))
        if array.nbytes:
            self.call("hipMemcpy", address, array.ctypes.data, array.nbytes, _HOST_TO_DEVICE)
        return address

    def download(self, address: int, like: Array) -> Array:
        """The array at a device address, with the shape and dtype of ``like``."""
        out = np.empty_like(like, order="C")
        if out.nbytes:
            self.call("hipMemcpy", out.ctypes.data, address, out.nbytes, _DEVICE_TO_HOST)
        return out

    def load(self, image: bytes) -> Module:
        """Load a code object. The caller vouches that it is a whole ELF: the real runtime aborts on a truncated one."""
        module = ctypes.c_void_p()
        self.call("hipModuleLoadData", ctypes.byref(module), ctypes.c_char_p(image))
        return Module(int(module.value or 0))

    def unload(self, module: Module) -> None:
        """Unload a code object."""
        self.call("hipModuleUnload", module.handle)

    def function(self, module: Module, name: str) -> int:
        """A kernel's handle by its name, without ``.kd``."""
        function = ctypes.c_void_p()
        self.call("hipModuleGetFunction", ctypes.byref(function), module.handle, name.encode())
        return int(function.value or 0)

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
        buffer = ctypes.create_string_buffer(kernarg, len(kernarg))
        size = ctypes.c_size_t(len(kernarg))
        extra = (ctypes.c_void_p * 5)(
            _EXTRA_POINTER, ctypes.addressof(buffer), _EXTRA_SIZE, ctypes.addressof(size), _EXTRA_END
        )
        self.call("hipModuleLaunchKernel", function, *grid, *block, dynamic_lds, None, None, extra)
        self.call("hipDeviceSynchronize")


class Emulator(Device):
    """A device of the emulator's library: everything of `Device`, with options and the report of the last launch."""

    def __init__(self, library: ctypes.CDLL, ordinal: int) -> None:
        super().__init__(library, ordinal)
        library.moonEmuSetOption.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
        library.moonEmuSetOption.restype = ctypes.c_int
        for name in ("moonEmuLastMessage", "moonEmuReport"):
            getattr(library, name).argtypes = []
            getattr(library, name).restype = ctypes.c_char_p

    def describe(self, code: int) -> str:
        """The emulator's own line about the last error, or HIP's."""
        text: bytes = self._lib.moonEmuLastMessage() or b""
        return text.decode() or super().describe(code)

    def set_options(self, options: Mapping[str, str]) -> None:
        """Set process-wide options. Raises DeviceError for an unknown key or value."""
        for key, value in options.items():
            self.call("moonEmuSetOption", key.encode(), value.encode())

    def report(self) -> dict[str, Any]:
        """What the last launch on this thread found and counted."""
        text: bytes = self._lib.moonEmuReport() or b"{}"
        report: dict[str, Any] = json.loads(text)
        return report


@contextmanager
def loaded(device: Device, image: bytes) -> Iterator[Module]:
    """A code object loaded for the time of a ``with`` block."""
    module = device.load(image)
    try:
        yield module
    finally:
        device.unload(module)


def open_emulator(path: Path, arch: str) -> Emulator:
    """The emulator's device for ``gfx942`` or ``gfx950`` from the library at ``path``."""
    ordinals = {"gfx942": 0, "gfx950": 1}
    if arch not in ordinals:
        raise ValueError(f"arch={arch!r}: expected gfx942 or gfx950")
    return Emulator(ctypes.CDLL(str(path)), ordinals[arch])
