"""The timing model on streams whose time is known by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from moon_diffusers.errors import MoonError
from moon_diffusers.evidence.timing.library import (
    RECORD,
    Constants,
    Replay,
    WaveTrace,
    Workgroup,
    make_instructions,
    replay,
)

MFMA = {"kind": "mfma", "matrix_cycles": 16, "read": [(0, 2), (2, 2)], "accumulator": (8, 4), "write": (8, 4)}
MFMA_FREE = {**MFMA, "accumulator": (0, 0), "write": (12, 4)}
VALU = {"kind": "valu", "read": [(100, 1)], "write": (101, 1)}
EXP = {"kind": "transcendental", "read": [(100, 1)], "write": (102, 1)}
PACKED = {"kind": "packed", "read": [(100, 2)], "write": (104, 2)}
LDS_READ = {"kind": "lds_read", "write": (110, 4)}
LOAD = {"kind": "vector_load", "write": (114, 4)}
WAIT_LGKM = {"kind": "waitcnt", "lgkmcnt": 0}
WAIT_VM = {"kind": "waitcnt", "vmcnt": 0}
BARRIER = {"kind": "barrier"}
SALU = {"kind": "scalar"}


def run(streams: list[list[dict[str, Any]]], timeline: bool = True, lines: int = 0, **constants: int) -> Replay:
    """Each stream is one wave; LDS instructions move 1,024 B (16 B a lane)."""
    rows: list[dict[str, Any]] = []
    waves = []
    for stream in streams:
        records = np.zeros(len(stream), RECORD)
        for record, row in zip(records, stream, strict=True):
            record["instruction"] = len(rows)
            rows.append(row)
            if row["kind"].startswith("lds"):
                record["lds_bytes"] = 1024
            if row["kind"] == "vector_load":
                record["lines"] = lines
        waves.append(WaveTrace(records, np.arange(max(1, lines), dtype=np.uint32)))
    result = replay(Workgroup(make_instructions(rows), tuple(waves)), Constants(**constants), timeline=timeline)
    return dataclasses.replace(result, issue=tuple(wave.astype(np.int64) for wave in result.issue))


def test_independent_matrix_instructions_fill_the_pipe() -> None:
    result = run([[MFMA_FREE] * 100])
    assert result.matrix_busy == (1600, 0, 0, 0)
    assert list(np.diff(result.issue[0])) == [16] * 99


def test_accumulating_into_the_same_registers_waits_as_told() -> None:
    assert list(np.diff(run([[MFMA] * 10]).issue[0])) == [16] * 9
    assert list(np.diff(run([[MFMA] * 10], mfma_accumulate=4).issue[0])) == [20] * 9


def test_reader_of_a_matrix_result_waits_for_it() -> None:
    reader = {"kind": "valu", "read": [(15, 1)], "write": (120, 1)}
    first, second = run([[MFMA_FREE, reader]], mfma_result=12).issue[0]
    assert second - first == 28
    other = {"kind": "valu", "read": [(16, 1)], "write": (120, 1)}
    first, second = run([[MFMA_FREE, other]], mfma_result=12).issue[0]
    assert second - first == 4


def test_partner_fills_the_gaps_that_matrix_instructions_leave() -> None:
    """12 of 16 cycles are free beside a 16-cycle MFMA that holds the port for 4: three VALU of the partner."""
    idle: list[dict[str, Any]] = []
    streams = [[MFMA_FREE] * 100, idle, idle, idle, [VALU] * 300]
    result = run([[{"kind": "setprio", "immediate": 3}, *streams[0]], *streams[1:]])
    assert result.cycles == pytest.approx(1600, abs=40)
    blocked = run([[{"kind": "setprio", "immediate": 3}, *streams[0]], *streams[1:]], mfma_overlaps_valu=0)
    assert blocked.cycles == pytest.approx(1600 + 1200, abs=40)


def test_transcendentals_and_packed_instructions_hold_what_they_hold() -> None:
    assert list(np.diff(run([[EXP] * 5]).issue[0])) == [16] * 4
    idle: list[dict[str, Any]] = []
    streams = [[{"kind": "setprio", "immediate": 3}] + [MFMA_FREE] * 50, idle, idle, idle, [PACKED] * 50]
    assert run(streams).issue[4][1] >= 16 * 49  # the first slips in before; then no slot beside the matrix pipe
    assert run(streams, packed_beside_mfma=1).issue[4][1] < 40


def test_lds_pairs_share_a_port() -> None:
    stream = [LDS_READ] * 8 + [WAIT_LGKM]
    alone = run([stream]).issue[0][-1]
    neighbours = run([stream, stream]).issue
    others = run([stream, [], stream]).issue
    assert alone == pytest.approx(8 * 16 + 64, abs=8)
    assert neighbours[1][-1] == pytest.approx(16 * 16 + 64, abs=24)
    assert others[2][-1] == pytest.approx(8 * 16 + 64, abs=24)


def test_first_touch_comes_from_l2_and_the_second_from_l1() -> None:
    first = run([[LOAD, WAIT_VM]], lines=8)
    assert first.issue[0][1] == pytest.approx(16 + 600, abs=8)
    again = run([[LOAD, WAIT_VM, LOAD, WAIT_VM]], lines=8).issue[0]
    assert again[3] - again[2] == pytest.approx(16 + 120, abs=8)
    small = run([[LOAD, WAIT_VM, LOAD, WAIT_VM]], lines=8, l1_lines=4).issue[0]
    assert small[3] - small[2] == pytest.approx(16 + 600, abs=8)


def test_waitcnt_lets_later_operations_fly() -> None:
    stream = [LDS_READ] * 4 + [{"kind": "waitcnt", "lgkmcnt": 3}]
    assert run([stream]).issue[0][-1] == pytest.approx(16 + 64, abs=8)


def test_barrier_joins_all_waves() -> None:
    slow = [EXP] * 10 + [BARRIER, SALU]
    fast = [BARRIER, SALU]
    result = run([slow, fast, fast], barrier=40)
    assert {int(wave[-1]) // 4 for wave in result.issue} == {int(result.issue[0][-1]) // 4}
    assert result.issue[1][-1] - result.issue[1][0] >= 9 * 16 + 40
    assert result.stalls[1]["barrier"] > 30


def test_barrier_waits_for_those_that_run_and_no_others() -> None:
    """A wave that has ended is not waited for, as on the hardware."""
    result = run([[BARRIER, BARRIER, SALU], [BARRIER]])
    assert result.cycles < 200


def test_records_must_fit_their_instructions() -> None:
    records = np.zeros(1, RECORD)
    records["instruction"] = 7
    workgroup = Workgroup(make_instructions([VALU]), (WaveTrace(records, np.zeros(1, np.uint32)),))
    with pytest.raises(MoonError, match="do not fit"):
        replay(workgroup, Constants())


def test_stalls_account_for_every_turn() -> None:
    result = run([[MFMA_FREE] * 20 + [BARRIER], [VALU] * 50 + [BARRIER]])
    for wave in result.stalls:
        assert sum(wave.values()) == pytest.approx(result.cycles / 4, abs=1)
