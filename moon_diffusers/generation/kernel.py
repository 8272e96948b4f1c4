"""The kernel side of a paired run, through the package's public names alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import moon_diffusers
from moon_diffusers.generation.settings import Settings

__all__ = ["Routing", "kernel_attention"]


@dataclass
class Routing:
    """Who served the attention calls of one run.

    Attributes:
        served: calls per kernel; fallbacks: calls per reason.
        line: the package's own one-line summary.
    """

    served: dict[str, int] = field(default_factory=dict)
    fallbacks: dict[str, int] = field(default_factory=dict)
    line: str = ""

    @property
    def calls(self) -> int:
        """All attention calls of the denoiser."""
        return self.num_served + sum(self.fallbacks.values())

    @property
    def num_served(self) -> int:
        """Calls that ran on a kernel."""
        return sum(self.served.values())

    @property
    def expected(self) -> int:
        """The calls without those that are left to torch because its own kernel is faster there."""
        from moon_diffusers.routing import SLOWER

        return self.calls - self.fallbacks.get(SLOWER, 0)

    @property
    def share(self) -> float:
        """Served calls / expected calls; 0 when there was none."""
        return self.num_served / self.expected if self.expected else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return {
            "calls": self.calls,
            "served": self.served,
            "fallbacks": self.fallbacks,
            "share": self.share,
            "line": self.line,
        }


@contextmanager
def kernel_attention(pipe: Any, settings: Settings) -> Iterator[Routing]:
    """Put the kernel into the pipeline for the time of the block; the yielded `Routing` is filled in when it ends."""
    from moon_diffusers import counters

    routing = Routing()
    with ExitStack() as stack:
        if settings.emulate:
            stack.enter_context(moon_diffusers.emulate(settings.emulate))
        stack.enter_context(_forced())
        pipe.set_attn_processor(moon_diffusers.MoonAttnProcessor(rounding=settings.rounding))
        stack.callback(moon_diffusers.restore, pipe)
        counters.reset_summary()
        yield routing
        counts = counters.snapshot()
        routing.served, routing.fallbacks, routing.line = dict(counts.served), dict(counts.fallbacks), counts.line()


@contextmanager
def _forced() -> Iterator[None]:
    """What is compared is the kernel: also in calls that are usually left to torch, which is faster there."""
    before = os.environ.get("MOON_FORCE")
    if before is None:
        os.environ["MOON_FORCE"] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("MOON_FORCE", None)
