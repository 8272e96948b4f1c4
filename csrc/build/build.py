"""Build the code objects, the emulator and the manifest into `moon_diffusers/_compiled`.

    python csrc/build/build.py                     everything, only what changed
    python csrc/build/build.py --arch gfx942       one architecture (the manifest then lists just that)
    python csrc/build/build.py --emulator native   the emulator for this CPU only: quicker

Needs the wheels ziglang, pyelftools and msgpack, for sm_90a also nvidia-cuda-nvcc-cu12, and nothing of the system.
`MOON_HIPCC=/opt/rocm/bin/hipcc` compiles the HIP sources with ROCm's compiler instead, `MOON_NVCC=/path/to/nvcc` the CUDA
sources with NVIDIA's. `MOON_BUILD_CACHE=DIR` lets several checkouts share what they built.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import cubin
import layouts
import metadata
import ptx
import targets
import toolchain
from elftools.common.exceptions import ELFError

DEFAULT_OUTPUT = targets.CSRC.parent / "moon_diffusers" / "_compiled"
ARCHITECTURES = sorted({code_object.arch for code_object in targets.CODE_OBJECTS})
SCHEMA = 1


def digest(*parts: str | Path) -> str:
    """SHA-256 over strings and files; a folder stands for all sources below it."""
    state = hashlib.sha256()
    for part in parts:
        paths = (
            sorted(p for p in part.rglob("*") if p.is_file()) if isinstance(part, Path) and part.is_dir() else [part]
        )
        for item in paths:
            data = item.read_bytes() if isinstance(item, Path) else item.encode()
            state.update(f"{len(data)}:{item.name if isinstance(item, Path) else ''}:".encode() + data)
    return state.hexdigest()


class Cache:
    """Skips a product whose sources, flags and compiler are those of the file that is there, if that is undamaged."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / ".build-keys.json"
        self.folder = folder
        try:
            keys = json.loads(self.path.read_text())
        except (OSError, ValueError):
            keys = {}
        self.keys: dict[str, str] = keys if isinstance(keys, dict) else {}

    def fresh(self, file: str, key: str) -> bool:
        """True if `file` was built under `key` and holds what it held then."""
        return (self.folder / file).is_file() and self.keys.get(file) == self._entry(file, key)

    def store(self, built: dict[str, str]) -> None:
        """Remember what was built; other products stay remembered."""
        self.keys.update({file: self._entry(file, key) for file, key in built.items()})
        write_atomically(self.path, json.dumps(self.keys, indent=1))

    def _entry(self, file: str, key: str) -> str:
        # Without its content's hash a damaged file would stay, and the manifest would vouch for it.
        return f"{key} {file_hash(self.folder / file)}"


