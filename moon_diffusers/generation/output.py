"""Output folders that are there whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moon_diffusers.generation.settings import GenerateError

__all__ = ["check_output", "whole_folder", "write_text"]

# A folder without any of these was not written by us, and --force must not delete it.
_OURS = ("report.json", "index.html", "index.json")


def check_output(output: Path, force: bool) -> None:
    """Check that `output` may be written, before any heavy work.

    Raises:
        GenerateError: it exists and `force` is not given, it is not ours to replace, or its parent is not writable.
    """
    if output.exists() or output.is_symlink():
        if not output.is_dir() or output.is_symlink():
            raise GenerateError(f"output is {str(output)!r}: exists and is no folder")
        if any(output.iterdir()):
            if not force:
                raise GenerateError(f"output is {str(output)!r}: exists already; give --force to replace it")
            if not any((output / name).is_file() for name in _OURS):
                raise GenerateError(f"output is {str(output)!r}: holds other files; --force replaces former runs only")
    parent = output.absolute().parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise GenerateError(f"output is {str(output)!r}: {str(parent)!r} is not a folder that can be written to")


@contextmanager
def whole_folder(output: Path) -> Iterator[Path]:
    """Give a temporary sibling to write to; it becomes `output` when the block ends well, and vanishes otherwise.

    Raises:
        GenerateError: the folders cannot be made or renamed.
    """
    output = output.absolute()
    temporary = output.with_name(f".{output.name}.partial-{os.getpid()}")
    former = output.with_name(f".{output.name}.former-{os.getpid()}")
    try:
        temporary.mkdir(parents=True)
    except OSError as error:
        raise GenerateError(f"output is {str(output)!r}: cannot be written: {error.strerror}") from error
    try:
        yield temporary
        try:
            if output.exists():
                os.replace(output, former)
            try:
                os.replace(temporary, output)
            except OSError:
                if former.exists():
                    os.replace(former, output)
                raise
        except OSError as error:
            raise GenerateError(f"output is {str(output)!r}: cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(former, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file by way of a temporary name.

    Raises:
        GenerateError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise GenerateError(f"output is {str(path)!r}: cannot be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
