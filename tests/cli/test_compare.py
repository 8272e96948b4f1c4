"""`moon-diffusers compare` on videos, latents and runs."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from moon_diffusers.cli import main
from moon_diffusers.quality.video import write_lossless


def compare(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["compare", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    clip = rng.random((3, 32, 32, 3)).astype(np.float32) * np.float32(0.5)
    write_lossless(tmp_path / "a.mkv", clip, 8)
    write_lossless(tmp_path / "b.mkv", clip + np.float32(26 / 255), 8)
    latents = torch.from_numpy(rng.standard_normal((1, 4, 2, 4, 4))).float()
    save_file({"latents": latents}, tmp_path / "a.safetensors")
    np.save(tmp_path / "a.npy", latents.numpy())
    torch.save(latents * 1.01, tmp_path / "b.pt")
    return tmp_path


def test_videos(files):
    code, text = compare(files / "a.mkv", files / "b.mkv")
    assert code == 0 and "PSNR 19.83 dB" in text
    code, text = compare(files / "a.mkv", files / "a.mkv", "--min-psnr", "1000")
    assert code == 0 and "identical" in text
    code, text = compare(files / "a.mkv", files / "b.mkv", "--min-psnr", "30")
    assert code == 1 and "is below 30 dB" in text


def test_latents_in_every_form(files):
    code, text = compare(files / "a.safetensors", files / "b.pt", "--json")
    latents = json.loads(text)["latents"]["latents"]
    assert code == 0 and latents["relative_l2"] == pytest.approx(0.01, rel=1e-3)
    assert "identical" in compare(files / "a.safetensors", files / "a.npy")[1]
    assert compare(files / "a.npy", files / "b.pt", "--max-latent-error", "0.02")[0] == 0
    assert compare(files / "a.npy", files / "b.pt", "--max-latent-error", "0.005")[0] == 1
    # a limit on what was not compared is not met
    assert compare(files / "a.npy", files / "b.pt", "--min-psnr", "10")[0] == 1


def test_what_was_not_compared_is_neither_identical_nor_within_a_limit(files):
    whole, part, short = (files / f"{name}.safetensors" for name in ("whole", "part", "SHORT"))
    x = torch.arange(8.0)
    save_file({"x": x, "y": x + 1}, whole)
    save_file({"x": x}, part)
    short = short.with_suffix(".SAFETENSORS")
    save_file({"x": x, "y": x[:4].clone()}, short)
    for other in (part, short):
        code, text = compare(whole, other, "--json")
        assert code == 0 and json.loads(text)["identical"] is False and "y" in json.loads(text)["notes"][0]
        code, text = compare(whole, other, "--max-latent-error", "1")
        assert code == 1 and "latents y: not compared" in text
    write_lossless(files / "c.mkv", np.zeros((2, 32, 32, 3), np.float32), 8)
    assert json.loads(compare(files / "a.mkv", files / "c.mkv", "--json")[1])["identical"] is False
    assert "frames video: not compared" in compare(files / "a.mkv", files / "c.mkv", "--min-psnr", "1")[1]


def test_imaginary_parts_are_not_dropped(files):
    np.save(files / "c.npy", np.array([1, 2 + 3j]))
    np.save(files / "r.npy", np.array([1.0, 2.0]))
    code, text = compare(files / "r.npy", files / "c.npy")
    assert code == 2 and "expected real numbers" in text


@pytest.mark.parametrize("limit", [("--max-latent-error", "nan"), ("--max-latent-error", "-1"), ("--min-psnr", "nan")])
def test_limits_that_nothing_could_fail_are_refused(files, limit):
    code, text = compare(files / "a.npy", files / "b.pt", *limit)
    assert code == 2 and f"{limit[0][2:].replace('-', '_')} is {limit[1]}" in text


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("a.mkv", "a.npy", "RUN_A is a video and RUN_B a latent"),
        ("missing.mp4", "a.mkv", "does not exist"),
        (".", "a.mkv", "no report.json"),
        ("notes.txt", "a.mkv", "expected a run's folder"),
        ("bad.safetensors", "a.npy", "cannot be read"),
        ("bad.mp4", "a.mkv", "cannot be decoded"),
    ],
)
def test_bad_input_is_one_line(files, a, b, expected):
    for name in ("notes.txt", "bad.safetensors", "bad.mp4"):
        (files / name).write_text("nothing")
    code, text = compare(files / a, files / b)
    assert code == 2 and text.count("Error:") == 1 and expected in text


def test_runs(tiny_wan, standin_kernel, tmp_path):
    common = ["--model", tiny_wan, "--emulate", "gfx942", "--num-inference-steps", "2", "--num-frames", "5"]
    common += ["--height", "32", "--width", "32", "--lossless"]
    for name, seed in (("a", 0), ("b", 1), ("c", 0)):
        arguments = ["generate", *map(str, common), "--seed", str(seed), "--output", str(tmp_path / name)]
        assert CliRunner().invoke(main, arguments).exit_code == 0
    code, text = compare(tmp_path / "a", tmp_path / "c", "--max-latent-error", "0")
    assert code == 0 and text.count("identical") == 4
    code, text = compare(tmp_path / "a", tmp_path / "b" / "report.json", "--max-latent-error", "0.1")
    assert code == 1 and "setting seed" in text and "different latents" in text and "lossy" not in text
    # a run without its latents, or with a video of another length, is not the same run
    (tmp_path / "c" / "latents.safetensors").unlink()
    code, text = compare(tmp_path / "a", tmp_path / "c", "--max-latent-error", "1")
    assert code == 1 and "latents.safetensors' does not exist" in text
    report = json.loads((tmp_path / "b" / "report.json").read_text())
    for key, value in (("settings", []), ("settings", "x"), ("noise_floors", []), ("runs", {}), ("gate", None)):
        (tmp_path / "b" / "report.json").write_text(json.dumps(report | {key: value}))
        code, text = compare(tmp_path / "a", tmp_path / "b")
        assert code == 2 or (key, value) == ("settings", []), (key, text)
    for text in ("{}", "[]", json.dumps({"kind": report["kind"], "schema": 1})):
        (tmp_path / "b" / "report.json").write_text(text)
        assert compare(tmp_path / "a", tmp_path / "b")[0] == 2
