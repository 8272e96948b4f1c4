#!/usr/bin/env python3
"""Train the sample video model: a small Wan text-to-video pipeline on composed clips of animated emoji.

Usage, in this order::

    python scripts/train_sample.py prepare --data DATA              # fetch the pictures with npm, once
    python scripts/train_sample.py train --data DATA --output RUN   # both stages; --minutes-* bound each by the clock
    python scripts/train_sample.py train ... --resume               # go on after a cut
    python scripts/train_sample.py export --run RUN --output samples/wan-emoji
    python scripts/train_sample.py dry-run                          # every step of it on a CPU within a minute

A machine may be at hand for less time than the training takes: ``--begin``/``--end`` say which share of stage 2 a call trains,
and ``--from-light`` starts from the small files (averaged weights) that an earlier call left in ``RUN/light``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from sample_training import autoencoder, checkpoints, denoiser, export, models, pictures, sprites
from sample_training.schedule import Schedule
from sample_training.vocabulary import SUBJECT_NAMES, with_article

LIGHT_LIMIT = 15 * 2**20


class Journal:
    """Figures of the run: printed, and appended to ``log.jsonl``."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "log.jsonl"
        self.records = [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def add(self, stage: str, step: int, figures: dict[str, float]) -> None:
        """Record one report."""
        record = {"stage": stage, "step": step} | {key: round(value, 5) for key, value in figures.items()}
        self.records.append(record)
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        print(json.dumps(record), flush=True)


def train(options: argparse.Namespace, data: sprites.Sprites, shape: models.Shape) -> models.Networks:
    """Both stages; leaves checkpoints, curves, contact sheets and ``light/`` in ``options.output``."""
    output: Path = options.output
    output.mkdir(parents=True, exist_ok=True)
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    journal = Journal(output)
    data = data.to(device)
    networks = models.Networks.build(shape, device, options.seed)
    whole_first, whole_second = output / "autoencoder.pt", output / "denoiser.pt"
    part_first = output / "autoencoder-part.pt"
    last = time.monotonic()

    def keep(path: Path, state: Callable[[], dict[str, Any]]) -> None:
        nonlocal last
        if time.monotonic() - last > options.checkpoint_seconds:
            checkpoints.save_whole(path, state())
            last = time.monotonic()

    trained = False
    light: dict[str, dict[str, torch.Tensor]] = {}
    if options.from_light:
        light, statistics = checkpoints.load_light(options.from_light)
        networks.autoencoder.load_state_dict(light["autoencoder"])
        networks.autoencoder.register_to_config(**statistics)
    elif options.resume and whole_first.exists():
        saved = checkpoints.load_whole(whole_first, device)
        networks.autoencoder.load_state_dict(saved["weights"])
        networks.autoencoder.register_to_config(**saved["statistics"])
    if options.train_autoencoder or not (light or (options.resume and whole_first.exists())):
        trained = True
        plan = Schedule(options.rate_autoencoder, options.steps_autoencoder, options.minutes_autoencoder, warmup=100)
        pool = autoencoder.render_pool(networks, data, options.pool, 128, options.seed)
        part = None
        if options.resume and part_first.exists():
            part = checkpoints.load_whole(part_first, device)
        for step, figures in autoencoder.train(
            networks,
            pool,
            plan,
            options.batch_autoencoder,
            options.seed,
            part,
            lambda state: keep(part_first, lambda: state),
        ):
            journal.add("autoencoder", step, figures)
        draw_reconstructions(networks, pool, output)
        del pool
    networks.autoencoder.eval().requires_grad_(False)

    bank, scenes = autoencoder.encode_bank(
        networks, data, options.bank, options.batch_autoencoder * 4, options.seed + 7
    )
    if trained:
        autoencoder.record_statistics(networks.autoencoder, bank)
    statistics = {key: list(networks.autoencoder.config[key]) for key in ("latents_mean", "latents_std")}
    checkpoints.save_whole(whole_first, {"weights": networks.autoencoder.state_dict(), "statistics": statistics})
    for first in range(0, bank.shape[0], 4096):
        bank[first : first + 4096] = autoencoder.normalise(networks.autoencoder, bank[first : first + 4096])
    print(f"bank of {len(scenes)} clips ready", flush=True)

    stage = denoiser.Stage(networks, options.seed, options.rate_denoiser)
    if options.resume and whole_second.exists():
        stage.load(checkpoints.load_whole(whole_second, device))
    elif light and "transformer" in light:
        stage.restart_from(light)

    def keep_second(current: denoiser.Stage) -> None:
        keep(whole_second, current.state)

    plan = Schedule(options.rate_denoiser, options.steps_denoiser, options.minutes_denoiser, options.begin, options.end)
    for step, figures in denoiser.train(
        stage, bank, scenes, plan, options.batch_denoiser, options.compile, keep_second
    ):
        journal.add("denoiser", step, figures)
    if not options.no_whole:
        checkpoints.save_whole(whole_second, stage.state())
    del bank

    stage.average.swap()
    networks.transformer.eval().requires_grad_(False)
    networks.text_encoder.eval().requires_grad_(False)
    checkpoints.save_light(output / "light", networks, {"hints": stage.hints.state_dict()}, LIGHT_LIMIT)
    draw(networks, journal, output, options.seed)
    return networks


@torch.no_grad()
def draw_reconstructions(networks: models.Networks, pool: torch.Tensor, output: Path) -> None:
    """Clips beside what the autoencoder makes of them."""
    clips = pool[:8].float().div(127.5).sub(1)
    with torch.autocast(networks.device.type, dtype=torch.bfloat16):
        rebuilt = networks.autoencoder.decode(networks.autoencoder.encode(clips).latent_dist.mean).sample.float()
    rows = []
    for clip, again in zip(clips, rebuilt, strict=True):
        for label, video in (("clip", clip), ("rebuilt", again)):
            rows.append((label, video.permute(1, 2, 3, 0).cpu().numpy() / 2 + 0.5))
    pictures.contact_sheet(output / "reconstructions.png", rows)


def draw(networks: models.Networks, journal: Journal, output: Path, seed: int) -> None:
    """Loss curves and contact sheets of the averaged weights, through the pipeline itself; on a CPU a short sheet."""
    pictures.loss_curves(output / "losses.png", journal.records)
    from diffusers.models.transformers.transformer_wan import WanAttnProcessor

    networks.transformer.set_attn_processor(WanAttnProcessor())
    for block in networks.transformer.blocks:
        block._compiled_call_impl = None
    pipeline = export.build_pipeline(networks)
    full = networks.device.type == "cuda"
    prompts = list(export.PROMPTS) if full else list(export.PROMPTS[:2])
    clips = export.generate(pipeline, prompts, networks, seed, steps=export.STEPS if full else 2)
    pictures.contact_sheet(output / "contact-sheet.png", clips)
    if full:
        every = [with_article(name) for name in SUBJECT_NAMES]
        clips = export.generate(pipeline, every, networks, seed)
        pictures.contact_sheet(output / "vocabulary.png", clips, frames=3, columns=4)


def export_run(run: Path, output: Path) -> None:
    """The light weights of a run, as a pipeline folder."""
    parts, statistics = checkpoints.load_light(run / "light")
    networks = models.Networks.build(models.Shape(), torch.device("cpu"), 0)
    networks.transformer.load_state_dict(parts["transformer"])
    networks.text_encoder.load_state_dict(parts["text_encoder"])
    networks.autoencoder.load_state_dict(parts["autoencoder"])
    networks.autoencoder.register_to_config(**statistics)
    export.export(output, networks)
    print(f"wrote {output}")


def sheet(model: Path, output: Path, prompts: list[str], seed: int, guidance: float | None) -> None:
    """A contact sheet of a finished pipeline folder, at the settings it was made for."""
    from diffusers import WanPipeline

    settings = json.loads((model / "moon_sample.json").read_text())
    pipeline = WanPipeline.from_pretrained(model, torch_dtype=torch.bfloat16)
    pipeline.vae.to(torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    rows = []
    for number, prompt in enumerate(prompts or settings["prompts"]):
        frames = pipeline(
            prompt=prompt,
            **{key: settings[key] for key in ("height", "width", "num_frames", "num_inference_steps")},
            guidance_scale=guidance or settings["guidance_scale"],
            generator=torch.Generator().manual_seed(seed + number),
            output_type="np",
        ).frames[0]
        rows.append((prompt, frames))
        pictures.contact_sheet(output, rows)
    print(f"wrote {output}")


def dry_run(output: Path) -> None:
    """Every stage at toy size on drawn shapes, a cut and a resume, the export, and a load of it by WanPipeline."""
    from diffusers import WanPipeline

    began = time.monotonic()
    torch.set_num_threads(1)
    arguments = (
        "train --steps-autoencoder 4 --steps-denoiser 3 --batch-autoencoder 2 --batch-denoiser 4 --bank 8 --device cpu"
    )
    data = sprites.drawn()
    first = parser().parse_args([*arguments.split(), "--output", str(output), "--data", str(output)])
    train(first, data, models.TINY)
    again = parser().parse_args([*arguments.split(), "--resume", "--output", str(output), "--data", str(output)])
    networks = train(again, data, models.TINY)
    steps = [json.loads(line)["step"] for line in (output / "log.jsonl").read_text().splitlines()]
    if steps[-1] != 6:
        raise SystemExit(f"dry run: the resumed run ended at step {steps[-1]}, expected 6")
    export.export(output / "pipeline", networks)
    pipeline = WanPipeline.from_pretrained(output / "pipeline", torch_dtype=torch.float32)
    networks.transformer, networks.text_encoder = pipeline.transformer, pipeline.text_encoder
    clips = export.generate(pipeline, ["a heart"], networks, 0, steps=2)
    expected = (models.TINY.num_frames, models.TINY.height, models.TINY.width, 3)
    if clips[0][1].shape != expected:
        raise SystemExit(f"dry run: the exported pipeline made {clips[0][1].shape}, expected {expected}")
    print(f"dry run passed in {time.monotonic() - began:.1f} s: {output}")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(dest="command", required=True)
    prepare = commands.add_parser("prepare", help="fetch the pictures with npm and cut them into loops")
    prepare.add_argument("--data", type=Path, required=True)
    prepare.add_argument("--tarballs", type=Path, help="a directory that already holds the packages' .tgz files")
    run = commands.add_parser("train", help="train both stages")
    run.add_argument("--data", type=Path, required=True)
    run.add_argument("--output", type=Path, required=True)
    run.add_argument("--device", help="default: cuda if there is one")
    run.add_argument("--seed", type=int, default=1)
    run.add_argument("--resume", action="store_true", help="go on from the checkpoints in --output")
    run.add_argument("--from-light", type=Path, help="start from the averaged weights of an earlier call")
    run.add_argument("--train-autoencoder", action="store_true", help="train stage 1 further although it is there")
    run.add_argument("--steps-autoencoder", type=int, default=10**9)
    run.add_argument("--minutes-autoencoder", type=float, default=4.0)
    run.add_argument("--batch-autoencoder", type=int, default=32)
    run.add_argument("--rate-autoencoder", type=float, default=1e-3)
    run.add_argument("--pool", type=int, default=16384, help="composed clips that stage 1 trains on")
    run.add_argument("--bank", type=int, default=65536, help="composed clips encoded for stage 2")
    run.add_argument("--steps-denoiser", type=int, default=10**9)
    run.add_argument("--minutes-denoiser", type=float, default=12.0)
    run.add_argument("--batch-denoiser", type=int, default=256)
    run.add_argument("--rate-denoiser", type=float, default=8e-4)
    run.add_argument("--begin", type=float, default=0.0, help="share of stage 2 already trained")
    run.add_argument("--end", type=float, default=1.0, help="share of stage 2 trained after this call")
    run.add_argument("--checkpoint-seconds", type=float, default=120.0)
    run.add_argument("--no-whole", action="store_true", help="keep no whole checkpoint at the end")
    run.add_argument("--compile", action="store_true", help="torch.compile the transformer's blocks")
    out = commands.add_parser("export", help="write the pipeline folder")
    out.add_argument("--run", type=Path, required=True)
    out.add_argument("--output", type=Path, required=True)
    look = commands.add_parser("sheet", help="a contact sheet of a pipeline folder")
    look.add_argument("--model", type=Path, required=True)
    look.add_argument("--output", type=Path, required=True)
    look.add_argument("--prompt", action="append", default=[], help="default: those in moon_sample.json")
    look.add_argument("--seed", type=int, default=0)
    look.add_argument("--guidance", type=float)
    dry = commands.add_parser("dry-run", help="all of it at toy size on the CPU")
    dry.add_argument("--output", type=Path, help="default: a temporary folder")
    return top


def main() -> None:
    """Entry point."""
    options = parser().parse_args()
    if options.command == "prepare":
        sprites.prepare(options.data, tarballs=options.tarballs)
    elif options.command == "train":
        train(options, sprites.load(options.data), models.Shape())
    elif options.command == "export":
        export_run(options.run, options.output)
    elif options.command == "sheet":
        sheet(options.model, options.output, options.prompt, options.seed, options.guidance)
    elif options.output is not None:
        dry_run(options.output)
    else:
        with tempfile.TemporaryDirectory() as temporary:
            dry_run(Path(temporary))


if __name__ == "__main__":
    main()
