"""Faults for a code object: each changes one instruction in place, in a way that a kernel's author might get it wrong."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from moon_diffusers.evidence import encoding
from moon_diffusers.evidence.code_object import CodeObject
from moon_diffusers.evidence.encoding import Instruction

_NOP = 0xBF800000
_WAITCNT = 0xBF8C0000
_MOV_B32 = 0xBE800000
_NOTHING = (63, 7, 15)

# DS operations by number: bytes per element of those with two offsets; the others have one 16-bit byte offset.
_DS_TWO_OFFSETS = {0x0E, 0x0F, 0x2E, 0x2F, 0x37, 0x38, 0x4E, 0x4F, 0x6E, 0x6F, 0x77, 0x78}
_DS_LANE_MOVES = {0x3D, 0x3E, 0x3F}


@dataclass(frozen=True)
class Mutant:
    """One fault: its kind, the ELF address of the changed instruction, what changed, and the new words there."""

    operator: str
    address: int
    change: str
    offset: int
    words: tuple[int, ...]

    def apply(self, code: CodeObject) -> bytes:
        """The code object with this fault in it."""
        return code.patched(self.offset, struct.pack(f"<{len(self.words)}I", *self.words))


def _waits(instruction: Instruction) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    counts = encoding.unpack_waitcnt(instruction.sopp[1])
    yield "drop s_waitcnt", f"{_show(counts)} gone", (_NOP,)
    for place, name in ((0, "vmcnt"), (2, "lgkmcnt")):
        if counts[place] < _NOTHING[place]:
            weaker = list(counts)
            weaker[place] += 1
            words = (_WAITCNT | encoding.pack_waitcnt(weaker[0], weaker[1], weaker[2]),)
            yield "weaken s_waitcnt", f"{name}({counts[place]}) to {name}({weaker[place]})", words


def _show(counts: tuple[int, int, int]) -> str:
    named = zip(("vmcnt", "expcnt", "lgkmcnt"), counts, _NOTHING, strict=True)
    return " ".join(f"{name}({count})" for name, count, nothing in named if count != nothing) or "nothing"


def _lds_offset(instruction: Instruction) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    operation = (instruction.word >> 17) & 0xFF
    first = instruction.word & 0xFF
    whole = instruction.word & 0xFFFF
    if operation in _DS_TWO_OFFSETS:
        if first < 255:
            yield "shift LDS offset", f"offset0:{first} to {first + 1}", (instruction.word + 1, instruction.next_word)
        return
    step = 4 if operation in _DS_LANE_MOVES else 16
    if whole + step <= 0xFFFF:
        yield "shift LDS offset", f"offset:{whole} to {whole + step}", (instruction.word + step, instruction.next_word)


def _swap(instruction: Instruction) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    a, b = instruction.next_word & 0x1FF, (instruction.next_word >> 9) & 0x1FF
    if a != b:
        words = (instruction.word, instruction.next_word & ~0x3FFFF | a << 9 | b)
        yield "swap MFMA operands", f"v{a & 0xFF} and v{b & 0xFF}", words


def _bound(instruction: Instruction) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    destination = instruction.scalar_destination
    assert destination is not None
    for label, inline in (("-1", 0xC1), ("64", 0xC0)):
        words = (_MOV_B32 | destination << 16 | inline, *([_NOP] * (instruction.size // 4 - 1)))
        if words[0] == instruction.word:
            continue
        yield "change buffer bound", f"s{destination} = {label}", words


def _bound_writes(instructions: list[Instruction]) -> set[int]:
    """Offsets of the instructions that set num_records of a descriptor: the last write before a buffer access uses it."""
    last: dict[int, int] = {}
    found: set[int] = set()
    for i in instructions:
        if i.encoding == "MUBUF" and i.buffer_descriptor + 2 in last:
            found.add(last[i.buffer_descriptor + 2])
        elif i.scalar_destination is not None:
            last[i.scalar_destination] = i.offset
    return found


def mutants(code: CodeObject, names: frozenset[str]) -> list[Mutant]:
    """Every mutant of the kernels of these names, in address order; deterministic."""
    found: list[Mutant] = []
    for kernel in (k for k in code.kernels if k.name in names):
        start = kernel.address - code.text_address
        body = code.text[start : start + kernel.size]
        instructions = list(encoding.walk(body))
        bounds = _bound_writes(instructions)
        for instruction in instructions:
            for operator, change, words in _of(instruction, bounds):
                place = start + instruction.offset
                found.append(Mutant(operator, code.text_address + place, change, place, words))
    return found


def _of(instruction: Instruction, bounds: set[int]) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    if instruction.is_sopp:
        operation, immediate = instruction.sopp
        if operation == encoding.WAITCNT:
            yield from _waits(instruction)
        elif operation == encoding.BARRIER:
            yield "drop s_barrier", "gone", (_NOP,)
        elif operation == encoding.NOP and immediate:
            yield "remove wait states", f"s_nop {immediate} to s_nop 0", (_NOP,)
    elif instruction.encoding == "DS":
        yield from _lds_offset(instruction)
    elif instruction.is_matrix:
        yield from _swap(instruction)
    elif instruction.offset in bounds:
        yield from _bound(instruction)
