"""Where these tests run: on a supported GPU, or in part on the emulator, which proves that the tests themselves are right.

`MOON_GPU_TESTS_DEVICE` chooses: `cuda` (torch's name for a GPU of either vendor; nothing is skipped then for want of one),
`cpu` or `cpu:gfx950` (emulated). By default a supported GPU where there is one, else the emulator. Tests marked `gpu`
need the GPU and are skipped elsewhere. `MOON_GPU_TESTS_FAULT` makes the product wrong, see `faults.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

import moon_diffusers
from moon_diffusers.errors import LibraryError

from .faults import chosen_fault
from .machine import MACHINE, NO_GPU


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if MACHINE.gpu:
        return
    for item in items:
        # Not by keyword: the folder's name is one too.
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(pytest.mark.skip(reason=NO_GPU))


@pytest.fixture(autouse=True)
def placed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CPU tensors go to the emulator; a GPU's go where they go. Whatever torch allocates holds NaN until written.

    So every cell that a kernel forgets, in outputs and workspaces alike, is seen.
    """
    for name in ("MOON_EMULATE", "MOON_OFFLOAD", "MOON_STRICT"):
        monkeypatch.delenv(name, raising=False)
    # Where torch is faster the kernel must be right all the same.
    monkeypatch.setenv("MOON_FORCE", "1")
    torch.manual_seed(0)
    if not MACHINE.gpu:
        torch.set_num_threads(1)
    moon_diffusers.reset_summary()
    before = torch.are_deterministic_algorithms_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            with MACHINE.placed(), chosen_fault():
                yield
        except LibraryError as error:
            pytest.skip(str(error))
        finally:
            torch.use_deterministic_algorithms(before)
            moon_diffusers.reset_summary()


@pytest.fixture(autouse=True, scope="module")
def tidy() -> Iterator[None]:
    """Give the GPU's memory back between files."""
    yield
    if MACHINE.gpu:
        torch.cuda.empty_cache()
