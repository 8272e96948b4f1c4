"""A time that must not be passed: what has been measured by then is what there is."""

from __future__ import annotations

import time

from moon_diffusers.errors import ArgumentError


class Budget:
    """Seconds from now on, by a clock that nobody sets; None is no limit.

    Raises:
        ArgumentError: a number below 0, or NaN, which no time would ever pass.
    """

    def __init__(self, seconds: float | None) -> None:
        if seconds is not None and not seconds >= 0:
            raise ArgumentError("budget_seconds", seconds, "seconds from 0 on, or none for no limit")
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
