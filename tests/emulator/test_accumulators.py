"""Accumulation registers: an MFMA, LDS and memory give the same bits through them as through VGPRs."""

from __future__ import annotations

import numpy as np
import pytest

from . import small

LOAD = """
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  s_load_dwordx2 s[8:9], s[0:1], 0x10
  v_and_b32 v0, 0x3ff, v0
  v_lshlrev_b32 v1, 4, v0
  s_waitcnt lgkmcnt(0)
  global_load_dwordx2 {ab}[20:21], v1, s[4:5]
  global_load_dwordx4 {c}[40:43], v1, s[6:7]
  s_waitcnt vmcnt(0)
"""
STORE = """
  s_nop 15
  global_store_dwordx4 v1, {d}, s[8:9]
  s_endpgm
"""
PLAIN = (
    LOAD.format(ab="v", c="v")
    + "v_mfma_f32_16x16x16_bf16 v[40:43], v[20:21], v[20:21], v[40:43]"
    + STORE.format(d="v[40:43]")
)
MFMA = "v_mfma_f32_16x16x16_bf16 a[40:43], {ab}, {ab}, a[40:43]"
FORMS = {
    "C and D": LOAD.format(ab="v", c="a") + MFMA.format(ab="v[20:21]") + STORE.format(d="a[40:43]"),
    "all": LOAD.format(ab="a", c="a") + MFMA.format(ab="a[20:21]") + STORE.format(d="a[40:43]"),
    "moved": LOAD.format(ab="v", c="v")
    + "\n".join(f"v_accvgpr_write_b32 a{40 + i}, v{40 + i}" for i in range(4))
    + "\ns_nop 2\n"
    + MFMA.format(ab="v[20:21]")
    + "\ns_nop 15\n"
    + "\n".join(f"v_accvgpr_mov_b32 a{8 + i}, a{40 + i}" for i in range(4))
    + "\n"
    + "\n".join(f"v_accvgpr_read_b32 v{60 + i}, a{8 + i}" for i in range(4))
    + STORE.format(d="v[60:63]"),
    "through LDS": LOAD.format(ab="v", c="a")
    + MFMA.format(ab="v[20:21]")
    + """
  s_nop 15
  ds_write_b128 v1, a[40:43]
  s_waitcnt lgkmcnt(0)
  ds_read_b128 a[0:3], v1
  s_waitcnt lgkmcnt(0)"""
    + STORE.format(d="a[0:3]"),
}


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("form", FORMS)
def test_accumulation_registers_hold_what_vgprs_hold(emulator, arch: str, form: str) -> None:
    rng = np.random.default_rng(7)
    ab = (rng.standard_normal((64, 8)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)  # bfloat16
    c = rng.standard_normal((64, 4)).astype(np.float32)
    seen = []
    for body in (PLAIN, FORMS[form]):
        ran = small.run(emulator(arch), body, arch, [ab, c, np.zeros((64, 4), np.float32)])
        assert ran.error is None and not ran.kinds(), ran.report
        seen.append(ran.arrays[2])
    assert np.isfinite(seen[0]).all() and np.abs(seen[0]).sum() > 0
    np.testing.assert_array_equal(seen[0].view(np.uint32), seen[1].view(np.uint32))
