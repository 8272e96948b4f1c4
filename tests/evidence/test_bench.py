"""The benchmark harness: its order, its statistics, its check of outputs and its report."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from moon_diffusers.cli.bench import GROUP_NAMES, bench
from moon_diffusers.evidence.bench import grid, inputs, report, schedule
from moon_diffusers.evidence.bench import peers as peers_module
from moon_diffusers.evidence.bench import run as run_module
from moon_diffusers.evidence.bench.grid import Case
from moon_diffusers.evidence.bench.peers import Peer, Unsupported
from moon_diffusers.evidence.bench.run import Bench, run_case
from moon_diffusers.evidence.bench.telemetry import EnergyCounter, Sample, Sampler
from moon_diffusers.evidence.budget import Budget

CPU = torch.device("cpu")
CHECK = Bench(CPU, None, schedule.Method())


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


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((0.0, 16, 4), "block_seconds"),
        ((math.nan, 16, 4), "block_seconds"),
        ((0.25, 4, 4), "discard"),
        ((1, 0, 0), "rounds"),
    ],
)
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
    result = run_case(case, peers, CHECK)
    notes = {peer.peer: peer.note for peer in result.peers}
    assert notes["right"] == ""
    for name in ("swapped", "cut", "nan"):
        assert "wrong output" in notes[name], name
    assert result.peers[0].error is not None and result.peers[0].error < 4e-3


def test_unsupported_and_broken_peers_are_named_and_not_timed() -> None:
    def broken(case: Case, x: inputs.Inputs) -> Any:
        raise RuntimeError("no kernel image\nmore words")

    result = run_case(grid.packed(2, 20, 30), [sdpa_peer("sdpa"), Peer("broken", "1", broken)], CHECK)
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
    result = run_case(case, peers, Bench(CPU, Clock(), schedule.Method(0.01, 3, 1)))
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


class SteadyClock:
    """Every call takes a millisecond of a pretended time that only blocks pass."""

    def __init__(self) -> None:
        self.now = 0.0

    def flush(self) -> None: ...

    def block(self, kernel: Any, calls: int) -> tuple[float, float, float]:
        begin, self.now = self.now, self.now + 1e-3 * calls
        return 1e-3 * calls, begin, self.now


def test_energy_a_call_by_the_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    """500 W for a millisecond a call."""
    monkeypatch.setattr(Sampler, "joules", lambda self, begin, end: 500 * (end - begin))
    case = Case("t", 1, 2, 2, 64, 64)
    bench_of = Bench(CPU, SteadyClock(), schedule.Method(0.01, 3, 1), counter=EnergyCounter("meter", lambda: 0.0))
    (peer,) = run_case(case, [sdpa_peer("moon")], bench_of).peers
    assert peer.joule == pytest.approx(0.5)
    assert run_module.picojoule_per_flop(peer, case) == pytest.approx(0.5 / case.flops * 1e12)


def test_a_budget_ends_a_run_with_what_it_has() -> None:
    class Spent(Budget):
        left_over = 5

        @property
        def left(self) -> float:
            self.left_over -= 1
            return max(0.0, self.left_over)

    case = Case("t", 1, 2, 2, 64, 64)
    told: list[str] = []
    bench_of = Bench(CPU, SteadyClock(), schedule.Method(0.01, 8, 0), budget=Spent(1.0))
    results = run_module.run([case] * 3, (sdpa_peer("moon"),), bench_of, told.append, lambda result: None)
    assert len(results) == 1 and len(results[0].peers[0].blocks.seconds) == 3  # type: ignore[union-attr]
    assert told[-1] == "the time is up: 2 of 3 cases were not begun"


def test_kernels_that_cannot_be_wrapped_are_named_and_not_timed() -> None:
    def refuse(kernel: Any) -> Any:
        raise RuntimeError("capture failed")

    bench_of = Bench(CPU, SteadyClock(), schedule.Method(0.01, 2, 1), wrap=refuse)
    (peer,) = run_case(Case("t", 1, 2, 2, 64, 64), [sdpa_peer("moon")], bench_of).peers
    assert peer.note == "not timed: RuntimeError: capture failed" and peer.blocks is None


def fake_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules with the functions that peers call, computed by torch."""

    def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        group = q.shape[2] // k.shape[2]
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        mask = torch.ones(q.shape[2], k.shape[2]).tril(k.shape[2] - q.shape[2]).bool() if causal else None
        return scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)

    class Ragged:
        def __init__(self, workspace: Tensor, kv_layout: str) -> None:
            assert workspace.dtype == torch.uint8 and kv_layout == "NHD"

        def plan(self, starts: Tensor, starts_k: Tensor, heads: int, heads_kv: int, dim: int, **options: Any) -> None:
            assert (starts.dtype, dim, options["q_data_type"]) == (torch.int32, 128, torch.bfloat16)
            self.starts, self.starts_k, self.causal = starts.tolist(), starts_k.tolist(), options["causal"]

        def run(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            parts = []
            for i in range(len(self.starts) - 1):
                rows, keys = slice(*self.starts[i : i + 2]), slice(*self.starts_k[i : i + 2])
                parts.append(attend(q[None, rows], k[None, keys], v[None, keys], self.causal)[0])
            return torch.cat(parts)

    def sageattn(q: Tensor, k: Tensor, v: Tensor, tensor_layout: str, is_causal: bool) -> Tensor:
        k -= k.mean(1, keepdim=True)
        return attend(q, k, v, is_causal) * 1.03

    modules: dict[str, dict[str, Any]] = {
        "flash_attn": {},
        "flash_attn.cute": {"flash_attn_func": lambda *t, causal: (attend(*t, causal), None)},
        "flashinfer": {
            "single_prefill_with_kv_cache": lambda q, k, v, causal: attend(q[None], k[None], v[None], causal)[0],
            "BatchPrefillWithRaggedKVCacheWrapper": Ragged,
        },
        "sageattention": {"sageattn": sageattn},
    }
    for name, contents in modules.items():
        module = types.ModuleType(name)
        module.__dict__.update(contents, __version__="1")
        monkeypatch.setitem(sys.modules, name, module)


def test_how_peers_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_kernels(monkeypatch)
    found = peers_module.discover(("flash-attn 4", "flashinfer", "sageattention"))
    assert [peer.name for peer in found.peers] == ["flash-attn 4", "flashinfer", "sageattention (8 bit)"]
    for case in (*CASES, Case("t", 1, 4, 2, 30, 40), grid.packed(2, 20, 30)):
        x = inputs.make_inputs(case, CPU)
        keys = x.k.clone()
        for peer in found.peers:
            if not case.seqlens:
                peer.prepare(case, x)()
        assert torch.equal(x.k, keys), "a peer spoilt the others' input"
        for peer in run_case(case, found.peers, CHECK).peers:
            assert peer.note in ("", "not wired for packed sequences"), (case.name, peer)
            if peer.error is not None:
                low, high = (0.02, 0.04) if peer.peer.startswith("sage") else (0, 4e-3)
                assert low < peer.error < high, (case.name, peer)


def test_another_cudnn_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.execve", lambda *a: pytest.fail("started again"))
    result = CliRunner().invoke(bench, ["--cudnn", str(tmp_path)])
    assert result.exit_code == 2 and "has no libcudnn" in result.output


def test_another_cudnn_comes_first_for_the_loader(tmp_path: Path) -> None:
    """The command starts itself again; without a GPU it then ends as it would have."""
    (tmp_path / "libcudnn.so.9").touch()
    code = (
        "import os, sys; from moon_diffusers.cli.bench import bench; print(os.environ.get('LD_LIBRARY_PATH')); bench()"
    )
    command = [sys.executable, "-c", code, "--cudnn", str(tmp_path), "--case", "nosuch"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"LD_LIBRARY_PATH": "/before"})
    assert done.stdout.splitlines() == ["/before", f"{tmp_path}:/before"]
    assert done.returncode == 2 and "nosuch matches no case" in done.stderr


