"""What the built gfx950 code objects say of themselves: registers, LDS, spills, and the issue slots of the common tile."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from moon_diffusers.evidence import slots
from moon_diffusers.runtime.code_objects import Manifest, load_manifest
from tests.kernels.conftest import Emulator

FORWARD = ["moon_attention_cdna4", "moon_attention_cdna4_paged"]
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "cdna4_slots.py"


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return load_manifest()


@pytest.mark.parametrize("name", [*FORWARD, "moon_attention_cdna4_merge"])
def test_resources(manifest: Manifest, name: str) -> None:
    (facts,) = [item.facts[name] for item in manifest.code_objects if name in item.facts]
    assert facts["scratch_bytes"] == 0 and facts["vgpr_spills"] == 0 and facts["sgpr_spills"] == 0
    assert facts["vgpr_count"] <= 256 and facts["agpr_count"] == 0
    assert facts["lds_bytes"] <= 144_384


@pytest.fixture
def tiles(gfx950: Emulator, manifest: Manifest, name: str) -> list[slots.Tile]:
    (item,) = [item for item in manifest.code_objects if name in item.facts]
    return slots.common_tiles(slots.disassembly(gfx950.device.hip.disassemble(manifest.read(item)))[name])


@pytest.mark.parametrize("name", FORWARD)
def test_the_common_tile_fits_beside_the_other_waves_matrix_block(tiles: list[slots.Tile]) -> None:
    assert len(tiles) == 2  # one loop a group
    for tile in tiles:
        assert (tile.count("mfma"), tile.count("smfmac"), tile.count("barrier")) == (96, 3, 1)
        assert tile.slots_available == 195
        assert tile.slots_used <= 195
        assert tile.others_in_softmax <= 54
        assert not any(item.kind in ("vector", "transcendental") for item in tile.matrix)
        assert not any(item.name.startswith("v_pk_") for item in tile.instructions)


@pytest.mark.parametrize("name", FORWARD)
def test_the_matrix_part_reads_each_fragment_once(tiles: list[slots.Tile]) -> None:
    for tile in tiles:
        reads = [item.name for item in tile.instructions if item.kind == "lds"]
        assert reads.count("ds_read_b64_tr_b16") == 32 and reads.count("ds_read_b128") == 16 and len(reads) == 48
        assert [item.name for item in tile.instructions if item.kind == "memory"] == ["buffer_load_dwordx4"] * 4


def test_the_command_prints_the_budget(gfx950: Emulator) -> None:
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("vector slots used        195") == 4
    assert "48 exponentials, two slots each" in done.stdout


def test_only_branches_have_targets() -> None:
    """The decoder says where any instruction with an immediate would lead; the end of a kernel leads nowhere."""
    rows = [("s_cbranch_scc1", 0), ("s_endpgm", 8)]
    items = [{"address": 4 * i, "mnemonic": m, "text": "", "target": t} for i, (m, t) in enumerate(rows)]
    code = slots.disassembly(json.dumps([{"kernel": "k", "instructions": items}]))["k"]
    assert [item.target for item in code] == [0, None]


def instruction(address: int, mnemonic: str, target: int | None = None) -> slots.Instruction:
    return slots.Instruction(address, mnemonic, "", target)


def test_the_common_tile_is_the_shortest_full_way_around() -> None:
    code = [
        instruction(0, "s_cbranch_scc0", 28),  # rare
        instruction(4, "v_exp_f32_e32"),
        instruction(8, "v_smfmac_f32_16x16x64_bf16"),
        instruction(12, "v_mfma_f32_16x16x32_bf16"),
        instruction(16, "s_cbranch_scc1", 24),  # the last tile leaves the second product out
        instruction(20, "v_mfma_f32_16x16x32_bf16"),
        instruction(24, "s_cbranch_scc1", 0),
        instruction(28, "v_mov_b32_e32"),
        instruction(32, "s_branch", 4),
    ]
    (tile,) = slots.common_tiles(code, mfma=2)
    assert [item.address for item in tile.instructions] == [24, 0, 4, 8, 12, 16, 20]
    assert tile.slots_used == 2 and tile.slots_available == 5 and tile.others_in_softmax == 3
    with pytest.raises(slots.NoTileError, match="no loop with a row sum and 96"):
        slots.common_tiles(code)
