"""Mutants that cannot matter: waits that hold nothing back, wait states that no hazard needs, bounds that nothing meets.

Judged from the instructions that each wavefront really executed, by rules written apart from the emulator's checks:
memory operations of one kind complete in the order of their issue, LDS operations of a wavefront execute in order, and the
wait states are those of LLVM's hazard pass. A bound that is lifted cannot matter when no access then touches more memory.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from moon_diffusers.evidence import encoding
from moon_diffusers.evidence.code_object import CodeObject
from moon_diffusers.evidence.decode_check import Decoded
from moon_diffusers.evidence.mutations import Mutant
from moon_diffusers.evidence.operands import Operation, parse

_HORIZON = 20


@dataclass
class Execution:
    """What a workgroup executed: for each distinct wavefront the positions of its instructions in ``program``, in order.

    ``lines``: per wavefront, how many cache lines of global memory each of its instructions touched.
    """

    arch: str
    program: list[Operation]
    addresses: list[int]
    words: list[int]
    wavefronts: list[tuple[int, ...]]
    lines: list[tuple[int, ...]]

    @cached_property
    def reached(self) -> set[int]:
        """Addresses of all instructions that some wavefront executed."""
        return {self.addresses[i] for i in {i for wave in self.wavefronts for i in wave}}


def read_trace(prefix: Path, code: CodeObject, listing: Iterable[Decoded]) -> Execution:
    """The emulator's trace files of one workgroup; ``listing`` is the code object as some disassembler prints it."""
    texts = {d.address: d for d in listing}
    traced = json.loads(prefix.with_name(prefix.name + ".json").read_text())
    addresses = [int(item["address"]) for item in traced["instructions"]]
    places = [a - code.text_address for a in addresses]
    words = [int.from_bytes(code.text[p : p + 4], "little") for p in places]
    # The trace's listing goes on into the padding behind the kernel.
    padding = Decoded(0, 4, "s_endpgm")
    program = [parse(d.mnemonic, d.operands) for d in (texts.get(a, padding) for a in addresses)]
    # Wavefronts that ran the same instructions tell the same.
    records = [_records(path.read_bytes()) for path in sorted(prefix.parent.glob(prefix.name + ".wave*.bin"))]
    waves = sorted({positions for positions, _ in records})
    return Execution(code.arch, program, addresses, words, waves, [lines for _, lines in records])


