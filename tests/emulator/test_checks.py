"""Each check finds the fault that it is for, and does not accuse the same kernel without the fault."""

from __future__ import annotations

import numpy as np
import pytest

from .small import Ran, run

ARCHS = ("gfx942", "gfx950")
# v1: lane * 4; s[4:5], s[6:7]: the two arrays.
START = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
v_and_b32_e32 v0, 0x3ff, v0
v_lshlrev_b32_e32 v1, 2, v0
s_waitcnt lgkmcnt(0)
"""
STORE = "\nglobal_store_dword v1, v3, s[6:7]\n"
# Body with {fault}; the correct text for it; the faulty text; what the report may call the fault.
CASES = {
    "vmcnt": ("global_load_dword v2, v1, s[4:5]\n{fault}\nv_add_u32_e32 v3, 1, v2", "s_waitcnt vmcnt(0)", "s_nop 0"),
    "vmcnt too weak": (
        "global_load_dword v2, v1, s[4:5]\nglobal_load_dword v4, v1, s[4:5]\n{fault}\nv_add_u32_e32 v3, v4, v2",
        "s_waitcnt vmcnt(0)",
        "s_waitcnt vmcnt(1)",
    ),
    "overwritten while in flight": (
        "global_load_dword v3, v1, s[4:5]\n{fault}\nv_mov_b32_e32 v3, 1",
        "s_waitcnt vmcnt(0)",
        "s_nop 0",
    ),
    "lgkmcnt of LDS": (
        "ds_write_b32 v1, v1\ns_waitcnt lgkmcnt(0)\nds_read_b32 v2, v1\n{fault}\nv_add_u32_e32 v3, 1, v2",
        "s_waitcnt lgkmcnt(0)",
        "s_nop 0",
    ),
    "lgkmcnt of a scalar load": (
        "s_load_dword s8, s[4:5], 0x4\n{fault}\nv_mov_b32_e32 v3, s8",
        "s_waitcnt lgkmcnt(0)",
        "s_waitcnt lgkmcnt(1)",
    ),
    "uninitialised register": ("{fault}\nv_add_u32_e32 v3, 1, v9", "v_mov_b32_e32 v9, 0", "s_nop 0"),
    "undefined high half that is used": (
        "v_mov_b32_e32 v8, 7\nv_mad_u64_u32 v[10:11], s[12:13], v0, v0, v[8:9]\nv_add_u32_e32 v3, v10, {fault}",
        "v10",
        "v11",
    ),
    "uninitialised scalar": ("{fault}\nv_mov_b32_e32 v3, s30", "s_mov_b32 s30, 0", "s_nop 0"),
    "uninitialised LDS": (
        "{fault}\ns_waitcnt lgkmcnt(0)\nds_read_b32 v3, v1\ns_waitcnt lgkmcnt(0)",
        "ds_write_b32 v1, v1",
        "s_nop 0",
    ),
    "global out of bounds": (
        "v_lshlrev_b32_e32 v4, {fault}, v0\nglobal_load_dword v3, v4, s[4:5]\ns_waitcnt vmcnt(0)",
        "2",
        "12",
    ),
    "LDS out of bounds": (
        "v_mov_b32_e32 v4, {fault}\nds_write_b32 v4, v4\ns_waitcnt lgkmcnt(0)\nv_mov_b32_e32 v3, 0",
        "0x3fc",
        "0x400",
    ),
    "VCC read too soon": (
        "v_cmp_lt_u32_e32 vcc, 3, v0\n{fault}\nv_cndmask_b32_e32 v3, v0, v1, vcc",
        "s_nop 1",
        "s_nop 0",
    ),
    "SGPR pair read too soon": (
        "v_cmp_lt_u32_e64 s[12:13], 3, v0\n{fault}\nv_cndmask_b32_e64 v3, v0, v1, s[12:13]",
        "s_nop 1",
        "s_nop 0",
    ),
    "SGPR of a lane read too soon": (
        "v_readfirstlane_b32 s12, v0\n{fault}\nv_add_u32_e32 v3, s12, v0",
        "s_nop 1",
        "s_nop 0",
    ),
    "VCC before v_div_fmas": (
        "v_cmp_lt_u32_e32 vcc, 3, v0\n{fault}\nv_div_fmas_f32 v3, v0, v0, v0",
        "s_nop 3",
        "s_nop 2",
    ),
    "data of a wide store overwritten": (
        "v_mov_b32_e32 v4, 0\nv_mov_b32_e32 v5, 0\nv_mov_b32_e32 v6, 0\nv_mov_b32_e32 v7, 0\nv_mov_b32_e32 v3, 0\n"
        "v_and_b32_e32 v2, 15, v0\n"
        "v_lshlrev_b32_e32 v2, 4, v2\nglobal_store_dwordx4 v2, v[4:7], s[4:5]\n{fault}\nv_mov_b32_e32 v5, 1",
        "s_nop 1",
        "s_nop 0",
    ),
    "MFMA result read too soon": (
        """v_mov_b32_e32 v4, 0
