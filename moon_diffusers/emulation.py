"""Who serves CPU tensors: nobody (torch), the emulator inside `emulate()`, or a real GPU inside `offload()`."""

from __future__ import annotations

import os
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from .counters import flag
from .errors import ArgumentError
from .runtime import device

#: Seconds that one call may take in the emulator, by estimate, unless told otherwise.
DEFAULT_WORK_LIMIT: Final = 300.0
EMULATED_ARCHS: Final = ("gfx942", "gfx950")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where CPU tensors are sent.

    Attributes:
        kind: `emulate` or `offload`.
        arch: the architecture to emulate; empty with `offload`, where the device says it.
        work_limit: seconds one call may take by estimate, 0 for no limit.
    """

    kind: str
    arch: str = ""
    work_limit: float = 0.0


#: The blocks around this thread or task, the innermost last.
_placements: ContextVar[tuple[Placement, ...]] = ContextVar("moon_diffusers_placements", default=())


def current_placement() -> Placement | None:
    """The enclosing `emulate()` or `offload()` block, else what the environment asks for, else None.

    Raises:
        ArgumentError: MOON_EMULATE or MOON_EMULATION_LIMIT cannot be used.
    """
    placements = _placements.get()
    if placements:
        return placements[-1]
    arch = os.environ.get("MOON_EMULATE")
    if arch:
        return Placement("emulate", _check_arch("MOON_EMULATE", arch), _work_limit(None))
    if flag("MOON_OFFLOAD"):
        return Placement("offload")
    return None


class _Block:
    """A re-entrant context manager that sets the placement of this thread of execution; several may share one."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement

    def __enter__(self) -> Placement:
        self._check()
        _placements.set((*_placements.get(), self.placement))
        return self.placement

    def _check(self) -> None:
        """Raise where the block could not do what it promises."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _placements.set(_placements.get()[:-1])


class emulate(_Block):
    """Context manager: attention on CPU tensors runs as `arch` machine code in the emulator.

    The environment variable `MOON_EMULATE=gfx942` does the same for a whole process. The block is bound to the
    thread that opens it.

    Args:
        arch: `"gfx942"` (MI300X) or `"gfx950"` (MI355X).
        work_limit: estimated seconds above which a call falls back to torch instead, named in the summary.
            None takes `MOON_EMULATION_LIMIT`, else 300; 0 switches the limit off.

    Raises:
        ArgumentError: unknown `arch`, or a negative `work_limit`.
        LibraryError, CodeObjectError: on entry, where the emulator or the kernels are not built.
    """

    def __init__(self, arch: str = "gfx942", *, work_limit: float | None = None) -> None:
        super().__init__(Placement("emulate", _check_arch("arch", arch), _work_limit(work_limit)))

    def _check(self) -> None:
        device.open_emulated(self.placement.arch)


class offload(_Block):
    """Context manager: attention on CPU tensors is copied to a real GPU, computed there and copied back.

    For a torch that does not know the machine's GPU, or for AMD's own simulator behind the real HIP library.
    `MOON_OFFLOAD=1` does the same for a whole process; `MOON_HIP_LIBRARY` or `MOON_CUDA_LIBRARY` names the library when
    it is not where the dynamic linker looks, or when there are both.

    Raises:
        LibraryError, CodeObjectError: on entry, where there is no such library, no device, or no kernels are built.
    """

    def __init__(self) -> None:
        super().__init__(Placement("offload"))

    def _check(self) -> None:
        device.open_real()


def _check_arch(argument: str, arch: str) -> str:
    if arch not in EMULATED_ARCHS:
        raise ArgumentError(argument, repr(arch), ", ".join(repr(choice) for choice in EMULATED_ARCHS))
    return arch


def _work_limit(argument: float | None) -> float:
    if argument is not None:
        if not argument >= 0:
            raise ArgumentError("work_limit", repr(argument), "seconds, 0 for no limit")
        return float(argument)
    text = os.environ.get("MOON_EMULATION_LIMIT", "").strip()
    if not text:
        return DEFAULT_WORK_LIMIT
    try:
        limit = float(text)
    except ValueError:
        limit = -1.0
    if not limit >= 0:
        raise ArgumentError("MOON_EMULATION_LIMIT", repr(text), "seconds, 0 for no limit")
    return limit
