"""What torch wants of a call beside the numbers: gradients, or the sight of its operator.

A plain eager call wants neither, and goes past torch's dispatcher, which would cost the host 5 us and do nothing.
Everything that lives in the dispatcher (modes, functorch, tracing, the profiler, subclasses) still sees the operators: where
any of it is active, and where this torch lacks a way to ask, a call is not plain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


def _question(name: str) -> Callable[[], Any]:
    """A function of `torch._C` by its dotted name; one that answers "something is active" where there is none."""
    found: Any = torch._C
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if callable(found) else lambda: True


# Before torch 2.7 an exported program is the compiled one: what needed gradients then goes to torch forever.
_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", lambda: False)
_dispatch_modes = _question("_len_torch_dispatch_stack")
_function_modes = _question("_len_torch_function_stack")
_functorch = _question("_functorch.peek_interpreter_stack")
_tracing = _question("_get_tracing_state")
_profiling = _question("_autograd._profiler_enabled")
#: The kernels' devices and the emulator's; others may do more in the dispatcher than torch's own do.
_DEVICES = ("cuda", "cpu")


def wants_gradients(*tensors: Tensor | None) -> bool:
    """Whether a result of these must be differentiable, in reverse mode or (outside compiled code) in forward mode.

    Not while a program is exported or traced: whether it will be asked for gradients shows where it runs.
    """
    if requires_grad(*tensors):
        return not _exporting() and (torch.compiler.is_compiling() or _tracing() is None)
    if torch.compiler.is_compiling() or _forward_level() < 0:
        return False
    return carries_tangents(*tensors)


def carries_tangents(*tensors: Tensor | None) -> bool:
    """Whether forward-mode differentiation goes through any of these. Dynamo cannot trace the question."""
    # Torch has this one level; compiled code enters it without `forward_ad`, which then says that there is none.
    unpack: Any = forward_ad.unpack_dual
    return any(tensor is not None and unpack(tensor, level=0).tangent is not None for tensor in tensors)


def requires_grad(*tensors: Tensor | None) -> bool:
    """Whether reverse-mode differentiation goes through any of these."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def below_autograd(operator: Any, arguments: tuple[Any, ...]) -> Any:
    """What an operator's Autograd kernel ends in: the operator itself, without a graph of gradients."""
    with torch._C._AutoDispatchBelowAutograd():
        return operator(*arguments)


def in_transform() -> bool:
    """Whether one of `torch.func`'s transforms is at work, which cannot use the backward pass of an operator."""
    return _functorch() is not None


def is_traced() -> bool:
    """Whether an operator that is called now is only being traced: counts then belong to nobody."""
    return bool(_dispatch_modes())


def _forward_level() -> int:
    """The innermost level of forward-mode differentiation, -1 outside; 0 where torch does not say."""
    return getattr(forward_ad, "_current_level", 0)


#: Tensors of several tensors, by their classes' names: torch's own attention knows what to do with them, operators do not.
_COMPOUND = ("DTensor", "NestedTensor")


def compound(*tensors: Tensor) -> str:
    """The class of the first tensor that is made of several, which only torch's own operators take; empty for none."""
    for tensor in tensors:
        if type(tensor).__name__ in _COMPOUND:
            return type(tensor).__name__
    return ""


def is_plain(q: Tensor, k: Tensor, v: Tensor, seqlens_k: Tensor | None, attn_mask: Tensor | None) -> bool:
    """Whether an operator on these tensors may be called past the dispatcher. Not to be asked while compiling."""
    return (
        type(q) is type(k) is type(v) is Tensor
        and (seqlens_k is None or type(seqlens_k) is Tensor)
        and (attn_mask is None or type(attn_mask) is Tensor)
        and q.device.type in _DEVICES
        and not _dispatch_modes()
        and not _function_modes()
        and _functorch() is None
        and _tracing() is None
        and not _profiling()
    )
