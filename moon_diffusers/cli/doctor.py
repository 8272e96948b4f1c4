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


@click.command(epilog="Exit codes: 0, or with --self-test 1 where a kernel fails on a GPU, or none is there to test.")
@click.option("--self-test", is_flag=True, help="Also run every kernel's self-test on every real GPU.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(self_test: bool, as_json: bool) -> None:
    """Say what this machine is, which kernels would run on it, and why the others would not.

    Loads the libraries of AMD and NVIDIA GPUs and asks devices for their properties; without --self-test it launches
    nothing.
    """
    from moon_diffusers.runtime.doctor import describe_machine

    machine = describe_machine(self_test)
    tested = [
        verdict
        for item in machine.libraries
        if item.kind != "emulator"
        for device in item.devices
        for verdict in device.kernels
    ]
    well = bool(tested) and all(verdict.runs for verdict in tested)
    packages = {name: _version(name) for name in _VIDEO_PACKAGES}
    sample = _sample()
    if as_json:
        content: dict[str, Any] = machine.as_dict() | {"video_packages": packages, "sample": sample}
        click.echo(json.dumps(content, indent=2))
        raise SystemExit(1 if self_test and not well else 0)
    for line in machine.lines():
        click.echo(line)
    missing = [name for name, text in packages.items() if not text]
    click.echo(
        f"video        {', '.join(f'{name} {text}' for name, text in packages.items() if text) or 'nothing installed'}"
    )
    if missing:
        click.echo(f"  not installed: {', '.join(missing)} (pip install 'moon-diffusers[video,metrics]')")
    click.echo(f"sample       {sample or 'none yet; generate builds a tiny one'}")
    if self_test:
        passed = sum(verdict.runs for verdict in tested)
        click.echo(f"self-test    {passed} of {len(tested)} kernels passed on this machine's GPUs")
        raise SystemExit(0 if well else 1)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _sample() -> str:
    from moon_diffusers.generation.models import find_sample

    return str(find_sample() or "")