def shared(key: str, output: Path, make: Callable[[Path], None]) -> None:
    """Make `output`, or take it from the folder `MOON_BUILD_CACHE`, where checkouts share what they built under a key."""
    temporary = output.with_name(f"{output.name}.{os.getpid()}.tmp")
    folder = os.environ.get("MOON_BUILD_CACHE")
    kept = Path(folder) / key if folder else None
    try:
        if kept is not None and kept.exists():
            shutil.copyfile(kept, temporary)
        else:
            make(temporary)
            if not temporary.is_file():
                raise toolchain.BuildError(f"{output.name}: the compiler said nothing was wrong, but made no file")
            if kept is not None:
                kept.parent.mkdir(parents=True, exist_ok=True)
                fresh = kept.with_name(f"{key}.{os.getpid()}.tmp")
                shutil.copyfile(temporary, fresh)
                fresh.replace(kept)
        temporary.replace(output)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Write to a temporary name, then rename, so that nobody reads half a file."""
    temporary = path.with_name(path.name + f".{os.getpid()}.tmp")
    temporary.write_text(text)
    temporary.replace(path)


def build_code_object(target: targets.CodeObject, output: Path, cache: Cache, built: dict[str, str]) -> None:
    """Compile one source, unless it is fresh."""
    if target.is_cuda:
        build_cubin(target, output, cache, built)
        return
    compiler = toolchain.hip_compiler()
    flags = targets.HIP_FLAGS + target.flags
    key = digest(compiler.name, compiler.version, " ".join(flags), target.arch, target.source, *target.folders)
    if not cache.fresh(target.file, key):
        start = time.monotonic()
        shared(key, output / target.file, lambda path: compiler.compile_hip(target.source, target.arch, flags, path))
        print(f"  {target.file}  {time.monotonic() - start:.1f} s", flush=True)
    built[target.file] = key


def build_cubin(target: targets.CodeObject, output: Path, cache: Cache, built: dict[str, str]) -> None:
    """Compile one CUDA source to PTX, and that to a cubin, unless both are fresh."""
    ptxas = require_ptxas()
    flags = targets.CUDA_FLAGS + target.flags
    clusters = {kernel.name: int(str(kernel.variant.get("cluster", 1))) for kernel in target.kernels}
    version = f"{ptx.compiler_version()} {ptx.PTX_VERSION} {clusters}"
    key = digest(version, " ".join(flags), target.arch, target.source, *target.folders, Path(ptx.__file__))
    assembled = digest(key, ptxas.version)
    if not (cache.fresh(target.fallback, key) and cache.fresh(target.file, assembled)):
        start = time.monotonic()
        text = output / target.fallback
        shared(key, text, lambda path: ptx.compile_ptx(target.source, target.arch, flags, clusters, path))
        shared(assembled, output / target.file, lambda path: ptxas.assemble(text, target.arch, path))
        print(f"  {target.file}  {time.monotonic() - start:.1f} s", flush=True)
    built[target.fallback] = key
    built[target.file] = assembled


def require_ptxas() -> ptx.Ptxas:
    """ptxas, or a BuildError that says how to get it."""
    ptxas = ptx.find_ptxas()
    if ptxas is None:
        raise toolchain.BuildError(f"sm_90a needs ptxas: pip install {ptx.WHEEL}, or name one by MOON_PTXAS")
    return ptxas


def buildable() -> list[str]:
    """All architectures that this machine can build; says which it leaves out, and why."""
    if ptx.find_ptxas() is not None or "sm_90a" not in ARCHITECTURES:
        return ARCHITECTURES
    print(f"  sm_90a is left out, since there is no ptxas here: pip install {ptx.WHEEL}", flush=True)
    return [arch for arch in ARCHITECTURES if arch != "sm_90a"]


def compile_host_file(source: Path, folder: Path, cpu: str, output: Path) -> None:
    """One C++ file to an object; its key holds all headers of its folder."""
    headers = "".join(digest(header) for header in sorted(folder.glob("**/*.h")))
    key = digest(toolchain.PinnedClang().version, " ".join(targets.HOST_FLAGS), cpu, headers, source)
    shared(key, output, lambda path: toolchain.compile_cxx(source, cpu, targets.HOST_FLAGS, path))


def build_host_library(
    file: str, folder: Path, cpu: str, output: Path, cache: Cache, built: dict[str, str], pool: ThreadPoolExecutor
) -> None:
    """Compile a folder's C++ files side by side and link them into `file`, unless it is fresh."""
    key = digest(toolchain.PinnedClang().version, " ".join(targets.HOST_FLAGS), cpu, folder)
    if not cache.fresh(file, key):
        start = time.monotonic()
        sources = sorted(folder.glob("**/*.cpp"))
        with tempfile.TemporaryDirectory() as scratch:
            objects = [Path(scratch) / f"{i}-{source.stem}.o" for i, source in enumerate(sources)]
            jobs = [
                pool.submit(compile_host_file, source, folder, cpu, obj)
                for source, obj in zip(sources, objects, strict=True)
            ]
            for job in jobs:
                job.result()
            shared(key, output / file, lambda path: toolchain.link_shared(objects, path))
        print(f"  {file}  {time.monotonic() - start:.1f} s", flush=True)
    built[file] = key


def describe(target: targets.CodeObject, output: Path, known: dict[str, layouts.Layout]) -> dict[str, Any]:
    """The manifest entry of one code object, checked against what the machine code says of itself.

    Raises BuildError if a declared kernel is missing or its kernarg segment is not that of its layout.
    """
    found = resources(target, output)
    kernels = []
    for kernel in target.kernels:
        if kernel.name not in found:
            raise toolchain.BuildError(f"{target.file}: no kernel {kernel.name}; it has {', '.join(found)}")
        facts = found[kernel.name]
        size = known[kernel.kernarg_layout]["size"]
        if facts.get("cluster", 1) != kernel.variant.get("cluster", 1):
            raise toolchain.BuildError(
                f"{target.file}: {kernel.name} has clusters of {facts['cluster']}, its variant says otherwise"
            )
        # Hidden arguments follow the explicit ones, so the segment may be longer than the struct.
        if facts["kernarg_size"] < size:
            raise toolchain.BuildError(
                f"{target.file}: {kernel.name} takes {facts['kernarg_size']} B of arguments, its layout {size} B"
            )
        kernels.append(
            {
                "name": kernel.name,
                "role": kernel.role,
                "variant": kernel.variant,
                "kernarg_layout": kernel.kernarg_layout,
                "block": [facts.pop("max_workgroup_size"), 1, 1],
                **facts,
            }
        )
    entry: dict[str, Any] = {
        "file": target.file,
        "arch": target.arch,
        "sha256": file_hash(output / target.file),
        "source": str(target.source.relative_to(targets.KERNELS)),
        "kernels": kernels,
    }
    if target.fallback:
        entry["fallback"] = {"file": target.fallback, "sha256": file_hash(output / target.fallback)}
    return entry


