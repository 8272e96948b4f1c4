"""From a plan to launches: arguments packed by name once, only addresses filled in per call."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Mapping
from typing import Any

from ..errors import PlanError
from ..planning import Launch, LaunchPlan, Pointer
from .code_objects import Layout
from .hip import LAUNCH_PARAM_BUFFER_POINTER, LAUNCH_PARAM_BUFFER_SIZE, LAUNCH_PARAM_END, Hip

#: Largest kernarg segment, bytes; the hardware's own limit.
MAX_KERNARG = 4096


class _Scratch(threading.local):
    """One thread's kernarg buffer and `extra` list; HIP copies the arguments before a launch returns."""

    def __init__(self) -> None:
        self.words = (ctypes.c_uint64 * (MAX_KERNARG // 8))()
        self.address = ctypes.addressof(self.words)
        self.size = ctypes.c_size_t()
        self.extra = (ctypes.c_void_p * 5)(
            LAUNCH_PARAM_BUFFER_POINTER,
            self.address,
            LAUNCH_PARAM_BUFFER_SIZE,
            ctypes.addressof(self.size),
            LAUNCH_PARAM_END,
        )


_scratch = _Scratch()


def pack(launch: Launch, layout: Layout) -> tuple[bytes, tuple[tuple[int, str, int], ...]]:
    """The kernarg segment of a launch.

    Returns:
        its bytes, zero where addresses belong, and (word index, buffer, byte offset) of each address.

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
        try:
            struct.pack_into("<" + field.format, data, field.offset, value)
        except (struct.error, OverflowError) as error:
            raise PlanError(f"{launch.kernel.name}: argument {field.name!r} = {value!r}: {error}") from None
    return bytes(data), tuple(pointers)


class PreparedLaunch:
    """A launch ready to go: only addresses and the stream are missing.

    Raises:
        PlanError: the launch cannot work on this device.
    """

    __slots__ = ("_arguments", "_data", "_function", "_hip", "_pointers", "_size", "name")

    def __init__(self, hip: Hip, function: int, launch: Launch, layout: Layout, lds_limit: int) -> None:
        self.name = launch.kernel.name
        lds = launch.kernel.lds_bytes + launch.dynamic_lds
        # HIP takes such a launch and hangs.
        if lds > lds_limit:
            raise PlanError(f"{self.name}: {lds} B of LDS; this device has {lds_limit} B a workgroup")
        for axis, groups, threads in zip("xyz", launch.grid, launch.kernel.block, strict=True):
            if groups < 1 or threads < 1 or groups * threads >= 2**32:
                raise PlanError(f"{self.name}: grid {axis} of {groups} x {threads} threads; 1 to 2^32 - 1 are possible")
        self._hip = hip
        self._function = function
        self._data, self._pointers = pack(launch, layout)
        self._size = len(self._data)
        self._arguments = (*launch.grid, *launch.kernel.block, launch.dynamic_lds)

    def __call__(self, stream: int, addresses: Mapping[str, int]) -> None:
        """Launch on `stream` (0: the null stream).

        Raises:
            HipError: HIP refuses the launch.
        """
        scratch = _scratch
        words: Any = scratch.words
        ctypes.memmove(scratch.address, self._data, self._size)
        for index, buffer, offset in self._pointers:
            words[index] = addresses[buffer] + offset
        scratch.size.value = self._size
        code = self._hip.launch_kernel(self._function, *self._arguments, stream, None, scratch.extra)
        if code:
            self._hip.check(f"launch of {self.name}", code)


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
