"""Where CDNA instructions begin and what class they are: a length decoder and the fields that fault injection changes.

Written from the ISA manuals' encoding tables, apart from the emulator's decoder, so that each can check the other.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_LITERAL, _SDWA, _DPP = 255, 249, 250
# VOP2 operations that always carry a literal: v_madmk/v_fmamk and v_madak/v_fmaak in f32 and f16.
_VOP2_LITERAL = {0x17, 0x18, 0x24, 0x25}
_SETREG_IMM32 = 20
# VOP3P operations from here on are MFMA or SMFMAC, but for the moves between accumulation registers.
_FIRST_MATRIX = 0x35
_ACCUMULATOR_MOVES = (0x58, 0x59)

NOP, BARRIER, WAITCNT = 0, 10, 12
"""SOPP operation numbers."""


@dataclass(frozen=True)
class Instruction:
    """One instruction: byte offset in its section, size in bytes, encoding class, first and second dword (0: none)."""

    offset: int
    size: int
    encoding: str
    word: int
    next_word: int

    @property
    def is_sopp(self) -> bool:
        """Program control: waits, barriers, branches."""
        return self.encoding == "SOPP"

    @property
    def sopp(self) -> tuple[int, int]:
        """Operation and 16-bit immediate of a SOPP instruction."""
        return (self.word >> 16) & 0x7F, self.word & 0xFFFF

    @property
    def is_matrix(self) -> bool:
        """A dense or sparse MFMA (not a move between accumulation registers)."""
        operation = (self.word >> 16) & 0x7F
        return self.encoding == "VOP3P" and operation >= _FIRST_MATRIX and operation not in _ACCUMULATOR_MOVES

    @property
    def buffer_descriptor(self) -> int:
        """The first SGPR of a MUBUF instruction's descriptor."""
        return 4 * ((self.next_word >> 16) & 0x1F)

    @property
    def scalar_destination(self) -> int | None:
        """The SGPR that a SOP1, SOP2 or SOPK instruction writes (its lowest), else None."""
        return (self.word >> 16) & 0x7F if self.encoding in ("SOP1", "SOP2", "SOPK") else None


def _classify(word: int) -> str:
    if word >> 31 == 0:
        return {0x3F: "VOP1", 0x3E: "VOPC"}.get(word >> 25, "VOP2")
    if word >> 30 == 0b10:
        if word >> 28 == 0b1011:
            return {0x17D: "SOP1", 0x17E: "SOPC", 0x17F: "SOPP"}.get(word >> 23, "SOPK")
        return "SOP2"
    if word >> 23 == 0x1A7:
        return "VOP3P"
    classes = {0x30: "SMEM", 0x34: "VOP3", 0x36: "DS", 0x37: "FLAT", 0x38: "MUBUF", 0x3A: "MTBUF"}
    try:
        return classes[word >> 26]
    except KeyError:
        raise ValueError(f"0x{word:08x} is no CDNA instruction") from None


def _size(word: int, encoding: str) -> int:
    if encoding in ("SMEM", "VOP3", "VOP3P", "DS", "FLAT", "MUBUF", "MTBUF"):
        # The scaled MFMA of gfx950 is two instructions of 8 bytes in one.
        return 16 if word >> 16 == 0xD3AC else 8
    if encoding == "SOPP":
        return 4
    if encoding == "SOPK":
        return 8 if (word >> 23) & 0x1F == _SETREG_IMM32 else 4
    if encoding == "SOP1":
        return 8 if word & 0xFF == _LITERAL else 4
    if encoding in ("SOP2", "SOPC"):
        return 8 if _LITERAL in (word & 0xFF, (word >> 8) & 0xFF) else 4
    if encoding == "VOP2" and (word >> 25) & 0x3F in _VOP2_LITERAL:
        return 8
    return 8 if word & 0x1FF in (_LITERAL, _SDWA, _DPP) else 4


def walk(code: bytes) -> Iterator[Instruction]:
    """The instructions of a code section, from its first byte to its last. Raises ValueError at an unknown encoding."""
    offset = 0
    while offset + 4 <= len(code):
        (word,) = struct.unpack_from("<I", code, offset)
        encoding = _classify(word)
        size = _size(word, encoding)
        following = struct.unpack_from("<I", code, offset + 4)[0] if size > 4 else 0
        yield Instruction(offset, size, encoding, word, following)
        offset += size


def unpack_waitcnt(immediate: int) -> tuple[int, int, int]:
    """(vmcnt, expcnt, lgkmcnt) of an s_waitcnt immediate; 63, 7 and 15 wait for nothing."""
    return immediate & 0xF | (immediate >> 10) & 0x30, (immediate >> 4) & 7, (immediate >> 8) & 0xF


def pack_waitcnt(vmcnt: int, expcnt: int, lgkmcnt: int) -> int:
    """The immediate of an s_waitcnt."""
    return vmcnt & 0xF | (vmcnt & 0x30) << 10 | expcnt << 4 | lgkmcnt << 8
