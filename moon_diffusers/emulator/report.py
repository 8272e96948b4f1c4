"""The report of a launch: findings of the checks, and counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moon_diffusers.emulator.disassembly import Listing


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that real hardware might not forgive, at its first place; `count` says how often it was seen there."""

    kind: str
    severity: str
    kernel: str
    address: int
    mnemonic: str
    workgroup: tuple[int, int, int]
    wavefront: int
    where: str
    detail: str
    count: int

    def __str__(self) -> str:
        place = (
            f"{self.kernel} 0x{self.address:x} {self.mnemonic}, workgroup {self.workgroup}, wavefront {self.wavefront}"
        )
        return f"{self.severity}: {self.kind}: {place}, {self.where}: {self.detail} ({self.count} times)"


@dataclass(frozen=True, slots=True)
class InstructionCount:
    """What one instruction did in a launch, over all wavefronts; bytes and passes are zero where they do not apply.

    Attributes:
        executed: times executed, a wavefront counting one.
        lds_bytes: bytes moved to or from LDS.
        lds_passes, lds_fewest_passes: turns of the LDS banks, and how few its size needs: the difference are conflicts.
        global_bytes, cache_lines: bytes of global memory, and 128-byte lines touched by each execution, added up.
    """

    executed: int = 0
    lds_bytes: int = 0
    lds_passes: int = 0
    lds_fewest_passes: int = 0
    global_bytes: int = 0
    cache_lines: int = 0

    def __add__(self, other: InstructionCount) -> InstructionCount:
        return InstructionCount(*(getattr(self, f) + getattr(other, f) for f in self.__slots__))


@dataclass(frozen=True, slots=True)
class Counts:
    """What a launch did. Accumulator registers: VGPRs of 64 lanes that MFMAs read as C and wrote as D."""

    instructions: int
    kinds: Mapping[str, int]
    lds_bytes: int
    lds_passes: int
    lds_conflict_passes: int
    global_bytes: int
    cache_lines: int
    accumulator_registers_read: int
    accumulator_registers_written: int
    by_address: Mapping[int, InstructionCount]

    @classmethod
    def parse(cls, item: Mapping[str, Any]) -> Counts:
        """From the report's ``counts``."""
        return cls(
            instructions=item["instructions"],
            kinds=dict(item["kinds"]),
            lds_bytes=item["lds_bytes"],
            lds_passes=item["lds_cycles"],
            lds_conflict_passes=item["lds_conflict_cycles"],
            global_bytes=item["global_bytes"],
            cache_lines=item["cache_lines"],
            accumulator_registers_read=item["accumulator_registers_read"],
            accumulator_registers_written=item["accumulator_registers_written"],
            by_address={row[0]: InstructionCount(*row[1:]) for row in item["per_instruction"]},
        )

    def in_range(self, first: int, last: int) -> InstructionCount:
        """Sum over the addresses first to last, both included."""
        return sum((c for a, c in self.by_address.items() if first <= a <= last), InstructionCount())

    def by_mnemonic(self, listing: Listing) -> dict[str, InstructionCount]:
        """Sums by mnemonic, most executed first."""
        found: dict[str, InstructionCount] = {}
        for item in listing.instructions:
            if item.address in self.by_address:
                found[item.mnemonic] = found.get(item.mnemonic, InstructionCount()) + self.by_address[item.address]
        return dict(sorted(found.items(), key=lambda pair: -pair[1].executed))


@dataclass(frozen=True, slots=True)
class Report:
    """One launch. `instructions` are wave-instructions, `seconds` wall time of the emulation."""

    kernel: str
    arch: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    error: int
    message: str
    instructions: int
    seconds: float
    findings: Sequence[Finding]
    counts: Counts | None

    @classmethod
    def parse(cls, item: Mapping[str, Any]) -> Report:
        """From the JSON that the emulator gives."""
        findings = [Finding(**{**f, "workgroup": tuple(f["workgroup"])}) for f in item["findings"]]
        return cls(
            kernel=item["kernel"],
            arch=item["arch"],
            grid=tuple(item["grid"]),
            block=tuple(item["block"]),
            error=item["error"],
            message=item["message"],
            instructions=item["instructions"],
            seconds=item["seconds"],
            findings=findings,
            counts=Counts.parse(item["counts"]) if "counts" in item else None,
        )

    @property
    def errors(self) -> list[Finding]:
        """Findings that must not be there."""
        return [f for f in self.findings if f.severity == "error"]

    @property
    def speed(self) -> float:
        """Wave-instructions emulated a second."""
        return self.instructions / self.seconds if self.seconds else 0.0
