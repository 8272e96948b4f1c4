"""CUDA sources: PTX by the pinned clang, or by nvcc where `MOON_NVCC` names one; a cubin of it by ptxas.

ptxas comes with the wheel `nvidia-cuda-nvcc-cu12`; `MOON_PTXAS` names another one. No CUDA toolkit is needed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import toolchain
from toolchain import BuildError

WHEEL = "nvidia-cuda-nvcc-cu12==12.9.86"
#: The PTX version to write: what drivers from 525 on take, and all that the kernels need.
PTX_VERSION = 80

_SPILL = re.compile(r"(\d+) bytes spill (?:stores|loads)")
# ptxas serialises wgmma where it sees no other way, and says so in remarks C7500 to C7599: a kernel several times slower.
_SERIALISED = re.compile(r"^.*\bC75\d\d\b.*$", re.MULTILINE)


def compile_by_clang(source: Path, arch: str, flags: tuple[str, ...], clusters: dict[str, int], output: Path) -> None:
    """CUDA C++ without CUDA headers to PTX.

    Args:
        clusters: blocks in x of each kernel's cluster, which this clang cannot be told in the source.
    """
    device = ["-x", "cuda", "--cuda-device-only", "-nocudainc", "-nocudalib", f"--cuda-gpu-arch={arch}"]
    device += [f"--cuda-feature=+ptx{PTX_VERSION}", "-Wno-unknown-cuda-version", "-fuse-cuid=none"]
    zig = [sys.executable, "-m", "ziglang", "clang"]
    toolchain.run([*zig, *device, *flags, "-Werror", "-S", str(source), "-o", str(output)])
    output.write_text(with_clusters(output.read_text(), clusters))


def with_clusters(text: str, clusters: dict[str, int]) -> str:
    """PTX whose kernels declare their clusters.

    Raises:
        BuildError: a kernel is missing.
    """
    for kernel, size in clusters.items():
        head = re.compile(rf"(\.entry {re.escape(kernel)}\(\n[^)]*\n\)\n)")
        if not head.search(text):
            raise BuildError(f"the PTX has no kernel {kernel}")
        if size > 1 and ".reqnctapercluster" not in text.split(f".entry {kernel}(", 1)[1].split("{", 1)[0]:
            text = head.sub(rf"\1.explicitcluster\n.reqnctapercluster {size}, 1, 1\n", text)
    return text


def compile_by_nvcc(source: Path, arch: str, flags: tuple[str, ...], output: Path) -> None:
    """CUDA C++ to PTX by the nvcc that `MOON_NVCC` names; warnings are clang's matter."""
    known = [flag for flag in flags if flag.startswith(("-std=", "-D", "-I"))]
    command = [os.environ["MOON_NVCC"], "-ptx", f"-arch={arch}", "-O3", *known]
    toolchain.run([*command, str(source), "-o", str(output)])


def compile_ptx(source: Path, arch: str, flags: tuple[str, ...], clusters: dict[str, int], output: Path) -> None:
    """CUDA C++ to PTX by the chosen compiler."""
    if os.environ.get("MOON_NVCC"):
        compile_by_nvcc(source, arch, flags, output)
    else:
        compile_by_clang(source, arch, flags, clusters, output)


def compiler_version() -> str:
    """Of what makes the PTX."""
    nvcc = os.environ.get("MOON_NVCC")
    return toolchain.run([nvcc, "--version"]).strip() if nvcc else toolchain.PinnedClang().version


@dataclass(frozen=True)
class Ptxas:
    """NVIDIA's assembler."""

    path: str

    @cached_property
    def version(self) -> str:
        """E.g. `12.9.86`."""
        text = toolchain.run([self.path, "--version"])
        match = re.search(r"\bV(\d[\d.]*)", text)
        return match.group(1) if match else text.strip()

    def assemble(self, source: Path, arch: str, output: Path) -> None:
        """PTX to a cubin.

        Raises:
            BuildError: ptxas refuses it, spills registers, or serialises matrix instructions.
        """
        words = toolchain.run_for_words([self.path, "-v", f"-arch={arch}", str(source), "-o", str(output)])
        trouble = check_words(words)
        if trouble:
            output.unlink(missing_ok=True)
            raise BuildError(f"{source.name}: {trouble}")


def check_words(words: str) -> str:
    """What is wrong with a cubin by the words of `ptxas -v`, empty if nothing is."""
    remark = _SERIALISED.search(words)
    if remark:
        return f"ptxas serialises matrix instructions: {remark.group(0).strip()}"
    spills = [int(count) for count in _SPILL.findall(words)]
    if any(spills):
        return f"ptxas spills registers: {max(spills)} bytes"
    if not spills:
        return f"ptxas does not say what it spills: {words.strip()!r}"
    return ""


def find_ptxas() -> Ptxas | None:
    """ptxas: named by `MOON_PTXAS`, beside the nvcc of `MOON_NVCC`, of the wheel, on the path; None where there is none.

    Raises:
        BuildError: the named one does not exist.
    """
    named, nvcc = os.environ.get("MOON_PTXAS"), os.environ.get("MOON_NVCC")
    if named or nvcc:
        path = Path(named) if named else Path(shutil.which(str(nvcc)) or str(nvcc)).resolve().with_name("ptxas")
        if not path.is_file():
            raise BuildError(f"no ptxas at {path}, which {'MOON_PTXAS' if named else 'MOON_NVCC'} asks for")
        return Ptxas(str(path))
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        # The pinned wheel's first: what a ptxas of CUDA 13 makes, drivers of CUDA 12 do not load.
        for path in sorted(Path(folder).glob("*/bin/ptxas"), key=lambda path: (path.parts[-3] != "cuda_nvcc", path)):
            # Some installers drop the mode bits of a wheel's programs.
            if not os.access(path, os.X_OK):
                path.chmod(path.stat().st_mode | 0o111)
            return Ptxas(str(path))
    found = shutil.which("ptxas")
    return Ptxas(found) if found else None
