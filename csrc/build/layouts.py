"""Kernel argument layouts, read from the same X-macro lists that the HIP sources include."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypedDict

SIZES = {"u64": 8, "i64": 8, "u32": 4, "i32": 4, "f32": 4, "tensor_map": 128}
#: Of types that are not aligned to their size.
ALIGNMENTS = {"tensor_map": 64}
_LINE = re.compile(r"^MOON_ARG\((\w+),\s*(\w+)\)")


class Field(TypedDict):
    """One argument: `offset` in bytes from the start of the kernarg segment."""

    name: str
    type: str
    offset: int


class Layout(TypedDict):
    """All arguments of a kernel; `size` in bytes, as sizeof of the C++ struct."""

    size: int
    fields: list[Field]


def read_layout(path: Path) -> Layout:
    """Read `<name>_args.def`: natural alignment, as the compiler lays out the struct.

    Raises ValueError naming file and line for anything that is neither an argument, a comment nor blank.
    """
    fields: list[Field] = []
    offset = 0
    align = 1
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = _LINE.match(line)
        if match is None:
            if line.strip() and not line.startswith("//"):
                raise ValueError(f"{path.name}:{number}: expected MOON_ARG(type, name), found {line!r}")
            continue
        kind, name = match.groups()
        if kind not in SIZES:
            raise ValueError(f"{path.name}:{number}: unknown type {kind!r}; accepted: {', '.join(SIZES)}")
        size = SIZES[kind]
        own = ALIGNMENTS.get(kind, size)
        offset = -(-offset // own) * own
        fields.append({"name": name, "type": kind, "offset": offset})
        offset += size
        align = max(align, own)
    return {"size": -(-offset // align) * align, "fields": fields}


def read_layouts(folder: Path) -> dict[str, Layout]:
    """All layouts of a folder, by name: `forward_args.def` is `forward`."""
    return {path.name.removesuffix("_args.def"): read_layout(path) for path in sorted(folder.glob("*_args.def"))}