def _records(data: bytes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Positions and numbers of touched lines of one wavefront's trace."""
    positions, lines, at = [], [], 0
    while at + 12 <= len(data):
        index, _, _, count = struct.unpack_from("<IHHH", data, at)
        positions.append(index)
        lines.append(count)
        at += 12 + 4 * count
    return tuple(positions), tuple(lines)


@dataclass(frozen=True)
class _Pending:
    """An operation under way: when it was issued, what it is, which registers it will write."""

    serial: int
    kind: str
    registers: frozenset[str]


def _complete(queue: list[_Pending], allowed: int) -> list[_Pending]:
    if allowed and any(p.kind == "smem" for p in queue):
        # Scalar loads return in any order: only a wait for all of them tells anything.
        return queue
    return queue[max(0, len(queue) - allowed) :]


class _Counters:
    """The operations that a wavefront has under way, vector memory and the rest."""

    def __init__(self) -> None:
        self.vector: list[_Pending] = []
        self.local: list[_Pending] = []

    def wait(self, immediate: int) -> None:
        vmcnt, _, lgkmcnt = encoding.unpack_waitcnt(immediate)
        self.vector, self.local = _complete(self.vector, vmcnt), _complete(self.local, lgkmcnt)

    def issue(self, serial: int, operation: Operation) -> None:
        pending = _Pending(serial, operation.kind, operation.writes)
        flat = operation.mnemonic.startswith("flat_")
        if operation.kind in ("load", "store", "dma"):
            self.vector.append(pending)
        if operation.kind in ("lds_read", "lds_write", "smem") or flat:
            self.local.append(pending)

    def touched(self, operation: Operation) -> bool:
        """Whether the operation meddles with a register that is still to be written."""
        both = operation.reads | operation.writes
        for queue in (self.vector, self.local):
            for pending in queue:
                # A younger operation of the same kind writes the register after the older one.
                mine = operation.reads if pending.kind == operation.kind else both
                if pending.registers & mine:
                    return True
        return False

    def unseen(self) -> set[int]:
        """Writes to LDS that other wavefronts cannot rely on yet."""
        return {p.serial for p in self.vector + self.local if p.kind in ("dma", "lds_write")}


def wait_matters(execution: Execution, mutant: Mutant) -> bool:
    """Whether the weaker wait lets some wavefront touch data on its way, or pass a barrier with more of it outstanding."""
    return any(_wait_matters(execution, wave, mutant) for wave in execution.wavefronts)


def _wait_matters(execution: Execution, wave: Sequence[int], mutant: Mutant) -> bool:
    weaker = mutant.words[0] & 0xFFFF if mutant.words[0] >> 16 == 0xBF8C else 0xFFFF
    before, after = _Counters(), _Counters()
    for serial, position in enumerate(wave):
        operation = execution.program[position]
        if operation.kind == "wait":
            immediate = execution.words[position] & 0xFFFF
            before.wait(immediate)
            after.wait(weaker if execution.addresses[position] == mutant.address else immediate)
            continue
        if after.touched(operation) and not before.touched(operation):
            return True
        if operation.kind in ("barrier", "lds_read") and after.unseen() - before.unseen():
            # A wavefront's own LDS writes are in order before its reads; its direct-to-LDS loads are not.
            late = after.unseen() - before.unseen()
            loads = {p.serial for p in after.vector}
            if operation.kind == "barrier" or late & loads:
                return True
        before.issue(serial, operation)
        after.issue(serial, operation)
    return False


def _required(arch: str, producer: Operation, consumer: Operation) -> int:
    """Wait states that must lie between two instructions: the table of LLVM 22's hazard pass for these architectures."""
    later = arch == "gfx950"
    need = 0
    uses, writes = consumer.reads, consumer.writes
    if producer.kind == "mfma":
        long = "32x32" in producer.mnemonic
        result = producer.operands[0]
        plain = (11 if long else 7) + later
        if consumer.kind == "mfma":
            accumulator = consumer.operands[3] if len(consumer.operands) > 3 else frozenset()
            if "smfmac" in consumer.mnemonic:
                accumulator = consumer.operands[0]
            if (consumer.operands[1] | consumer.operands[2]) & result:
                need = plain
            elif accumulator & result and accumulator != result:
                need = (9 if long else 5) + later
        elif (uses | writes) & result:
            need = plain
        if len(producer.operands) > 3 and consumer.kind in ("valu", "trans") and writes & producer.operands[3]:
            need = max(need, 7 if long else 3)
    elif producer.kind in ("valu", "trans"):
        touched = bool(producer.writes & uses)
        if consumer.kind == "mfma" and touched:
            need = 2
        elif producer.kind == "trans" and consumer.kind == "valu" and touched:
            need = 1
        if consumer.mnemonic.endswith("_dpp") or consumer.mnemonic.startswith("v_permlane"):
            need = max(need, 2 * touched)
        if consumer.mnemonic.startswith("v_readfirstlane"):
            need = max(need, 1 * touched)
        scalars = {r for r in producer.writes if r[0] == "s" or r == "vcc"}
        if consumer.kind in ("load", "store", "dma") and scalars & uses:
            need = max(need, 5)
        if consumer.kind in ("valu", "trans") and scalars & uses:
            need = max(need, 4 if consumer.mnemonic.startswith("v_div_fmas") and "vcc" in scalars else 2)
        lanes = consumer.mnemonic.startswith(("v_readlane", "v_readfirstlane"))
        if "exec" in producer.writes and (consumer.kind == "mfma" or lanes):
            need = max(need, 4)
    elif producer.kind == "store" and consumer.kind in ("valu", "trans"):
        # Data of more than 8 bytes is read late, but for a buffer store whose offset is an SGPR.
        wide = producer.mnemonic.endswith(("x3", "x4")) and not re.search(r"\bs\d+ offen", producer.text)
        data = producer.operands[0 if producer.mnemonic.startswith("buffer") else 1]
        need = 2 if wide and writes & data else 0
    elif producer.kind == "salu" and "m0" in producer.writes and consumer.kind == "dma":
        need = 1
    return need


def _hazards(execution: Execution, wave: Sequence[int], states: dict[int, int]) -> Iterator[tuple[int, int]]:
    """(producer, consumer) addresses that stand too close; ``states`` overrides how many states an address takes."""
    recent: list[tuple[int, int]] = []
    now = 0
    for position in wave:
        operation, address = execution.program[position], execution.addresses[position]
        for then, other in recent:
            if now - then - 1 < _required(execution.arch, execution.program[other], operation):
                yield execution.addresses[other], address
        length = 1
        if operation.kind == "nop":
            length = (execution.words[position] & 0xF) + 1
        now += states.get(address, length)
        if operation.kind in ("mfma", "valu", "trans", "salu", "store"):
            recent = [*(item for item in recent if now - item[0] <= _HORIZON), (now - 1, position)]


def nop_matters(execution: Execution, mutant: Mutant) -> bool:
    """Whether some wavefront meets a hazard only because the no-op has become one state short or more."""
    states = {mutant.address: (mutant.words[0] & 0xF) + 1}
    # A hazard spans few instructions, so only the surroundings of the no-op can tell.
    windows = {
        wave[max(0, i - _HORIZON) : i + _HORIZON + 1]
        for wave in execution.wavefronts
        for i, position in enumerate(wave)
        if execution.addresses[position] == mutant.address
    }
    return any(set(_hazards(execution, w, states)) - set(_hazards(execution, w, {})) for w in windows)


def cannot_matter(execution: Execution, mutant: Mutant) -> bool:
    """True where the rules prove a mutant harmless on what was executed; False says nothing."""
    if mutant.operator in ("drop s_waitcnt", "weaken s_waitcnt"):
        return not wait_matters(execution, mutant)
    if mutant.operator == "remove wait states":
        return not nop_matters(execution, mutant)
    return False
