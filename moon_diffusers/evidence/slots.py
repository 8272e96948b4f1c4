"""The issue slots of a kernel's common tile, counted in its machine code.

A wave of the `cdna4` kernels runs its softmax in the gaps that the matrix instructions of another wave leave. On gfx950 a
16x16x32 MFMA holds the matrix core for 16 cycles and blocks vector issue for the first 8, which leaves two slots of 4
cycles; a row-sum smfmac blocks 12 and leaves one; an exponential takes two. So 96 and 3 of them leave 195.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from moon_diffusers.errors import MoonError


class NoTileError(MoonError, ValueError):
    """The code has no loop that looks like a tile of the wanted kind."""


@dataclass(frozen=True)
class Instruction:
    """One instruction: `target` is the address that a branch goes to, None for other instructions."""

    address: int
    mnemonic: str
    text: str
    target: int | None

    @property
    def name(self) -> str:
        """The mnemonic without the suffix of its encoding."""
        return self.mnemonic.removesuffix("_e32").removesuffix("_e64")

    @property
    def kind(self) -> str:
        """mfma, smfmac, transcendental, vector, lds, memory, wait, barrier, branch or scalar."""
        name = self.name
        if name.startswith("v_mfma"):
            return "mfma"
        if name.startswith("v_smfmac"):
            return "smfmac"
        if name.startswith(("v_exp_", "v_log_", "v_rcp_", "v_rsq_", "v_sqrt_", "v_sin_", "v_cos_")):
            return "transcendental"
        if name.startswith("v_"):
            return "vector"
        if name.startswith("ds_"):
            return "lds"
        if name.startswith(("buffer_", "global_", "flat_")):
            return "memory"
        if name == "s_waitcnt" or name == "s_nop":
            return "wait"
        if name == "s_barrier":
            return "barrier"
        if "branch" in name:
            return "branch"
        return "scalar"


@dataclass(frozen=True)
class Tile:
    """The common tile of one loop: its instructions in order, beginning behind the last MFMA of the tile before."""

    instructions: tuple[Instruction, ...]

    @property
    def matrix(self) -> tuple[Instruction, ...]:
        """From the first MFMA on."""
        return self.instructions[self._first_mfma() :]

    @property
    def softmax(self) -> tuple[Instruction, ...]:
        """Before the first MFMA."""
        return self.instructions[: self._first_mfma()]

    def _first_mfma(self) -> int:
        return next(i for i, item in enumerate(self.instructions) if item.kind == "mfma")

    def count(self, kind: str) -> int:
        """Instructions of a kind in the whole tile."""
        return sum(item.kind == kind for item in self.instructions)

    @property
    def slots_available(self) -> int:
        """Vector issue slots that another wave's matrix block of this size leaves."""
        return 2 * self.count("mfma") + self.count("smfmac")

    @property
    def slots_used(self) -> int:
        """Vector issue slots that the tile takes: two a transcendental."""
        return self.count("vector") + 2 * self.count("transcendental")

    @property
    def others_in_softmax(self) -> int:
        """Instructions of the softmax part that are not vector instructions; row sums count as such."""
        return sum(item.kind not in ("vector", "transcendental") for item in self.softmax)


def disassembly(text: str) -> dict[str, list[Instruction]]:
    """Kernel name to instructions, from the JSON of `moonEmuDisassemble`."""
    kernels = {}
    for kernel in json.loads(text):
        kernels[kernel["kernel"]] = [
            Instruction(i["address"], i["mnemonic"], i["text"], i["target"] if "branch" in i["mnemonic"] else None)
            for i in kernel["instructions"]
        ]
    return kernels


def common_tiles(code: Sequence[Instruction], mfma: int = 96) -> list[Tile]:
    """For each loop with a row sum: the shortest way around it that has `mfma` matrix instructions.

    Raises NoTileError if there is no such loop.
    """
    blocks = _basic_blocks(code)
    tiles = []
    for start, block in blocks.items():
        if not any(item.kind == "smfmac" for item in block):
            continue
        ways = [way for way in _ways_around(blocks, start) if sum(i.kind == "mfma" for i in way) == mfma]
        if ways:
            tiles.append(_rotate(min(ways, key=len)))
    if not tiles:
        raise NoTileError(f"no loop with a row sum and {mfma} matrix instructions")
    return tiles


