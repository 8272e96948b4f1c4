"""The HIP API by ctypes: exactly the functions that this package calls, bound with their argument types.

The same binding serves the real `libamdhip64` (HIP 6 and 7) and the emulator's library, which exports the same names.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_void_p
from typing import Any, ClassVar, Final

from ..errors import HipError, LibraryError
from ..planning import DeviceInfo
from .driver import Driver, as_pointer

HOST_TO_DEVICE: Final = 1
DEVICE_TO_HOST: Final = 2
ERROR_NO_DEVICE: Final = 100

# hipDeviceAttribute_t; the second is known to HIP 7 only.
ATTRIBUTE_NUMBER_OF_XCCS: Final = 10018

#: Entries of the `extra` list of a launch.
LAUNCH_PARAM_BUFFER_POINTER: Final = 1
LAUNCH_PARAM_BUFFER_SIZE: Final = 2
LAUNCH_PARAM_END: Final = 3

# CUs of one die, for a HIP that does not tell the number of dies (before 7).
_CUS_PER_XCD = {"gfx942": (38, 20, 19, 10), "gfx950": (32, 16)}

_POINTER_OUT = POINTER(c_void_p)
_INT_OUT = POINTER(c_int)

REQUIRED: Final[dict[str, tuple[Any, ...]]] = {
    "hipGetDeviceCount": (_INT_OUT,),
    "hipSetDevice": (c_int,),
    "hipGetDevice": (_INT_OUT,),
    "hipGetDevicePropertiesR0600": (c_void_p, c_int),
    "hipDeviceGetAttribute": (_INT_OUT, c_int, c_int),
    "hipDriverGetVersion": (_INT_OUT,),
    "hipRuntimeGetVersion": (_INT_OUT,),
    "hipMalloc": (_POINTER_OUT, c_size_t),
    "hipFree": (c_void_p,),
    "hipMemcpy": (c_void_p, c_void_p, c_size_t, c_int),
    "hipMemset": (c_void_p, c_int, c_size_t),
    "hipModuleLoadData": (_POINTER_OUT, c_void_p),
    "hipModuleUnload": (c_void_p,),
    "hipModuleGetFunction": (_POINTER_OUT, c_void_p, c_char_p),
    "hipModuleLaunchKernel": (
        c_void_p,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_void_p,
        c_void_p,
        c_void_p,
    ),
    "hipStreamCreateWithFlags": (_POINTER_OUT, c_uint),
    "hipStreamDestroy": (c_void_p,),
    "hipStreamSynchronize": (c_void_p,),
    "hipDeviceSynchronize": (),
    "hipEventCreate": (_POINTER_OUT,),
    "hipEventDestroy": (c_void_p,),
    "hipEventRecord": (c_void_p, c_void_p),
    "hipEventSynchronize": (c_void_p,),
    "hipEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
    "hipGetLastError": (),
}

#: What the emulator exports beyond HIP: name to (result, arguments).
EMULATOR_ONLY: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "moonEmuSetOption": (c_int, (c_char_p, c_char_p)),
    "moonEmuLastMessage": (c_char_p, ()),
    "moonEmuReport": (c_char_p, ()),
    "moonEmuDisassemble": (c_char_p, (c_void_p, c_size_t)),
}


class DeviceProperties(ctypes.Structure):
    """`hipDeviceProp_tR0600`: 1,472 bytes, of which the named ones are read here."""

    _fields_ = (
        ("name", ctypes.c_char * 256),
        ("_unread_0", ctypes.c_byte * 40),
        ("shared_mem_per_block", c_size_t),  # at 296
        ("_unread_1", ctypes.c_byte * 4),
        ("warp_size", c_int),  # at 308
        ("_unread_2", ctypes.c_byte * 76),
        ("multi_processor_count", c_int),  # at 388
        ("_unread_3", ctypes.c_byte * 768),
        ("gcn_arch_name", ctypes.c_char * 256),  # at 1160
        ("_unread_4", ctypes.c_byte * 56),
    )


class Hip(Driver):
    """A bound HIP library. Every method raises `HipError` where HIP answers anything but success.

    Args:
        path: file name or soname to load; a library that the process has already mapped is shared.

    Raises:
        LibraryError: it cannot be loaded, or lacks a function.
    """

    vendor: ClassVar[str] = "HIP"
    names: ClassVar[Mapping[str, str]] = {
        "synchronize": "hipDeviceSynchronize",
        "malloc": "hipMalloc",
        "free": "hipFree",
        "memset": "hipMemset",
        "unload_module": "hipModuleUnload",
        "get_function": "hipModuleGetFunction",
        "create_stream": "hipStreamCreateWithFlags",
        "destroy_stream": "hipStreamDestroy",
        "synchronize_stream": "hipStreamSynchronize",
        "destroy_event": "hipEventDestroy",
        "record_event": "hipEventRecord",
    }

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise LibraryError(f"HIP library {path}: {error}") from None
        try:
            for name, argtypes in REQUIRED.items():
                function = getattr(self._library, name)
                function.argtypes = argtypes
                function.restype = c_int
            for name in ("hipGetErrorName", "hipGetErrorString"):
                function = getattr(self._library, name)
                function.argtypes = (c_int,)
                function.restype = c_char_p
        except AttributeError as error:
            raise LibraryError(f"HIP library {path}: {error}; HIP 6 or 7 is needed") from None
        self.is_emulator = hasattr(self._library, "moonEmuSetOption")
        if self.is_emulator:
            for name, (restype, argtypes) in EMULATOR_ONLY.items():
                function = getattr(self._library, name)
                function.argtypes = argtypes
                function.restype = restype
        self.launch_kernel = self._library.hipModuleLaunchKernel

    def check(self, function: str, code: int) -> None:
        """Raise `HipError` unless `code` is hipSuccess."""
        if code == 0:
            return
        message = ""
        if self.is_emulator:
            message = (self._library.moonEmuLastMessage() or b"").decode(errors="replace")
        name = (self._library.hipGetErrorName(code) or b"").decode(errors="replace")
        text = (self._library.hipGetErrorString(code) or b"").decode(errors="replace")
        # HIP 7 keeps an error until it is read; left there, torch's next check would report it as its own.
        self._library.hipGetLastError()
        raise HipError(function, code, name, text, message)

    # --- devices ---------------------------------------------------------------------------------------------------

    def device_count(self) -> int:
        """Number of devices; 0 where HIP says that there is none."""
        out = c_int()
        code = self._library.hipGetDeviceCount(byref(out))
        if code == ERROR_NO_DEVICE:
            self._library.hipGetLastError()
            return 0
        self.check("hipGetDeviceCount", code)
        return out.value

    def get_device(self) -> int:
        """This thread's current device."""
        return self._int("hipGetDevice")

    def set_device(self, ordinal: int) -> None:
        """Make `ordinal` this thread's current device."""
        self._call("hipSetDevice", ordinal)

    def properties(self, ordinal: int) -> DeviceProperties:
        """The properties of a device, R0600 layout."""
        properties = DeviceProperties()
        self._call("hipGetDevicePropertiesR0600", byref(properties), ordinal)
        return properties

    @contextmanager
    def current(self, ordinal: int) -> Iterator[None]:
        """Makes this the thread's device within the block."""
        before = self.get_device()
        if before == ordinal:
            yield
            return
        self.set_device(ordinal)
        try:
            yield
        finally:
            self.set_device(before)

    def device_info(self, ordinal: int) -> DeviceInfo:
        """What a device says of itself."""
        properties = self.properties(ordinal)
        arch = properties.gcn_arch_name.decode(errors="replace").split(":")[0]
        cu_count = max(1, int(properties.multi_processor_count))
        xcds = self.attribute(ATTRIBUTE_NUMBER_OF_XCCS, ordinal) or 0
        return DeviceInfo(
            arch=arch,
            name=properties.name.decode(errors="replace"),
            cu_count=cu_count,
            xcd_count=xcds if xcds > 0 else guess_xcds(arch, cu_count),
            lds_bytes=int(properties.shared_mem_per_block),
            wavefront_size=int(properties.warp_size),
            driver_version=max(self.versions()),
        )

    def attribute(self, attribute: int, ordinal: int) -> int | None:
        """A device attribute, None where this HIP does not know it."""
        out = c_int()
        if self._library.hipDeviceGetAttribute(byref(out), attribute, ordinal):
            self._library.hipGetLastError()
            return None
        return out.value

    def versions(self) -> tuple[int, int]:
        """Driver and runtime version, as HIP encodes them."""
        return self._int("hipDriverGetVersion"), self._int("hipRuntimeGetVersion")

    def version_text(self) -> str:
        """E.g. `HIP 6.4.43484`."""
        return f"HIP {version_text(self.versions()[1])}"

    # --- memory ----------------------------------------------------------------------------------------------------

    def copy_to_device(self, device: int, host: int, size: int) -> None:
        """Copy `size` bytes from host to device memory, blocking."""
        self._call("hipMemcpy", device, host, size, HOST_TO_DEVICE)

    def copy_to_host(self, host: int, device: int, size: int) -> None:
        """Copy `size` bytes from device to host memory, after the work of the null stream, blocking."""
        self._call("hipMemcpy", host, device, size, DEVICE_TO_HOST)

    # --- modules ---------------------------------------------------------------------------------------------------

    def load_module(self, image: bytes) -> int:
        """Load a code object on the current device. The image must be whole: HIP aborts on a truncated ELF."""
        return self._pointer("hipModuleLoadData", as_pointer(image))

    def argument_lists(self, address: int, size_address: int) -> tuple[Any, Any]:
        """HIP takes the whole segment, by its `extra` list."""
        extra = (c_void_p * 5)(
            LAUNCH_PARAM_BUFFER_POINTER, address, LAUNCH_PARAM_BUFFER_SIZE, size_address, LAUNCH_PARAM_END
        )
        return None, extra

    # --- streams and events ----------------------------------------------------------------------------------------

    def create_event(self) -> int:
        """An event with timing."""
        return self._pointer("hipEventCreate")

    def elapsed_ms(self, start: int, stop: int) -> float:
        """Milliseconds between two recorded events, waiting for the second."""
        self._call("hipEventSynchronize", stop)
        out = c_float()
        self._call("hipEventElapsedTime", byref(out), start, stop)
        return out.value

    # --- the emulator's own ----------------------------------------------------------------------------------------

    def set_option(self, key: str, value: str) -> None:
        """Set an option of the emulator.

        Raises:
            LibraryError: this is not the emulator.
            HipError: unknown key or value.
        """
        self._require_emulator("moonEmuSetOption")
        self._call("moonEmuSetOption", key.encode(), value.encode())

    def report(self) -> str:
        """JSON of this thread's last launch in the emulator."""
        self._require_emulator("moonEmuReport")
        return (self._library.moonEmuReport() or b"").decode()

    def disassemble(self, image: bytes) -> str:
        """JSON list of the decoded instructions of a code object, by the emulator's decoder.

        Raises:
            LibraryError: this is not the emulator.
            HipError: the image cannot be loaded.
        """
        self._require_emulator("moonEmuDisassemble")
        text = self._library.moonEmuDisassemble(image, len(image))
        if text is None:
            self.check("moonEmuDisassemble", self._library.hipGetLastError())
        return (text or b"").decode()

    def _require_emulator(self, function: str) -> None:
        if not self.is_emulator:
            raise LibraryError(f"{function}: {self.path} is not the emulator")


def guess_xcds(arch: str, cu_count: int) -> int:
    """The dies of a device by its compute units, 1 where that does not tell."""
    for per_die in _CUS_PER_XCD.get(arch, ()):
        if cu_count % per_die == 0 and cu_count // per_die <= 8:
            return cu_count // per_die
    return 1


def version_text(number: int) -> str:
    """A version as HIP encodes it, e.g. 60443484, as text: `6.4.43484`."""
    return f"{number // 10_000_000}.{number // 100_000 % 100}.{number % 100_000}"


assert ctypes.sizeof(DeviceProperties) == 1472
