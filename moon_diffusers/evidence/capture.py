"""The q, k and v that a model's attention modules really compute, kept as safetensors.

Random inputs flatter a kernel: real keys are correlated, real scores peak. What is captured here serves as input for
accuracy tests and for the timing model. Works on any torch module whose attention ends in
`torch.nn.functional.scaled_dot_product_attention`; it knows no model by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from moon_diffusers.errors import MoonError
from moon_diffusers.evidence.files import whole_file

__all__ = ["CaptureError", "CapturedCall", "Capturing", "attention_modules", "capturing", "load", "save"]

_KEY = "moon_capture"


class CaptureError(MoonError, ValueError):
    """A capture that cannot be made, written or read."""


@dataclass
class CapturedCall:
    """One attention call.

    Attributes:
        module: the attention module's name, `transformer.blocks.3.attn1`.
        step: denoising step from 0; call: which of the step's model calls, 0 with and 1 without the prompt in most
            pipelines; part: which attention call of the module, above 0 only in modules with several.
        q, k, v: on the CPU, `(batch, length, num_heads, head_dim)`, contiguous, in the dtype the model used.
        softmax_scale: the factor on the scores. causal: whether a causal mask was asked for.
        masked: whether there was a mask; it is not kept.
        heads: the heads of the model that are kept, or None for all.
    """

    module: str
    step: int
    call: int
    part: int
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    softmax_scale: float
    causal: bool = False
    masked: bool = False
    heads: list[int] | None = None

    @property
    def name(self) -> str:
        """The name under which it is saved."""
        return f"step{self.step:03d}.call{self.call}.{self.module}" + (f".part{self.part}" if self.part else "")

    @property
    def nbytes(self) -> int:
        """Bytes of q, k and v."""
        return sum(tensor.nbytes for tensor in (self.q, self.k, self.v))


@dataclass
class Capturing:
    """What `capturing` has gathered: `calls`, and `steps_seen`, the number of denoising steps that ran."""

    calls: list[CapturedCall] = field(default_factory=list)
    steps_seen: int = 0


def attention_modules(models: Mapping[str, torch.nn.Module]) -> list[str]:
    """Return the names of the modules that have an attention processor, each under its model's name."""
    return [
        f"{prefix}.{name}"
        for prefix, model in models.items()
        for name, module in model.named_modules()
        if hasattr(module, "processor")
    ]


@contextmanager
def capturing(
    models: Mapping[str, torch.nn.Module],
    steps: Collection[int],
    modules: str = "",
    calls: Collection[int] = (0,),
    heads: Collection[int] | None = None,
) -> Iterator[Capturing]:
    """Keep q, k and v of attention calls that run within the block.

    Args:
        models: the denoising networks by component name. A model call with another timestep begins another step.
        steps: the steps to keep, from 0.
        modules: a regular expression; modules whose name it is found in are kept, all when it is empty.
        calls: which of a step's model calls to keep.
        heads: which heads to keep, all when None.

    Raises:
        CaptureError: a value is off, or no module matches.
    """
    try:
        pattern = re.compile(modules)
    except re.error as error:
        raise CaptureError(f"modules is {modules!r}: no regular expression: {error}") from error
    if not steps or min(steps) < 0:
        raise CaptureError(f"steps is {sorted(steps)}; expected at least one step, from 0")
    names = attention_modules(models)
    chosen = {name for name in names if pattern.search(name)}
    if not chosen:
        raise CaptureError(f"modules is {modules!r}: matches none of {len(names)} attention modules")
    tap = _Tap(frozenset(steps), frozenset(calls), chosen, None if heads is None else sorted(heads))
    with ExitStack() as stack:
        for prefix, model in models.items():
            stack.callback(model.register_forward_pre_hook(tap.model_starts, with_kwargs=True).remove)
            for name, module in model.named_modules():
                if hasattr(module, "processor"):
                    stack.callback(module.register_forward_pre_hook(tap.entering(f"{prefix}.{name}")).remove)
                    stack.callback(module.register_forward_hook(tap.leaving).remove)
        stack.enter_context(tap)
        yield tap.result


