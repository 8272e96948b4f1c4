"""The manifest and the code objects beside it: read, checked, never trusted unseen."""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CodeObjectError
from ..routing import KernelSpec, Slower

SCHEMA = 1
DEFAULT_FOLDER = Path(__file__).resolve().parents[1] / "_compiled"

_FORMATS = {
    "u64": ("Q", 8),
    "i64": ("q", 8),
    "u32": ("I", 4),
    "i32": ("i", 4),
    "f32": ("f", 4),
    "tensor_map": ("128s", 128),
}


@dataclass(frozen=True, slots=True)
class Field:
    """One kernel argument: `format` as in the module `struct`, `offset` and `size` in bytes."""

    name: str
    format: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Layout:
    """All arguments of a kernel; `size` in bytes."""

    name: str
    size: int
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class CodeObject:
    """One file of machine code and its kernels.

    Attributes:
        facts: the manifest's own entry per kernel name.
        fallback: file and sha256 of the same in a form that a driver may compile itself (PTX), None for none.
    """

    file: str
    arch: str
    sha256: str
    kernels: tuple[KernelSpec, ...]
    facts: dict[str, dict[str, Any]]
    fallback: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything that was built.

    Attributes:
        emulators: (isa, file) of each build of the emulator.
        hashes: sha256 by file, of the emulator's builds.
    """

    folder: Path
    compiler: str
    code_objects: tuple[CodeObject, ...]
    layouts: dict[str, Layout]
    emulators: tuple[tuple[str, str], ...]
    hashes: dict[str, str]

    def kernels(self, arch: str) -> tuple[KernelSpec, ...]:
        """The kernels for an architecture, in the manifest's order."""
        return tuple(kernel for item in self.code_objects if item.arch == arch for kernel in item.kernels)

    def code_object_of(self, kernel: KernelSpec) -> CodeObject:
        """The code object that holds a kernel."""
        for item in self.code_objects:
            if item.arch == kernel.arch and kernel.name in item.facts:
                return item
        raise CodeObjectError(f"manifest: no code object holds {kernel.name} for {kernel.arch}")

    def read(self, item: CodeObject) -> bytes:
        """The machine code, after its sha256 was found right.

        Raises:
            CodeObjectError: missing, or not the file that was built (HIP aborts the process on a damaged one).
        """
        return self._read(item.file, item.sha256)

    def read_fallback(self, item: CodeObject) -> bytes | None:
        """The same of its fallback, None where it has none."""
        return None if item.fallback is None else self._read(*item.fallback)

    def check_emulator(self, file: str) -> None:
        """Check that a build of the emulator is the one that was built.

        Raises:
            CodeObjectError: missing or another (loading a truncated library ends the process without a word).
        """
        if file in self.hashes:
            self._read(file, self.hashes[file], "emulator")

    def _read(self, file: str, sha256: str, what: str = "code object") -> bytes:
        path = self.folder / file
        try:
            image = path.read_bytes()
        except OSError as error:
            raise CodeObjectError(f"{what} {path}: {error.strerror}") from None
        found = hashlib.sha256(image).hexdigest()
        if found != sha256:
            raise CodeObjectError(
                f"{what} {path}: sha256 {found[:12]}... is not the manifest's {sha256[:12]}...; build it again"
            )
        return image


def compiled_folder() -> Path:
    """Where the build products are: `MOON_COMPILED`, else beside the package."""
    named = os.environ.get("MOON_COMPILED")
    return Path(named) if named else DEFAULT_FOLDER


def load_manifest(folder: Path | None = None) -> Manifest:
    """Read and check `manifest.json`.

    Raises:
        CodeObjectError: missing, unreadable or inconsistent; the text names the key.
    """
    folder = compiled_folder() if folder is None else folder
    path = folder / "manifest.json"
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        raise CodeObjectError(f"{path} is missing: build the kernels by `python csrc/build/build.py`") from None
    except (OSError, ValueError) as error:
        raise CodeObjectError(f"{path}: {error}") from None
    if not isinstance(data, dict):
        raise CodeObjectError(f"{path}: damaged: it holds no JSON object")
    if data.get("schema") != SCHEMA:
        raise CodeObjectError(f"{path}: schema {data.get('schema')!r} is not accepted; accepted: {SCHEMA}")
    try:
        layouts = {name: _layout(name, entry) for name, entry in data["kernarg_layouts"].items()}
        code_objects = tuple(_code_object(entry, layouts) for entry in data["code_objects"])
        compilers = [data["compiler"], *([data["assembler"]] if "assembler" in data else [])]
        compiler = ", ".join(f"{item['name']} {item['version']}" for item in compilers)
        emulators = tuple((entry["isa"], entry["file"]) for entry in data["emulator"])
        hashes = {entry["file"]: entry["sha256"] for entry in data["emulator"] if "sha256" in entry}
        return Manifest(folder, compiler, code_objects, layouts, emulators, hashes)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CodeObjectError(f"{path}: damaged: {error!r}") from None


