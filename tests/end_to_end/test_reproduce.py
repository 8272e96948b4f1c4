"""The measurement of whole steps: its order, its statistics, its report, and a dry run in the emulator."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import moon_diffusers
from moon_diffusers.cli import main
from moon_diffusers.cli.reproduce_wan21 import reproduce_wan21
from moon_diffusers.end_to_end import report, rounds, step, wan
from moon_diffusers.end_to_end.video import measure_video
from moon_diffusers.errors import ArgumentError
from moon_diffusers.evidence.bench.telemetry import EnergyCounter, Sample, Sampler
from moon_diffusers.evidence.budget import Budget

CPU = torch.device("cpu")


class PretendedClock:
    """Each side takes its own time, and all become slower as the card heats up; joules go with the seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.energy = {0.0: 0.0}
        self.log: list[str] = []

    def flush(self) -> None: ...

    def block(self, kernel: Any, calls: int) -> tuple[float, float, float]:
        name, seconds, watt = kernel()
        seconds *= 1 + self.now / 100
        begin, self.now = self.now, self.now + seconds
        self.energy[self.now] = self.energy[begin] + seconds * watt
        self.log.append(name)
        return seconds, begin, self.now


class PretendedSampler(Sampler):
    """Knows what the pretended clock has spent, moment by moment."""

    def __init__(self, clock: PretendedClock) -> None:
        super().__init__(None)
        self.clock = clock

    def joules(self, begin: float, end: float) -> float | None:
        return self.clock.energy[end] - self.clock.energy[begin]


SIDES = {"sdpa": lambda: ("sdpa", 1.2, 700), "moon": lambda: ("moon", 1.0, 690)}


def test_rounds_alternate_discard_and_cancel_drift() -> None:
    clock = PretendedClock()
    method = rounds.Method(rounds=8, warm_seconds=0)
    sides = rounds.measure(SIDES, clock, method, PretendedSampler(clock), Budget(None))
    assert clock.log[:8] == ["sdpa", "moon", "moon", "sdpa", "moon", "sdpa", "sdpa", "moon"]
    assert len(sides["moon"].blocks.seconds) == len(sides["sdpa"].joules) == 8 and len(clock.log) == 2 * 9
    figures = rounds.compared(sides["moon"], sides["sdpa"])
    assert figures is not None
    assert figures["speed"] == pytest.approx(1.2, rel=0.01) and figures["energy"] == pytest.approx(
        1.2 * 700 / 690, rel=0.01
    )


def test_a_row_ends_when_its_time_or_the_budget_is_up() -> None:
    method = rounds.Method(rounds=50, least_rounds=3, warm_seconds=0, row_seconds=0)
    sides = rounds.measure(SIDES, PretendedClock(), method, Sampler(None), Budget(None))
    assert len(sides["moon"].blocks.seconds) == 3 and sides["moon"].joules == []
    sides = rounds.measure(SIDES, PretendedClock(), method, Sampler(None), Budget(0))
    assert rounds.compared(sides["moon"], sides["sdpa"]) is None


class PretendedBudget(Budget):
    """Of the pretended clock's seconds."""

    def __init__(self, seconds: float, clock: PretendedClock) -> None:
        super().__init__(seconds)
        self.clock = clock

    @property
    def left(self) -> float:
        return max(0.0, (self.seconds or 0.0) - self.clock.now)


def test_no_round_is_begun_that_the_budget_cannot_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = PretendedClock()
    monkeypatch.setattr(rounds, "time", SimpleNamespace(monotonic=lambda: clock.now))
    sides = rounds.measure(SIDES, clock, rounds.Method(warm_seconds=99), Sampler(None), PretendedBudget(20, clock))
    assert 16 < clock.now <= 20
    kept = len(sides["moon"].blocks.seconds)
    assert 4 <= kept <= 5, "a third of the little time warms the card, the rest counts"


def test_difference_sees_what_is_not_finite() -> None:
    one = torch.ones(4)
    assert rounds.difference(one, one * 1.5) == pytest.approx(0.5)
    assert rounds.difference(one, torch.tensor([1, 1, math.nan, 1])) == math.inf


def test_the_published_shapes() -> None:
    assert wan.RESOLUTIONS["480p"].tokens == 32_760 and wan.RESOLUTIONS["720p"].tokens == 75_600
    for name, billions in (("1.3b", 1.42), ("14b", 14.29)):
        with torch.device("meta"):
            model = wan.build(wan.SIZES[name], None, torch.device("meta"))
        assert sum(p.numel() for p in model.parameters()) / 1e9 == pytest.approx(billions, abs=0.01)


