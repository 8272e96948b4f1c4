"""The CUDA driver API by ctypes: exactly the functions that this package calls, bound with their argument types.

Devices are used through their primary contexts, which torch and the CUDA runtime use too. A thread that has another
context, or none, gets the primary one for the time of a call.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any, ClassVar, Final

from ..errors import CudaError, LibraryError, PlanError
from ..planning import DeviceInfo, TensorMap
from .driver import Driver, as_pointer

ERROR_NO_DEVICE: Final = 100
ERROR_INVALID_CONTEXT: Final = 201
CAPTURE_RELAXED: Final = 2

# CUdevice_attribute
WARP_SIZE: Final = 10
MULTIPROCESSOR_COUNT: Final = 16
COMPUTE_CAPABILITY: Final = (75, 76)
SHARED_MEMORY_PER_BLOCK: Final = 97

# CUfunction_attribute
MAX_THREADS_PER_BLOCK: Final = 0
MAX_DYNAMIC_SHARED: Final = 8

# CUlaunchAttributeID
CLUSTER_DIMENSION: Final = 4

# CUjit_option
ERROR_LOG_BUFFER: Final = 5
ERROR_LOG_BUFFER_SIZE: Final = 6

# CUtensorMapDataType and so on: bf16, plain, in 128-byte swizzle, fetched by 256 bytes, zeros beyond the tensor.
MAP_BFLOAT16: Final = 9
MAP_PLAIN: Final = 0
MAP_SWIZZLE_128: Final = 3
MAP_PROMOTE_256: Final = 3
MAP_FILL_ZEROS: Final = 0
MAP_SIZE: Final = 128
MAP_ALIGNMENT: Final = 64

#: Cards whose kernels use what no later card has are built for `sm_90a`, not `sm_90`.
ARCHITECTURES: Final = {(9, 0): "sm_90a"}

_POINTER_OUT = POINTER(c_void_p)
_INT_OUT = POINTER(c_int)

REQUIRED: Final[dict[str, tuple[Any, ...]]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (_INT_OUT,),
    "cuDeviceGetCount": (_INT_OUT,),
    "cuDeviceGet": (_INT_OUT, c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (_INT_OUT, c_int, c_int),
    "cuDevicePrimaryCtxRetain": (_POINTER_OUT, c_int),
    "cuCtxGetCurrent": (_POINTER_OUT,),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (_POINTER_OUT,),
    "cuCtxSynchronize": (),
    "cuThreadExchangeStreamCaptureMode": (_INT_OUT,),
    "cuMemAlloc_v2": (_POINTER_OUT, c_size_t),
    "cuMemFree_v2": (c_void_p,),
    "cuMemcpyHtoD_v2": (c_void_p, c_void_p, c_size_t),
    "cuMemcpyDtoH_v2": (c_void_p, c_void_p, c_size_t),
    "cuMemsetD8_v2": (c_void_p, ctypes.c_ubyte, c_size_t),
    "cuModuleLoadData": (_POINTER_OUT, c_void_p),
    "cuModuleLoadDataEx": (_POINTER_OUT, c_void_p, c_uint, POINTER(c_int), POINTER(c_void_p)),
    "cuModuleUnload": (c_void_p,),
    "cuModuleGetFunction": (_POINTER_OUT, c_void_p, c_char_p),
    "cuFuncGetAttribute": (_INT_OUT, c_int, c_void_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuOccupancyMaxActiveClusters": (_INT_OUT, c_void_p, c_void_p),
    "cuLaunchKernel": (
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
    "cuTensorMapEncodeTiled": (
        c_void_p,
        c_int,
        c_uint32,
        c_void_p,
        POINTER(c_uint64),
        POINTER(c_uint64),
        POINTER(c_uint32),
        POINTER(c_uint32),
        c_int,
        c_int,
        c_int,
        c_int,
    ),
    "cuTensorMapReplaceAddress": (c_void_p, c_void_p),
    "cuStreamCreate": (_POINTER_OUT, c_uint),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuStreamSynchronize": (c_void_p,),
    "cuEventCreate": (_POINTER_OUT, c_uint),
    "cuEventDestroy_v2": (c_void_p,),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
}


class LaunchAttribute(ctypes.Structure):
    """`CUlaunchAttribute` with a cluster's dimensions; its value has 64 bytes, from the eighth on."""

    _fields_ = (
        ("id", c_int),
        ("_pad", c_int),
        ("x", c_uint),
        ("y", c_uint),
        ("z", c_uint),
        ("_unused", ctypes.c_byte * 52),
    )


class LaunchConfig(ctypes.Structure):
    """`CUlaunchConfig`."""

    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("dynamic_shared", c_uint),
        ("stream", c_void_p),
        ("attributes", POINTER(LaunchAttribute)),
        ("num_attributes", c_uint),
    )