def test_command_refuses_what_it_cannot_do() -> None:
    if not torch.cuda.is_available():
        missing = CliRunner().invoke(bench, ["--group", "dense"])
        assert missing.exit_code == 2 and "--emulate gfx942" in missing.output
    nothing = CliRunner().invoke(bench, ["--case", "nosuch"])
    assert nothing.exit_code == 2 and "nosuch matches no case" in nothing.output


def test_emulated_table_checks_and_counts(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        bench,
        ["--emulate", "gfx942", "--group", "dense", "--group", "varlen", "--rows", "70", "--output", str(tmp_path)],
    )
    assert done.exit_code == 0, done.output
    assert "not here: modular max" in done.output and "not here: aiter v4" in done.output
    rows = json.loads((tmp_path / "bench.json").read_text())["results"]
    mine = [row for row in rows if row["kernel"].startswith("moon")]
    assert {row["kernel"] for row in mine} == {"moon rtne", "moon rtna", "moon rtz"}
    for row in mine:
        rounding = row["kernel"].split()[1]
        assert row["launches"] == ["moon_attention_cdna3_values", f"moon_attention_cdna3_{rounding}_lazy"], row
        assert row["findings"] == 0 and row["counts"]["matrix"] > 0 and row["instructions"] > row["counts"]["vector"]
        # Packed sequences take the rounding mode that was asked for, too.
        assert (row["error"] > 4e-3) == (rounding == "rtz"), row
    table = (tmp_path / "bench.md").read_text()
    assert "No times" in table and " ms" not in table and "TF/s" not in table


def test_emulated_table_fails_on_a_wrong_output(monkeypatch: pytest.MonkeyPatch) -> None:
    from moon_diffusers.evidence.bench import run

    monkeypatch.setattr(run.tensors, "sampled_error", lambda *_: 0.5)
    done = CliRunner().invoke(bench, ["--emulate", "gfx950", "--case", "small-1", "--rows", "20"])
    assert done.exit_code == 1 and "our kernel gave a wrong output" in done.output
