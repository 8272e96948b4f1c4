"""What it takes to repeat a measurement: versions, driver, revision."""

from __future__ import annotations

import os
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import moon_diffusers


def software() -> dict[str, str | None]:
    """Versions that decide a figure, the GPU's driver and this checkout's revision; None for what is not there."""
    return {
        "driver": driver_version(),
        "diffusers": distribution("diffusers"),
        "triton": distribution("triton"),
        "moon_diffusers": moon_diffusers.__version__,
        "revision": git_revision(),
    }


def distribution(name: str) -> str | None:
    """Version of an installed distribution."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def driver_version() -> str | None:
    """The GPU driver's version, from whatever tells it."""
    module = Path("/sys/module/amdgpu/version")
    for command in (["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],):
        try:
            out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
            return out.splitlines()[0].strip()
        except (OSError, subprocess.SubprocessError, IndexError):
            continue
    return module.read_text().strip() if module.is_file() else None


def git_revision() -> str | None:
    """The checkout's revision, `+` behind it where files differ from it; outside one what `MOON_REVISION` says, or None."""
    folder = Path(moon_diffusers.__file__).parent
    try:
        git = ["git", "-C", str(folder)]
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        dirty = subprocess.run(
            [*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True
        ).stdout
        return head[:12] + ("+" if dirty.strip() else "")
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("MOON_REVISION")
