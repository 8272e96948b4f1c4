"""The tuned gfx942 kernel's bits beside AITER's own code objects, both in the emulator with bit-exact matrix instructions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from moon_diffusers.evidence import aiter, bf16, parity, reference
from moon_diffusers.evidence.parity import Case, Emulated

from .conftest import Emulator


@pytest.fixture
def pair(gfx942: Emulator) -> Iterator[Emulated]:
    try:
        aiter.wheel()
    except aiter.AiterUnavailableError as error:
        pytest.skip(str(error))
    gfx942.option("checks", "off")  # the kernels are held to them elsewhere
    yield Emulated(gfx942.device)


@pytest.mark.parametrize("rounding", bf16.ROUNDINGS)
def test_every_kind_of_data(pair: Emulated, rounding: bf16.Rounding) -> None:
    cases = [Case(aiter.Shape(1, 128, 130, 1, 1), rounding, kind) for kind in reference.KINDS]
    cases += [
        Case(aiter.Shape(1, 64, 64, 1, 1), rounding, planted=(tensor, value), seed=3)
        for tensor in "qkv"
        for value in ("signalling NaN",)
    ]
    assert parity.verdict(parity.measure(pair, cases)) == []


def test_the_gate_sees_another_policy(pair: Emulated) -> None:
    """`lazy` has the same accuracy and other bits: what a lost parity looks like."""
    lazy = Emulated(pair.device, "lazy")
    rows = list(parity.measure(lazy, [Case(aiter.Shape(1, 128, 130, 1, 1), "rtne")]))
    assert rows[0].difference.identical < 0.99
    assert [line for line in parity.verdict(rows) if "identical, 99.99% asked" in line]


def test_the_gate_sees_nonfinite_cells_and_large_differences() -> None:
    theirs = bf16.from_float(np.full((1, 4, 1, 128), 1.0))
    ours = theirs.copy()
    ours[0, 0, 0, 0] = 0x7FC0
    assert parity.compare(ours, theirs, "rtz").faults() == ["non-finite elements differ"]
    theirs[0, 0, 0, 0] = 0x7FFF
    assert not parity.compare(ours, theirs, "rtne").nonfinite_equal  # other bits
    assert parity.compare(ours, theirs, "rtz").nonfinite_equal  # the same place
    ours[0, 1, 0, 0] += 2
    assert parity.compare(ours, theirs, "rtz").faults() == ["an element is 2.00 ULPs of its row's largest off"]


@pytest.mark.slow
def test_thorough(pair: Emulated) -> None:
    assert parity.verdict(parity.measure(pair, parity.cases(thorough=True))) == []
