"""Drop-in attention kernels for diffusers pipelines on AMD MI300X and MI355X, with an emulator that runs them anywhere.

`pipe.set_attn_processor(MoonAttnProcessor())` routes a pipeline's attention into the compiled kernels;
`attention(q, k, v)` is the same as a function; `emulate("gfx942")` runs the kernels' machine code on any CPU.

Public names are imported when first used: `import moon_diffusers` and `moon-diffusers --help` do not wait for torch.
"""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from moon_diffusers.errors import MoonError
from moon_diffusers.integrations import install_import_hook

if TYPE_CHECKING:
    from moon_diffusers.counters import reset_summary, summary
    from moon_diffusers.emulation import emulate, offload
    from moon_diffusers.functional import attention
    from moon_diffusers.integrations.diffusers import MoonAttnProcessor, restore, set_attn_processor
    from moon_diffusers.sequences import attention_paged, attention_varlen

try:
    __version__ = version("moon-diffusers")
except PackageNotFoundError:  # a checkout that is not installed
    __version__ = "0.1.0"

# public name: the module that defines it
_PUBLIC: dict[str, str] = {
    "MoonAttnProcessor": "moon_diffusers.integrations.diffusers",
    "attention": "moon_diffusers.functional",
    "attention_paged": "moon_diffusers.sequences",
    "attention_varlen": "moon_diffusers.sequences",
    "emulate": "moon_diffusers.emulation",
    "offload": "moon_diffusers.emulation",
    "reset_summary": "moon_diffusers.counters",
    "restore": "moon_diffusers.integrations.diffusers",
    "set_attn_processor": "moon_diffusers.integrations.diffusers",
    "summary": "moon_diffusers.counters",
}

__all__ = [
    "MoonAttnProcessor",
    "MoonError",
    "__version__",
    "attention",
    "attention_paged",
    "attention_varlen",
    "emulate",
    "offload",
    "reset_summary",
    "restore",
    "set_attn_processor",
    "summary",
]

# Adds pipe.set_attn_processor; costs nothing until diffusers is imported.
install_import_hook()


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        # Kept, so that only the first use pays for looking it up.
        value = globals()[name] = getattr(importlib.import_module(_PUBLIC[name]), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
