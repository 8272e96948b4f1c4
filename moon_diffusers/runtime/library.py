"""Which library drives the devices: HIP, CUDA, or the build of the emulator that this CPU runs."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from ..errors import LibraryError, MoonError
from .code_objects import Manifest
from .cuda import Cuda
from .driver import Driver
from .hip import Hip

SONAMES = ("libamdhip64.so.7", "libamdhip64.so.6")
CUDA_SONAME = "libcuda.so.1"

# What each level of the x86-64 psABI needs beyond the one before, by the names of /proc/cpuinfo.
_V3 = {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
ISA_FLAGS: dict[str, set[str]] = {"x86-64-v4": _V4, "x86-64-v3": _V3, "x86-64": set(), "generic": set()}

_lock = threading.Lock()
_loaded: dict[str, Driver] = {}
_Library = TypeVar("_Library", Hip, Cuda)


def _bound(path: str, kind: type[_Library]) -> _Library:
    with _lock:
        library = _loaded.get(path)
        if not isinstance(library, kind):
            library = _loaded[path] = kind(path)
        return library


def load(path: str) -> Hip:
    """The library at `path`, bound once per process.

    Raises:
        LibraryError: it cannot be loaded.
    """
    return _bound(path, Hip)


def load_cuda(path: str) -> Cuda:
    """The CUDA driver at `path`, bound once per process.

    Raises:
        LibraryError: it cannot be loaded.
    """
    return _bound(path, Cuda)


def find_cuda() -> Cuda:
    """The CUDA driver: the one that `MOON_CUDA_LIBRARY` names, else the system's.

    Raises:
        LibraryError: it cannot be loaded.
    """
    return load_cuda(os.environ.get("MOON_CUDA_LIBRARY") or CUDA_SONAME)


def find_torch_cuda() -> Cuda:
    """The CUDA driver that torch's CUDA runtime has loaded, by the name that it uses too.

    Raises:
        LibraryError: it cannot be loaded.
    """
    return load_cuda(CUDA_SONAME)


def find_real() -> Driver:
    """The library of a real GPU: HIP where it sees a device, else CUDA; the one that the environment names, if any.

    Raises:
        LibraryError: neither can be loaded; the text names what was tried.
    """
    if os.environ.get("MOON_HIP_LIBRARY"):
        return find_hip()
    if os.environ.get("MOON_CUDA_LIBRARY"):
        return find_cuda()
    seen: list[Driver] = []
    troubles = []
    for find in (find_hip, find_cuda):
        try:
            driver: Driver = find()
            if driver.device_count():
                return driver
            seen.append(driver)
        except MoonError as error:
            troubles.append(str(error))
    if seen:
        return seen[0]
    raise LibraryError("; ".join(troubles))


def hip_candidates() -> Iterator[str]:
    """Where a real HIP library may be, best first: named by the user, mapped already, torch's own, the system's."""
    named = os.environ.get("MOON_HIP_LIBRARY")
    if named:
        # Named means named: nothing else is tried.
        yield named
        return
    yield from mapped_libraries()
    spec = importlib.util.find_spec("torch")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        yield from sorted(str(path) for path in Path(folder, "lib").glob("libamdhip64.so*"))
    yield from SONAMES
    for root in (os.environ.get("ROCM_PATH"), "/opt/rocm"):
        if root:
            yield from (str(Path(root, "lib", soname)) for soname in SONAMES)


def mapped_libraries(maps: str | None = None) -> list[str]:
    """Paths of the HIP libraries that this process has mapped; two runtimes in one process would not share a device."""
    if maps is None:
        try:
            maps = Path("/proc/self/maps").read_text()
        except OSError:
            return []
    # What stands before the path has no slash, and a path may have spaces.
    found = re.findall(r"^[^/\n]*(/(?:.*/)?libamdhip64\.so[^\s/]*)$", maps, flags=re.MULTILINE)
    return list(dict.fromkeys(found))


def find_hip() -> Hip:
    """The real HIP library.

    Raises:
        LibraryError: none can be loaded; the text names what was tried.
    """
    tried = []
    for candidate in hip_candidates():
        try:
            return load(candidate)
        except LibraryError as error:
            tried.append(str(error) if os.environ.get("MOON_HIP_LIBRARY") else candidate)
    raise LibraryError(f"no HIP library; tried: {', '.join(dict.fromkeys(tried))}")


def find_mapped() -> Hip:
    """The HIP library that this process uses already: the only one that knows the addresses of torch's tensors.

    Raises:
        LibraryError: none is mapped.
    """
    for path in mapped_libraries():
        return load(path)
    raise LibraryError("no HIP library is mapped in this process; torch for ROCm maps one when it is imported")


def cpu_flags() -> set[str]:
    """Features of this CPU, by the names of /proc/cpuinfo; empty where it cannot be read."""
    try:
        match = re.search(r"^flags\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), flags=re.MULTILINE)
    except OSError:
        match = None
    return set(match.group(1).split()) if match else set()


def choose_emulator(available: list[tuple[str, str]], flags: set[str], machine: str) -> str | None:
    """The file of the richest emulator that a CPU runs.

    Args:
        available: (isa, file) of each build.
        flags: features of the CPU.
        machine: as `platform.machine()`; x86-64 builds run on x86-64 only.
    """
    by_isa = dict(available)
    for isa, needed in ISA_FLAGS.items():
        if isa in by_isa and needed <= flags and (isa.startswith("x86-64")) == (machine == "x86_64"):
            return by_isa[isa]
    return None


def find_emulator(manifest: Manifest) -> Hip:
    """The emulator, built for this CPU; `MOON_EMULATOR_LIBRARY` names another file.

    Raises:
        LibraryError: it has not been built, or not for this CPU.
        CodeObjectError: it is not the file that was built.
    """
    folder, available = manifest.folder, list(manifest.emulators)
    named = os.environ.get("MOON_EMULATOR_LIBRARY")
    if named:
        return load(named)
    file = choose_emulator(available, cpu_flags(), platform.machine())
    if file is None:
        builds = ", ".join(isa for isa, _ in available) or "none"
        raise LibraryError(
            f"no emulator for this CPU ({platform.machine()}) in {folder}; built for: {builds}; "
            "build it by `python csrc/build/build.py`"
        )
    path = str(folder / file)
    if path not in _loaded:
        manifest.check_emulator(file)
    return load(path)


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
