"""Fault injection: run mutants of a kernel in the emulator and say which check, or which wrong bit, gives each away."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from moon_diffusers.errors import MoonError
from moon_diffusers.evidence.code_object import CodeObject
from moon_diffusers.evidence.equivalence import Execution, cannot_matter
from moon_diffusers.evidence.mutations import Mutant, mutants

LIFTED_BOUND = "change buffer bound"
ORDERS = ("forward", "reverse", "random:1", "random:2")
"""Wavefront orders under which a mutant runs: bits that depend on the order are wrong bits."""


@dataclass
class Observation:
    """What one launch gave: the output tensors' bits, the findings, and the error when it failed."""

    outputs: list[NDArray[Any]] = field(default_factory=list)
    findings: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""
    executed: int = 0

    def kinds(self) -> dict[tuple[str, int], str]:
        """Findings by kind and address, with their severity."""
        return {(f["kind"], int(f["address"])): f["severity"] for f in self.findings}


class Subject(Protocol):
    """A kernel with inputs: runs any image of its code object under emulator options."""

    name: str
    image: bytes

    @property
    def kernels(self) -> frozenset[str]:
        """The kernels of ``image`` that are launched."""
        ...

    def traces(self, image: bytes) -> Iterator[Execution]:
        """What each workgroup of each launch executes."""
        ...

    def run(self, image: bytes, options: dict[str, str]) -> Observation:
        """Launch and observe; a launch error is observed, not raised."""
        ...


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant. ``caught_by``: a finding's kind, ``wrong result``, ``launch error``; empty: it survived.

    ``harmless``: it survived, and `equivalence` proves that it cannot matter.
    """

    subject: str
    mutant: Mutant
    caught_by: str
    detail: str = ""
    harmless: bool = False

    @property
    def survived(self) -> bool:
        """It may matter, and nothing gave it away."""
        return not self.caught_by and not self.harmless


class Baseline:
    """The unchanged kernel's observations under every order: what a mutant must differ from to be caught."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.code = CodeObject(subject.image)
        first = subject.run(subject.image, {"order": ORDERS[0]})
        if first.error:
            raise MoonError(f"{subject.name}: the unchanged kernel fails: {first.error}")
        errors = [f for f in first.findings if f["severity"] == "error"]
        if errors:
            raise MoonError(f"{subject.name}: the unchanged kernel has errors: {errors[0]}")
        self.outputs = first.outputs
        self.executions = list(subject.traces(subject.image))
        self.known = set(first.kinds())
        for order in ORDERS[1:]:
            other = subject.run(subject.image, {"order": order})
            self.known |= set(other.kinds())
            if self.differs(other):
                raise MoonError(f"{subject.name}: the unchanged kernel gives other bits in order {order}")
        # Above what any order of the kernel takes, so that only a mutant that never ends meets it.
        self.budget = str(3 * max(first.executed, 100_000))

    def differs(self, other: Observation) -> bool:
        """Whether any output bit is another."""
        return any(not np.array_equal(a, b) for a, b in zip(self.outputs, other.outputs, strict=True))

    def reaches(self, mutant: Mutant) -> bool:
        """Whether the launch comes to the mutant's instruction."""
        return any(mutant.address in execution.reached for execution in self.executions)

    def harmless(self, mutant: Mutant) -> bool:
        """Whether rules apart from the emulator's checks prove that a mutant cannot matter to this launch."""
        if mutant.operator == LIFTED_BOUND and mutant.change.endswith("-1"):
            lifted = self.subject.traces(mutant.apply(self.code))
            return all(a.lines == b.lines for a, b in zip(self.executions, lifted, strict=True))
        return all(cannot_matter(execution, mutant) for execution in self.executions)

    def judge(self, mutant: Mutant) -> Outcome:
        """Run a mutant, under one order after another, until something gives it away."""
        image = mutant.apply(self.code)
        for order in ORDERS:
            seen = self.subject.run(image, {"order": order, "budget": self.budget})
            new = {k: s for k, s in seen.kinds().items() if k not in self.known}
            caught, detail = "", ""
            if new:
                (kind, address), severity = min(new.items(), key=lambda item: (item[1] != "error", item[0]))
                caught, detail = kind, f"{severity} at {address:#x}"
            elif seen.error:
                caught, detail = "launch error", seen.error
            elif self.differs(seen):
                caught, detail = "wrong result", f"order {order}"
            if caught:
                return Outcome(self.subject.name, mutant, caught, detail)
        return Outcome(self.subject.name, mutant, "", harmless=self.harmless(mutant))


def sample(candidates: Sequence[Mutant], per_operator: int, seed: int = 0) -> list[Mutant]:
    """At most ``per_operator`` mutants of each operator, seeded, in address order."""
    rng = random.Random(seed)
    chosen: list[Mutant] = []
    for operator in sorted({m.operator for m in candidates}):
        group = [m for m in candidates if m.operator == operator]
        chosen += rng.sample(group, min(per_operator, len(group)))
    return sorted(chosen, key=lambda m: (m.address, m.operator, m.change))


def candidates(subject: Subject) -> list[Mutant]:
    """Every mutant of the kernels that a subject launches."""
    return mutants(CodeObject(subject.image), subject.kernels)
