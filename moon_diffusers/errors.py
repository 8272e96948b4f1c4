"""Every error that the package raises: one base, a few kinds, one line of text each."""

from __future__ import annotations


class MoonError(Exception):
    """Base of all errors raised by moon_diffusers."""


class ArgumentError(MoonError, ValueError):
    """An argument cannot be used; the text names it, its value and what is accepted."""

    def __init__(self, argument: str, value: object, accepted: str) -> None:
        super().__init__(f"{argument}: {value} is not accepted; accepted: {accepted}")
        self.argument = argument


class StrictError(MoonError, RuntimeError):
    """A call would fall back to torch SDPA although `strict` asks for the kernel."""

    def __init__(self, reason: str, detail: str = "") -> None:
        text = f"strict: the kernel cannot serve this attention call: {reason}"
        super().__init__(f"{text} ({detail})" if detail else text)
        self.reason = reason


class PlanError(MoonError, RuntimeError):
    """A kernel of the manifest wants something that the planner does not provide."""


class LibraryError(MoonError, RuntimeError):
    """No usable HIP library or emulator library."""


class CodeObjectError(MoonError, RuntimeError):
    """The manifest or a code object is missing, damaged or inconsistent."""


class HipError(MoonError, RuntimeError):
    """A HIP call failed.

    Attributes:
        function: the HIP function.
        code: its `hipError_t`.
        error_name: the name of that code, e.g. `hipErrorInvalidValue`.
    """

    def __init__(self, function: str, code: int, error_name: str, description: str, message: str = "") -> None:
        text = f"{function}: {error_name} ({code}), {description}"
        super().__init__(f"{text}: {message}" if message else text)
        self.function = function
        self.code = code
        self.error_name = error_name
