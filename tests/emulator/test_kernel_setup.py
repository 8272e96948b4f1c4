"""What a kernel finds when it starts: workgroup and work-item ids, kernel arguments, preloaded and implicit ones."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from moon_diffusers.evidence.device import loaded, uploaded

from .isa import fp, harness

ARCHS = ("gfx942", "gfx950")


def launch(device, arch, text, metadata, out, kernarg, grid, block):
    image = harness.assemble(text + metadata, arch)
    with uploaded(device, {"out": out}) as addresses:
        address = addresses["out"]
        with loaded(device, image) as module:
            device.launch(device.function(module, "setup"), grid, block, struct.pack("<Q", address) + kernarg)
        report = device.report()
        assert not [f for f in report["findings"] if f["severity"] == "error"], report["findings"]
        return device.download(address, out)


def kernel(body: str, kernarg: int, *directives: str) -> str:
    text = harness.kernel_text("setup", body.strip().split("\n"), fp.MODES["clang"], lds=0, kernarg=kernarg)
    return text.replace(".end_amdhsa_kernel", "\n".join([*(f"  {d}" for d in directives), ".end_amdhsa_kernel"]))


@pytest.mark.parametrize("arch", ARCHS)
def test_workgroup_and_work_item_ids(emulator, arch):
    """Ids of x, y and z in a grid and a block of three dimensions; work-item ids are packed ten bits each."""
    body = """
s_load_dwordx2 s[8:9], s[0:1], 0x0
v_and_b32_e32 v1, 0x3ff, v0
v_bfe_u32 v2, v0, 10, 10
v_bfe_u32 v3, v0, 20, 10
v_lshl_add_u32 v4, v2, 3, v1
v_lshl_add_u32 v4, v3, 5, v4
s_lshl_b32 s10, s4, 2
s_lshl_b32 s11, s3, 1
s_add_u32 s10, s10, s11
s_add_u32 s10, s10, s2
s_lshl_b32 s10, s10, 7
v_add_u32_e32 v4, s10, v4
v_lshlrev_b32_e32 v4, 2, v4
s_lshl_b32 s11, s4, 24
s_lshl_b32 s12, s3, 20
s_or_b32 s11, s11, s12
s_lshl_b32 s12, s2, 16
s_or_b32 s11, s11, s12
v_lshlrev_b32_e32 v5, 8, v3
v_lshl_or_b32 v5, v2, 4, v5
v_or3_b32 v5, v5, v1, s11
s_waitcnt lgkmcnt(0)
global_store_dword v4, v5, s[8:9]
"""
    ids = (
        ".amdhsa_system_sgpr_workgroup_id_y 1",
        ".amdhsa_system_sgpr_workgroup_id_z 1",
        ".amdhsa_system_vgpr_workitem_id 2",
    )
    metadata = harness.metadata(["setup"], arch, lds=0, block=128, kernarg=8)
    out = launch(
        emulator(arch), arch, kernel(body, 8, *ids), metadata, np.zeros(8 * 128, np.uint32), b"", (2, 2, 2), (8, 4, 4)
    )
    expected = [
        gz << 24 | gy << 20 | gx << 16 | z << 8 | y << 4 | x
        for gz in range(2) for gy in range(2) for gx in range(2) for z in range(4) for y in range(4) for x in range(8)
    ]  # fmt: skip
    assert out.tolist() == expected


@pytest.mark.parametrize("arch", ARCHS)
def test_preloaded_kernel_arguments(emulator, arch):
    """The first dwords of the arguments come in SGPRs; the entry point is 256 bytes on for firmware that preloads."""
    body = """
s_endpgm
.fill 63, 4, 0xbf800000
v_and_b32_e32 v0, 0x3ff, v0
v_lshlrev_b32_e32 v1, 2, v0
v_mov_b32_e32 v2, s4
v_add_u32_e32 v2, s5, v2
v_add_u32_e32 v2, s6, v2
global_store_dword v1, v2, s[2:3]
"""
    metadata = harness.metadata(["setup"], arch, lds=0, kernarg=8, segment=16).replace(
        "value_kind: global_buffer}",
        "value_kind: global_buffer}\n      - {.offset: 8, .size: 8, .value_kind: by_value}",
    )
    # SGPRs: s[0:1] pointer to the arguments, s[2:5] the four preloaded dwords, s6 the workgroup.
    text = kernel(body, 16, ".amdhsa_user_sgpr_kernarg_preload_length 4")
    out = launch(
        emulator(arch), arch, text, metadata, np.zeros(64, np.uint32), struct.pack("<2I", 40, 2), (1, 1, 1), (64, 1, 1)
    )
    assert (out == 42).all()


@pytest.mark.parametrize("arch", ARCHS)
def test_implicit_arguments(emulator, arch):
    """Block counts, group sizes and the grid's rank stand where the metadata puts them, whatever the caller passes."""
    hidden = [
        ("hidden_block_count_x", 16, 4), ("hidden_block_count_y", 20, 4), ("hidden_block_count_z", 24, 4),
        ("hidden_group_size_x", 28, 2), ("hidden_group_size_y", 30, 2), ("hidden_group_size_z", 32, 2),
        ("hidden_remainder_x", 34, 2), ("hidden_grid_dims", 40, 2),
    ]  # fmt: skip
    lines = "".join(f"\n      - {{.offset: {at}, .size: {size}, .value_kind: {kind}}}" for kind, at, size in hidden)
    metadata = harness.metadata(["setup"], arch, lds=0, block=128, kernarg=8, segment=48).replace(
        "value_kind: global_buffer}", "value_kind: global_buffer}" + lines
    )
    body = """
s_load_dwordx2 s[8:9], s[0:1], 0x0
s_load_dwordx8 s[12:19], s[0:1], 0x10
v_mov_b32_e32 v1, 0
s_waitcnt lgkmcnt(0)
""" + "\n".join(f"v_mov_b32_e32 v2, s{12 + i}\nglobal_store_dword v1, v2, s[8:9] offset:{4 * i}" for i in range(7))
    out = launch(emulator(arch), arch, kernel(body, 48), metadata, np.zeros(8, np.uint32), b"", (3, 2, 5), (16, 4, 2))
    assert out[:3].tolist() == [3, 2, 5]
    assert out[3:5].view(np.uint16)[:3].tolist() == [16, 4, 2]
    assert out[4] >> 16 == 0 and out[6] & 0xFFFF == 3
