"""Every instruction against its independent numpy model, on random and edge operands and partial EXEC masks."""

from __future__ import annotations

import itertools
import os

import pytest

from moon_diffusers.evidence import aiter, decode_check

from .conftest import own_code_objects, peer_code_object
from .isa import harness, rows_lanes, rows_matrix, rows_memory, rows_salu, rows_valu

TABLES = (rows_valu, rows_salu, rows_lanes, rows_matrix, rows_memory)
ROWS = [row for table in TABLES for row in table.ROWS]
# Control instructions that every row's kernel runs, and that have no result of their own to compare.
COVERED_BY_THE_HARNESS = {"s_endpgm"}
CASES = sorted({(arch, row.mode, row.options) for row in ROWS for arch in row.archs})


def findings_of(report: dict, severity: str) -> list[str]:
    return [str(f) for f in report.get("findings", []) if f.get("severity") == severity]


@pytest.mark.parametrize(
    ("arch", "mode", "options"), CASES, ids=["-".join((a, m, *itertools.chain(*o))) for a, m, o in CASES]
)
def test_rows(emulator, arch, mode, options):
    rows = [row for row in ROWS if arch in row.archs and (row.mode, row.options) == (mode, options)]
    only = os.environ.get("MOON_TEST_ROW")
    if only:
        rows = [row for row in rows if only in row.name]
    if not rows:
        pytest.skip(f"MOON_TEST_ROW={only}: no such row here")
    device = emulator(arch, **dict(options))
    if device.hip.path.endswith("-x86-64.so"):  # no fused multiply-add there: docs/emulator.md, "How it works"
        rows = [row for row in rows if not row.name.endswith("NaN and Inf")]
    failures, report = harness.run(device, rows, arch, mode)
    assert not failures, f"{len(failures)} of {len(rows)} rows:\n" + "\n".join(f"{k}: {v}" for k, v in failures.items())
    assert not findings_of(report, "error")


@pytest.mark.parametrize("arch", harness.BOTH)
def test_a_wrong_model_is_noticed(emulator, arch):
    """The comparison itself: a row whose model is off by one in one lane must fail, and only that row."""

    def wrong(state):
        state.d = state.d.copy()
        state.d[state.active, 0] = (state.a + state.b)[state.active]
        state.d[3, 5, 0] ^= 1

    rows = [row for row in rows_valu.ROWS if row.name in ("v_add_u32_e32", "v_xor_b32_e32")]
    broken = harness.Row("wrong", "v_add_u32_e32 {d}, {a}, {b}", wrong, {"a": "u32", "b": "u32"}, d=1)
    failures, _ = harness.run(emulator(arch), [*rows, broken], arch, "clang")
    assert list(failures) == ["wrong"]


def own() -> dict[str, bytes]:
    found = own_code_objects()
    assert found, "no code object in _compiled: run `python csrc/build/build.py` first"
    return found


def peers() -> dict[str, bytes]:
    return {f"aiter {kernel}": peer_code_object(kernel) for kernel in aiter.KERNELS}


@pytest.mark.parametrize("code_objects", [own, peers])
def test_every_instruction_of_the_kernels_has_a_row(code_objects):
    covered = {(arch, decode_check.base_mnemonic(row.mnemonic)) for row in ROWS for arch in row.archs}
    missing: dict[str, list[str]] = {}
    for name, image in code_objects().items():
        arch = decode_check.CodeObject(image).arch
        try:
            _, decoded = decode_check.independent(image)
        except decode_check.DecoderUnavailableError as error:
            pytest.skip(str(error))
        for mnemonic in {decode_check.base_mnemonic(d.mnemonic) for d in decoded}:
            if (arch, mnemonic) not in covered and mnemonic not in COVERED_BY_THE_HARNESS:
                missing.setdefault(f"{arch} {mnemonic}", []).append(name)
    assert not missing, "\n".join(f"{what}: in {', '.join(where)}" for what, where in sorted(missing.items()))


def test_row_names_are_unique_and_name_their_instruction():
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert row.mnemonic in row.asm, row.name
