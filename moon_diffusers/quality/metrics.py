"""Metrics between two videos, or two latents.

All of them take raw frames (see `frames.Frames`), never decoded mp4. A value that does not exist (PSNR of identical
frames, SSIM of frames smaller than its window, an optional package that is not installed) is None, never a number.
"""

from __future__ import annotations

import importlib
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from moon_diffusers.quality.frames import Frames, FramesError

__all__ = ["FrameMetrics", "LatentMetrics", "compare_frames", "compare_latents", "warp_error"]

_SSIM_WINDOW = 11


@dataclass(frozen=True)
class LatentMetrics:
    """How far `other` is from `reference`, computed in float64.

    Attributes:
        relative_l2: `||other - reference|| / ||reference||`; infinite when `other` is not finite.
        max_abs: the largest absolute difference.
        nonfinite: how many elements of `other` are NaN or infinite.
        identical: every element is bitwise equal.
    """

    relative_l2: float
    max_abs: float
    nonfinite: int
    identical: bool

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-able dict; an infinite error becomes null beside a non-zero `nonfinite`."""
        return {key: (None if isinstance(v, float) and not math.isfinite(v) else v) for key, v in asdict(self).items()}


@dataclass(frozen=True)
class FrameMetrics:
    """Full-reference figures of a video against another.

    Attributes:
        psnr: dB, from the squared error of all frames together; None when every frame is identical.
        psnr_worst: dB of the worst frame; None when every frame is identical.
        ssim: mean over frames; None when a side is shorter than the 11-pixel window.
        ssim_worst: of the worst frame.
        max_abs: the largest difference, 0..1.
        temporal: mean absolute error of the frame-to-frame differences, 0..1: motion or flicker that one video has and
            the other has not. None for a single frame.
        flip: mean FLIP, 0..1, 0 is equal; None unless `flip-evaluator` is installed.
        identical_frames: how many frames are bitwise equal.
        frames: how many frames were compared.
        psnr_per_frame: dB a frame, None where identical.
    """

    psnr: float | None
    psnr_worst: float | None
    ssim: float | None
    ssim_worst: float | None
    max_abs: float
    temporal: float | None
    flip: float | None
    identical_frames: int
    frames: int
    psnr_per_frame: tuple[float | None, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return asdict(self) | {"psnr_per_frame": list(self.psnr_per_frame)}


def compare_latents(reference: torch.Tensor, other: torch.Tensor) -> LatentMetrics:
    """Compare two latents of one shape.

    Raises:
        FramesError: the shapes differ, or the tensors are empty or complex.
    """
    if reference.is_complex() or other.is_complex():
        raise FramesError(f"latents are {reference.dtype} and {other.dtype}; expected real numbers")
    if reference.shape != other.shape or reference.numel() == 0:
        raise FramesError(
            f"latents have shapes {tuple(reference.shape)} and {tuple(other.shape)}; expected equal, not empty"
        )
    a, b = reference.detach().cpu().double(), other.detach().cpu().double()
    nonfinite = int((~torch.isfinite(b)).sum())
    if nonfinite:
        return LatentMetrics(math.inf, math.inf, nonfinite, False)
    difference = b - a
    norm = float(torch.linalg.vector_norm(a))
    error = float(torch.linalg.vector_norm(difference))
    relative = error / norm if norm > 0 else (0.0 if error == 0 else math.inf)
    return LatentMetrics(relative, float(difference.abs().max()), 0, bool(torch.equal(a, b)))


def compare_frames(reference: Frames, other: Frames) -> FrameMetrics:
    """Compare two videos of one shape, frame by frame.

    Raises:
        FramesError: the shapes differ.
    """
    if reference.shape != other.shape:
        raise FramesError(f"frames have shapes {reference.shape} and {other.shape}; expected equal shapes")
    other = np.nan_to_num(other, nan=0.0, posinf=1.0, neginf=0.0)
    reference = np.nan_to_num(reference, nan=0.0, posinf=1.0, neginf=0.0)
    squared = [float(np.mean(np.square(b.astype(np.float64) - a))) for a, b in zip(reference, other, strict=True)]
    per_frame = tuple(_psnr(value) for value in squared)
    known = [value for value in per_frame if value is not None]
    ssim = [_ssim(a, b) for a, b in zip(reference, other, strict=True)]
    ssim_known = [value for value in ssim if value is not None]
    temporal = None
    if len(reference) > 1:
        temporal = float(np.mean(np.abs(np.diff(other, axis=0) - np.diff(reference, axis=0))))
    return FrameMetrics(
        psnr=_psnr(float(np.mean(squared))),
        psnr_worst=min(known) if known else None,
        ssim=float(np.mean(ssim_known)) if ssim_known else None,
        ssim_worst=min(ssim_known) if ssim_known else None,
        max_abs=float(np.max(np.abs(other - reference))),
        temporal=temporal,
        flip=_flip(reference, other),
        identical_frames=sum(value == 0.0 for value in squared),
        frames=len(reference),
        psnr_per_frame=per_frame,
    )


def warp_error(frames: Frames) -> float | None:
    """Mean absolute error between each frame and the previous one moved along the optical flow (OpenCV's DIS).

    A figure of one video alone: flicker raises it, smooth motion does not. None for a single frame, for frames smaller
    than 16 pixels, and without OpenCV.
    """
    cv2 = _optional("cv2")
    if cv2 is None:
        return None
    height, width = frames.shape[1:3]
    if len(frames) < 2 or min(height, width) < 16:
        return None
    frames = np.clip(np.nan_to_num(frames), 0.0, 1.0)
    flow_of = cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    grey = [cv2.cvtColor((frame * 255).astype(np.uint8), cv2.COLOR_RGB2GRAY) for frame in frames]
    columns, rows = np.meshgrid(np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32))
    errors = []
    for index in range(1, len(frames)):
        flow = flow_of.calc(grey[index], grey[index - 1], None)
        x, y = columns + flow[..., 0], rows + flow[..., 1]
        moved = cv2.remap(frames[index - 1], x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        # Pixels that come from outside the frame have nothing to be compared with.
        inside = (x >= 0) & (x <= width - 1) & (y >= 0) & (y <= height - 1)
        if inside.any():
            errors.append(float(np.mean(np.abs(moved - frames[index])[inside])))
    return float(np.mean(errors)) if errors else None


def _optional(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _psnr(mean_squared_error: float) -> float | None:
    return None if mean_squared_error == 0.0 else -10.0 * math.log10(mean_squared_error)


def _ssim(a: Frames, b: Frames) -> float | None:
    if min(a.shape[:2]) < _SSIM_WINDOW:
        return None
    # Wang et al. 2004: a Gaussian window of sigma 1.5, and no sample covariance.
    value = importlib.import_module("skimage.metrics").structural_similarity(
        a, b, data_range=1.0, channel_axis=-1, gaussian_weights=True, sigma=1.5, use_sample_covariance=False
    )
    return float(value)


def _flip(reference: Frames, other: Frames) -> float | None:
    flip = _optional("flip_evaluator")
    if flip is None:
        return None
    values = [
        flip.evaluate(np.ascontiguousarray(a), np.ascontiguousarray(b), "LDR", applyMagma=False)[1]
        for a, b in zip(np.clip(reference, 0, 1), np.clip(other, 0, 1), strict=True)
    ]
    return float(np.mean(values))