def test_random_weights_have_the_dtypes_of_loaded_ones(tmp_path: Path) -> None:
    model: Any = wan.build(wan.SIZES["tiny"], None, CPU)
    model.save_pretrained(tmp_path / "transformer")
    loaded = wan.build(wan.SIZES["tiny"], tmp_path, CPU)
    assert {n: p.dtype for n, p in loaded.named_parameters()} == {n: p.dtype for n, p in model.named_parameters()}
    assert all(torch.equal(p, dict(loaded.named_parameters())[n]) for n, p in model.named_parameters())
    assert {n: b.dtype for n, b in loaded.named_buffers()} == {n: b.dtype for n, b in model.named_buffers()}
    with pytest.raises(ArgumentError, match="weights"):
        wan.build(wan.SIZES["tiny"], tmp_path / "nothing", CPU)


def test_twins_share_tensors_and_not_processors() -> None:
    model = wan.build(wan.SIZES["tiny"], None, CPU)
    other: Any = wan.twin(model)
    assert all(a is b for a, b in zip(model.parameters(), other.parameters(), strict=True))
    moon_diffusers.set_attn_processor(other, moon_diffusers.MoonAttnProcessor())
    assert model.blocks[0].attn1.processor._attention_backend is None  # type: ignore[index, union-attr]


def setup(**changes: Any) -> step.Setup:
    method = rounds.Method(1, 1, 0.0, 0.0)
    return step.Setup(CPU, rounds.HostClock(), None, None, method, Budget(None), **({"sdpa": "default"} | changes))


def test_self_only_leaves_cross_attention_to_torch() -> None:
    model = wan.build(wan.SIZES["tiny"], None, CPU)
    row = step.measure_step(model, wan.SIZES["tiny"], wan.RESOLUTIONS["tiny"], "eager", setup(self_only=True))
    assert row.fallbacks == 6 and row.served == 0  # 2 blocks, 3 steps, nothing emulated
    assert "no call ran on the kernel" in row.note and row.ratio is not None and row.difference is not None


def test_what_fails_is_the_rows_note(monkeypatch: pytest.MonkeyPatch) -> None:
    model = wan.build(wan.SIZES["tiny"], None, CPU)
    monkeypatch.setattr(step, "measure", lambda *a: (_ for _ in ()).throw(RuntimeError("out of memory\nmore")))
    row = step.measure_step(model, wan.SIZES["tiny"], wan.RESOLUTIONS["tiny"], "eager", setup())
    assert row.note == "RuntimeError: out of memory"


