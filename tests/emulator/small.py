"""Small kernels in assembly: built, launched on given arrays, observed."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moon_diffusers.errors import HipError
from moon_diffusers.evidence.device import RawDevice, loaded, uploaded

from .isa import fp, harness


@dataclass
class Ran:
    """What a launch left: the arrays after it, the report, and the error where it was refused or stopped."""

    arrays: list[np.ndarray]
    report: dict
    error: HipError | None

    def kinds(self, severity: str = "error") -> list[str]:
        return sorted({f["kind"] for f in self.report.get("findings", []) if f["severity"] == severity})


def image(body: str, arch: str, *, name: str = "small", block: int = 64, lds: int = 65536, kernarg: int = 24) -> bytes:
    """A code object with one kernel; ``body`` has the kernel arguments at s[0:1] and the workgroup in s2."""
    text = harness.kernel_text(name, body.strip().split("\n"), fp.MODES["clang"], lds, kernarg)
    return harness.assemble(text + harness.metadata([name], arch, lds, block, kernarg), arch)


def run(
    device: RawDevice,
    body: str,
    arch: str,
    arrays: Sequence[np.ndarray],
    *,
    grid: tuple[int, int, int] = (1, 1, 1),
    block: int = 64,
    lds: int = 65536,
) -> Ran:
    """Launch ``body`` with the arrays' addresses as its arguments."""
    code = image(body, arch, block=block, lds=lds, kernarg=8 * len(arrays))
    error = None
    with uploaded(device, {str(i): x for i, x in enumerate(arrays)}) as named:
        addresses = list(named.values())
        with loaded(device, code) as module:
            function = device.function(module, "small")
            try:
                device.launch(function, grid, (block, 1, 1), struct.pack(f"<{len(addresses)}Q", *addresses))
            except HipError as refused:
                error = refused
            report = device.report()
        after = [device.download(a, x) for a, x in zip(addresses, arrays, strict=True)]
    return Ran(after, report, error)
