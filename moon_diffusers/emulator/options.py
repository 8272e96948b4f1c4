"""The emulator's process-wide options."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from moon_diffusers.runtime import code_objects, library
from moon_diffusers.runtime.hip import Hip

#: Every option with the value that a fresh process has when the environment sets none.
DEFAULTS: dict[str, str] = {
    "mma": "fast",
    "checks": "off",
    "counts": "off",
    "order": "forward",
    "threads": "0",
    "budget": "20000000000",
    "trace": "",
    "trace_workgroup": "0",
    "cu_count": "0",
}


def emulator_library() -> Hip:
    """The emulator that was built for this CPU.

    Raises:
        LibraryError: it was not built.
        CodeObjectError: nothing was built.
    """
    manifest = code_objects.load_manifest()
    return library.find_emulator(manifest)


@contextmanager
def emulator_options(hip: Hip, **options: str) -> Iterator[None]:
    """Set options for the time of a ``with`` block; afterwards they have their defaults.

    Raises:
        LibraryError: `hip` is not the emulator.
        HipError: unknown option or value.
    """
    try:
        for key, value in options.items():
            hip.set_option(key, value)
        yield
    finally:
        for key in options:
            if key in DEFAULTS:
                hip.set_option(key, DEFAULTS[key])
