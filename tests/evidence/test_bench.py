"""The benchmark harness: its order, its statistics, its check of outputs and its report."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from moon_diffusers.cli.bench import GROUP_NAMES, bench
from moon_diffusers.evidence.bench import grid, inputs, report, schedule
from moon_diffusers.evidence.bench.grid import Case
from moon_diffusers.evidence.bench.peers import Peer, Unsupported
from moon_diffusers.evidence.bench.run import run_case
from moon_diffusers.evidence.bench.telemetry import Sample, Sampler

CPU = torch.device("cpu")


class PretendedClock:
    """Each call of a kernel takes its own `seconds`; the clock slows down as the card heats up."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def flush(self) -> None:
        self.log.append("flush")

    def block(self, kernel: Any, calls: int) -> tuple[float, float, float]:
        begin = self.now
        seconds = kernel.seconds * calls * (1 + self.now / 100)
        self.now += seconds
        self.log.append(kernel.name)
        return seconds, begin, self.now


class Pretended:
    def __init__(self, name: str, seconds: float) -> None:
        self.name, self.seconds = name, seconds

    def __call__(self) -> None:
        raise AssertionError("the pretended clock does not call")


def test_every_kernel_has_every_place_and_direction() -> None:
    rounds = list(schedule.orders(3, 12))
    assert rounds[:4] == [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]]
    for kernel in range(3):
        places = [order.index(kernel) for order in rounds]
        assert sorted(places) == sorted(list(range(3)) * 4)


def test_schedule_discards_flushes_and_cancels_drift() -> None:
    clock = PretendedClock()
    kernels = {"a": Pretended("a", 0.001), "b": Pretended("b", 0.0012)}
    results = schedule.measure(clock, kernels, schedule.Method(0.1, 16, 4))
    assert all(len(blocks.seconds) == 12 for blocks in results.values())
    assert results["a"].calls == pytest.approx(100, rel=0.02)
    blocks = clock.log[clock.log.index("flush") :]
    assert blocks[::2] == ["flush"] * 32  # one before each of 16 rounds x 2 kernels
    against = schedule.ratio(results["a"], results["b"])
    assert against.median == pytest.approx(1.2, rel=0.002)  # though the clock drifted by several per cent
    assert results["a"].spread > 0.003


