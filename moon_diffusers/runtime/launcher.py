"""From a plan to launches: arguments packed by name once, only addresses filled in per call."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Mapping
from typing import Any

from ..errors import PlanError
from ..planning import Launch, LaunchPlan, Pointer, TensorMap
from .code_objects import Layout
from .driver import Driver

#: Largest kernarg segment, bytes; the hardware's own limit.
MAX_KERNARG = 4096
#: What a kernarg segment is aligned to here, for the tensor maps in it.
ALIGNMENT = 64
#: An address to make tensor maps with, before the call's own is known.
ANY_ADDRESS = 1 << 20
#: The format, as in the module `struct`, of a field that holds a tensor map.
MAP_FORMAT = "128s"


class _Buffer:
    """A kernarg segment for one kind of library, and the lists that lead to it."""

    __slots__ = ("_raw", "address", "extra", "params", "size", "words")

    def __init__(self, driver: Driver) -> None:
        self._raw = (ctypes.c_byte * (MAX_KERNARG + ALIGNMENT))()
        self.address = ctypes.addressof(self._raw) + -ctypes.addressof(self._raw) % ALIGNMENT
        self.words: Any = (ctypes.c_uint64 * (MAX_KERNARG // 8)).from_address(self.address)
        self.size = ctypes.c_size_t()
        self.params, self.extra = driver.argument_lists(self.address, ctypes.addressof(self.size))


class _Scratch(threading.local):
    """Each thread's own buffer; both libraries copy the arguments before a launch returns."""

    def __init__(self, driver: Driver) -> None:
        self.buffer = _Buffer(driver)


_scratches: dict[type[Driver], _Scratch] = {}


def _scratch(driver: Driver) -> _Scratch:
    return _scratches.setdefault(type(driver), _Scratch(driver))


def pack(launch: Launch, layout: Layout) -> tuple[bytes, tuple[tuple[int, str, int], ...]]:
    """The kernarg segment of a launch.

    Returns:
        its bytes, zero where addresses and tensor maps belong, and (word index, buffer, byte offset) of each address.

    Raises:
        PlanError: the layout asks for a name that the plan lacks, or a value does not fit its type.
    """
    size = -(-max(layout.size, launch.kernel.kernarg_size) // 8) * 8
    if size > MAX_KERNARG:
        raise PlanError(f"{launch.kernel.name}: {size} B of arguments; at most {MAX_KERNARG} are possible")
    data = bytearray(size)
    pointers = []
    for field in layout.fields:
        value = launch.values.get(field.name)
        if value is None:
            raise PlanError(f"{launch.kernel.name}: the plan has no value for the argument {field.name!r}")
        if isinstance(value, Pointer):
            if field.format != "Q" or field.offset % 8:
                raise PlanError(f"{launch.kernel.name}: argument {field.name!r} cannot hold an address")
            pointers.append((field.offset // 8, value.buffer, value.offset))
            continue
        if isinstance(value, TensorMap) != (field.format == MAP_FORMAT):
            raise PlanError(f"{launch.kernel.name}: argument {field.name!r} cannot hold {value!r}")
        if isinstance(value, TensorMap):
            continue
        try:
            struct.pack_into("<" + field.format, data, field.offset, value)
        except (struct.error, OverflowError) as error:
            raise PlanError(f"{launch.kernel.name}: argument {field.name!r} = {value!r}: {error}") from None
    return bytes(data), tuple(pointers)


def encode_maps(
    driver: Driver, launch: Launch, layout: Layout, data: bytes
) -> tuple[bytes, tuple[tuple[int, str], ...]]:
    """A kernarg segment with its tensor maps in it, over no memory yet.

    Returns:
        its bytes, and (byte offset, buffer) of each map.

    Raises:
        DriverError: the library refuses a map.
    """
    segment, maps = bytearray(data), []
    for field in layout.fields:
        value = launch.values[field.name]
        if isinstance(value, TensorMap):
            segment[field.offset : field.offset + field.size] = driver.encode_map(value, ANY_ADDRESS)
            maps.append((field.offset, value.buffer))
    return bytes(segment), tuple(maps)


class PreparedLaunch:
    """A launch ready to go: only addresses and the stream are missing.

    Args:
        ordinal: the device's number in the library.
        lds_limit: LDS of one workgroup there, bytes.

    Raises:
        PlanError: the launch cannot work on this device.
        DriverError: the library refuses a tensor map.
    """

    __slots__ = (
        "_arguments",
        "_data",
        "_driver",
        "_function",
        "_maps",
        "_ordinal",
        "_pointers",
        "_scratch",
        "_size",
        "name",
    )

    def __init__(
        self, driver: Driver, function: int, launch: Launch, layout: Layout, lds_limit: int, ordinal: int = 0
    ) -> None:
        self.name = launch.kernel.name
        lds = launch.kernel.lds_bytes + launch.dynamic_lds
        # HIP takes such a launch and hangs.
        if lds > lds_limit:
            raise PlanError(f"{self.name}: {lds} B of LDS; this device has {lds_limit} B a workgroup")
        for axis, groups, threads in zip("xyz", launch.grid, launch.kernel.block, strict=True):
            if groups < 1 or threads < 1 or groups * threads >= 2**32:
                raise PlanError(f"{self.name}: grid {axis} of {groups} x {threads} threads; 1 to 2^32 - 1 are possible")
        if launch.grid[0] % launch.kernel.cluster:
            raise PlanError(
                f"{self.name}: grid x of {launch.grid[0]} is no multiple of the cluster, {launch.kernel.cluster}"
            )
        self._driver = driver
        self._ordinal = ordinal
        self._function = function
        self._scratch = _scratch(driver)
        data, self._pointers = pack(launch, layout)
        self._data, self._maps = encode_maps(driver, launch, layout, data)
        self._size = len(self._data)
        self._arguments = (*launch.grid, *launch.kernel.block, launch.dynamic_lds)

    def __call__(self, stream: int, addresses: Mapping[str, int]) -> None:
        """Launch on `stream` (0: the null stream).

        Raises:
            DriverError: the library refuses the launch.
        """
        code = self._launch(stream, addresses)
        if code:
            # A thread that never used the device has no context in CUDA, though torch thinks that it has a device.
            if self._driver.adopt(code, self._ordinal):
                code = self._launch(stream, addresses)
            self._driver.check(f"launch of {self.name}", code)

    def _launch(self, stream: int, addresses: Mapping[str, int]) -> int:
        segment, driver = self._scratch.buffer, self._driver
        words, start = segment.words, segment.address
        ctypes.memmove(start, self._data, self._size)
        for index, buffer, offset in self._pointers:
            words[index] = addresses[buffer] + offset
        code: int
        for offset, buffer in self._maps:
            code = driver.replace_address(start + offset, addresses[buffer])
            if code:
                return code
        segment.size.value = self._size
        code = driver.launch_kernel(self._function, *self._arguments, stream, segment.params, segment.extra)
        return code


class PreparedPlan:
    """All launches of a plan, ready to go; `workspace_bytes` must be given as the buffer `workspace` when not 0."""

    __slots__ = ("launches", "workspace_bytes")

    def __init__(self, launches: tuple[PreparedLaunch, ...], plan: LaunchPlan) -> None:
        self.launches = launches
        self.workspace_bytes = plan.workspace_bytes

    def __call__(self, stream: int, addresses: Mapping[str, int]) -> None:
        """Launch everything in order on `stream`."""
        for launch in self.launches:
            launch(stream, addresses)
