"""What a cubin says of its kernels: registers, shared memory, arguments, block and cluster, from its `.nv.info` sections."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from elftools.elf.elffile import ELFFile

# Attributes of `.nv.info` sections, by the names that `cuobjdump -elf` prints.
EIATTR_MAX_THREADS = 0x05
EIATTR_REQNTID = 0x10
EIATTR_FRAME_SIZE = 0x11
EIATTR_KPARAM_INFO = 0x17
EIATTR_REGCOUNT = 0x2F
EIATTR_CTA_PER_CLUSTER = 0x3D

_HAS_PAYLOAD = 4  # the format of an attribute whose value lies behind its header
#: What the system keeps of each block's shared memory from sm_90 on; the section counts it in, the limits do not.
RESERVED_SHARED = 1024


def attributes(section: bytes) -> Iterator[tuple[int, bytes]]:
    """(attribute, payload) of each entry of a `.nv.info` section; the payload of a small one is its two-byte value."""
    at = 0
    while at + 4 <= len(section):
        form, attribute, value = struct.unpack_from("<BBH", section, at)
        at += 4
        if form == _HAS_PAYLOAD:
            yield attribute, section[at : at + value]
            at += value
        else:
            yield attribute, struct.pack("<H", value)


def read_kernels(path: Path) -> dict[str, dict[str, int]]:
    """Kernel name to the manifest's resource figures; bytes and register counts.

    Raises ValueError if the file is no cubin, or if a kernel takes anything but one argument, its struct.
    """
    with path.open("rb") as stream:
        elf = ELFFile(stream)
        if elf["e_machine"] != "EM_CUDA":
            raise ValueError(f"{path.name}: not a cubin but {elf['e_machine']}")
        sections = {section.name: section for section in elf.iter_sections()}
        symbols = [symbol.name for symbol in sections[".symtab"].iter_symbols()]
        shared: dict[str, dict[int, int]] = {}
        for attribute, payload in attributes(sections[".nv.info"].data()):
            if len(payload) == 8:
                symbol, value = struct.unpack("<II", payload)
                shared.setdefault(symbols[symbol], {})[attribute] = value
        found = {}
        for name, section in sections.items():
            if name.startswith(".nv.info."):
                kernel = name.removeprefix(".nv.info.")
                static = sections.get(f".nv.shared.{kernel}")
                found[kernel] = _resources(
                    f"{path.name}: {kernel}", section.data(), shared[kernel], static["sh_size"] if static else 0
                )
        return found


def _resources(where: str, info: bytes, shared: dict[int, int], static: int) -> dict[str, int]:
    own: dict[int, list[bytes]] = {}
    for attribute, payload in attributes(info):
        own.setdefault(attribute, []).append(payload)
    parameters = own.get(EIATTR_KPARAM_INFO, [])
    if len(parameters) != 1:
        raise ValueError(f"{where} takes {len(parameters)} arguments; expected one, its struct")
    block = own.get(EIATTR_REQNTID) or own.get(EIATTR_MAX_THREADS)
    if block is None:
        raise ValueError(f"{where} does not say its block: it needs launch bounds")
    cluster = own.get(EIATTR_CTA_PER_CLUSTER, [struct.pack("<III", 1, 1, 1)])
    return {
        "kernarg_size": struct.unpack("<IHHI", parameters[0])[3] >> 18,
        "lds_bytes": max(static - RESERVED_SHARED, 0),
        "scratch_bytes": shared[EIATTR_FRAME_SIZE],
        "vgpr_count": shared[EIATTR_REGCOUNT],
        "agpr_count": 0,
        "sgpr_count": 0,
        # The build refuses what ptxas says it spilled.
        "vgpr_spills": 0,
        "sgpr_spills": 0,
        "wavefront_size": 32,
        "max_workgroup_size": struct.unpack("<III", block[0])[0],
        "cluster": struct.unpack("<III", cluster[0])[0],
    }