@pytest.mark.parametrize(("arguments", "word"), [((0.0, 16, 4), "block_seconds"), ((0.25, 4, 4), "discard")])
def test_method_rejects_nonsense(arguments: tuple[float, int, int], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        schedule.Method(*arguments)


def test_spread_is_the_interquartile_range() -> None:
    assert schedule.relative_iqr([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3)
    assert schedule.relative_iqr([1.0]) == 0.0


def test_flops_count_what_is_not_masked() -> None:
    assert Case("a", 2, 24, 24, 8192, 8192).flops == pytest.approx(4 * 2 * 24 * 8192**2 * 128)
    assert Case("a", 1, 1, 1, 3, 5, causal=True).flops == 4 * (3 + 4 + 5) * 128
    assert Case("a", 1, 1, 1, 5, 3, causal=True).flops == 4 * (0 + 0 + 1 + 2 + 3) * 128
    assert grid.packed(2, 3, 5).flops == 4 * 2 * (9 + 25) * 128


def test_case_names_are_unique_and_groups_are_those_of_the_command() -> None:
    names = [case.name for case in grid.select(())]
    assert len(names) == len(set(names))
    assert tuple(grid.GROUPS) == GROUP_NAMES


def sdpa_peer(name: str, change: Any = lambda out: out) -> Peer:
    def prepare(case: Case, x: inputs.Inputs) -> Any:
        if case.seqlens:
            raise Unsupported("no packed sequences")
        heads = case.num_heads // case.num_heads_kv

        def call() -> Tensor:
            q, k, v = (t.transpose(1, 2) for t in (x.q, x.k, x.v))
            k, v = (t.repeat_interleave(heads, 1) for t in (k, v))
            mask = None
            if case.causal:
                mask = torch.ones(case.seqlen_q, case.seqlen_k).tril(case.seqlen_k - case.seqlen_q).bool()
            return change(scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2))

        return call

    return Peer(name, "1", prepare)


CASES = [
    Case("t", 2, 4, 2, 70, 90),
    Case("t", 1, 2, 2, 64, 80, causal=True),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_check_passes_the_right_and_stops_the_wrong(case: Case) -> None:
    def swap_heads(out: Tensor) -> Tensor:
        return out.roll(1, 2)

    def last_row_zero(out: Tensor) -> Tensor:
        out = out.clone()
        out[:, -1] = 0
        return out

    peers = [sdpa_peer("right"), sdpa_peer("swapped", swap_heads), sdpa_peer("cut", last_row_zero)]
    peers.append(sdpa_peer("nan", lambda out: out * float("nan")))
    result = run_case(case, peers, CPU, None, schedule.Method(), None)
    notes = {peer.peer: peer.note for peer in result.peers}
    assert notes["right"] == ""
    for name in ("swapped", "cut", "nan"):
        assert "wrong output" in notes[name], name
    assert result.peers[0].error is not None and result.peers[0].error < 4e-3


def test_unsupported_and_broken_peers_are_named_and_not_timed() -> None:
    def broken(case: Case, x: inputs.Inputs) -> Any:
        raise RuntimeError("no kernel image\nmore words")

    result = run_case(
        grid.packed(2, 20, 30), [sdpa_peer("sdpa"), Peer("broken", "1", broken)], CPU, None, schedule.Method(), None
    )
    assert [peer.note for peer in result.peers] == ["no packed sequences", "RuntimeError: no kernel image"]


def test_packed_sequences_are_checked_sequence_by_sequence() -> None:
    case = grid.packed(2, 20, 30)
    x = inputs.make_inputs(case, CPU)

    def attend(lengths: tuple[int, ...]) -> Tensor:
        parts, first = [], 0
        for n in lengths:
            q, k, v = (t[:, first : first + n].transpose(1, 2).float() for t in (x.q, x.k, x.v))
            parts.append(scaled_dot_product_attention(q, k, v).transpose(1, 2))
            first += n
        return torch.cat(parts, 1)

    assert inputs.sampled_error(case, x, attend((20, 30))) < 1e-5
    assert inputs.sampled_error(case, x, attend((50,))) > 0.1


def test_sampler_takes_readings_of_the_second_half_of_a_span() -> None:
    sampler = Sampler(None)
    sampler.samples = [Sample(t, 1000 + t, 100 + t) for t in range(10)]
    assert sampler.during([(0, 4)]) == (1003, 103)
    assert sampler.during([(20, 30)]) is None


def test_report_is_complete(tmp_path: Path) -> None:
    class Clock:
        ticks = itertools.count()

        def flush(self) -> None: ...

        def block(self, kernel: Any, calls: int) -> tuple[float, float, float]:
            now = next(self.ticks)
            return 1e-3 * calls, now, now + 1

    case = Case("t", 1, 2, 2, 64, 64)
    peers = [sdpa_peer("moon"), sdpa_peer("peer")]
    result = run_case(case, peers, CPU, Clock(), schedule.Method(0.01, 3, 1), None)
    report.write(
        tmp_path, [result], schedule.Method(), report.environment(CPU, None), {"aiter": "ImportError: no"}, "peer"
    )
    document = json.loads((tmp_path / "bench.json").read_text())
    assert document["absent_peers"] == {"aiter": "ImportError: no"}
    entry = document["results"][0]["peers"][0]
    assert entry["tflops"] == pytest.approx(case.flops / 1e-3 / 1e12)
    assert "| t-1x2x64 | moon | 1.000 |" in (tmp_path / "bench.md").read_text()
    assert "1.000 (1.000-1.000)" in (tmp_path / "bench.md").read_text()
    assert (tmp_path / "bench.svg").read_text().lstrip().startswith("<?xml")
    assert not list(tmp_path.glob(".*"))


def test_command_refuses_what_it_cannot_do() -> None:
    if not torch.cuda.is_available():
        missing = CliRunner().invoke(bench, ["--group", "dense"])
        assert missing.exit_code == 2 and "--emulate gfx942" in missing.output
    nothing = CliRunner().invoke(bench, ["--case", "nosuch"])
    assert nothing.exit_code == 2 and "nosuch matches no case" in nothing.output
