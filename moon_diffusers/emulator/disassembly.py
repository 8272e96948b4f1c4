"""Disassembly by the emulator's own decoder."""

from __future__ import annotations

import json
from dataclasses import dataclass

from moon_diffusers.emulator.options import emulator_library
from moon_diffusers.runtime.hip import Hip


@dataclass(frozen=True, slots=True)
class Instruction:
    """One decoded instruction.

    Attributes:
        address: bytes from the code object's load base.
        size: bytes.
        kind: what it occupies: valu, trans, mfma, smfmac, salu, smem, lds_read, lds_write, lds_other, vmem_load,
            vmem_store, vmem_lds, branch, barrier, waitcnt, nop, setprio or other.
        target: where a branch goes; None for the others.
    """

    address: int
    size: int
    mnemonic: str
    text: str
    kind: str
    target: int | None

    @property
    def ends_path(self) -> bool:
        """Execution does not go on to the next instruction."""
        return self.mnemonic in ("s_branch", "s_endpgm", "s_setpc_b64", "s_endpgm_saved")


@dataclass(frozen=True, slots=True)
class Listing:
    """One kernel of a code object. LDS and scratch (a lane) are in bytes."""

    kernel: str
    arch: str
    entry: int
    vgprs: int
    sgprs: int
    agprs: int
    lds_bytes: int
    scratch_bytes: int
    kernarg_size: int
    instructions: tuple[Instruction, ...]

    def kinds(self) -> dict[str, int]:
        """How many instructions of each kind stand in the code."""
        found: dict[str, int] = {}
        for item in self.instructions:
            found[item.kind] = found.get(item.kind, 0) + 1
        return found


def disassemble(image: bytes, hip: Hip | None = None) -> list[Listing]:
    """Every kernel of a code object, or of the offload bundle around it.

    Raises:
        HipError: the image cannot be loaded.
        LibraryError, CodeObjectError: there is no emulator.
    """
    listings = []
    for item in json.loads((hip or emulator_library()).disassemble(image)):
        instructions = tuple(
            Instruction(
                i["address"], i["size"], i["mnemonic"], i["text"], i["kind"], i["target"] if i["target"] >= 0 else None
            )
            for i in item.pop("instructions")
        )
        listings.append(Listing(**item, instructions=instructions))
    return listings
