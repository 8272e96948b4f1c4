"""Gates: does a run pass, and which figure says so.

A gate on decoded frames cannot fail where attention hardly shows in them, so the gate is on latents: the error against
the baseline must stay within a small multiple of the noise floor, which is what the baseline itself moves by when its
attention is computed in higher precision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from moon_diffusers.quality.metrics import LatentMetrics

__all__ = [
    "ATTENTION_FACTORS",
    "LATENT_FACTOR",
    "Check",
    "Gate",
    "attention_checks",
    "finite_check",
    "initial_check",
    "latent_check",
    "share_check",
]


@dataclass(frozen=True)
class Check:
    """One condition of a gate.

    Attributes:
        name: a short phrase; value: what was measured, limit: what passes, both as text for people.
        passed: whether it holds.
        why: one sentence on what the condition means.
    """

    name: str
    value: str
    limit: str
    passed: bool
    why: str


@dataclass(frozen=True)
class Gate:
    """All conditions together."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """True when every check holds; False when there is none."""
        return bool(self.checks) and all(check.passed for check in self.checks)

    def failures(self) -> list[str]:
        """One line per failed check."""
        return [f"{check.name}: {check.value}, expected {check.limit}" for check in self.checks if not check.passed]

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return {"passed": self.passed, "checks": [vars(check) for check in self.checks]}


LATENT_FACTOR = 2.0
# Truncation (rtz) moves every product the same way, so its error in one call is larger by design.
ATTENTION_FACTORS = {"rtne": 2.0, "rtna": 2.0, "rtz": 4.0}


def attention_checks(layers: dict[str, tuple[float, float]], factor: float) -> list[Check]:
    """Each layer's attention within `factor` times the error that torch SDPA makes in the same dtype.

    Args:
        layers: by layer name the relative L2 errors of the kernel and of torch SDPA, both against float64.
        factor: what passes.

    Returns:
        One check, for the layer that is worst by that ratio; none when no layer was measured.
    """
    if not layers:
        return []
    ratios = {name: kernel / sdpa if sdpa > 0 else math.inf for name, (kernel, sdpa) in layers.items()}
    name = max(ratios, key=lambda layer: math.inf if math.isnan(ratios[layer]) else ratios[layer])
    kernel, sdpa = layers[name]
    return [
        Check(
            "attention error",
            f"worst layer {name}: relative L2 {kernel:.3e} ({ratios[name]:.2f}x torch SDPA's)",
            f"at most {factor * sdpa:.3e} ({factor:g}x torch SDPA's)",
            ratios[name] <= factor,
            "Each layer's output, on the very q, k and v of this video, against float64.",
        )
    ]


def latent_check(error: LatentMetrics, floor: LatentMetrics, factor: float) -> Check:
    """Latent relative L2 within `factor` times the noise floor.

    A floor of zero means that nothing was measured (both runs computed the same thing), so nothing can pass it.
    """
    limit = factor * floor.relative_l2
    passed = math.isfinite(limit) and limit > 0 and error.relative_l2 <= limit
    return Check(
        "latent error",
        f"relative L2 {error.relative_l2:.3e} ({_ratio(error, floor)} the noise floor)",
        f"at most {limit:.3e} ({factor:g}x the noise floor)" if limit > 0 else "a noise floor above zero",
        passed,
        "The final latents may differ from the baseline's by as much as rounding alone explains, and no more.",
    )


def finite_check(error: LatentMetrics) -> Check:
    """No NaN and no infinity in the latents."""
    return Check(
        "finite latents",
        "all finite" if error.nonfinite == 0 else f"{error.nonfinite} elements are NaN or infinite",
        "all finite",
        error.nonfinite == 0,
        "A single NaN in attention turns the video black.",
    )


def share_check(served: int, calls: int, minimum: float) -> Check:
    """Enough of the denoiser's attention calls ran on the kernel."""
    share = served / calls if calls else 0.0
    return Check(
        "routed share",
        f"{served} of {calls} attention calls ran on the kernel ({share:.1%})",
        f"at least {minimum:.0%}" + ("" if minimum > 0 else " and at least one call"),
        served > 0 and share >= minimum,
        "A run that fell back to torch compares torch with itself, and says nothing about the kernel.",
    )


def initial_check(baseline: str, other: str) -> Check:
    """Both runs started from the same latents; takes their hashes."""
    same = bool(baseline) and baseline == other
    return Check(
        "initial latents",
        f"sha256 {baseline[:12]} and {other[:12]}" if baseline and other else "not recorded",
        "equal hashes",
        same,
        "Both runs must start from the same noise, or their difference means nothing.",
    )


def _ratio(error: LatentMetrics, floor: LatentMetrics) -> str:
    if floor.relative_l2 == 0 or not math.isfinite(error.relative_l2):
        return "not a multiple of"
    return f"{error.relative_l2 / floor.relative_l2:.2f}x"