v_mov_b32_e32 v5, 0
v_mov_b32_e32 v6, 0
v_mov_b32_e32 v7, 0
s_nop 7
v_mfma_f32_16x16x16_bf16 v[4:7], v[4:5], v[6:7], v[4:7]
{fault}
v_add_u32_e32 v3, 1, v4""",
        "s_nop 7\ns_nop 7",
        "s_nop 0",
    ),
}


def small_run(emulator, arch, text, **options) -> Ran:
    arrays = [np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)]
    return run(emulator(arch, **options), START + text + STORE, arch, arrays, lds=0x400)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("case", CASES)
def test_fault_is_found_and_its_absence_is_not(emulator, arch, case):
    body, correct, faulty = CASES[case]
    good = small_run(emulator, arch, body.format(fault=correct))
    assert good.error is None and not good.report["findings"]
    bad = small_run(emulator, arch, body.format(fault=faulty))
    assert bad.report["findings"], "nothing found"
    finding = bad.report["findings"][0]
    assert finding["mnemonic"] and isinstance(finding["address"], int) and finding["severity"] in ("error", "warning")


@pytest.mark.parametrize("arch", ARCHS)
def test_checks_off_finds_nothing(emulator, arch):
    body, _, faulty = CASES["vmcnt"]
    assert not small_run(emulator, arch, body.format(fault=faulty), checks="off").report.get("findings")


EXCHANGE = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
v_and_b32_e32 v0, 0x3ff, v0
v_lshlrev_b32_e32 v1, 2, v0
v_add_u32_e32 v4, 1, v0
ds_write_b32 v1, v4
s_waitcnt lgkmcnt(0)
{barrier}
v_xor_b32_e32 v2, 0x100, v1
ds_read_b32 v3, v2
s_waitcnt lgkmcnt(0)
global_store_dword v1, v3, s[6:7]
"""


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("order", ["forward", "reverse", "random:3"])
def test_race_between_wavefronts(emulator, arch, order):
    arrays = [np.zeros(1, np.uint32), np.zeros(128, np.uint32)]
    good = run(emulator(arch, order=order), EXCHANGE.format(barrier="s_barrier"), arch, arrays, block=128)
    assert good.error is None and not good.report["findings"]
    np.testing.assert_array_equal(good.arrays[1], (np.arange(128) ^ 64) + 1)
    bad = run(emulator(arch, order=order), EXCHANGE.format(barrier="s_nop 0"), arch, arrays, block=128)
    assert bad.kinds(), "the race was not found"


@pytest.mark.parametrize("arch", ARCHS)
def test_barrier_that_one_wavefront_misses(emulator, arch):
    body = """
v_and_b32_e32 v0, 0x3ff, v0
v_readfirstlane_b32 s8, v0
s_cmp_lg_u32 s8, 0
s_cbranch_scc1 over
s_barrier
over:
"""
    ran = run(emulator(arch), body, arch, [np.zeros(1, np.uint32)], block=128)
    assert ran.kinds() or ran.error


DMA = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
v_and_b32_e32 v0, 0x3ff, v0
v_lshlrev_b32_e32 v1, 2, v0
s_waitcnt lgkmcnt(0)
s_mov_b32 s8, s4
s_mov_b32 s9, s5
s_movk_i32 s10, 256
s_mov_b32 s11, 0x00020000
s_mov_b32 m0, 0
s_nop 4
buffer_load_dword v1, s[8:11], 0 offen lds
{wait}
s_barrier
ds_read_b32 v3, v1
s_waitcnt lgkmcnt(0)
global_store_dword v1, v3, s[6:7]
"""


@pytest.mark.parametrize("arch", ARCHS)
def test_direct_to_lds_load_is_pending_until_waited_for(emulator, arch):
    arrays = [np.arange(64, dtype=np.uint32) * 3, np.zeros(64, np.uint32)]
    good = run(emulator(arch), DMA.format(wait="s_waitcnt vmcnt(0)"), arch, arrays)
    assert good.error is None and not good.report["findings"]
    np.testing.assert_array_equal(good.arrays[1], arrays[0])
    assert run(emulator(arch), DMA.format(wait="s_nop 0"), arch, arrays).kinds()
