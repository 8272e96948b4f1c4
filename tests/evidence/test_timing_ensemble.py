"""The ensemble of the timing model: traces of real kernels, the filter by published ratios, predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import moon_diffusers
from moon_diffusers.cli.model_timing import model_timing
from moon_diffusers.evidence import aiter, energy
from moon_diffusers.evidence.timing import comparison, constants, ensemble, timeline, traces, whole_gpu
from moon_diffusers.evidence.timing.library import CLASSES, Constants, replay
from moon_diffusers.evidence.timing.traces import Subject, instruction, trace
from moon_diffusers.runtime.device import open_emulated

ROW: dict[str, Any] = {
    "class": "mfma",
    "mnemonic": "v_mfma_f32_16x16x16_bf16",
    "vmcnt": -1,
    "lgkmcnt": -1,
    "immediate": 0,
    "passes": 4,
    "writes": [[8, 4]],
    "reads": [[0, 2], [2, 2], [8, 4]],
    "accumulator": [8, 4],
}


def test_instructions_come_over_in_the_models_terms() -> None:
    made = instruction(ROW)
    assert made["kind"] == "mfma" and made["matrix_cycles"] == 16
    assert made["accumulator"] == (8, 4) and made["write"] == (8, 4)
    assert made["read"] == [(0, 2), (2, 2)]  # the accumulator has its own rule
    packed = instruction({**ROW, "class": "valu", "mnemonic": "v_pk_mul_f32", "passes": 0, "accumulator": None})
    assert packed["kind"] == "packed"
    write = instruction({**ROW, "class": "lds_write", "mnemonic": "ds_write_b128", "passes": 0, "accumulator": None})
    assert write["dwords"] == 4 and "write" not in write


def steady(subject: Subject, data: traces.Data = "flat") -> ensemble.Steady:
    return ensemble.Steady(trace(subject, 512, data), trace(subject, 1024, data), 512, subject.rows)


@pytest.fixture(scope="module")
def ours() -> ensemble.Steady:
    return steady(Subject("moon", "gfx942", "rtne", "lazy"))


def test_trace_of_our_kernel_holds_its_matrix_work(ours: ensemble.Steady) -> None:
    """192 matrix instructions a wave and 64-key tile: 8 tiles between the traces, 8 waves."""
    mfma = CLASSES.index("mfma")

    def count(workgroup: Any) -> int:
        kinds = workgroup.instructions["kind"]
        return sum(int(np.sum(kinds[wave.records["instruction"]] == mfma)) for wave in workgroup.waves)

    assert count(ours.long) - count(ours.short) == 192 * 8 * 8


def test_slower_units_never_make_a_kernel_faster(ours: ensemble.Steady) -> None:
    base = ours.cost(Constants()).cycles
    assert ours.cost(Constants(transcendental=32)).cycles > base
    assert ours.cost(Constants(mfma_overlaps_valu=0)).cycles > base
    assert ours.cost(Constants(l2_latency=4000)).cycles > base


def test_matrix_pipe_bounds_the_cost_from_below(ours: ensemble.Steady) -> None:
    """Per key and row of the workgroup: 192 * 16 cycles a tile and wave, two waves a SIMD, 64 keys, 384 rows."""
    bound = 192 * 16 * 2 / 64 / 384
    cost = ours.cost(Constants())
    assert cost.cycles >= bound
    assert cost.utilisation == pytest.approx(bound / cost.cycles, rel=0.01)


def test_rising_maxima_cost_the_exact_policy_more() -> None:
    exact = Subject("moon", "gfx942", "rtne", "exact")
    flat, normal = steady(exact).cost(Constants()), steady(exact, "normal").cost(Constants())
    assert normal.cycles > 1.1 * flat.cycles


def test_replay_is_repeatable(ours: ensemble.Steady) -> None:
    assert replay(ours.long, Constants()).cycles == replay(ours.long, Constants()).cycles


def test_only_sets_that_reproduce_what_was_published_survive() -> None:
    try:
        peers = {mode: steady(Subject("aiter", "gfx942", mode)) for mode in ("rtne", "rtna", "rtz")}
    except aiter.AiterUnavailableError as error:
        pytest.skip(str(error))
    sets = constants.sample("gfx942", 24)
    kept = ensemble.survivors(peers, sets)
    assert 0 < len(kept) < len(sets)
    for chosen in kept:
        cost = {mode: peer.cost(chosen).cycles for mode, peer in peers.items()}
        assert cost["rtne"] / cost["rtz"] == pytest.approx(1.134, rel=0.031)
        assert cost["rtna"] / cost["rtz"] == pytest.approx(1.080, rel=0.031)
    # The published constants alone do not reproduce the published ratio: that is why there is an ensemble.
    published = constants.PUBLISHED["gfx942"]
    assert peers["rtne"].cost(published).cycles / peers["rtz"].cost(published).cycles > 1.2


def test_ranges_are_ordered() -> None:
    spread = ensemble.Range.of([3.0, 1.0, 2.0])
    assert (spread.low, spread.middle, spread.high) == (1.0, 2.0, 3.0)
    assert str(spread) == "1.00 / 2.00 / 3.00"


def test_whole_gpu_counts_rounds_by_hand() -> None:
    """(1, 12, 32760) on 304 CUs: 86 x 12 = 1032 blocks, 4 rounds; 912 whole and 120 in 5 parts: 3 + 2 / 5."""
    row = whole_gpu.table("gfx942", 1.2, ((1, 12, 32760),))[0]
    assert (row.rounds, row.parts) == (4, 5)
    assert row.split_rounds == pytest.approx(3.4)
    assert row.aiter_rounds == 6  # 128 x 12 = 1536 blocks of 256 rows
    assert row.speed == pytest.approx(6 * 256 / 384 * 1.2 / 4)
    assert row.ideal <= row.split_rounds <= row.rounds
    assert "1, 12, 32,760" in whole_gpu.markdown([row])


def test_timeline_is_drawn(ours: ensemble.Steady, tmp_path: Path) -> None:
    path = tmp_path / "timeline.svg"
    timeline.draw(ours.short, Constants(), path, "title", cycles=4000)
    text = path.read_text()
    assert text.count("#3a5fcd") > 0 and text.count("#c1440e") > 0  # matrix instructions and exponentials are there
    assert [item.name for item in tmp_path.iterdir()] == ["timeline.svg"]


def test_tracing_leaves_no_option_behind() -> None:
    """The emulator's options are the process's: a launch after a trace must neither trace nor check."""
    trace(Subject("moon", "gfx942", "rtne", "exact"), 512, "flat")
    q = torch.randn(1, 64, 1, 128, dtype=torch.bfloat16)
    with moon_diffusers.emulate("gfx942"):
        moon_diffusers.attention(q, q, q, strict=True)


def test_energy_proxies_of_the_traces_are_those_of_the_emulators_counters() -> None:
    """Two ways to count one launch of 384 queries and 512 keys: the trace of its workgroup, and the counters."""
    device = open_emulated("gfx950")
    shape = aiter.Shape(1, 384, 512, 1, 1)
    result = energy.run_ours(device, shape)
    counted = energy.proxies(result.reports[0], energy.code_of(device, result), shape)
    workgroup = trace(Subject("moon", "gfx950", "rtne", "lazy"), 512, "normal")
    found = ensemble.Whole(workgroup, 512, 384).proxies()
    assert found.accumulators == pytest.approx(counted.accumulators, rel=1e-12)
    assert found.lds == pytest.approx(counted.lds, rel=1e-12)
    assert found.vector == pytest.approx(counted.vector, rel=1e-12)
    # The counters leave Q out, whose lines are touched by halves. K and V come once, to LDS.
    queries = 2 * 384 * 128 / (4 * 384 * 512 * 128) * 1000
    assert found.loaded == pytest.approx(counted.fetched + 2 * queries, rel=1e-12)
    assert found.fetched == pytest.approx(counted.fetched + queries, rel=1e-12)


def test_energy_proxies_of_the_steady_loop_by_hand(ours: ensemble.Steady) -> None:
    found = ours.proxies()
    flops = 4 * 48 * 64 * 128  # of a wave and tile
    # Each matrix instruction writes 4 registers of 64 lanes and reads as many, but for the first of each sum of S.
    assert found.accumulators == pytest.approx((192 * 8 - 12 * 4) * 256 / flops)
    assert found.operands == pytest.approx(192 * 4 * 256 / flops)
    # Every wave loads all of V through the L1 and an eighth of K; both come once from the L2.
    assert found.loaded == pytest.approx(1000 * (64 * 256 + 8 * 256) / flops)
    assert found.fetched == pytest.approx(1000 * 2 * 64 * 256 / 8 / flops)


def test_comparison_names_what_limits_and_what_moves(ours: ensemble.Steady) -> None:
    sets = [Constants(), Constants(transcendental=8)]
    costs = ensemble.map_sets(ours.cost, sets)
    peer = comparison.Peer("aiter rtne", costs, ours.proxies())
    row = comparison.Row("moon rtne lazy", "flat", ensemble.predict(costs, peer.costs), ours.proxies(), peer)
    assert row.found.speed == ensemble.Range(1, 1, 1)
    assert "1.00 / 1.00 / 1.00" in comparison.line(row) and "1.00, 1.00" in comparison.line(row)
    table = comparison.limits([row]).splitlines()
    assert len(table) == 4  # header, AITER's, ours, the legend
    assert table[1].split()[2:] == table[2].split()[3:]
    assert f"{row.proxies.accumulators:.3f}" in comparison.energy([row])
    busy = row.found.busy
    assert busy["matrix"] == pytest.approx(row.found.utilisation.middle)
    assert 0.5 < busy["matrix"] < 1 and 0 < busy["l1"] < busy["port"] < 1
    assert comparison.as_json(row)["peer"]["kernel"] == "aiter rtne"


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_the_published_grid_is_a_part_of_the_wide_one(arch: str) -> None:
    published, wide = set(constants.grid(arch, which="published")), set(constants.grid(arch, which="wide"))
    assert published < wide
    assert constants.PUBLISHED[arch] in published
    for name, values in constants.REPORTED[arch].items():
        assert {getattr(item, name) for item in published} == set(values)
    assert constants.grid(arch) == constants.grid(arch, which=constants.DEFAULT_GRID[arch])


def test_command_models_a_whole_launch_and_says_what_limits(tmp_path: Path) -> None:
    try:
        aiter.code_object(aiter.Kernel("gfx950", "rtne", False))
    except aiter.AiterUnavailableError as error:
        pytest.skip(str(error))
    path = tmp_path / "model.json"
    options = ["--arch", "gfx950", "--whole", "--keys", "512", "--sets", "3", "--data", "normal", "--output", str(path)]
    done = CliRunner().invoke(model_timing, options)
    assert done.exit_code == 0, done.output
    assert "what limits" in done.output and "energy proxies" in done.output and "Whole GPU" in done.output
    found = json.loads(path.read_text())
    assert found["whole"] and found["kept"] == 3 and found["grid"] == "published" and found["code_objects"]
    (row,) = found["rows"]
    assert row["kernel"] == "moon rtne lazy" and row["peer"]["kernel"] == "aiter rtne"
    assert 0.4 < row["utilisation"][0] <= row["utilisation"][2] < 1
    assert row["energy"]["accumulators"] < 0.6 * row["peer"]["energy"]["accumulators"]
    done = CliRunner().invoke(model_timing, [*options[:-2], "--compare", "energy"])
    assert "energy proxies " in done.output and "what limits" not in done.output
