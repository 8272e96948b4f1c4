"""What the package asks of a library that drives devices: HIP, our emulator behind HIP's names, or the CUDA driver."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from contextlib import AbstractContextManager
from ctypes import byref, c_int, c_void_p
from typing import Any, ClassVar, Final

from ..errors import PlanError
from ..planning import DeviceInfo, TensorMap

#: Of a stream, in HIP and CUDA alike.
STREAM_NON_BLOCKING: Final = 1


class Driver:
    """A bound library. Every method raises a `DriverError` where the library answers anything but success.

    Attributes:
        path: file name or soname that was loaded.
        is_emulator: it is ours and drives no hardware.
        launch_kernel: the library's own launch function, for the launcher's hot path; `check` its result. It takes the
            function, grid and block in x, y, z, dynamic LDS, the stream, and the two lists of `argument_lists`.
        replace_address: the library's function that points the tensor map at an address (a multiple of 64) to another
            memory; None where there are no maps.
    """

    #: For people: `HIP` or `CUDA`.
    vendor: ClassVar[str]
    #: Answers to `load_module` after which an image in another form may still load.
    refused_image: ClassVar[frozenset[int]] = frozenset()

    #: The library's own functions, by the method here that one call of them is.
    names: ClassVar[Mapping[str, str]]

    path: str
    is_emulator: bool
    launch_kernel: Any
    replace_address: Any = None
    _library: Any

    # --- calling ---------------------------------------------------------------------------------------------------

    def check(self, function: str, code: int) -> None:
        """Raise the library's error unless `code` is success."""
        raise NotImplementedError

    def _call(self, function: str, *arguments: Any) -> None:
        self.check(function, getattr(self._library, function)(*arguments))

    def _pointer(self, function: str, *arguments: Any) -> int:
        out = c_void_p()
        self._call(function, byref(out), *arguments)
        return out.value or 0

    def _int(self, function: str, *arguments: Any) -> int:
        out = c_int()
        self._call(function, byref(out), *arguments)
        return out.value

    # --- devices ---------------------------------------------------------------------------------------------------

    def device_count(self) -> int:
        """Number of devices; 0 where the library says that there is none."""
        raise NotImplementedError

    def device_info(self, ordinal: int) -> DeviceInfo:
        """What a device says of itself."""
        raise NotImplementedError

    def current(self, ordinal: int) -> AbstractContextManager[None]:
        """Makes this the thread's device within the block."""
        raise NotImplementedError

    def versions(self) -> tuple[int, int]:
        """Driver and runtime version, as the library encodes them."""
        raise NotImplementedError

    def version_text(self) -> str:
        """The library's version for people, e.g. `HIP 6.4.43484`."""
        raise NotImplementedError

    def build(self) -> str:
        """What else tells one build of the driver from another, empty where `versions` tells all."""
        return ""

    def synchronize(self) -> None:
        """Wait for all work of the current device."""
        self._call(self.names["synchronize"])

    # --- memory ----------------------------------------------------------------------------------------------------

    def malloc(self, size: int) -> int:
        """Device memory, uninitialised; its address."""
        return self._pointer(self.names["malloc"], size)

    def free(self, address: int) -> None:
        """Give device memory back."""
        self._call(self.names["free"], address)

    def copy_to_device(self, device: int, host: int, size: int) -> None:
        """Copy `size` bytes from host to device memory, blocking."""
        raise NotImplementedError

    def copy_to_host(self, host: int, device: int, size: int) -> None:
        """Copy `size` bytes from device to host memory, after the work of the null stream, blocking."""
        raise NotImplementedError

    def memset(self, device: int, value: int, size: int) -> None:
        """Set `size` bytes of device memory to `value`."""
        self._call(self.names["memset"], device, value, size)

    # --- kernels ---------------------------------------------------------------------------------------------------

    def load_module(self, image: bytes) -> int:
        """Load a code object on the current device."""
        raise NotImplementedError

    def unload_module(self, module: int) -> None:
        """Unload a code object."""
        self._call(self.names["unload_module"], module)

    def get_function(self, module: int, name: str) -> int:
        """A kernel of a module by its name."""
        return self._pointer(self.names["get_function"], module, name.encode())

    def make_ready(self, function: int, dynamic_lds: int) -> None:
        """Load a kernel for good, so that a graph capture may be its next use, and allow it that much dynamic LDS."""

    def active_clusters(self, function: int, cluster: int, threads: int, dynamic_lds: int) -> int:
        """Clusters of a kernel that the current device runs at once; 0 where the library cannot say."""
        return 0

    def argument_lists(self, address: int, size_address: int) -> tuple[Any, Any]:
        """The last two arguments of `launch_kernel`, for kernargs at `address` and their size at `size_address`."""
        raise NotImplementedError

    def encode_map(self, tensor_map: TensorMap, address: int) -> bytes:
        """The 128 bytes of a tensor map over the memory at `address`.

        Raises:
            PlanError: this library has none.
        """
        raise PlanError(f"{self.vendor} has no tensor maps")

    def adopt(self, code: int, ordinal: int) -> bool:
        """Whether `code` says that this thread had no context, and it has now one of the device: call again then."""
        return False

    # --- streams and events ----------------------------------------------------------------------------------------

    def create_stream(self) -> int:
        """A stream that does not wait for the null stream."""
        return self._pointer(self.names["create_stream"], STREAM_NON_BLOCKING)

    def destroy_stream(self, stream: int) -> None:
        """Destroy a stream."""
        self._call(self.names["destroy_stream"], stream)

    def synchronize_stream(self, stream: int) -> None:
        """Wait for a stream; 0 is the null stream."""
        self._call(self.names["synchronize_stream"], stream)

    def create_event(self) -> int:
        """An event with timing."""
        raise NotImplementedError

    def destroy_event(self, event: int) -> None:
        """Destroy an event."""
        self._call(self.names["destroy_event"], event)

    def record_event(self, event: int, stream: int) -> None:
        """Record an event on a stream."""
        self._call(self.names["record_event"], event, stream)

    def elapsed_ms(self, start: int, stop: int) -> float:
        """Milliseconds between two recorded events, waiting for the second."""
        raise NotImplementedError


def as_pointer(image: bytes) -> ctypes.c_void_p:
    """The address of bytes that end with a zero byte more, as Python's do."""
    return ctypes.cast(ctypes.c_char_p(image), c_void_p)
