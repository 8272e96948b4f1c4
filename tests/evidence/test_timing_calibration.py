"""The microbenchmarks, and the way from their cycles to the model's constants."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from moon_diffusers.cli.model_timing import model_timing
from moon_diffusers.emulator.options import emulator_options
from moon_diffusers.errors import MoonError
from moon_diffusers.evidence.device import open_emulator
from moon_diffusers.evidence.timing import calibration, constants, microbenchmarks
from moon_diffusers.evidence.timing.library import Constants
from moon_diffusers.evidence.timing.microbenchmarks import BENCHMARKS
from moon_diffusers.runtime.code_objects import load_manifest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "measure_cdna_constants.py"
ARCHS = ("gfx942", "gfx950")
ALL_RIGHT = dict.fromkeys(BENCHMARKS, True)


def all_modelled(arch: str, chosen: Constants) -> dict[str, float]:
    return {name: calibration.modelled(arch, name, chosen) for name in BENCHMARKS}


@pytest.mark.parametrize("arch", ARCHS)
def test_microbenchmarks_compute_what_they_must(arch: str) -> None:
    device, image = open_emulator(arch), microbenchmarks.image_of(load_manifest(), arch)
    with emulator_options(device.hip, checks="on", threads="1"):
        for name, benchmark in BENCHMARKS.items():
            seen = microbenchmarks.run(device, image, benchmark, arch)
            assert seen.right, name
            assert seen.pairs, name
            findings = device.report()["findings"]
            if name.startswith("mfma_read") and int(name[-1]) < 7:
                assert {item["kind"] for item in findings} == {"mfma-wait-states"}, name
                assert {item["severity"] for item in findings} == {"warning"}, name
            elif name != "mfma_read_7" or arch == "gfx942":
                assert not findings, name


def test_wrong_results_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    device, image = open_emulator("gfx942"), microbenchmarks.image_of(load_manifest(), "gfx942")
    sound = microbenchmarks.memory()
    monkeypatch.setattr(microbenchmarks, "memory", lambda: {**sound, "data": np.roll(sound["data"], 1)})
    assert not microbenchmarks.run(device, image, BENCHMARKS["l2_chain"], "gfx942").right
    assert not microbenchmarks.run(device, image, BENCHMARKS["l1_chain"], "gfx942").right


@pytest.mark.parametrize("arch", ARCHS)
def test_constants_come_back_from_modelled_times(arch: str) -> None:
    """The model is given constants, the microbenchmarks measure it, and the constants must come back."""
    for chosen in constants.sample(arch, 12, seed=5, which="wide"):
        if not chosen.mfma_overlaps_valu:
            chosen = replace(chosen, packed_beside_mfma=0)  # a difference that the model does not make then
        found = calibration.fit(arch, all_modelled(arch, chosen), ALL_RIGHT)
        assert asdict(found) == asdict(chosen)


def test_constants_off_the_grid_come_back_too() -> None:
    chosen = Constants(
        transcendental=12, mfma_port=8, mfma_accumulate=4, lds_bytes_per_cycle=104, lds_latency=96, barrier=20, l2_latency=468
    )  # fmt: skip
    assert calibration.fit("gfx942", all_modelled("gfx942", chosen), ALL_RIGHT) == chosen


def test_a_slower_measurement_gives_slower_constants() -> None:
    times = all_modelled("gfx942", Constants())
    times["lds_chain"] += 40
    times["mfma_chain"] *= 2
    found = calibration.fit("gfx942", times, ALL_RIGHT)
    assert found.lds_latency == Constants().lds_latency + 40
    assert found.mfma_accumulate == 16
    assert replace(found, lds_latency=Constants().lds_latency, mfma_accumulate=0) == Constants()


def test_a_reader_that_came_too_early_counts_as_no_wait() -> None:
    """Where hardware does not wait by itself, the shortest wait that was long enough says when the result is there."""
    times = all_modelled("gfx942", Constants(mfma_result=0))
    right = ALL_RIGHT | {f"mfma_read_{states}": False for states in range(6)}
    # Six wait states and the matrix instruction's own turn: readable 28 cycles after it was issued, 12 behind the pipe.
    assert calibration.fit("gfx942", times, right).mfma_result == 12


def test_partners_must_outlast_what_runs_beside_them() -> None:
    times = np.zeros((8, 3), np.int64)
    times[:4] = [0, 100, 500]
    times[4:] = [0, 200, 501]
    assert microbenchmarks.overlapped(BENCHMARKS["mfma_beside_exp"], times)
    times[6, 2] = 499
    assert not microbenchmarks.overlapped(BENCHMARKS["mfma_beside_exp"], times)


def test_script_runs_in_the_emulator_and_its_constants_load(tmp_path: Path) -> None:
    path = tmp_path / "constants.json"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--emulate", "gfx950", "--output", str(path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "nothing was measured" in done.stderr
    known = calibration.read_document(json.loads(path.read_text()), "gfx950")
    published = asdict(constants.PUBLISHED["gfx950"])
    assert {name: (published[name],) for name in known} == known
    assert set(constants.UNCERTAIN["gfx950"]) <= set(known)
    assert constants.sample("gfx950", 100, known=known) == [constants.PUBLISHED["gfx950"]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"arch": "gfx950"}, "of 'gfx950'; accepted: gfx942"),
        ({"constants": {"speed": 1}}, "unknown name 'speed'"),
        ({"constants": {"barrier": -8}}, "barrier is -8"),
        ({"constants": {"barrier": []}}, "barrier is \\[\\]"),
        ({"constants": 3}, "expected"),
        ({"schema": 2}, "expected"),
    ],
)
def test_constants_that_cannot_be_used_are_named(change: dict[str, object], words: str) -> None:
    data = calibration.document("gfx942", "a test", Constants()) | change
    with pytest.raises(MoonError, match=words):
        calibration.read_document(data, "gfx942")


def test_command_takes_known_constants(tmp_path: Path) -> None:
    path = tmp_path / "constants.json"
    path.write_text("[]")
    done = CliRunner().invoke(model_timing, ["--constants", str(path)])
    assert done.exit_code == 2 and "expected" in done.output
    values = {name: list(span) for name, span in constants.UNCERTAIN["gfx942"].items()}
    path.write_text(json.dumps(calibration.document("gfx942", "a test", Constants()) | {"constants": values}))
    known = calibration.read_document(json.loads(path.read_text()), "gfx942")
    assert constants.grid("gfx942", known) == constants.grid("gfx942")
