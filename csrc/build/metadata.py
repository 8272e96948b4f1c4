"""What a compiled code object says of itself: the AMDGPU metadata note."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
from elftools.elf.elffile import ELFFile

NT_AMDGPU_METADATA = 32


def read_kernels(path: Path) -> dict[str, dict[str, Any]]:
    """Kernel name to its metadata map, keys as LLVM writes them (`.vgpr_count`, ...).

    Raises ValueError if the file carries no metadata note.
    """
    with path.open("rb") as stream:
        for segment in ELFFile(stream).iter_segments():
            if segment["p_type"] != "PT_NOTE":
                continue
            for note in segment.iter_notes():
                if note["n_type"] in (NT_AMDGPU_METADATA, "NT_AMDGPU_METADATA"):
                    metadata = msgpack.unpackb(note["n_descdata"])
                    return {kernel[".name"]: kernel for kernel in metadata["amdhsa.kernels"]}
    raise ValueError(f"{path.name}: no AMDGPU metadata note")


def resources(kernel: dict[str, Any]) -> dict[str, int]:
    """The manifest's resource figures of one kernel; bytes and register counts."""
    return {
        "kernarg_size": kernel[".kernarg_segment_size"],
        "lds_bytes": kernel[".group_segment_fixed_size"],
        "scratch_bytes": kernel[".private_segment_fixed_size"],
        "vgpr_count": kernel[".vgpr_count"],
        "agpr_count": kernel.get(".agpr_count", 0),
        "sgpr_count": kernel[".sgpr_count"],
        "vgpr_spills": kernel.get(".vgpr_spill_count", 0),
        "sgpr_spills": kernel.get(".sgpr_spill_count", 0),
        "wavefront_size": kernel[".wavefront_size"],
        "max_workgroup_size": kernel[".max_flat_workgroup_size"],
    }
