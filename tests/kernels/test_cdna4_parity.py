"""The tuned gfx950 kernel beside AITER's gfx950 code objects, both in the emulator on the same tensors."""

from __future__ import annotations

import numpy as np
import pytest

from moon_diffusers.evidence import aiter, bf16, calls, energy, peer, reference
from moon_diffusers.evidence.device import RawDevice, open_emulator
from tests.kernels.conftest import Emulator

SHAPES = [aiter.Shape(1, 300, 200, 1, 1), aiter.Shape(1, 257, 700, 2, 1), aiter.Shape(2, 77, 97, 2, 2)]


@pytest.fixture
def raw() -> RawDevice:
    """The emulated device for whole code objects, or a skip where AITER's cannot be had."""
    try:
        aiter.code_object(aiter.Kernel("gfx950", "rtne", False))
    except aiter.AiterUnavailableError as error:
        pytest.skip(str(error))
    return open_emulator("gfx950")


def both(
    gfx950: Emulator, raw: RawDevice, q: calls.Bits, k: calls.Bits, v: calls.Bits, causal: bool
) -> tuple[calls.Result, peer.PeerResult]:
    ours = calls.run(gfx950.device, calls.Call(q, k, v, causal=causal, family="cdna4"))
    # Its causal kernel has a race that shows unless slower wavefronts go first.
    gfx950.option("order", "reverse")
    return ours, peer.run(raw, aiter.Kernel("gfx950", "rtne", causal), q, k, v)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", reference.KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_as_near_to_fp64_as_aiter(
    gfx950: Emulator, raw: RawDevice, shape: aiter.Shape, kind: reference.Kind, causal: bool
) -> None:
    q, k, v = reference.inputs(
        shape.batch, shape.seqlen_q, shape.seqlen_k, shape.num_heads, shape.num_heads_kv, kind=kind
    )
    ours, theirs = both(gfx950, raw, q, k, v, causal)
    expected, _ = reference.attention(*(bf16.to_float(x) for x in (q, k, v)), causal=causal)
    our_error = reference.compare(ours.o, expected).relative_l2
    assert our_error <= 2.4e-3
    assert our_error <= 1.15 * reference.compare(theirs.o, expected).relative_l2
    between = reference.compare(ours.o, theirs.o)
    # Both round P to bf16 against another reference, so bits differ; never by more than that rounding.
    assert between.identical > 0.5 and between.within_1_ulp > 0.85, between
    assert between.max_row_relative < 0.016, between


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("value", list(reference.NONFINITE))
@pytest.mark.parametrize("where", ["q", "k", "v"])
def test_nonfinite_cells_stand_where_aiters_do(
    gfx950: Emulator, raw: RawDevice, where: str, value: str, causal: bool
) -> None:
    tensors = dict(zip("qkv", reference.inputs(1, 100, 150, 1, 1), strict=True))
    tensors[where] = reference.plant(tensors[where], (0, 70, 0, 5), value)
    ours, theirs = both(gfx950, raw, tensors["q"], tensors["k"], tensors["v"], causal)
    ours_f, theirs_f = bf16.to_float(ours.o), bf16.to_float(theirs.o)
    assert np.array_equal(np.isnan(ours_f), np.isnan(theirs_f))
    assert np.array_equal(ours_f == np.inf, theirs_f == np.inf)
    assert np.array_equal(ours_f == -np.inf, theirs_f == -np.inf)


def test_it_moves_less_per_flop(gfx950: Emulator, raw: RawDevice) -> None:
    found = energy.compare(gfx950.device, raw, aiter.Shape(1, 768, 1024, 1, 1))
    assert found.ours.accumulators == pytest.approx(found.aiter.accumulators / 2, rel=0.02)
    assert found.ours.fetched < 0.68 * found.aiter.fetched
    assert found.ours.lds < 0.68 * found.aiter.lds
    assert found.ours.vector < 0.65 * found.aiter.vector
    assert found.ours.conflicts == 0


@pytest.mark.parametrize(("kind", "most"), [("normal", 0.0), ("peaky", 0.02)])
def test_natural_scores_hardly_ever_rescale(gfx950: Emulator, kind: reference.Kind, most: float) -> None:
    result = energy.run_ours(gfx950.device, aiter.Shape(1, 384, 2048, 1, 1), kind=kind)
    assert energy.rescale_share(result.reports[0], energy.code_of(gfx950.device, result)) <= most


def test_rising_scores_do_rescale(gfx950: Emulator) -> None:
    """The counter counts: scores that jump by more than the headroom move the reference."""
    q, k, v = (bf16.to_float(x) for x in reference.inputs(1, 384, 640, 1, 1))
    k[0, :, 0, 0] = np.arange(640) // 64 * 10
    q[0, :, 0, 0] = 48
    call = calls.Call(bf16.from_float(q), bf16.from_float(k), bf16.from_float(v), batch_invariant=True, family="cdna4")
    result = calls.run(gfx950.device, call, {"counts": "on"})
    share = energy.rescale_share(result.reports[0], energy.code_of(gfx950.device, result))
    assert share == pytest.approx(0.9)  # ten tiles, each but the first
