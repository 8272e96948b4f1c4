"""How many attention calls ran on the kernel, how many fell back, and why.

Counts are kept per *scope* (a label, e.g. one pipeline) so that two users in one process can be told apart.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from .errors import StrictError

_strict: ContextVar[bool | None] = ContextVar("moon_diffusers_strict", default=None)


@dataclass
class Counts:
    """What happened to the calls of one scope, or of all of them together.

    Attributes:
        served: calls per kernel label, e.g. `{"gfx942 rtne, emulated": 12}`.
        kernels: the same calls per forward kernel, by its name in the code object.
        fallbacks: calls per reason.
        details: the first call's particulars per reason (shape, estimate), for people.
    """

    served: dict[str, int] = field(default_factory=dict)
    fallbacks: dict[str, int] = field(default_factory=dict)
    details: dict[str, str] = field(default_factory=dict)
    kernels: dict[str, int] = field(default_factory=dict)

    @property
    def num_served(self) -> int:
        """Calls that ran on a kernel."""
        return sum(self.served.values())

    @property
    def num_fallbacks(self) -> int:
        """Calls that torch SDPA computed instead."""
        return sum(self.fallbacks.values())

    def line(self) -> str:
        """One line for people."""
        total = self.num_served + self.num_fallbacks
        if total == 0:
            return "moon_diffusers: no attention calls"
        text = f"moon_diffusers: {self.num_served} of {total} attention calls ran on the kernel"
        if self.served:
            text += " (" + ", ".join(f"{count} {label}" for label, count in sorted(self.served.items())) + ")"
        if self.fallbacks:
            parts = []
            for reason, count in sorted(self.fallbacks.items(), key=lambda item: (-item[1], item[0])):
                detail = self.details.get(reason)
                parts.append(f"{count} {reason}" + (f" [{detail}]" if detail else ""))
            text += f"; {self.num_fallbacks} fell back to torch SDPA: " + ", ".join(parts)
        return text


_lock = threading.Lock()
_by_scope: dict[str, Counts] = {}


def _counts(scope: str) -> Counts:
    counts = _by_scope.get(scope)
    if counts is None:
        counts = _by_scope[scope] = Counts()
    return counts


def record_served(label: str, scope: str = "", kernel: str = "") -> None:
    """Count one call that ran under the label `label` on the kernel named `kernel`."""
    with _lock:
        counts = _counts(scope)
        counts.served[label] = counts.served.get(label, 0) + 1
        if kernel:
            counts.kernels[kernel] = counts.kernels.get(kernel, 0) + 1


def record_fallback(reason: str, detail: str = "", scope: str = "") -> None:
    """Count one call that fell back; `detail` of the first call per reason is kept."""
    with _lock:
        counts = _counts(scope)
        counts.fallbacks[reason] = counts.fallbacks.get(reason, 0) + 1
        if detail:
            counts.details.setdefault(reason, detail)


def snapshot(scope: str | None = None) -> Counts:
    """A copy of the counts of one scope, or of all scopes added up when `scope` is None."""
    total = Counts()
    with _lock:
        chosen = list(_by_scope.values()) if scope is None else [_by_scope[scope]] if scope in _by_scope else []
        for counts in chosen:
            for label, count in counts.served.items():
                total.served[label] = total.served.get(label, 0) + count
            for kernel, count in counts.kernels.items():
                total.kernels[kernel] = total.kernels.get(kernel, 0) + count
            for reason, count in counts.fallbacks.items():
                total.fallbacks[reason] = total.fallbacks.get(reason, 0) + count
            for reason, detail in counts.details.items():
                total.details.setdefault(reason, detail)
    return total


def summary(scope: str | None = None) -> str:
    """One line: how many attention calls ran on the kernel and why the others did not.

    Args:
        scope: only the calls made under this label; None for all.
    """
    return snapshot(scope).line()


def reset_summary(scope: str | None = None) -> None:
    """Forget the counts of one scope, or all of them when `scope` is None."""
    with _lock:
        if scope is None:
            _by_scope.clear()
        else:
            _by_scope.pop(scope, None)


@contextmanager
def strict(enabled: bool = True) -> Iterator[None]:
    """Within the block a call that would fall back raises `StrictError` (a `MoonError`) instead."""
    token = _strict.set(enabled)
    try:
        yield
    finally:
        _strict.reset(token)


def is_strict(argument: bool | None = None) -> bool:
    """Whether a fallback must raise: the argument, else the enclosing `strict()`, else `MOON_STRICT`."""
    if argument is not None:
        return argument
    enclosing = _strict.get()
    if enclosing is not None:
        return enclosing
    return flag("MOON_STRICT")


def refuse_or_count(reason: str, detail: str = "", *, strict: bool | None = None, scope: str = "") -> None:
    """Raise `StrictError` when strict, else count the fallback."""
    if is_strict(strict):
        raise StrictError(reason, detail)
    record_fallback(reason, detail, scope)


def flag(name: str) -> bool:
    """Whether the environment variable `name` switches something on (`0`, `no`, `off`, empty and unset do not)."""
    return os.environ.get(name, "").strip().lower() not in ("", "0", "no", "off", "false")


def _at_exit() -> None:
    if sys.stderr is None:
        # Closed by whoever started the process; print would take None for standard output.
        return
    wanted = os.environ.get("MOON_SUMMARY")
    # A process in which everything ran as asked stays silent; MOON_SUMMARY=0 silences it for good.
    if flag("MOON_SUMMARY") or (wanted is None and snapshot().num_fallbacks):
        print(summary(), file=sys.stderr)


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _by_scope.clear()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