class _Tap(TorchFunctionMode):
    """Looks at every scaled_dot_product_attention call and changes none."""

    def __init__(
        self, steps: frozenset[int], calls: frozenset[int], modules: set[str], heads: list[int] | None
    ) -> None:
        super().__init__()
        self.steps, self.call_numbers, self.modules, self.heads = steps, calls, modules, heads
        self.result = Capturing()
        self.step, self.call, self.part = -1, 0, 0
        self.timestep: Any = None
        self.module = ""

    def model_starts(self, _model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A model call begins: the same step as before, or the next?"""
        timestep = kwargs.get("timestep", args[1] if len(args) > 1 else None)
        value = timestep.detach().flatten().tolist() if isinstance(timestep, torch.Tensor) else timestep
        if value is not None and value == self.timestep:
            self.call += 1
        else:
            self.step, self.call, self.timestep = self.step + 1, 0, value
        self.result.steps_seen = self.step + 1

    def entering(self, name: str) -> Any:
        """Return the hook that says that module `name` is running."""

        def hook(*_: Any) -> None:
            self.module, self.part = name, 0

        return hook

    def leaving(self, *_: Any) -> None:
        """An attention module is done: what runs now belongs to none."""
        self.module = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is scaled_dot_product_attention and self.module in self.modules:
            if self.step in self.steps and self.call in self.call_numbers:
                self._keep(*args, **kwargs)
            self.part += 1
        return func(*args, **kwargs)

    def _keep(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        def kept(tensor: torch.Tensor) -> torch.Tensor:
            if self.heads is not None:
                if self.heads and not 0 <= self.heads[0] <= self.heads[-1] < tensor.shape[1]:
                    raise CaptureError(f"heads is {self.heads}; {self.module} has heads 0 to {tensor.shape[1] - 1}")
                tensor = tensor[:, self.heads]
            return tensor.detach().transpose(1, 2).to("cpu", copy=True).contiguous()

        self.result.calls.append(
            CapturedCall(
                module=self.module,
                step=self.step,
                call=self.call,
                part=self.part,
                q=kept(query),
                k=kept(key),
                v=kept(value),
                softmax_scale=float(query.shape[-1] ** -0.5 if scale is None else scale),
                causal=is_causal,
                masked=attn_mask is not None,
                heads=self.heads,
            )
        )


def save(path: Path, calls: list[CapturedCall], about: dict[str, Any]) -> None:
    """Write `calls` to a safetensors file, whole or not at all.

    Tensors are named `NAME.q`, `NAME.k`, `NAME.v`; the rest, and `about`, is JSON in the file's metadata.

    Raises:
        CaptureError: there are none, or the file cannot be written.
    """
    if not calls:
        raise CaptureError("nothing was captured: no chosen module ran at a chosen step")
    rows = [
        {key: value for key, value in vars(call).items() if key not in ("q", "k", "v")} | {"name": call.name}
        for call in calls
    ]
    tensors = {f"{call.name}.{part}": getattr(call, part) for call in calls for part in ("q", "k", "v")}
    metadata = {_KEY: json.dumps({"layout": "bshd", "about": about, "calls": rows})}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as temporary:
            save_file(tensors, temporary, metadata)
    except (OSError, SafetensorError) as error:
        raise CaptureError(f"output is {str(path)!r}: cannot be written: {error}") from error


def load(path: Path) -> list[CapturedCall]:
    """Read what `save` wrote.

    Raises:
        CaptureError: it is no such file.
    """
    try:
        with safe_open(path, framework="pt") as file:
            content = json.loads((file.metadata() or {})[_KEY])
            calls = [
                CapturedCall(
                    **{key: value for key, value in row.items() if key != "name"},
                    **{part: file.get_tensor(f"{row['name']}.{part}") for part in ("q", "k", "v")},
                )
                for row in content["calls"]
            ]
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise CaptureError(f"capture is {str(path)!r}: cannot be read: {error}") from error
    for call in calls:
        shapes = [tuple(tensor.shape) for tensor in (call.q, call.k, call.v)]
        if any(len(shape) != 4 or 0 in shape for shape in shapes) or shapes[1] != shapes[2]:
            raise CaptureError(f"capture is {str(path)!r}: {call.module} has q, k and v of shapes {shapes}")
    return calls
