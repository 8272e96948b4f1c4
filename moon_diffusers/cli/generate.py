"""`moon-diffusers generate`: the same video without and with the kernel, and what the difference is."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moon_diffusers.cli import progress
from moon_diffusers.generation.settings import DTYPES, NOISE_FLOORS, ROUNDINGS, SABOTAGES, GenerateError, Settings

if TYPE_CHECKING:
    from moon_diffusers.generation.paired import Outcome


def _read_config(ctx: click.Context, _parameter: click.Parameter, value: Path | None) -> Path | None:
    """Take the options' defaults from a YAML file whose keys are the options' names."""
    if value is None:
        return None
    import yaml

    class Words(yaml.SafeLoader):
        """Reads values as they are written, since `off`, `no` and `1.5` are words to the options; null is none."""

        yaml_implicit_resolvers = {  # noqa: RUF012
            first: [entry for entry in entries if entry[0] == "tag:yaml.org,2002:null"]
            for first, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    try:
        content = yaml.load(value.read_text(encoding="utf-8"), Loader=Words) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise click.BadParameter(f"{str(value)!r} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise click.BadParameter(f"{str(value)!r} holds no mapping of option names to values")
    known = {parameter.name: parameter for parameter in ctx.command.params if parameter.name not in ("config", "help")}
    defaults = {str(key).replace("-", "_"): item for key, item in content.items() if item is not None}
    for key, item in defaults.items():
        if key not in known:
            raise click.BadParameter(
                f"{str(value)!r} has the unknown key {key!r}; known: {', '.join(sorted(filter(None, known)))}"
            )
        if known[key].multiple and isinstance(item, str):
            defaults[key] = [item]
        elif not isinstance(item, str) and not (known[key].multiple and isinstance(item, list)):
            raise click.BadParameter(f"{str(value)!r}: {key} is {item!r}; expected one value")
    ctx.default_map = {**(ctx.default_map or {}), **defaults}
    return value


@click.command(epilog="Exit codes: 0 the gate passed, 1 it failed, 2 bad input, 130 interrupted.")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    is_eager=True,
    callback=_read_config,
    help="YAML file with values for these options; the command line wins.",
)
@click.option("--model", "--model-path", "model", help="Pipeline folder or Hub id. Default: the sample pipeline.")
@click.option("--revision", help="Revision of a Hub model.")
@click.option("--prompt", help="Default: the sample's own first prompt.")
@click.option(
    "--prompt-file",
    type=click.Path(path_type=Path),
    help="One prompt a line: one folder each, and an index of all. Prompts that are done already are left alone.",
)
@click.option("--negative-prompt")
@click.option("--image", help="Picture to start from, for image-to-video pipelines.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--height", type=int)
@click.option("--width", type=int)
@click.option("--num-frames", type=int)
@click.option("--num-inference-steps", type=int)
@click.option("--guidance-scale", type=float)
@click.option("--fps", type=float, help="Of the written videos. Default: the sample's, else 16.")
@click.option("--dtype", type=click.Choice(list(DTYPES)), default="bf16", show_default=True)
@click.option(
    "--rounding", type=click.Choice(ROUNDINGS), default="rtne", show_default=True, help="How the kernel rounds to bf16."
)
@click.option(
    "--emulate",
    type=click.Choice(["gfx942", "gfx950", "off"]),
    help="Run the kernel's machine code in the emulator. "
    "Default: gfx942 for the sample on a machine without an AMD or Hopper GPU, else off.",
)
@click.option("--device", help="Torch device. Default: the GPU if torch has one, else the CPU.")
@click.option(
    "--output", "--output-path", "output", type=click.Path(path_type=Path), required=True, help="Folder to write."
)
@click.option("--force", is_flag=True, help="Replace a former run in the output folder.")
@click.option(
    "--gate",
    type=click.Choice(["fail", "warn"]),
    default="fail",
    show_default=True,
    help="warn: exit with 0 even if the gate fails.",
)
@click.option(
    "--gate-factor",
    type=float,
    help="Largest error that passes, in noise floors. Default: 2; 4 for a layer's attention with rtz.",
)
@click.option(
    "--minimum-share",
    type=float,
    default=1.0,
    show_default=True,
    help="Smallest share of attention calls on the kernel.",
)
@click.option(
    "--noise-floor",
    type=click.Choice(NOISE_FLOORS),
    multiple=True,
    help="A further noise floor, one more run each: the baseline again, or with unfused attention.",
)
@click.option(
    "--attention-errors", is_flag=True, help="Measure every layer's attention in all steps, not only in the first."
)
@click.option("--lossless", is_flag=True, help="Also write lossless videos, for `moon-diffusers compare`.")
@click.option(
    "--self-check",
    is_flag=True,
    help="Afterwards break the kernel's results on purpose, and demand that the gate notices.",
)
@click.option("--sabotage", type=click.Choice(SABOTAGES), hidden=True)
def generate(
    prompt: str | None,
    prompt_file: Path | None,
    model: str | None,
    output: Path,
    force: bool,
    gate: str,
    emulate: str | None,
    device: str | None,
    dtype: str,
    config: Path | None,
    **options: Any,
) -> None:
    """Generate a video twice from identical latents, without and with the kernel.

    Writes without_kernel.mp4, with_kernel.mp4, side_by_side.mp4, latents.safetensors, report.json and report.html to
    the output folder, and fails when the kernel's attention or the final latents differ by more than rounding explains:
    twice the error of torch's own attention, and twice what the run without the kernel moves by when its attention is
    computed in fp32.
    """
    from moon_diffusers.generation import batch, models
    from moon_diffusers.generation.output import check_output
    from moon_diffusers.generation.place import place
    from moon_diffusers.generation.run import read_image
    from moon_diffusers.quality.video import require_video_packages

    require_video_packages()
    if prompt is not None and prompt_file is not None:
        raise GenerateError("prompt and prompt_file are both given; expected one of them")
    chosen = str(models.default_sample()) if model is None else model
    models.check_model(chosen)
    recommended = models.recommended_settings(chosen)
    prompts = batch.read_prompts(prompt_file) if prompt_file else [prompt or models.first_prompt(recommended)]
    if prompt_file is None or force or not (output / "index.json").is_file():
        check_output(output, force)
    settings = Settings(model=chosen, prompt=prompts[0], dtype=DTYPES[dtype], **options).with_recommended(recommended)
    settings = place(settings, emulate, device, is_sample=model is None)
    if settings.image is not None:
        read_image(settings.image)
    todo = batch.check_batch(output, prompts, settings, force) if prompt_file else [0]
    with _interruptible(output):
        passed = _many(settings, prompts, todo, output) if prompt_file else _one(settings, output)
    if not passed and gate == "fail":
        raise SystemExit(1)


def _one(settings: Settings, output: Path) -> bool:
    from moon_diffusers.generation.output import whole_folder
    from moon_diffusers.generation.write import write_outcome

    with whole_folder(output) as folder:
        outcome = _runner(settings, 1)(settings)
        write_outcome(folder, outcome)
    passed = _tell(outcome)
    click.echo(f"report: {output / 'report.html'}")
    return passed


def _many(settings: Settings, prompts: list[str], todo: list[int], output: Path) -> bool:
    from moon_diffusers.generation.batch import run_batch

    if len(todo) < len(prompts):
        click.echo(f"{len(prompts) - len(todo)} of {len(prompts)} prompts are done already")
    runner = _runner(settings, len(todo)) if todo else None

    def run(asked: Settings) -> Outcome:
        assert runner is not None
        click.echo(f"prompt: {asked.prompt}")
        outcome = runner(asked)
        _tell(outcome)
        return outcome

    summary = run_batch(output, prompts, todo, settings, run)
    click.echo(f"{summary['passed']} of {summary['total']} prompts passed; report: {output / 'index.html'}")
    return bool(summary["passed"] == summary["total"])


def _runner(settings: Settings, count: int) -> Callable[[Settings], Outcome]:
    """Load the pipeline; return what runs it for one prompt."""
    progress.quiet_libraries()
    if settings.emulate:
        progress.leave_cores_to_the_emulator()
    from moon_diffusers.generation.models import load_pipeline
    from moon_diffusers.generation.paired import run_pair
    from moon_diffusers.generation.run import call_arguments, resolved

    pipe = load_pipeline(settings)
    full = resolved(pipe, settings)
    call_arguments(pipe, full)
    runs = 3 + len(settings.noise_floor) + (len(SABOTAGES) if settings.self_check else 0)
    left = [count]
    bar = progress.Bar(count * runs * (full.num_inference_steps or 1))

    def run(asked: Settings) -> Outcome:
        try:
            outcome = run_pair(pipe, asked, bar)
        except BaseException:
            bar.close()
            raise
        left[0] -= 1
        if left[0] == 0:
            bar.close()
        return outcome

    return run


def _tell(outcome: Outcome) -> bool:
    """Print the verdict; return whether the gate, and the self-check if there was one, passed."""
    report = outcome.report
    click.echo(report["routing"]["line"])
    for check in report["gate"]["checks"]:
        click.echo(
            f"{'pass' if check['passed'] else 'FAIL'}  {check['name']}: {check['value']}; passes: {check['limit']}"
        )
    for row in report["self_check"]:
        word = "pass" if row["noticed"] else "FAIL"
        click.echo(f"{word}  self-check, {row['sabotage']}: {'; '.join(row['failures']) or 'the gate noticed nothing'}")
    return bool(report["gate"]["passed"]) and all(row["noticed"] for row in report["self_check"])


@contextmanager
def _interruptible(output: Path) -> Iterator[None]:
    """Make SIGTERM clean up as Ctrl-C does, and end both with one line and exit code 130."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"\ninterrupted; nothing unfinished was left at {output}", err=True)
        raise SystemExit(130) from None
    finally:
        signal.signal(signal.SIGTERM, former)
