"""What `trace`, `profile` and `emulator-speed` share: one attention call in the emulator, on random inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from moon_diffusers.errors import ArgumentError, HipError
from moon_diffusers.problem import ROUNDINGS

if TYPE_CHECKING:
    from moon_diffusers.emulator import Listing, Report

ARCHS = ("gfx942", "gfx950")


@dataclass(frozen=True)
class Run:
    """An attention call that was emulated.

    Attributes:
        reports: one a launch, in order.
        main: which of them is the forward kernel's.
        image: its code object.
    """

    label: str
    reports: list[Report]
    main: int
    image: bytes

    @property
    def report(self) -> Report:
        """The forward kernel's launch."""
        return self.reports[self.main]

    def listing(self) -> Listing:
        """The forward kernel's code."""
        from moon_diffusers.emulator import disassemble

        return next(item for item in disassemble(self.image) if item.kernel == self.report.kernel)


def shape_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say which call to emulate."""
    for option in reversed(
        [
            click.argument("kernel", default="auto"),
            click.option("--arch", type=click.Choice(ARCHS), default="gfx942", show_default=True),
            click.option("--rounding", type=click.Choice(ROUNDINGS), default="rtne", show_default=True),
            click.option("--causal", is_flag=True),
            click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True),
            click.option("--num-heads", type=click.IntRange(min=1), default=1, show_default=True),
            click.option("--num-heads-kv", type=click.IntRange(min=1), help="Default: as many as --num-heads."),
            click.option("--seqlen-q", type=click.IntRange(min=1), default=256, show_default=True),
            click.option("--seqlen-k", type=click.IntRange(min=1), default=1024, show_default=True),
        ]
    ):
        command = option(command)
    return command


def emulate(
    options: dict[str, str],
    *,
    kernel: str,
    arch: str,
    rounding: str,
    causal: bool,
    batch: int,
    num_heads: int,
    num_heads_kv: int | None,
    seqlen_q: int,
    seqlen_k: int,
) -> Run:
    """Emulate one call under the emulator's `options`, which are taken back afterwards.

    Args:
        kernel: ``auto`` for the package's own choice, a family of its kernels, or ``aiter`` for AITER's kernel.

    Raises:
        ArgumentError: no such kernel, or it does not serve the call.
        HipError: the launch failed.
    """
    from moon_diffusers.emulator import emulator_library, emulator_options
    from moon_diffusers.evidence import aiter

    heads_kv = num_heads_kv or num_heads
    if num_heads % heads_kv:
        raise ArgumentError("num_heads_kv", heads_kv, f"a divisor of num_heads, {num_heads}")
    shape = aiter.Shape(batch, seqlen_q, seqlen_k, num_heads, heads_kv)
    with emulator_options(emulator_library(), **options):
        if kernel == "aiter":
            return _aiter(shape, aiter.Kernel(arch, rounding if arch == "gfx942" else "rtne", causal))  # type: ignore[arg-type]
        return _own(shape, kernel, arch, rounding, causal)


def _own(shape: Any, family: str, arch: str, rounding: str, causal: bool) -> Run:
    """The project's kernel, by the package's route and plan."""
    from moon_diffusers.emulator import Report
    from moon_diffusers.evidence import calls, reference
    from moon_diffusers.runtime.device import open_emulated

    device = open_emulated(arch)
    families = sorted({k.family for k in device.kernels if k.role == "forward"})
    if family not in ("auto", *families):
        raise ArgumentError("kernel", repr(family), f"auto, aiter or a family built for {arch}: {', '.join(families)}")
    q, k, v = reference.inputs(shape.batch, shape.seqlen_q, shape.seqlen_k, shape.num_heads, shape.num_heads_kv)
    call = calls.Call(q, k, v, rounding=rounding, causal=causal, family="" if family == "auto" else family)
    result = calls.run(device, call)
    reports = [Report.parse(item) for item in result.reports]
    forward = result.route.forward
    main = next(i for i, r in enumerate(reports) if r.kernel == forward.name)
    return Run(forward.name, reports, main, device.manifest.read(device.manifest.code_object_of(forward)))


def _aiter(shape: Any, kernel: Any) -> Run:
    """AITER's kernel on the same inputs."""
    from moon_diffusers.emulator import Report
    from moon_diffusers.evidence import subjects
    from moon_diffusers.evidence.code_object import CodeObject
    from moon_diffusers.evidence.device import loaded, open_emulator, uploaded

    subject = subjects.aiter_subject(kernel, shape)
    device = open_emulator(kernel.arch)
    call = subject.calls[0]
    # Its causal kernels store whole tiles of LSE.
    arrays = {**subject.arrays, "lse": subject.arrays["lse"].repeat(2, axis=-1)}
    with uploaded(device, arrays) as addresses, loaded(device, subject.image) as module:
        function = device.function(module, call.name)
        device.launch(function, call.grid, call.block, call.arguments(addresses))
        report = Report.parse(device.report())
    assert CodeObject(subject.image).kernels[0].name == report.kernel
    return Run(str(kernel), [report], 0, subject.image)


def failed(error: HipError) -> click.ClickException:
    """A launch error as one line."""
    return click.ClickException(str(error))
