"""Drop-in attention kernels for diffusers pipelines on AMD MI300X and MI355X, with an emulator that runs them anywhere.

Public names are imported when first used: `import moon_diffusers` and `moon-diffusers --help` do not wait for torch.
"""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from moon_diffusers.errors import MoonError

try:
    __version__ = version("moon-diffusers")
except PackageNotFoundError:  # a checkout that is not installed
    __version__ = "0.1.0"

# public name: the module that defines it
_PUBLIC: dict[str, str] = {}

__all__ = ["MoonError", "__version__"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
