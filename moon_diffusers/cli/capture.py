"""`moon-diffusers capture`: q, k and v of a real run's attention, as safetensors."""

from __future__ import annotations

from pathlib import Path

import click

from moon_diffusers.generation.settings import DTYPES, GenerateError, Settings


@click.command(epilog="Exit codes: 0 done, 2 bad input.")
@click.option("--model", "--model-path", "model", help="Pipeline folder or Hub id. Default: the sample pipeline.")
@click.option("--revision", help="Revision of a Hub model.")
@click.option("--prompt", help="Default: the sample's own first prompt.")
@click.option("--negative-prompt")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--height", type=int)
@click.option("--width", type=int)
@click.option("--num-frames", type=int)
@click.option("--num-inference-steps", type=int)
@click.option("--guidance-scale", type=float)
@click.option("--dtype", type=click.Choice(list(DTYPES)), default="bf16", show_default=True)
@click.option("--device", help="Torch device. Default: the GPU if torch has one, else the CPU.")
@click.option("--steps", help="Denoising steps to keep, from 0, as 0,4,9. Default: the first, the middle, the last.")
@click.option("--modules", default="", help="Regular expression: keep attention modules whose name it is found in.")
@click.option(
    "--calls", default="0", show_default=True, help="Model calls of a step to keep; 1 is the one without prompt."
)
@click.option("--heads", help="Heads to keep, as 0,2. Default: all.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="Safetensors file.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
def capture(
    model: str | None,
    prompt: str | None,
    dtype: str,
    device: str | None,
    steps: str | None,
    modules: str,
    calls: str,
    heads: str | None,
    output: Path,
    force: bool,
    revision: str | None,
    negative_prompt: str | None,
    seed: int,
    height: int | None,
    width: int | None,
    num_frames: int | None,
    num_inference_steps: int | None,
    guidance_scale: float | None,
) -> None:
    """Run a pipeline without the kernel and keep what its attention modules compute from.

    Every attention module at the chosen steps: q, k and v as (batch, length, heads, head dim), before the softmax, after
    RoPE and norms, in the model's dtype. They are inputs for accuracy checks and for the timing model.
    """
    import moon_diffusers
    from moon_diffusers.evidence import capture as evidence
    from moon_diffusers.evidence.files import check_file, check_folder
    from moon_diffusers.generation import models
    from moon_diffusers.generation.place import place
    from moon_diffusers.generation.run import resolved, run_pipeline

    wanted_calls, wanted_heads = _numbers("calls", calls), None if heads is None else _numbers("heads", heads)
    wanted_steps = None if steps is None else _numbers("steps", steps)
    if output.exists() and not force:
        raise GenerateError(f"output is {str(output)!r}: exists already; --force replaces it")
    if output.exists():
        check_file(output)
    check_folder(output.parent)
    chosen = str(models.default_sample()) if model is None else model
    models.check_model(chosen)
    recommended = models.recommended_settings(chosen)
    settings = Settings(
        model=chosen,
        prompt=prompt or models.first_prompt(recommended),
        revision=revision,
        negative_prompt=negative_prompt,
        seed=seed,
        height=height,
        width=width,
        num_frames=num_frames,
        num_inference_steps=num_inference_steps,
        guidance_scale=guidance_scale,
        dtype=DTYPES[dtype],
    ).with_recommended(recommended)
    settings = place(settings, "off", device, is_sample=model is None)
    pipe = models.load_pipeline(settings)
    settings = resolved(pipe, settings)
    count = settings.num_inference_steps or 0
    if wanted_steps is None:
        wanted_steps = sorted({0, count // 2, max(count - 1, 0)})
    if count and max(wanted_steps) >= count:
        raise GenerateError(f"steps is {steps!r}; the run has steps 0 to {count - 1}")
    with evidence.capturing(models.denoisers(pipe), wanted_steps, modules, wanted_calls, wanted_heads) as captured:
        run_pipeline(pipe, settings, decode=False)
    about = {
        "model": Path(chosen).name,
        "prompt": settings.prompt,
        "seed": settings.seed,
        "num_inference_steps": count,
        "guidance_scale": settings.guidance_scale,
        "moon_diffusers": moon_diffusers.__version__,
    }
    evidence.save(output, captured.calls, about)
    for call in captured.calls:
        batch, length, kept, head_dim = call.q.shape
        click.echo(
            f"step {call.step}  call {call.call}  {call.module:<32} "
            f"B {batch}  Sq {length}  Sk {call.k.shape[1]}  H {kept}  D {head_dim}  {str(call.q.dtype)[6:]}"
        )
    total = sum(call.nbytes for call in captured.calls)
    click.echo(f"{len(captured.calls)} attention calls, {total / 1e6:.1f} MB: {output}")


def _numbers(name: str, text: str) -> list[int]:
    try:
        values = sorted({int(part) for part in text.split(",")})
    except ValueError:
        values = []
    if not values or values[0] < 0:
        raise GenerateError(f"{name} is {text!r}; expected whole numbers from 0, as 0,4,9")
    return values
