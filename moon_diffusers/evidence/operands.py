"""Which registers an instruction reads and writes, from its text: mnemonic and operands as any AMDGPU disassembler prints."""

from __future__ import annotations

import re
from dataclasses import dataclass

_RANGE = re.compile(r"\b([vsa])\[(\d+):(\d+)\]")
_SINGLE = re.compile(r"\b([vsa])(\d+)\b")
_NAMED = re.compile(r"\b(vcc|exec|m0)(?:_lo|_hi)?\b")
# Scalar instructions whose first operand is read, or which have no register operand at all.
_NO_DESTINATION = (
    "s_cmp",
    "s_bitcmp",
    "s_branch",
    "s_cbranch",
    "s_wait",
    "s_nop",
    "s_barrier",
    "s_set",
    "s_endpgm",
    "s_sleep",
)
_TWO_DESTINATIONS = (
    "v_mad_u64",
    "v_mad_i64",
    "v_div_scale",
    "v_add_co",
    "v_sub_co",
    "v_addc_co",
    "v_subb_co",
    "v_permlane",
)


@dataclass(frozen=True)
class Operation:
    """An instruction as far as waits and wait states go. Registers are names: ``v12``, ``s3``, ``a0``, ``vcc``, ``m0``."""

    mnemonic: str
    kind: str
    writes: frozenset[str]
    reads: frozenset[str]
    operands: tuple[frozenset[str], ...]
    text: str = ""


def registers(text: str) -> frozenset[str]:
    """Every register that an operand's text names."""
    found = {f"{kind}{n}" for kind, first, last in _RANGE.findall(text) for n in range(int(first), int(last) + 1)}
    found |= {kind + number for kind, number in _SINGLE.findall(text)}
    return frozenset(found | set(_NAMED.findall(text)))


def kind_of(mnemonic: str, text: str) -> str:
    """One of mfma, trans, valu, salu, smem, load, store, dma, lds_read, lds_write, wait, barrier, nop, other."""
    if mnemonic.startswith("ds_"):
        return "lds_write" if "write" in mnemonic else "lds_read"
    if mnemonic.startswith(("buffer_", "global_", "flat_", "scratch_")):
        if re.search(r"\blds\b", text):
            return "dma"
        return "store" if "store" in mnemonic else "load"
    if mnemonic.startswith(("s_load", "s_buffer_load")):
        return "smem"
    if mnemonic.startswith(("v_mfma", "v_smfmac")):
        return "mfma"
    if re.match(r"v_(exp|log|rcp|rsq|sqrt|sin|cos)_", mnemonic):
        return "trans"
    if mnemonic.startswith("v_"):
        return "valu"
    exact = {"s_waitcnt": "wait", "s_barrier": "barrier", "s_nop": "nop"}
    return exact.get(mnemonic, "salu" if mnemonic.startswith("s_") else "other")


def parse(mnemonic: str, text: str) -> Operation:
    """An instruction's operation from its text."""
    kind = kind_of(mnemonic, text)
    operands = tuple(registers(part) for part in re.split(r",(?![^\[]*\])", text)) if text else ()
    everything = frozenset().union(*operands)
    if kind in ("store", "dma", "lds_write", "wait", "barrier", "nop", "other") or mnemonic.startswith(_NO_DESTINATION):
        return Operation(mnemonic, kind, frozenset(), everything, operands, text)
    destinations = 2 if mnemonic.startswith(_TWO_DESTINATIONS) else 1
    writes = frozenset().union(*operands[:destinations])
    reads = frozenset().union(*operands[destinations:])
    if mnemonic.startswith(("v_fmac", "v_smfmac", "v_permlane", "s_addk", "s_mulk")):
        reads |= writes
    if "saveexec" in mnemonic:
        reads, writes = reads | {"exec"}, writes | {"exec"}
    return Operation(mnemonic, kind, writes, reads, operands, text)