def rescale_branch(tile: Tile, code: Sequence[Instruction]) -> tuple[int, int]:
    """Addresses of the branch that asks whether a row's reference must move, and of the first instruction that moves it.

    It is the branch behind the tile's only vector compare. Raises NoTileError if there is none.
    """
    items = tile.instructions
    compare = next((i for i, item in enumerate(items) if item.name.startswith("v_cmp")), None)
    branch = next((item for item in items[compare or 0 :] if item.kind == "branch"), None)
    if compare is None or branch is None or branch.target is None:
        raise NoTileError("no branch behind a vector compare in the tile")
    if branch.target not in {item.address for item in items}:
        return branch.address, branch.target
    return branch.address, next(item.address for item in code if item.address > branch.address)


def _basic_blocks(code: Sequence[Instruction]) -> dict[int, list[Instruction]]:
    starts = {item.target for item in code if item.target is not None}
    blocks: dict[int, list[Instruction]] = {}
    current: list[Instruction] = []
    for item in code:
        if not current or item.address in starts:
            current = blocks.setdefault(item.address, [])
        current.append(item)
        if item.kind == "branch" or item.name == "s_endpgm":
            current = []
    return blocks


def _successors(blocks: dict[int, list[Instruction]]) -> dict[int, list[int]]:
    order = sorted(blocks)
    following: dict[int, int | None] = dict(zip(order, [*order[1:], None], strict=True))
    result = {}
    for start, block in blocks.items():
        last, after = block[-1], following[start]
        ways = [last.target] if last.target is not None else []
        if last.name not in ("s_branch", "s_endpgm") and after is not None:
            ways.append(after)
        result[start] = [way for way in ways if way in blocks]
    return result


def _ways_around(blocks: dict[int, list[Instruction]], start: int) -> Iterator[list[Instruction]]:
    """Every simple cycle through the block at `start`, as its instructions in order."""
    successors = _successors(blocks)
    # Only what leads back: the ways out of the loop are too many to try.
    leads_back = {start}
    while grown := {b for b, ways in successors.items() if b not in leads_back and leads_back & set(ways)}:
        leads_back |= grown
    stack = [(start, [start])]
    while stack:
        at, way = stack.pop()
        for successor in leads_back & set(successors[at]):
            if successor == start:
                yield [item for block in way for item in blocks[block]]
            elif successor not in way:
                stack.append((successor, [*way, successor]))


def _rotate(way: list[Instruction]) -> Tile:
    """Begin behind the last MFMA before the row sums."""
    first_sum = next(i for i, item in enumerate(way) if item.kind == "smfmac")
    turned = way[first_sum:] + way[:first_sum]
    last_mfma = max(i for i, item in enumerate(turned) if item.kind == "mfma")
    return Tile(tuple(turned[last_mfma + 1 :] + turned[: last_mfma + 1]))


def table(tile: Tile) -> str:
    """The tile's budget as text: what fills the vector slots, and what else is issued."""
    roles = {
        "v_exp_f32": "exponentials, two slots each",
        "v_fma_f32": "multiplies by the softmax scale, minus the reference",
        "v_max_f32": "row maximum",
        "v_max3_f32": "row maximum, three scores each",
        "v_cvt_pk_bf16_f32": "bf16 packs, two scores each",
        "v_add_u32": "LDS addresses of the next block",
        "v_cmp_lt_f32": "the rescale test",
    }
    vector = Counter(item.name for item in tile.instructions if item.kind in ("vector", "transcendental"))
    lines = [f"vector slots available  {tile.slots_available:4}   2 a MFMA, 1 a row sum"]
    lines.append(f"vector slots used       {tile.slots_used:4}")
    for name, number in sorted(vector.items(), key=lambda pair: -pair[1]):
        slots = number * (2 if name == "v_exp_f32" else 1)
        lines.append(f"  {name:22}{slots:4}   {number} {roles.get(name, '')}".rstrip())
    for title, part in (("softmax part", tile.softmax), ("matrix part", tile.matrix)):
        kinds = Counter(item.kind for item in part)
        others = {kind: n for kind, n in kinds.items() if kind not in ("vector", "transcendental")}
        lines.append(f"{title}: {len(part)} instructions, of which not vector {sum(others.values())}")
        lines.append("  " + ", ".join(f"{n} {kind}" for kind, n in sorted(others.items(), key=lambda pair: -pair[1])))
    return "\n".join(lines)
