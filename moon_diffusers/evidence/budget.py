"""A time that must not be passed: what has been measured by then is what there is."""

from __future__ import annotations

import time


class Budget:
    """Seconds from now on, by a clock that nobody sets; None is no limit."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._start = time.monotonic()

    @property
    def spent(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._start

    @property
    def left(self) -> float:
        """Seconds that remain, never below 0."""
        return float("inf") if self.seconds is None else max(0.0, self.seconds - self.spent)
