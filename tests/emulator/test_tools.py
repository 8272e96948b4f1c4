"""Disassembly, counts, hot loops, traces and the commands that print them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from moon_diffusers.cli import main
from moon_diffusers.emulator import Report, disassemble, emulator_library, hot_loops, read_table, read_trace
from moon_diffusers.emulator.report import Counts, InstructionCount
from moon_diffusers.errors import ArgumentError, HipError

from . import small


def counted(emulator, body: str) -> Report:
    """A one-wavefront kernel on gfx942 with counts on."""
    return Report.parse(small.run(emulator("gfx942", counts="on"), body, "gfx942", [np.zeros(64, np.uint32)]).report)


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, list(arguments))
    return result.exit_code, result.output


def test_profile_finds_the_loop_and_counts_its_turn() -> None:
    code, out = invoke("profile", "general", "--seqlen-q", "64", "--seqlen-k", "512", "--json")
    assert code == 0
    facts = json.loads(out)
    (loop,) = facts["hot_loops"]
    kinds = facts["counts"]["kinds"]
    assert loop["kinds"]["mfma"] == 128 and loop["share"] > 0.5
    assert loop["kinds"]["mfma"] * loop["iterations"] <= kinds["mfma"]
    assert sum(kinds.values()) == facts["counts"]["instructions"] == facts["launches"][0]["instructions"]
    assert sum(c["executed"] for c in facts["counts"]["by_address"].values()) == facts["counts"]["instructions"]
    assert sum(c["executed"] for c in facts["counts"]["by_mnemonic"].values()) == facts["counts"]["instructions"]
    # a 16x16 tile of fp32 is four registers
    assert facts["counts"]["accumulator_registers_written"] % kinds["mfma"] == 0


def test_profile_prints_for_people() -> None:
    code, out = invoke("profile", "auto", "--seqlen-q", "64", "--seqlen-k", "512", "--listing")
    assert code == 0 and "hot loop 1" in out and "findings: 0 errors" in out and "v_mfma" in out


def test_trace_replays_the_counts(tmp_path: Path) -> None:
    prefix = tmp_path / "t"
    code, out = invoke(
        "trace", "general", "--seqlen-q", "200", "--seqlen-k", "100", "--workgroup", "1", "--output", str(prefix)
    )
    assert code == 0, out
    table = read_table(prefix)
    assert table.workgroup == 1 and table.kernel.startswith("moon_attention_general")
    _, profile = invoke("profile", "general", "--seqlen-q", "200", "--seqlen-k", "100", "--json")
    groups = 2  # of 128 rows
    executed = sum(len(read_trace(prefix, wave).index) for wave in range(table.waves))
    total = json.loads(profile)["counts"]["instructions"]
    assert 0.3 * total / groups < executed < 2 * total / groups
    for wave in range(table.waves):
        trace = read_trace(prefix, wave)
        kinds = np.array([row["class"] for row in table.instructions])[trace.index]
        assert table.instructions[trace.index[-1]]["mnemonic"] == "s_endpgm"
        lines = np.diff(trace.line_offsets)
        assert (lines[np.isin(kinds, ["valu", "mfma", "lds_read"])] == 0).all() and lines.sum() == len(trace.lines)
        assert (trace.lds_passes[kinds == "lds_read"] >= trace.lds_fewest_passes[kinds == "lds_read"]).all()
        assert (trace.lds_fewest_passes[kinds == "lds_read"] > 0).all()
        # straight-line code: the next record is the next instruction unless this one may branch
        ahead = np.diff(trace.index)
        assert (ahead[kinds[:-1] != "branch"] == 1).all()


def test_trace_refuses_to_overwrite_and_names_bad_workgroups(tmp_path: Path) -> None:
    prefix = tmp_path / "t"
    Path(f"{prefix}.json").write_text("{}")
    assert invoke("trace", "general", "--output", str(prefix))[0] == 2
    code, out = invoke("trace", "general", "--output", str(tmp_path / "u"), "--workgroup", "99")
    assert code == 2 and "workgroup" in out
    code, out = invoke("trace", "general", "--output", str(tmp_path / "no" / "u"))
    assert code == 2 and "output" in out


def test_cut_traces_are_refused(tmp_path: Path) -> None:
    prefix = tmp_path / "t"
    assert invoke("trace", "general", "--seqlen-q", "64", "--seqlen-k", "64", "--output", str(prefix))[0] == 0
    path = Path(f"{prefix}.wave0.bin")
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ArgumentError, match="cut short"):
        read_trace(prefix, 0)
    with pytest.raises(ArgumentError, match="prefix"):
        read_table(tmp_path / "nothing")


def test_an_unwritable_trace_fails_the_launch() -> None:
    hip = emulator_library()
    hip.set_option("trace", "/nonexistent/t")
    try:
        code, out = invoke("profile", "general", "--seqlen-q", "64", "--seqlen-k", "64")
    finally:
        hip.set_option("trace", "")
    assert code == 1 and "trace cannot be written" in out


def test_disassemble_names_kernels_files_and_what_is_accepted(tmp_path: Path) -> None:
    code, out = invoke("disassemble", "general-gfx950", "--summary", "--json")
    assert code == 0
    listings = json.loads(out)
    assert {item["arch"] for item in listings} == {"gfx950"} and all(item["kinds"]["mfma"] for item in listings)
    code, out = invoke("disassemble", listings[0]["kernel"])
    assert code == 0 and "v_mfma_f32" in out and "s_endpgm" in out
    code, out = invoke("disassemble", "nothing")
    assert code == 2 and "kernel" in out
    bad = tmp_path / "bad.co"
    bad.write_bytes(b"not an ELF file")
    with pytest.raises(HipError, match="not an ELF"):
        disassemble(bad.read_bytes())


def test_speed_prints_both_modes() -> None:
    code, out = invoke("emulator-speed", "general", "--seqlen-q", "64", "--seqlen-k", "64", "--repeats", "1")
    assert code == 0 and "checks off" in out and "checks on" in out


def test_unknown_kernels_are_named() -> None:
    code, out = invoke("profile", "nonesuch")
    assert code == 2 and "nonesuch" in out
    assert invoke("profile", "general", "--num-heads", "3", "--num-heads-kv", "2")[0] == 2


def test_counts_add_up_over_ranges() -> None:
    counts = Counts(3, {}, 0, 0, 0, 0, 0, 0, 0, {0: InstructionCount(1), 4: InstructionCount(2, lds_bytes=8)})
    assert counts.in_range(0, 0).executed == 1
    assert counts.in_range(0, 4) == InstructionCount(3, lds_bytes=8)


def test_conflicts_are_counted_by_bank(emulator) -> None:
    """64 lanes 128 bytes apart all hit one of 32 banks: 64 passes instead of 2."""
    for shift, passes in ((2, 2), (7, 64)):
        report = counted(
            emulator, f"v_lshlrev_b32 v2, {shift}, v0\nds_write_b32 v2, v0\ns_waitcnt lgkmcnt(0)\ns_endpgm"
        )
        assert report.counts is not None
        assert report.counts.lds_passes == passes and report.counts.lds_conflict_passes == passes - 2
        assert report.counts.lds_bytes == 256


def test_nested_loops_give_the_inner_one(emulator) -> None:
    body = """
  s_mov_b32 s8, 0
  v_mov_b32 v10, v0
outer:
  s_mov_b32 s9, 0
inner:
  v_add_u32 v10, v10, v0
  s_add_u32 s9, s9, 1
  s_cmp_lt_u32 s9, 20
  s_cbranch_scc1 inner
  v_mov_b32 v11, v10
  s_add_u32 s8, s8, 1
  s_cmp_lt_u32 s8, 5
  s_cbranch_scc1 outer
  s_endpgm
"""
    report = counted(emulator, body)
    assert report.counts is not None
    (loop,) = hot_loops(disassemble(small.image(body, "gfx942"))[0], report.counts)
    assert loop.iterations == 100 and len(loop.instructions) == 4 and loop.kinds == {"valu": 1, "salu": 2, "branch": 1}
