"""The errors that this package raises: each one line naming the argument, its value and what is accepted."""

from __future__ import annotations

__all__ = ["MoonError"]


class MoonError(Exception):
    """Base of every error raised by moon_diffusers."""
