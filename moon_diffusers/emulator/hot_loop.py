"""Finding a kernel's hot loops from what was executed.

The control flow of the executed instructions is cut down to those that ran at least a quarter as often as the busiest one;
what is then still a cycle is a hot loop. A kernel that holds its loop twice, a copy for each half of its wavefronts, gives
two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moon_diffusers.emulator.disassembly import Instruction, Listing
from moon_diffusers.emulator.report import Counts, InstructionCount

BUSY = 0.25


@dataclass(frozen=True, slots=True)
class HotLoop:
    """A loop and what it did.

    Attributes:
        first, last: lowest and highest address of an instruction in it.
        iterations: turns, over all wavefronts: how often its instructions ran on average.
        executed: wave-instructions spent in it.
        share: of all the launch's wave-instructions.
        kinds: executed instructions a turn, by kind.
        totals: sums over its instructions.
        instructions: by address, with those of rare paths inside the loop left out.
    """

    first: int
    last: int
    iterations: int
    executed: int
    share: float
    kinds: Mapping[str, float]
    totals: InstructionCount
    instructions: Sequence[Instruction]


def hot_loops(listing: Listing, counts: Counts, least_share: float = 0.05) -> list[HotLoop]:
    """The loops that took at least `least_share` of the launch's wave-instructions, the heaviest first."""
    ran = {a: c.executed for a, c in counts.by_address.items() if c.executed}
    if not ran:
        return []
    busy = max(ran.values()) * BUSY
    code = [i for i in listing.instructions if ran.get(i.address, 0) >= busy]
    loops = []
    for members in _cycles(_successors(listing, {i.address for i in code})):
        inside = [i for i in code if i.address in members]
        executed = sum(ran[i.address] for i in inside)
        iterations = max(1, round(executed / len(inside)))
        if executed < least_share * counts.instructions:
            continue
        kinds: dict[str, float] = {}
        for item in inside:
            kinds[item.kind] = kinds.get(item.kind, 0.0) + ran[item.address] / iterations
        totals = sum((counts.by_address[i.address] for i in inside), InstructionCount())
        loops.append(
            HotLoop(
                inside[0].address,
                inside[-1].address,
                iterations,
                executed,
                executed / counts.instructions,
                kinds,
                totals,
                inside,
            )
        )
    return sorted(loops, key=lambda loop: -loop.executed)


def _successors(listing: Listing, kept: set[int]) -> dict[int, list[int]]:
    """Where control may go from each kept instruction, among the kept ones."""
    edges: dict[int, list[int]] = {}
    for item in listing.instructions:
        if item.address not in kept:
            continue
        nexts = [] if item.ends_path else [item.address + item.size]
        if item.target is not None:
            nexts.append(item.target)
        edges[item.address] = [n for n in nexts if n in kept]
    return edges


def _cycles(edges: Mapping[int, Sequence[int]]) -> list[set[int]]:
    """Strongly connected components with an edge inside, by Tarjan's method without recursion."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[set[int]] = []
    for root in edges:
        if root in index:
            continue
        work = [(root, 0)]
        while work:
            node, at = work.pop()
            if at == 0:
                index[node] = low[node] = len(index)
                stack.append(node)
                on_stack.add(node)
            descended = False
            for k in range(at, len(edges[node])):
                succ = edges[node][k]
                if succ not in index:
                    work.append((node, k + 1))
                    work.append((succ, 0))
                    descended = True
                    break
                if succ in on_stack:
                    low[node] = min(low[node], index[succ])
            if descended:
                continue
            if low[node] == index[node]:
                component = set()
                while True:
                    member = stack.pop()
                    on_stack.discard(member)
                    component.add(member)
                    if member == node:
                        break
                if len(component) > 1 or node in edges[node]:
                    found.append(component)
            if work:
                parent = work[-1][0]
                low[parent] = min(low[parent], low[node])
    return found