def resources(target: targets.CodeObject, output: Path) -> dict[str, dict[str, int]]:
    """Each kernel's resource figures, as its machine code declares them.

    Raises BuildError if the file is no code object of a kind that this knows.
    """
    path = output / target.file
    try:
        if target.is_cuda:
            return cubin.read_kernels(path)
        return {name: metadata.resources(entry) for name, entry in metadata.read_kernels(path).items()}
    except (ValueError, LookupError, ELFError) as error:
        raise toolchain.BuildError(f"{target.file}: the compiler's output cannot be read: {error!r}") from error


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def build(output: Path, architectures: list[str] | None, emulator: str) -> Path:
    """Build into `output` and return the manifest's path.

    `architectures`: None for all that this machine can build. `emulator`: all, native or none.
    """
    output.mkdir(parents=True, exist_ok=True)
    if architectures is None:
        architectures = buildable()
    cache = Cache(output)
    built: dict[str, str] = {}
    chosen = [target for target in targets.CODE_OBJECTS if target.arch in architectures]
    isas = targets.emulator_isas() if emulator != "none" and any(targets.EMULATOR.glob("**/*.cpp")) else {}
    if emulator == "native" and isas:
        best = native_isa(list(isas))
        isas = {best: isas[best]}
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        jobs = [pool.submit(build_code_object, target, output, cache, built) for target in chosen]
        for isa, cpu in isas.items():
            file = f"libmoon_emulator-{isa}.so"
            build_host_library(file, targets.EMULATOR, cpu, output, cache, built, pool)
        if emulator != "none":
            portable = next(iter(targets.emulator_isas().values()))
            build_host_library("libmoon_timing.so", targets.TIMING, portable, output, cache, built, pool)
        for job in jobs:
            job.result()
    cache.store(built)

    known = layouts.read_layouts(targets.KERNELS / "common")
    compiler = toolchain.hip_compiler()
    manifest: dict[str, Any] = {
        "schema": SCHEMA,
        "compiler": {"name": compiler.name, "version": compiler.version, "flags": list(targets.HIP_FLAGS)},
        "code_objects": [describe(target, output, known) for target in chosen],
        "kernarg_layouts": known,
        "emulator": [
            {"file": file, "isa": isa, "sha256": file_hash(output / file)}
            for isa, file in ((isa, f"libmoon_emulator-{isa}.so") for isa in isas)
        ],
    }
    if any(target.is_cuda for target in chosen):
        manifest["assembler"] = {"name": "ptxas", "version": require_ptxas().version}
    path = output / "manifest.json"
    write_atomically(path, json.dumps(manifest, indent=1))
    return path


def native_isa(isas: list[str]) -> str:
    """The richest of `isas` that this CPU runs."""
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split("flags", 1)[1].splitlines()[0].split())
    except (OSError, IndexError):
        flags = set()
    wanted = {"x86-64-v4": {"avx512f", "avx512bw", "avx512dq", "avx512vl"}, "x86-64-v3": {"avx2", "fma", "bmi2"}}
    return next((isa for isa in ("x86-64-v4", "x86-64-v3") if isa in isas and wanted[isa] <= flags), isas[0])


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--output", type=Path, default=DEFAULT_OUTPUT, help="folder of the products (default: %(default)s)"
    )
    parser.add_argument(
        "--arch",
        action="append",
        choices=ARCHITECTURES,
        help="architecture; repeat for more (default: all that this machine can build)",
    )
    parser.add_argument("--emulator", choices=("all", "native", "none"), default="all", help="emulator variants")
    args = parser.parse_args()
    try:
        print(f"manifest: {build(args.output, args.arch, args.emulator)}")
    except (toolchain.BuildError, OSError) as error:
        print(f"build failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
