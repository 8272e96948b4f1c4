"""What evidence needs to know of a code object: its architecture, its kernels, where its code lies in the file."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgpack
from elftools.elf.elffile import ELFFile

_ARCHITECTURES = {0x4C: "gfx942", 0x4F: "gfx950"}


@dataclass(frozen=True)
class Kernel:
    """A kernel: its metadata, and where its code begins and how long it is (addresses as in the ELF)."""

    name: str
    metadata: dict[str, Any]
    address: int
    size: int


class CodeObject:
    """A parsed AMDGPU ELF. Raises ValueError for another machine or an architecture that this project does not know."""

    def __init__(self, image: bytes) -> None:
        self.image = image
        self._elf = ELFFile(io.BytesIO(image))
        machine = self._elf.header["e_flags"] & 0xFF
        if machine not in _ARCHITECTURES:
            raise ValueError(f"e_flags machine {machine:#x}: expected gfx942 or gfx950")
        self.arch = _ARCHITECTURES[machine]
        text: Any = self._elf.get_section_by_name(".text")
        self.text_address: int = text["sh_addr"]
        self.text_offset: int = text["sh_offset"]
        self.text: bytes = text.data()

    @cached_property
    def kernels(self) -> list[Kernel]:
        """The kernels of the metadata note, in address order."""
        symbols: dict[str, Any] = {}
        for section in (".dynsym", ".symtab"):
            table: Any = self._elf.get_section_by_name(section)
            for symbol in table.iter_symbols() if table else ():
                symbols[symbol.name] = symbol
        kernels = []
        for entry in self._metadata["amdhsa.kernels"]:
            descriptor = symbols[entry[".symbol"]]["st_value"]
            relative = int.from_bytes(self._read(descriptor + 16, 8), "little", signed=True)
            start = descriptor + relative
            # Without a sized symbol the code goes on to the section's end.
            size = symbols[entry[".name"]]["st_size"] if entry[".name"] in symbols else 0
            size = size or self.text_address + len(self.text) - start
            kernels.append(Kernel(entry[".name"], entry, start, size))
        return sorted(kernels, key=lambda kernel: kernel.address)

    @cached_property
    def _metadata(self) -> dict[str, Any]:
        sections: Any = self._elf.iter_sections()
        for section in sections:
            if section["sh_type"] == "SHT_NOTE":
                for note in section.iter_notes():
                    if note["n_name"] == "AMDGPU":
                        found: dict[str, Any] = msgpack.unpackb(note["n_descdata"])
                        return found
        raise ValueError("no AMDGPU metadata note")

    def _read(self, address: int, size: int) -> bytes:
        for segment in self._elf.iter_segments():
            start = segment["p_vaddr"]
            if segment["p_type"] == "PT_LOAD" and start <= address and address + size <= start + segment["p_filesz"]:
                at = segment["p_offset"] + address - start
                return self.image[at : at + size]
        raise ValueError(f"address {address:#x} is not in the file")

    def patched(self, offset: int, data: bytes) -> bytes:
        """The image with ``data`` at a byte offset in its code section."""
        at = self.text_offset + offset
        return self.image[:at] + data + self.image[at + len(data) :]