def dry_run(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(reproduce_wan21, ["--dry-run", "--output", str(tmp_path), *arguments])
    assert result.exit_code == 0, result.output
    whole: dict[str, Any] = json.loads((tmp_path / "wan21.json").read_text())
    return whole


def test_dry_run(tmp_path: Path) -> None:
    whole = dry_run(tmp_path, "--mode", "eager", "--pipeline", "1.3b-480p")
    (row,), (video,) = whole["rows"], whole["pipelines"]
    assert whole["dry_run"] and whole["finished"] and row["note"] == video["note"] == ""
    assert row["served"] == 12 and row["fallbacks"] == 0 and 0 < row["difference"] < 0.01
    assert video["served"] == 16 and 0 < video["difference"] < 0.05 and video["largest_difference"] < 0.2
    assert len(video["sides"]["moon"]["step_seconds"]) == 2 and video["sides"]["moon"]["decoding_seconds"] > 0
    table = (tmp_path / "wan21.md").read_text()
    assert "Dry run" in table and "12 of 12 attention calls" in table
    assert "| tiny | tiny | eager | 24 |  |  |  |" in table, "a dry run shows no times"
    videos_alone = report.markdown(whole | {"rows": []})
    assert "| model | video | steps |" in videos_alone and "tokens" not in videos_alone, "no table without rows"


def test_a_video_that_the_budget_cannot_hold() -> None:
    """The steps made by then stay; nothing is decoded."""
    model = wan.build(wan.SIZES["tiny"], None, CPU)
    short = setup()
    short = dataclasses.replace(short, budget=Budget(0))
    row = measure_video(model, wan.SIZES["tiny"], wan.RESOLUTIONS["tiny"], short, None, steps=4)
    assert row["note"] == "the time was up after 1 and 1 of 4 steps" and row["step_speed"] > 0
    assert "speed" not in row and row["sides"]["moon"]["seconds"] is None


@pytest.mark.slow
def test_dry_run_compiled(tmp_path: Path) -> None:
    (row,) = dry_run(tmp_path, "--mode", "compile")["rows"]
    assert row["note"] == "" and row["served"] == 12 and row["difference"] < 0.01


def test_a_budget_that_is_up_leaves_a_whole_file(tmp_path: Path) -> None:
    whole = dry_run(tmp_path, "--budget-seconds", "0")
    assert whole["rows"] == [] and not whole["finished"]
    assert "Not finished" in (tmp_path / "wan21.md").read_text()


def test_the_table_of_a_measured_run() -> None:
    clock = PretendedClock()
    row = step.Row("1.3b", "720p", "eager", 75600, "self", sdpa="cudnn", difference=2e-3, served=60)
    row.sides = rounds.measure(SIDES, clock, rounds.Method(4, 3, 0), PretendedSampler(clock), Budget(None))
    where = {
        "gpu": "NVIDIA H200",
        "torch": "2.11",
        "diffusers": "0.42",
        "driver": "580",
        "revision": "abc",
        "emulated": None,
    }
    whole = report.document([row], [], setup(), where, "random", True) | {"dry_run": False}
    table = report.markdown(json.loads(json.dumps(whole)))
    assert "NVIDIA H200" in table and "| 1.3b | 720p | eager | 75,600 |" in table and "| 1.2" in table


RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


def test_runs_are_joined_to_one_table_and_plot(tmp_path: Path) -> None:
    """On the kept runs of this project."""
    files = sorted(RESULTS.glob("*-h200-wan21-*-eager.json"))
    assert len(files) >= 2
    arguments = [part for file in files for part in ("--from", str(file))]
    result = CliRunner().invoke(reproduce_wan21, [*arguments, "--output", str(tmp_path)])
    assert result.exit_code == 0, result.output
    rows = [row for file in files for row in json.loads(file.read_text())["rows"]]
    table = (tmp_path / "wan21.md").read_text()
    assert table == result.output[:-1] and table.count("NVIDIA H200") == 1
    for row in rows:
        assert f"| {row['size']} | {row['resolution']} | {row['mode']} |" in table
        assert f"| {row['ratio']['speed']:.3f} |" in table
    picture = (tmp_path / "wan21.svg").read_text()
    assert picture.lstrip().startswith("<?xml") and len(
        json.loads((tmp_path / "wan21.json").read_text())["rows"]
    ) == len(rows)


def test_runs_that_differ_are_not_joined(tmp_path: Path) -> None:
    file = next(iter(RESULTS.glob("*-h200-wan21-*-eager.json")))
    other = json.loads(file.read_text())
    other["environment"]["driver"] = "1.2"
    (tmp_path / "other.json").write_text(json.dumps(other))
    for text in ("[]", json.dumps({"rows": [], "pipelines": [], "environment": {"torch": "2"}})):
        (tmp_path / "no.json").write_text(text)
        with pytest.raises(ArgumentError, match=r"no\.json"):
            report.joined([file, tmp_path / "no.json"])
    (tmp_path / "no.json").write_text(file.read_text().replace('"size": "', '"size": "x'))
    with pytest.raises(ArgumentError, match=r"no\.json"):
        report.joined([tmp_path / "no.json"])
    (tmp_path / "no.json").write_text("{}")
    with pytest.raises(ArgumentError, match=r"driver 1\.2"):
        report.joined([file, tmp_path / "other.json"])
    with pytest.raises(ArgumentError, match=r"wan21\.json"):
        report.joined([tmp_path / "no.json"])


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--pipeline", "2b-480p"], "--pipeline"),
        (["--dry-run", "--pipeline", "2b-480p"], "--pipeline"),
        (["--dry-run", "--no-steps"], "--no-steps"),
        (["--dry-run", "--budget-seconds", "nan"], "budget_seconds: nan"),
        (["--device", "-1"], "--device"),
        (["--rounds", "0"], "--rounds"),
        ([], "no GPU"),
    ],
)
def test_bad_input(arguments: list[str], word: str) -> None:
    if torch.cuda.is_available() and not arguments:
        pytest.skip("this machine has a GPU")
    result = CliRunner().invoke(main, ["reproduce-wan21", *arguments])
    assert result.exit_code == 2 and word in result.output


def test_times_that_never_pass_are_refused() -> None:
    for name in ("warm_seconds", "row_seconds"):
        with pytest.raises(ArgumentError, match=f"{name}: nan"):
            rounds.Method(**{name: float("nan")})


@pytest.mark.parametrize("command", ["reproduce-wan21", "bench"])
def test_a_gpu_that_is_not_there_is_named(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    result = CliRunner().invoke(main, [command, "--device", "2"])
    assert result.exit_code == 2 and "--device: 2; torch sees 2 GPUs" in result.output, result.output


def test_energy_between_the_steps_of_the_counter() -> None:
    """A counter that steps every 0.1 s under 500 W, read every 0.02 s, tells 0.25 s to the joule."""
    sampler = Sampler(None, counter=EnergyCounter("meter", lambda: 0.0))
    sampler.samples = [Sample(i * 0.02, 0, 0, 50.0 * ((i + 2) // 5)) for i in range(100)]
    assert sampler.joules(0.33, 0.58) == pytest.approx(125, rel=0.01)
    assert sampler.joules(1.5, 9.0) is None, "it did not step behind the end"
    assert Sampler(None).joules(0, 1) is None


def test_a_sampler_reads_the_counter() -> None:
    ticks = itertools.count()
    with Sampler(None, interval=0.001, counter=EnergyCounter("meter", lambda: float(next(ticks)))) as sampler:
        pass
    assert len(sampler.samples) > 10 and sampler.samples[3].joule == 3.0
