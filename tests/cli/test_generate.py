"""`moon-diffusers generate` on a tiny pipeline, with a stand-in for the kernel."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import signal
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from safetensors.torch import load_file

from moon_diffusers import counters, dispatch
from moon_diffusers.cli import main
from moon_diffusers.generation import batch, output
from moon_diffusers.generation.models import load_pipeline
from moon_diffusers.generation.run import call_arguments
from moon_diffusers.generation.settings import GenerateError, Settings
from moon_diffusers.quality.video import read_video

FAST = ["--num-inference-steps", "2", "--num-frames", "5", "--height", "32", "--width", "32"]


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["generate", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def report_of(folder: Path) -> dict:
    return json.loads((folder / "report.json").read_text())


@pytest.fixture
def fast(tiny_wan, standin_kernel):
    return ["--model", tiny_wan, "--emulate", "gfx942", *FAST]


def test_everything_is_written_and_the_gate_passes(fast, tmp_path):
    code, text = run(*fast, "--output", tmp_path / "run", "--attention-errors", "--lossless", "--noise-floor", "repeat")
    assert code == 0, text
    names = {
        "without_kernel.mp4",
        "with_kernel.mp4",
        "side_by_side.mp4",
        "report.json",
        "report.html",
        "latents.safetensors",
    }
    assert names <= {file.name for file in (tmp_path / "run").iterdir()}
    assert [file.name for file in tmp_path.iterdir()] == ["run"], "a temporary folder was left behind"
    report = report_of(tmp_path / "run")
    assert report["gate"]["passed"]
    # 2 steps, conditional and unconditional, 2 blocks, self and cross attention
    assert report["routing"]["served"] == {"stand-in": 16}
    assert 0 < report["comparison"]["latents"]["relative_l2"] < 0.1
    repeat = next(row for row in report["noise_floors"] if row["name"] == "repeat")
    assert repeat["latents"]["identical"] and repeat["frames"]["psnr"] is None
    assert len(report["attention_errors"]) == 4
    assert all(0 < layer["kernel"] < 0.01 for layer in report["attention_errors"].values())
    latents = load_file(tmp_path / "run" / "latents.safetensors")
    assert not torch.equal(latents["without_kernel"], latents["with_kernel"])
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.count("data:video/mp4;base64,") == page.count(
        "data:image/jpeg;base64,"
    ) == 3 and "http" not in page.replace("http-equiv", "")
    assert read_video(tmp_path / "run" / "side_by_side.mp4")[0].shape[0] == 5


@pytest.mark.parametrize("kind", ["swap-heads", "drop-last-tile"])
def test_a_broken_kernel_fails_the_gate(fast, tmp_path, kind):
    code, text = run(*fast, "--output", tmp_path / "run", "--sabotage", kind)
    assert code == 1, text
    checks = {check["name"]: check["passed"] for check in report_of(tmp_path / "run")["gate"]["checks"]}
    assert not checks.pop("attention error")
    # With random weights leaving out keys hardly reaches the latents: the reason why attention has a check of its own.
    assert not checks.pop("latent error") or kind == "drop-last-tile"
    assert checks == {"finite latents": True, "routed share": True, "initial latents": True}
    assert "sabotaged" in (tmp_path / "run" / "report.html").read_text()


def test_gate_warn_only(fast, tmp_path):
    assert run(*fast, "--output", tmp_path / "run", "--sabotage", "swap-heads", "--gate", "warn")[0] == 0
    assert not report_of(tmp_path / "run")["gate"]["passed"]


def test_nan_fails_the_gate_and_is_still_reported(fast, tmp_path, monkeypatch):
    serve = dispatch.serve

    def poisoned(q, *rest):
        served = serve(q, *rest)
        served.out[0, 0, 0, 0] = torch.nan
        return served

    monkeypatch.setattr(dispatch, "serve", poisoned)
    assert run(*fast, "--output", tmp_path / "run")[0] == 1
    report = report_of(tmp_path / "run")
    checks = {check["name"]: check["passed"] for check in report["gate"]["checks"]}
    assert not checks["latent error"] and not checks["finite latents"]
    assert report["comparison"]["latents"]["relative_l2"] is None
    assert "not finite" in (tmp_path / "run" / "report.html").read_text()


def test_a_run_that_fell_back_fails_the_gate(fast, tmp_path, monkeypatch):
    monkeypatch.setattr(dispatch, "serve", lambda *_: dispatch.Fallback("because of the test"))
    assert run(*fast, "--output", tmp_path / "run")[0] == 1
    report = report_of(tmp_path / "run")
    assert report["routing"]["share"] == 0 and report["routing"]["fallbacks"] == {"because of the test": 16}
    assert [check["name"] for check in report["gate"]["checks"] if not check["passed"]] == ["routed share"]


def test_self_check_breaks_the_kernel_and_passes(fast, tmp_path):
    code, text = run(*fast, "--output", tmp_path / "run", "--self-check")
    assert code == 0, text
    assert [row["noticed"] for row in report_of(tmp_path / "run")["self_check"]] == [True, True]


def test_self_check_fails_when_the_gate_is_too_wide(fast, tmp_path):
    code, text = run(*fast, "--output", tmp_path / "run", "--self-check", "--gate-factor", "1e9")
    assert code == 1 and "FAIL  self-check" in text


def test_the_pipeline_is_left_as_it_was_and_counts_are_of_the_kernel_run_alone(fast, tmp_path):
    assert run(*fast, "--output", tmp_path / "run")[0] == 0
    assert counters.snapshot().num_served == 16


def test_existing_output_needs_force(fast, tmp_path):
    assert run(*fast, "--output", tmp_path / "run")[0] == 0
    first = (tmp_path / "run" / "report.json").read_text()
    code, text = run(*fast, "--output", tmp_path / "run")
    assert code == 2 and "--force" in text and (tmp_path / "run" / "report.json").read_text() == first
    assert run(*fast, "--output", tmp_path / "run", "--force", "--seed", "1")[0] == 0
    assert report_of(tmp_path / "run")["settings"]["seed"] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["run"]


def test_force_does_not_delete_what_is_not_a_run(fast, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_text("")
    code, text = run(*fast, "--output", tmp_path / "photos", "--force")
    assert code == 2 and "holds other files" in text and (tmp_path / "photos" / "a.jpg").exists()


@pytest.mark.parametrize("how", ["sigint", "sigterm"])
def test_interruption_leaves_nothing(fast, tmp_path, monkeypatch, how):
    serve = dispatch.serve

    def interrupting(*arguments):
        os.kill(os.getpid(), signal.SIGINT if how == "sigint" else signal.SIGTERM)
        return serve(*arguments)

    monkeypatch.setattr(dispatch, "serve", interrupting)
    code, text = run(*fast, "--output", tmp_path / "run")
    assert code == 130 and "interrupted" in text
    assert list(tmp_path.iterdir()) == []


def test_interruption_with_force_keeps_the_former_run(fast, tmp_path, monkeypatch):
    assert run(*fast, "--output", tmp_path / "run")[0] == 0
    monkeypatch.setattr("moon_diffusers.generation.write.write_mp4", lambda *_: signal.raise_signal(signal.SIGINT))
    assert run(*fast, "--output", tmp_path / "run", "--force", "--seed", "1")[0] == 130
    assert report_of(tmp_path / "run")["settings"]["seed"] == 0
    assert [file.name for file in tmp_path.iterdir()] == ["run"]


BAD_INPUT = [
    "no such folder",
    "no index",
    "empty prompt",
    "no prompt file",
    "no prompt in the file",
    "steps",
    "image",
    "no picture",
    "no image pipeline",
    "seed",
    "fps",
    "factor",
    "share",
    "rounding",
    "output is a file",
    "output below a file",
    "unknown key",
    "device",
    "size",
    "no GPU",
    "meta device",
    "guidance",
    "text in no encoding",
    "a list for one value",
    "a fraction for a whole number",
]


def bad_input(tmp_path: Path, tiny_wan: Path) -> dict[str, tuple[list[object], str]]:
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "file").write_text("")
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "unknown.yaml").write_text("promt: x\n")
    (tmp_path / "none.txt").write_text("# nothing\n")
    (tmp_path / "list.yaml").write_text("height: [32, 64]\n")
    (tmp_path / "fraction.yaml").write_text("seed: 1.5\n")
    return {
        "no such folder": (["--model", "./nowhere"], "model is './nowhere'"),
        "no index": (["--model", empty], "no model_index.json"),
        "empty prompt": (["--prompt", " "], "prompt is ' '"),
        "no prompt file": (["--prompt-file", tmp_path / "missing.txt"], "prompt_file is"),
        "no prompt in the file": (["--prompt-file", tmp_path / "none.txt"], "holds no prompt"),
        "steps": (["--num-inference-steps", "0"], "num_inference_steps is 0"),
        "image": (["--emulate", "gfx942", "--image", tmp_path / "none.png"], "image is"),
        "no picture": (["--emulate", "gfx942", "--image", tmp_path / "none.txt"], "no picture"),
        "no image pipeline": (["--emulate", "gfx942", "--image", tmp_path / "a.png"], "not an argument of WanPipeline"),
        "seed": (["--seed", "-1"], "seed is -1"),
        "fps": (["--fps", "0"], "fps is 0"),
        "factor": (["--gate-factor", "0"], "gate_factor is 0"),
        "share": (["--minimum-share", "2"], "minimum_share is 2"),
        "rounding": (["--rounding", "up"], "'up'"),
        "output is a file": (["--output", tmp_path / "file"], "exists and is no folder"),
        "output below a file": (["--output", tmp_path / "file" / "run"], "output is"),
        "unknown key": (["--config", tmp_path / "unknown.yaml"], "unknown key 'promt'"),
        "device": (["--device", "nonsense"], "device is 'nonsense'"),
        "no GPU": (["--model", tiny_wan], "emulate is not given"),
        "size": (["--emulate", "gfx942", "--height", "33"], "33"),
        "meta device": (["--device", "meta"], "device is 'meta'"),
        "guidance": (["--guidance-scale", "nan"], "guidance_scale is nan"),
        "text in no encoding": (["--prompt", "p\udcff"], r"prompt is 'p\udcff'"),
        "a list for one value": (["--config", tmp_path / "list.yaml"], "height is ['32', '64']"),
        "a fraction for a whole number": (["--config", tmp_path / "fraction.yaml"], "'1.5' is not a valid integer"),
    }


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_one_line_naming_the_argument(name, tiny_wan, standin_kernel, tmp_path):
    arguments, expected = bad_input(tmp_path, tiny_wan)[name]
    code, text = run("--model", tiny_wan, "--output", tmp_path / "run", *FAST, *arguments)
    error = [line for line in text.splitlines() if line.startswith("Error:")]
    assert code == 2 and len(error) == 1 and expected in error[0], text
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_unwritable_output(fast, tmp_path):
    tmp_path.chmod(0o500)
    try:
        code, text = run(*fast, "--output", tmp_path / "run")
    finally:
        tmp_path.chmod(0o700)
    assert code == 2 and "not a folder that can be written to" in text


def test_unwritable_output_as_any_user(monkeypatch, tmp_path):
    monkeypatch.setattr(output.os, "access", lambda *_: False)
    with pytest.raises(output.GenerateError, match="output is"):
        output.check_output(tmp_path / "run", force=False)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("text_encoder/model.safetensors", None, "cannot be loaded"),
        ("transformer/diffusion_pytorch_model.safetensors", None, "cannot be loaded"),
        ("model_index.json", "{}", "cannot be loaded"),
        ("moon_sample.json", '{"height": "96", "prompts": ["a"]}', "height is '96'"),
        ("moon_sample.json", '{"num_frames": 1.5, "prompts": ["a"]}', "num_frames is 1.5"),
        ("moon_sample.json", '{"fps": "8", "prompts": ["a"]}', "fps is '8'"),
        ("moon_sample.json", '{"guidance_scale": [1], "prompts": ["a"]}', "guidance_scale is [1]"),
    ],
)
def test_a_damaged_pipeline_is_one_line(tiny_wan, standin_kernel, tmp_path, file, content, words):
    model = tmp_path / "half written"
    shutil.copytree(tiny_wan, model)
    whole = (model / file).read_bytes()
    (model / file).write_bytes(whole[: len(whole) // 2] if content is None else content.encode())
    code, text = run("--model", model, "--emulate", "gfx942", "--output", tmp_path / "run")
    error = [line for line in text.splitlines() if line.startswith("Error:")]
    assert code == 2 and len(error) == 1 and words in error[0], text
    assert not (tmp_path / "run").exists()


def test_a_pipeline_that_needs_an_image_says_so():
    class NeedsImage:
        def __call__(self, image, prompt=None, callback_on_step_end=None): ...

    with pytest.raises(GenerateError, match="image is not given; NeedsImage needs it"):
        call_arguments(NeedsImage(), Settings(model="m", prompt="p"))


def test_dtypes_of_the_parts(tiny_wan):
    pipe = load_pipeline(Settings(model=str(tiny_wan), prompt="p"))
    assert (pipe.transformer.dtype, pipe.text_encoder.dtype) == (torch.bfloat16, torch.bfloat16)
    # loaded in fp32, not rounded to bf16 and widened again
    stored = load_file(tiny_wan / "vae" / "diffusion_pytorch_model.safetensors")
    assert all(torch.equal(value, stored[name]) for name, value in pipe.vae.state_dict().items())


def test_two_transformers(standin_kernel, tmp_path):
    """Wan 2.2: one transformer for the noisy half of the steps, another for the rest."""
    tiny = runpy.run_path(str(Path(__file__).parents[2] / "samples" / "build_tiny_wan.py"))
    pipe, other = tiny["build_pipeline"](0, num_layers=1), tiny["build_pipeline"](1, num_layers=1)
    both = type(pipe)(**pipe.components | {"transformer_2": other.transformer}, boundary_ratio=0.9)
    both.save_pretrained(tmp_path / "two")
    arguments = ["--model", tmp_path / "two", "--emulate", "gfx942", "--prompt", "a cat", *FAST]
    code, text = run(*arguments, "--num-inference-steps", "4", "--output", tmp_path / "run", "--attention-errors")
    assert code == 0, text
    report = report_of(tmp_path / "run")
    assert report["routing"]["calls"] == 16 and report["routing"]["share"] == 1.0
    assert {name.split(".")[0] for name in report["attention_errors"]} == {"transformer", "transformer_2"}


def test_a_full_disk_is_one_line_and_leaves_nothing(fast, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("moon_diffusers.generation.write.save_file", full)
    code, text = run(*fast, "--output", tmp_path / "run")
    assert code == 2 and "output is" in text and "No space left" in text and list(tmp_path.iterdir()) == []


def test_config_file_gives_defaults_and_the_command_line_wins(fast, tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 5\nprompt: from the file\nguidance-scale: 2\n")
    assert run(*fast, "--config", tmp_path / "config.yaml", "--seed", "6", "--output", tmp_path / "run")[0] == 0
    settings = report_of(tmp_path / "run")["settings"]
    assert (settings["seed"], settings["prompt"], settings["guidance_scale"]) == (6, "from the file", 2.0)


def test_words_of_a_config_file_are_not_yaml_booleans(fast, tmp_path):
    words = "emulate: off\nprompt: no\nnegative_prompt:\nnoise_floor: repeat\nlossless: yes\ndevice: cpu\ngate: warn\n"
    (tmp_path / "config.yaml").write_text(words)
    arguments = [item for item in fast if item not in ("--emulate", "gfx942")]
    assert run(*arguments, "--config", tmp_path / "config.yaml", "--output", tmp_path / "run")[0] == 0
    settings = report_of(tmp_path / "run")["settings"]
    assert (settings["emulate"], settings["prompt"], settings["negative_prompt"]) == (None, "no", None)
    assert settings["noise_floor"] == ["repeat"] and settings["lossless"] is True


def test_the_samples_recommendations_are_defaults(tiny_wan, standin_kernel, tmp_path):
    code, text = run(
        "--model", tiny_wan, "--emulate", "gfx942", "--num-inference-steps", "1", "--output", tmp_path / "run"
    )
    assert code == 0, text
    settings = report_of(tmp_path / "run")["settings"]
    assert (settings["height"], settings["num_frames"], settings["fps"]) == (64, 9, 8)
    assert settings["prompt"] == "a red ball bouncing"


def test_prompt_file_resumes(fast, tmp_path, monkeypatch):
    (tmp_path / "prompts.txt").write_text("a cat\n\n# no\na dog\n")
    arguments = [*fast, "--prompt-file", tmp_path / "prompts.txt", "--output", tmp_path / "runs"]
    done = []
    write = batch.write_outcome

    def once(folder, outcome):
        if done:
            raise KeyboardInterrupt
        done.append(outcome)
        write(folder, outcome)

    monkeypatch.setattr(batch, "write_outcome", once)
    assert run(*arguments)[0] == 130
    assert sorted(f.name for f in (tmp_path / "runs").iterdir()) == ["001-a-cat", "index.html", "index.json"]
    monkeypatch.setattr(batch, "write_outcome", write)
    stamp = (tmp_path / "runs" / "001-a-cat" / "report.json").stat().st_mtime_ns
    code, text = run(*arguments)
    assert code == 0 and "1 of 2 prompts are done already" in text
    assert (tmp_path / "runs" / "001-a-cat" / "report.json").stat().st_mtime_ns == stamp
    index = json.loads((tmp_path / "runs" / "index.json").read_text())
    assert (index["done"], index["passed"]) == (2, 2)
    code, text = run(*arguments, "--seed", "9")
    assert code == 2 and "other settings" in text
    # A damaged report is named before anything runs, and does not keep --force from redoing all.
    path = tmp_path / "runs" / "002-a-dog" / "report.json"
    report = json.loads(path.read_text())
    for damage in ("{half", json.dumps({name: value for name, value in report.items() if name != "gate"})):
        path.write_text(damage)
        code, text = run(*arguments)
        assert code == 2 and "002-a-dog" in text and "running" not in text
    code, text = run(*arguments, "--force")
    assert code == 0 and "2 of 2 prompts passed" in text


def test_a_byte_order_mark_is_no_part_of_the_first_prompt(tmp_path):
    for text in ("\ufeffa cat\r\na dog\r\n", "\ufeff# cats\na cat\na dog"):
        (tmp_path / "prompts.txt").write_text(text, encoding="utf-8")
        assert batch.read_prompts(tmp_path / "prompts.txt") == ["a cat", "a dog"]
