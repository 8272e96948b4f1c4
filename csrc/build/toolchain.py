"""The compilers: the pinned clang of the ziglang wheel, or ROCm's hipcc where `MOON_HIPCC` names one."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import targets


class BuildError(Exception):
    """A build step failed; the text holds the command and the compiler's own words."""


def run(command: list[str]) -> str:
    """Run a build step and return what it printed; raise BuildError with its words if it fails."""
    return _run(command).stdout


def run_for_words(command: list[str]) -> str:
    """The same, with what it printed as errors and remarks in front."""
    done = _run(command)
    return done.stderr + done.stdout


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"cannot run {command[0]}: {error.strerror}") from error
    if done.returncode != 0:
        words = (done.stderr + done.stdout).strip()
        raise BuildError(f"exit status {done.returncode} from: {' '.join(command)}\n{words}")
    return done


@dataclass(frozen=True)
class PinnedClang:
    """clang with the AMDGPU target and a C++ library, as the ziglang wheel carries it: needs nothing of the system."""

    name = "clang (ziglang)"

    @cached_property
    def version(self) -> str:
        """First line of `clang --version`."""
        return run([sys.executable, "-m", "ziglang", "clang", "--version"]).splitlines()[0]

    def compile_hip(self, source: Path, arch: str, flags: tuple[str, ...], output: Path) -> None:
        """HIP source to a loadable code object: assembly, object, shared object (the one-step driver needs a linker
        that the wheel lacks)."""
        zig = [sys.executable, "-m", "ziglang"]
        assembly, obj = output.with_suffix(".s"), output.with_suffix(".o")
        device = ["-x", "hip", f"--offload-arch={arch}", "--cuda-device-only", "-nogpulib", "-nogpuinc"]
        device += ["-fuse-cuid=none"]  # else a symbol named after the source's path makes every checkout's bytes differ
        try:
            run([*zig, "clang", *device, *flags, "-Werror", "-S", str(source), "-o", str(assembly)])
            run([*zig, "clang", "-target", "amdgcn-amd-amdhsa", f"-mcpu={arch}", "-c", str(assembly), "-o", str(obj)])
            run([*zig, "ld.lld", "-shared", str(obj), "-o", str(output)])
        finally:
            assembly.unlink(missing_ok=True)
            obj.unlink(missing_ok=True)


@dataclass(frozen=True)
class Hipcc:
    """ROCm's compiler, on the user's word."""

    path: str
    name = "hipcc"

    @cached_property
    def version(self) -> str:
        """First line of `hipcc --version`."""
        return run([self.path, "--version"]).partition("\n")[0]

    def compile_hip(self, source: Path, arch: str, flags: tuple[str, ...], output: Path) -> None:
        """HIP source to a code object by `hipcc --genco`."""
        command = [self.path, "--genco", "--no-gpu-bundle-output", f"--offload-arch={arch}"]
        run([*command, *flags, str(source), "-o", str(output)])


def hip_compiler() -> PinnedClang | Hipcc:
    """The compiler of the HIP sources: `MOON_HIPCC` if set, else the pinned clang."""
    hipcc = os.environ.get("MOON_HIPCC")
    return Hipcc(hipcc) if hipcc else PinnedClang()


def host_target() -> list[str]:
    """Flags that pin the host platform, so that the library runs on older systems than the one that built it."""
    return ["-target", f"{platform.machine()}-linux-gnu.{targets.GLIBC}"]


def compile_cxx(source: Path, cpu: str, flags: tuple[str, ...], output: Path) -> None:
    """One host C++ file to an object for the instruction set `cpu`."""
    zig = [sys.executable, "-m", "ziglang", "c++", *host_target(), f"-mcpu={cpu}"]
    run([*zig, *flags, "-c", str(source), "-o", str(output)])


def link_shared(objects: list[Path], output: Path) -> None:
    """Host objects to a shared library with no undefined symbols.

    No `-mcpu`: the C++ runtime that zig builds for a link is then one and the same for all variants.
    """
    zig = [sys.executable, "-m", "ziglang", "c++", *host_target(), "-shared", "-Wl,-z,defs", "-s"]
    run([*zig, *map(str, objects), "-lpthread", "-o", str(output)])
