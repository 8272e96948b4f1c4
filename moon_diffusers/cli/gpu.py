"""The GPU that a command is told to use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    import torch


def chosen_gpu(index: int, otherwise: str) -> torch.device:
    """The GPU of that index; `otherwise` says what can be done without one.

    Raises:
        UsageError: torch sees no such GPU.
    """
    import torch

    if not torch.cuda.is_available():
        raise click.UsageError(f"no GPU that torch can use; {otherwise}")
    if index >= torch.cuda.device_count():
        raise click.UsageError(f"--device: {index}; torch sees {torch.cuda.device_count()} GPUs, from 0 on")
    return torch.device("cuda", index)
