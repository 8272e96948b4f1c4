"""How far a stage is: by steps or by the clock, whichever ends first, over one or several leases of a machine."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass
class Schedule:
    """Progress from ``begin`` to ``end`` (shares of the whole training) within this call's ``steps`` and ``minutes``.

    The learning rate warms up over ``warmup`` steps of every call, is constant, and falls linearly to zero between the
    progress ``decay_from`` and 1. A stage trained in two calls is, say, 0 to 0.3 in the first, 0.3 to 1 in the second.
    """

    rate: float
    steps: int
    minutes: float
    begin: float = 0.0
    end: float = 1.0
    warmup: int = 200
    decay_from: float = 0.5
    started: float = field(default_factory=time.monotonic)

    def share(self, step: int) -> float:
        """Done share of this call, 0 to 1."""
        return min(max(step / self.steps, (time.monotonic() - self.started) / (60 * self.minutes)), 1.0)

    def done(self, step: int) -> bool:
        """Whether this call should stop before ``step``."""
        return self.share(step) >= 1.0

    def learning_rate(self, step: int) -> float:
        """The learning rate of ``step``, counted from this call's first."""
        progress = self.begin + (self.end - self.begin) * self.share(step)
        decay = 1.0 if progress <= self.decay_from else (1.0 - progress) / (1.0 - self.decay_from)
        return self.rate * min(1.0, (step + 1) / self.warmup) * max(decay, 0.0)
