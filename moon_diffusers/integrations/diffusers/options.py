"""What a user chose for one pipeline: plain data that travels with every attention call of its models."""

from __future__ import annotations

from dataclasses import dataclass, fields

from moon_diffusers.errors import ArgumentError
from moon_diffusers.problem import HEAD_DIM, RESCALES, ROUNDINGS, check_choice

#: Padding a head dim multiplies the work by 128 / head_dim: 1.33 at 96, 2 at 64, which has to earn its place first.
MIN_HEAD_DIM = 96


@dataclass(frozen=True)
class Options:
    """How the attention calls of a model are computed.

    Attributes:
        rounding: how fp32 becomes bf16 in the kernel: `rtne`, `rtna` or `rtz`.
        rescale: policy of the kernel's running maximum: `auto`, `exact` or `lazy`.
        strict: raise instead of falling back; None leaves it to `moon_diffusers.strict()` and `MOON_STRICT`.
        min_head_dim: smaller head dims than 128 are padded with zeros from here on, still smaller ones fall back.
        scope: label under which the calls are counted, see `moon_diffusers.summary`.
        batch_invariant: a row's bits must not depend on batch and heads, see `moon_diffusers.attention`.
    """

    rounding: str = "rtne"
    rescale: str = "auto"
    strict: bool | None = None
    min_head_dim: int = MIN_HEAD_DIM
    scope: str = ""
    batch_invariant: bool = False

    def __post_init__(self) -> None:
        check_choice("rounding", self.rounding, ROUNDINGS)
        check_choice("rescale", self.rescale, RESCALES)
        if self.strict not in (None, True, False):
            raise ArgumentError("strict", repr(self.strict), "True, False or None")
        if not isinstance(self.min_head_dim, int) or not 1 <= self.min_head_dim <= HEAD_DIM:
            raise ArgumentError("min_head_dim", repr(self.min_head_dim), f"an integer from 1 to {HEAD_DIM}")
        if not isinstance(self.scope, str):
            raise ArgumentError("scope", repr(self.scope), "a string")
        if self.batch_invariant not in (True, False):
            raise ArgumentError("batch_invariant", repr(self.batch_invariant), "True or False")

    def key(self) -> str:
        """Only what differs from the defaults, e.g. `rounding=rtz,strict=True`; empty for the defaults.

        No two options share one: a scope that could be read as more than a scope is quoted.
        """
        parts = []
        for option in fields(self):
            value = getattr(self, option.name)
            if value != option.default:
                ambiguous = isinstance(value, str) and any(sign in value for sign in ",='")
                parts.append(f"{option.name}={value!r}" if ambiguous else f"{option.name}={value}")
        return ",".join(parts)