def _layout(name: str, entry: dict[str, Any]) -> Layout:
    fields = []
    for item in entry["fields"]:
        if item["type"] not in _FORMATS:
            raise CodeObjectError(f"manifest: layout {name}: type {item['type']!r} is not accepted")
        code, size = _FORMATS[item["type"]]
        if item["offset"] < 0 or item["offset"] + size > entry["size"]:
            raise CodeObjectError(f"manifest: layout {name}: {item['name']} lies outside its {entry['size']} B")
        fields.append(Field(item["name"], code, item["offset"], size))
    return Layout(name, entry["size"], tuple(fields))


def _code_object(entry: dict[str, Any], layouts: dict[str, Layout]) -> CodeObject:
    facts = {kernel["name"]: kernel for kernel in entry["kernels"]}
    fallback = entry.get("fallback")
    return CodeObject(
        file=entry["file"],
        arch=entry["arch"],
        sha256=entry["sha256"],
        kernels=tuple(_kernel(kernel, entry["arch"], layouts) for kernel in entry["kernels"]),
        facts=facts,
        fallback=None if fallback is None else (fallback["file"], fallback["sha256"]),
    )


def _kernel(entry: dict[str, Any], arch: str, layouts: dict[str, Layout]) -> KernelSpec:
    name, variant = entry["name"], entry["variant"]
    layout = layouts.get(entry["kernarg_layout"])
    if layout is None:
        raise CodeObjectError(f"manifest: {name}: unknown kernarg layout {entry['kernarg_layout']!r}")
    # HIP accepts too short a buffer in silence and computes rubbish, so a mismatch must not get that far.
    if layout.size > entry["kernarg_size"]:
        raise CodeObjectError(
            f"manifest: {name} takes {entry['kernarg_size']} B of arguments, its layout {layout.name} {layout.size} B"
        )
    rows = variant.get("rows_per_workgroup", 0)
    if entry["role"] == "forward" and rows <= 0:
        raise CodeObjectError(f"manifest: {name}: a forward kernel must say rows_per_workgroup")
    x, y, z = entry["block"]
    least, most = variant.get("row_strides", (0, 2**62))
    least_stride, most_stride = variant.get("strides", (0, 2**62))
    least_scale, most_scale = variant.get("scales", (-math.inf, math.inf))
    return KernelSpec(
        name=name,
        arch=arch,
        role=entry["role"],
        kernarg_layout=layout.name,
        kernarg_size=entry["kernarg_size"],
        block=(x, y, z),
        family=variant.get("family", "general"),
        lds_bytes=entry["lds_bytes"],
        dynamic_lds=variant.get("dynamic_lds", 0),
        cluster=entry.get("cluster", 1),
        rounding=variant.get("rounding", "rtne"),
        rescale=variant.get("rescale", "exact"),
        rows=rows,
        keys=variant.get("keys_per_tile", 64),
        alignment=variant.get("alignment", 2),
        row_strides=(least, most),
        strides=(least_stride, most_stride),
        scales=(least_scale, most_scale),
        grid=variant.get("grid", "rows_heads_batch"),
        features=frozenset(variant.get("features", ())),
        requires=frozenset(variant.get("requires", ())),
        value_prepass=variant.get("value_prepass", ""),
        merge=variant.get("merge", ""),
        least_keys=variant.get("least_keys", 0),
        least_row_blocks=variant.get("least_row_blocks", 0),
        key_cost=variant.get("key_cost", 0.0),
        slower=tuple(Slower(**rule) for rule in variant.get("slower", ())),
    )
