"""What the gfx942 kernel executes for a tile, counted in the emulator, and what its code objects say of themselves."""

from __future__ import annotations

import pytest

from moon_diffusers.evidence import calls, reference
from moon_diffusers.evidence.tile_counts import ours

from .conftest import Emulator

# VALU instructions besides exponentials, for 48 rows and 64 keys.
STEADY = {"rtne": 244, "rtna": 196, "rtz": 148}


@pytest.mark.parametrize("rescale", ["exact", "lazy"])
@pytest.mark.parametrize("rounding", STEADY)
def test_steady_loop(gfx942: Emulator, rounding: str, rescale: str) -> None:
    counts = ours(gfx942.device, rounding, rescale)
    assert counts["mfma"] == 192 and counts["trans"] == 48 and counts["barrier"] == 2
    assert counts["valu"] <= STEADY[rounding]
    # K by direct loads into LDS and V from L1, nothing else from memory; no lane exchange.
    assert counts["vmem_lds"] == 8 and counts["vmem_load"] == 16 and counts["lds_other"] == 0
    assert counts["lds_read"] == 19 and counts["lds_write"] == 0


@pytest.mark.parametrize("rounding", STEADY)
def test_a_rising_maximum(gfx942: Emulator, rounding: str) -> None:
    rising = ours(gfx942.device, rounding, "exact", "first half")
    assert rising["mfma"] == 192 and rising["barrier"] == 2
    assert rising["valu"] <= STEADY[rounding] + 100 and rising["trans"] <= 54
    twice = ours(gfx942.device, rounding, "exact", "both halves")
    assert twice["mfma"] == 192 and twice["valu"] <= STEADY[rounding] + 160
    lazy = ours(gfx942.device, rounding, "lazy", "both halves")
    assert lazy["mfma"] == 192 and lazy["valu"] <= STEADY[rounding] + 108 and lazy["trans"] == 51


def test_memory_traffic(gfx942: Emulator) -> None:
    """The pre-pass moves V once in and once out, not a byte more; the attention kernel's LDS reads meet no bank conflict."""
    q, k, v = reference.inputs(1, 40, 321, 1, 1)
    values, forward = calls.run(gfx942.device, calls.Call(q, k, v, family="cdna3"), {"counts": "on"}).reports
    assert values["counts"]["global_bytes"] == 321 * 256 + 6 * 64 * 256
    assert values["counts"]["lds_bytes"] == 0
    assert forward["counts"]["lds_bytes"] > 0 and forward["counts"]["lds_conflict_cycles"] == 0


def test_resources(gfx942: Emulator) -> None:
    seen = 0
    for item in gfx942.device.manifest.code_objects:
        for kernel in item.kernels:
            if kernel.family == "cdna3" and kernel.role == "forward":
                facts = item.facts[kernel.name]
                assert facts["scratch_bytes"] == facts["vgpr_spills"] == facts["sgpr_spills"] == 0
                assert facts["vgpr_count"] <= 256 and facts["agpr_count"] == 0
                assert facts["lds_bytes"] <= 65536
                seen += 1
    assert seen == 6
