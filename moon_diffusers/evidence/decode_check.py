"""Compare decoders: boundaries and mnemonics of a code object's instructions by LLVM, tinygrad and the emulator."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moon_diffusers.errors import MoonError
from moon_diffusers.evidence.code_object import CodeObject

_LINE = re.compile(r"^\s+(\S+)\s*(.*?)\s*//\s*([0-9A-F]{12}):((?: [0-9A-F]{8})+)")
_LLVM_NAMES = ("llvm-objdump-22", "llvm-objdump")


class DecoderUnavailableError(MoonError, RuntimeError):
    """No independent decoder can be had here."""


@dataclass(frozen=True)
class Decoded:
    """One instruction: ELF address, bytes, mnemonic with its encoding suffix, operands as text."""

    address: int
    size: int
    mnemonic: str
    operands: str = ""


def llvm_objdump() -> Path | None:
    """llvm-objdump of LLVM 22 or later, which is the first that decodes gfx950 wholly; None without one."""
    for name in _LLVM_NAMES:
        path = shutil.which(name)
        if path:
            text = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
            version = re.search(r"version (\d+)", text)
            if version and int(version[1]) >= 22:
                return Path(path)
    return None


def by_llvm(image: bytes, tool: Path | None = None) -> list[Decoded]:
    """Decode with llvm-objdump. Raises DecoderUnavailableError without one."""
    tool = tool or llvm_objdump()
    if tool is None:
        raise DecoderUnavailableError("no llvm-objdump of LLVM 22 or later in PATH (Debian: apt-get install llvm-22)")
    with tempfile.NamedTemporaryFile(suffix=".co") as file:
        file.write(image)
        file.flush()
        done = subprocess.run([str(tool), "-d", file.name], capture_output=True, text=True, check=True)
    found = []
    for line in done.stdout.splitlines():
        match = _LINE.match(line)
        if match:
            mnemonic, operands, address, words = match.groups()
            found.append(Decoded(int(address, 16), 4 * len(words.split()), mnemonic, operands))
    return found


def by_tinygrad(image: bytes) -> list[Decoded]:
    """Decode with tinygrad's tables. Raises DecoderUnavailableError without tinygrad."""
    try:
        from tinygrad.renderer.amd import decode_inst
    except ImportError as error:
        raise DecoderUnavailableError(f"tinygrad cannot be imported: {error}") from error
    code = CodeObject(image)
    found, offset = [], 0
    while offset + 4 <= len(code.text):
        # Padding so that a last short instruction can be looked at as a long one.
        instruction: Any = decode_inst(code.text[offset : offset + 16].ljust(16, b"\0"), "cdna")
        size = int(instruction.size())
        name = instruction.op.name.lower()
        for form in ("dpp", "sdwa"):
            if form.upper() in type(instruction).__name__:
                name = f"{base_mnemonic(name)}_{form}"
        # Its tables leave the type out of these two.
        if name in ("v_accvgpr_read", "v_accvgpr_write"):
            name += "_b32"
        found.append(Decoded(code.text_address + offset, size, name))
        offset += size
    return found


def independent(image: bytes) -> tuple[str, list[Decoded]]:
    """The best independent decoder that is here, by name, and what it says. Raises DecoderUnavailableError for none."""
    tool = llvm_objdump()
    return ("llvm", by_llvm(image, tool)) if tool else ("tinygrad", by_tinygrad(image))


def parse_emulator(text: str) -> list[Decoded]:
    """What the emulator's disassembly says, from its JSON."""
    found: list[Decoded] = []
    kernels: Iterable[dict[str, Any]] = json.loads(text)
    for kernel in kernels:
        for item in kernel["instructions"]:
            found.append(Decoded(item["address"], item["size"], item["mnemonic"], item.get("text", "")))
    return found


def base_mnemonic(mnemonic: str) -> str:
    """Without the suffix that names a 32- or 64-bit encoding; DPP and SDWA forms keep theirs."""
    return re.sub(r"_e(32|64)$", "", mnemonic)


def differences(ours: Iterable[Decoded], theirs: Iterable[Decoded]) -> list[str]:
    """One line for each address where boundaries or mnemonics (without encoding suffix) differ."""
    mine = {d.address: d for d in ours}
    other = {d.address: d for d in theirs}
    lines = []
    for address in sorted(mine.keys() | other.keys()):
        a, b = mine.get(address), other.get(address)
        if a is None or b is None:
            got, expected = ("nothing" if x is None else x.mnemonic for x in (a, b))
            lines.append(f"{address:#x}: {got}, expected {expected}")
        elif a.size != b.size or base_mnemonic(a.mnemonic) != base_mnemonic(b.mnemonic):
            lines.append(f"{address:#x}: {a.mnemonic} ({a.size} bytes), expected {b.mnemonic} ({b.size} bytes)")
    return lines
