"""Every error that the package raises: one base, a few kinds, one line of text each."""

from __future__ import annotations


class MoonError(Exception):
    """Base of all errors raised by moon_diffusers."""

    @property
    def out_of_memory(self) -> bool:
        """Whether a device had no memory left, which may be otherwise the next time."""
        return False


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
    """No usable HIP, CUDA or emulator library."""


class CodeObjectError(MoonError, RuntimeError):
    """The manifest or a code object is missing, damaged or inconsistent."""


#: hipErrorOutOfMemory and CUDA_ERROR_OUT_OF_MEMORY.
OUT_OF_MEMORY = 2


class DriverError(MoonError, RuntimeError):
    """A call of the library that drives a device failed.

    Attributes:
        function: the library's function.
        code: its answer.
        error_name: the name of that code, e.g. `hipErrorInvalidValue` or `CUDA_ERROR_INVALID_VALUE`.
    """

    def __init__(self, function: str, code: int, error_name: str, description: str, message: str = "") -> None:
        text = f"{function}: {error_name} ({code}), {description}"
        super().__init__(f"{text}: {message}" if message else text)
        self.function = function
        self.code = code
        self.error_name = error_name

    @property
    def out_of_memory(self) -> bool:
        """Whether the device answered so."""
        return self.code == OUT_OF_MEMORY


class HipError(DriverError):
    """A HIP call failed; `code` is its `hipError_t`."""


class CudaError(DriverError):
    """A call of the CUDA driver failed; `code` is its `CUresult`."""