class Cuda(Driver):
    """A bound CUDA driver. Every method raises `CudaError` where it answers anything but success.

    Args:
        path: file name or soname to load; a library that the process has already mapped is shared.

    Raises:
        LibraryError: it cannot be loaded, or lacks a function.
    """

    vendor: ClassVar[str] = "CUDA"
    names: ClassVar[Mapping[str, str]] = {
        "synchronize": "cuCtxSynchronize",
        "malloc": "cuMemAlloc_v2",
        "free": "cuMemFree_v2",
        "memset": "cuMemsetD8_v2",
        "unload_module": "cuModuleUnload",
        "get_function": "cuModuleGetFunction",
        "create_stream": "cuStreamCreate",
        "destroy_stream": "cuStreamDestroy_v2",
        "synchronize_stream": "cuStreamSynchronize",
        "destroy_event": "cuEventDestroy_v2",
        "record_event": "cuEventRecord",
    }
    # Invalid image, no binary for this GPU, invalid source: another driver's machine code.
    refused_image: ClassVar[frozenset[int]] = frozenset({200, 209, 300})

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_emulator = False
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise LibraryError(f"CUDA driver {path}: {error}") from None
        try:
            for name, argtypes in REQUIRED.items():
                function = getattr(self._library, name)
                function.argtypes = argtypes
                function.restype = c_int
        except AttributeError as error:
            raise LibraryError(f"CUDA driver {path}: {error}; one for CUDA 12 (525 or newer) is needed") from None
        self.launch_kernel = self._library.cuLaunchKernel
        self.replace_address = self._library.cuTensorMapReplaceAddress
        self._contexts: dict[int, int] = {}
        self._lock = threading.Lock()

    def check(self, function: str, code: int) -> None:
        """Raise `CudaError` unless `code` is CUDA_SUCCESS."""
        if code == 0:
            return
        name, text = c_char_p(), c_char_p()
        self._library.cuGetErrorName(code, byref(name))
        self._library.cuGetErrorString(code, byref(text))
        raise CudaError(function, code, _decode(name) or "an unknown error", _decode(text) or "no description")

    # --- devices and contexts --------------------------------------------------------------------------------------

    def device_count(self) -> int:
        """Number of devices; 0 where CUDA says that there is none."""
        code = self._library.cuInit(0)
        if code == ERROR_NO_DEVICE:
            return 0
        self.check("cuInit", code)
        return self._int("cuDeviceGetCount")

    def _device(self, ordinal: int) -> int:
        self._call("cuInit", 0)
        return self._int("cuDeviceGet", ordinal)

    def attribute(self, attribute: int, ordinal: int) -> int:
        """A device attribute."""
        return self._int("cuDeviceGetAttribute", attribute, self._device(ordinal))

    def device_info(self, ordinal: int) -> DeviceInfo:
        """What a device says of itself; `cu_count` counts its SMs, `lds_bytes` is what a block may ask for."""
        name = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", name, len(name), self._device(ordinal))
        major, minor = (self.attribute(number, ordinal) for number in COMPUTE_CAPABILITY)
        return DeviceInfo(
            arch=ARCHITECTURES.get((major, minor), f"sm_{major}{minor}"),
            name=name.value.decode(errors="replace"),
            cu_count=self.attribute(MULTIPROCESSOR_COUNT, ordinal),
            xcd_count=1,
            lds_bytes=self.attribute(SHARED_MEMORY_PER_BLOCK, ordinal),
            wavefront_size=self.attribute(WARP_SIZE, ordinal),
            driver_version=self.versions()[0],
        )

    def context(self, ordinal: int) -> int:
        """The primary context of a device, retained until the process ends."""
        context = self._contexts.get(ordinal)
        if context is None:
            with self._lock:
                context = self._contexts.get(ordinal)
                if context is None:
                    context = self._pointer("cuDevicePrimaryCtxRetain", self._device(ordinal))
                    self._contexts[ordinal] = context
        return context

    @contextmanager
    def current(self, ordinal: int) -> Iterator[None]:
        """Makes the device's primary context this thread's within the block.

        What the thread does there (allocate, load, synchronise) does not break a graph capture of another thread.
        """
        context = self.context(ordinal)
        pushed = self._pointer("cuCtxGetCurrent") != context
        if pushed:
            self._call("cuCtxPushCurrent_v2", context)
        mode = c_int(CAPTURE_RELAXED)
        self._call("cuThreadExchangeStreamCaptureMode", byref(mode))
        try:
            yield
        finally:
            self._call("cuThreadExchangeStreamCaptureMode", byref(mode))
            if pushed:
                self._pointer("cuCtxPopCurrent_v2")

    def adopt(self, code: int, ordinal: int) -> bool:
        """Give a thread that has no context the device's, for good, as CUDA's runtime does; False if it has one."""
        if code != ERROR_INVALID_CONTEXT or self._pointer("cuCtxGetCurrent"):
            return False
        self._call("cuCtxSetCurrent", self.context(ordinal))
        return True

    def versions(self) -> tuple[int, int]:
        """The version of CUDA that the driver is made for, e.g. 12090, twice."""
        version = self._int("cuDriverGetVersion")
        return version, version

    def version_text(self) -> str:
        """E.g. `CUDA 12.9, driver 575.57.08`."""
        version = self.versions()[0]
        build = self.build()
        return f"CUDA {version // 1000}.{version % 1000 // 10}" + (f", driver {build}" if build else "")

    def build(self) -> str:
        """The kernel module's version, empty where it cannot be read."""
        try:
            return Path("/sys/module/nvidia/version").read_text().strip()
        except OSError:
            return ""

    # --- memory ----------------------------------------------------------------------------------------------------

    def copy_to_device(self, device: int, host: int, size: int) -> None:
        """Copy `size` bytes from host to device memory, blocking."""
        self._call("cuMemcpyHtoD_v2", device, host, size)

    def copy_to_host(self, host: int, device: int, size: int) -> None:
        """Copy `size` bytes from device to host memory, after the work of the null stream, blocking."""
        self._call("cuMemcpyDtoH_v2", host, device, size)

    # --- kernels ---------------------------------------------------------------------------------------------------

    def load_module(self, image: bytes) -> int:
        """Load a cubin, or compile PTX, on the current device. CUDA knows an image's length from the image."""
        if image[:4] == b"\x7fELF":
            return self._pointer("cuModuleLoadData", as_pointer(image))
        log = ctypes.create_string_buffer(4096)
        options = (c_int * 2)(ERROR_LOG_BUFFER, ERROR_LOG_BUFFER_SIZE)
        values = (c_void_p * 2)(ctypes.addressof(log), len(log))
        module = c_void_p()
        code = self._library.cuModuleLoadDataEx(byref(module), as_pointer(image), 2, options, values)
        words = " ".join(log.value.decode(errors="replace").split())
        self.check(f"cuModuleLoadDataEx ({words})" if words else "cuModuleLoadDataEx", code)
        return module.value or 0

    def make_ready(self, function: int, dynamic_lds: int) -> None:
        """Load a kernel for good (CUDA loads lazily) and allow it that much dynamic shared memory."""
        self._int("cuFuncGetAttribute", MAX_THREADS_PER_BLOCK, function)
        if dynamic_lds:
            self._call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED, dynamic_lds)

    def active_clusters(self, function: int, cluster: int, threads: int, dynamic_lds: int) -> int:
        """Clusters of a kernel that the current device runs at once."""
        attribute = LaunchAttribute(id=CLUSTER_DIMENSION, x=cluster, y=1, z=1)
        config = LaunchConfig(
            grid=(cluster, 1, 1),
            block=(threads, 1, 1),
            dynamic_shared=dynamic_lds,
            attributes=ctypes.pointer(attribute),
            num_attributes=1,
        )
        return self._int("cuOccupancyMaxActiveClusters", function, byref(config))

    def argument_lists(self, address: int, size_address: int) -> tuple[Any, Any]:
        """One kernel parameter, the struct at `address`.

        Not by `extra`: that takes the bytes as they lie in the constant bank, where ptxas puts an aligned struct at an
        offset of its own choice.
        """
        return (c_void_p * 1)(address), None

    def encode_map(self, tensor_map: TensorMap, address: int) -> bytes:
        """The 128 bytes of a tensor map over the memory at `address`, which is a multiple of 16."""
        rank = len(tensor_map.dims)
        if len(tensor_map.strides) != rank - 1 or len(tensor_map.box) != rank:
            raise PlanError(f"{tensor_map}: strides and box do not fit {rank} dimensions")
        raw = (ctypes.c_byte * (MAP_SIZE + MAP_ALIGNMENT))()
        start = -ctypes.addressof(raw) % MAP_ALIGNMENT
        self._call(
            "cuTensorMapEncodeTiled",
            ctypes.addressof(raw) + start,
            MAP_BFLOAT16,
            rank,
            address,
            (c_uint64 * rank)(*tensor_map.dims),
            (c_uint64 * (rank - 1))(*tensor_map.strides),
            (c_uint32 * rank)(*tensor_map.box),
            (c_uint32 * rank)(*[1] * rank),
            MAP_PLAIN,
            MAP_SWIZZLE_128,
            MAP_PROMOTE_256,
            MAP_FILL_ZEROS,
        )
        return bytes(raw)[start : start + MAP_SIZE]

    # --- streams and events ----------------------------------------------------------------------------------------

    def create_event(self) -> int:
        """An event with timing."""
        return self._pointer("cuEventCreate", 0)

    def elapsed_ms(self, start: int, stop: int) -> float:
        """Milliseconds between two recorded events, waiting for the second."""
        self._call("cuEventSynchronize", stop)
        out = c_float()
        self._call("cuEventElapsedTime", byref(out), start, stop)
        return out.value


def _decode(text: c_char_p) -> str:
    return (text.value or b"").decode(errors="replace")


assert ctypes.sizeof(LaunchAttribute) == 72
assert ctypes.sizeof(LaunchConfig) == 56
