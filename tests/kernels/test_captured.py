"""The kernels on q, k and v that a trained video model really made: sharper than noise, and what users will send."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import moon_diffusers
from moon_diffusers.evidence import capture

CALLS = capture.load(Path(__file__).resolve().parents[1] / "data" / "captured" / "wan-emoji.safetensors")

# Relative L2 that truncating P and O may cost on sharp attention; nearest modes are held to torch's own error below.
RTZ_BOUND = 8e-3


def exact(call: capture.CapturedCall) -> torch.Tensor:
    q, k, v = (t.transpose(1, 2).double() for t in (call.q, call.k, call.v))
    return ((q @ k.transpose(2, 3) * call.softmax_scale).softmax(-1) @ v).transpose(1, 2)


def relative(out: torch.Tensor, reference: torch.Tensor) -> float:
    return ((out.double() - reference).norm() / reference.norm()).item()


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.module.split('transformer.')[-1]}-step{call.step}")
@pytest.mark.parametrize(
    ("arch", "rounding", "rescale"),
    [
        ("gfx942", "rtne", "exact"),
        ("gfx942", "rtne", "lazy"),
        ("gfx942", "rtna", "exact"),
        ("gfx942", "rtz", "exact"),
        ("gfx950", "rtne", "lazy"),
    ],
)
def test_captured_inputs(call: capture.CapturedCall, arch: str, rounding: str, rescale: str) -> None:
    reference = exact(call)
    with moon_diffusers.emulate(arch):
        out = moon_diffusers.attention(
            call.q, call.k, call.v, softmax_scale=call.softmax_scale, rounding=rounding, rescale=rescale, strict=True
        )
    error = relative(out, reference)
    if rounding == "rtz":
        assert error <= RTZ_BOUND
        return
    q, k, v = (t.transpose(1, 2) for t in (call.q, call.k, call.v))
    torch_out = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=call.softmax_scale).transpose(1, 2)
    # Lazy P may be anywhere up to 256, so the largest key of a row is rounded too: up to 1.17x torch's error here.
    assert error <= 1.25 * relative(torch_out, reference)


def test_a_lost_key_tile_would_be_seen() -> None:
    """The bound above can fail: without the last 32 keys the output is off by far more."""
    call = CALLS[0]
    short = capture.CapturedCall(**{**{name: getattr(call, name) for name in call.__dataclass_fields__},
                                    "k": call.k[:, :-32], "v": call.v[:, :-32]})  # fmt: skip
    assert relative(exact(short), exact(call)) > 10 * RTZ_BOUND
