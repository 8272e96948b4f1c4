"""Files that are whole or not there: write to a temporary name beside, then rename."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moon_diffusers.errors import ArgumentError

__all__ = ["check_file", "check_folder", "whole_file"]


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """The name to write to inside the ``with`` block; it becomes `path` if the block ends well, and is gone if not.

    Raises:
        ArgumentError: `path` is there and is no file.
        OSError: it cannot be written.
    """
    _check_kind(path, "output")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def check_file(path: Path, argument: str = "output") -> None:
    """Check that `path` can be written to, before what takes its time.

    Raises:
        ArgumentError: it cannot.
    """
    _check_kind(path, argument)
    _check_parent(path, path.absolute().parent, argument)


def check_folder(path: Path, argument: str = "output") -> None:
    """Check that the folder `path` can be made, with its parents, or is there and can be written to.

    Raises:
        ArgumentError: it cannot.
    """
    there = path.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    _check_parent(path, there, argument)


def _check_kind(path: Path, argument: str) -> None:
    # Renaming onto a device, /dev/null say, would put a file in its place for everybody.
    if path.exists() and not path.is_file():
        raise ArgumentError(argument, repr(str(path)), "a file, or a name that is free")


def _check_parent(path: Path, folder: Path, argument: str) -> None:
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise ArgumentError(argument, repr(str(path)), f"a place that can be written to; {str(folder)!r} is none")
