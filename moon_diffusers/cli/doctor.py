"""`moon-diffusers doctor`: what this machine is, and which kernels would run on it."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click

# What `generate` and `compare` use; the last ones only add figures.
_VIDEO_PACKAGES = (
    "imageio-ffmpeg",
    "scikit-image",
    "jinja2",
    "pyyaml",
    "tqdm",
    "opencv-python-headless",
    "flip-evaluator",
)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(as_json: bool) -> None:
    """Say what this machine is, which kernels would run on it, and why the others would not.

    Loads HIP libraries and asks devices for their properties; launches nothing.
    """
    from moon_diffusers.runtime.doctor import describe_machine

    machine = describe_machine()
    packages = {name: _version(name) for name in _VIDEO_PACKAGES}
    sample = _sample()
    if as_json:
        content: dict[str, Any] = machine.as_dict() | {"video_packages": packages, "sample": sample}
        click.echo(json.dumps(content, indent=2))
        return
    for line in machine.lines():
        click.echo(line)
    missing = [name for name, text in packages.items() if not text]
    click.echo(
        f"video        {', '.join(f'{name} {text}' for name, text in packages.items() if text) or 'nothing installed'}"
    )
    if missing:
        click.echo(f"  not installed: {', '.join(missing)} (pip install 'moon-diffusers[video,metrics]')")
    click.echo(f"sample       {sample or 'none yet; generate builds a tiny one'}")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _sample() -> str:
    from moon_diffusers.generation.models import find_sample

    return str(find_sample() or "")
