"""Progress on the terminal, and quiet libraries."""

from __future__ import annotations

import os
import warnings
from typing import Any

import click

__all__ = ["Bar", "quiet_libraries"]


class Bar:
    """One progress bar over all the denoising steps of all runs."""

    def __init__(self, total_steps: int) -> None:
        from tqdm import tqdm

        # disable=None: no bar where the output is not a terminal.
        self._bar: Any = tqdm(total=total_steps, unit="step", dynamic_ncols=True, leave=False, disable=None)

    def run(self, label: str) -> None:
        """A run of the pipeline starts."""
        if self._bar.disable:
            click.echo(f"running: {label}", err=True)
        self._bar.set_description(label)

    def step(self) -> None:
        """A denoising step is done."""
        self._bar.update()

    def close(self) -> None:
        """Take the bar off the terminal."""
        self._bar.close()


def quiet_libraries() -> None:
    """Keep loading bars and deprecation notes of the libraries off the terminal; their errors still show."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    warnings.simplefilter("ignore", FutureWarning)
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    for library in (diffusers_logging, transformers_logging):
        library.set_verbosity_error()
        library.disable_progress_bar()


def leave_cores_to_the_emulator() -> None:
    """Give torch half of the cores, unless OMP_NUM_THREADS says otherwise.

    Torch's threads spin while they wait for work. The emulator has threads of its own, which would wait for those.
    """
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, torch.get_num_threads() // 2))
