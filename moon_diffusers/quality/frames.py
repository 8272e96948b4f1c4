"""Frames as arrays: one form for every metric, whatever a pipeline returned."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from moon_diffusers.errors import MoonError

__all__ = ["Frames", "FramesError", "as_frames", "difference_panel", "side_by_side", "to_uint8"]

Frames = npt.NDArray[np.float32]
"""`(frames, height, width, 3)`, float32, 0..1."""


class FramesError(MoonError, ValueError):
    """Frames of a form that cannot be compared."""


def as_frames(value: Any) -> Frames:
    """Turn a pipeline's output into `Frames`.

    Takes float arrays in 0..1 or uint8 arrays, `(frames, height, width, 3)` or `(height, width, 3)`, a batch of one in
    front, or a list of PIL images.

    Raises:
        FramesError: the shape has no reading as RGB frames, or the batch is larger than one.
    """
    array = np.asarray([np.asarray(item) for item in value]) if isinstance(value, (list, tuple)) else np.asarray(value)
    while array.ndim > 4 and array.shape[0] == 1:
        array = array[0]
    if array.ndim == 3:
        array = array[None]
    if array.ndim != 4 or array.shape[-1] != 3 or 0 in array.shape:
        raise FramesError(f"frames have shape {array.shape}; expected (frames, height, width, 3)")
    if array.dtype == np.uint8:
        return (array.astype(np.float32) / np.float32(255.0)).astype(np.float32)
    if not np.issubdtype(array.dtype, np.floating):
        raise FramesError(f"frames have dtype {array.dtype}; expected uint8, or floating point in 0..1")
    return np.ascontiguousarray(array, dtype=np.float32)


def to_uint8(frames: Frames) -> npt.NDArray[np.uint8]:
    """Round frames to 8 bits; NaN becomes black, so that a broken video can still be looked at."""
    finite = np.nan_to_num(frames, nan=0.0, posinf=1.0, neginf=0.0)
    return np.asarray(np.rint(np.clip(finite, 0.0, 1.0) * 255.0), dtype=np.uint8)


def difference_panel(left: Frames, right: Frames) -> tuple[Frames, int]:
    """Return `|left - right|` amplified, and the gain.

    The gain is the power of two that brings the largest differences (99.9th percentile) near white, at most 256: a
    larger one would show rounding alone.
    """
    difference = np.abs(np.nan_to_num(left) - np.nan_to_num(right))
    peak = float(np.percentile(difference, 99.9))
    gain = 256 if peak <= 1 / 256 else max(1, 2 ** int(np.floor(np.log2(1.0 / peak))))
    return np.minimum(difference * np.float32(gain), 1.0).astype(np.float32), gain


def side_by_side(left: Frames, right: Frames, labels: tuple[str, str], min_panel_height: int = 256) -> Frames:
    """Lay two videos and their amplified difference next to each other, with a caption above each.

    Small videos are enlarged by a whole factor, pixels repeated, so that the captions can be read.
    """
    if left.shape != right.shape:
        raise FramesError(f"cannot lay side by side: shapes {left.shape} and {right.shape} differ")
    difference, gain = difference_panel(left, right)
    factor = max(1, -(-min_panel_height // left.shape[1]))
    panels = []
    for frames, label in ((left, labels[0]), (right, labels[1]), (difference, f"difference x{gain}")):
        large = frames.repeat(factor, axis=1).repeat(factor, axis=2)
        caption = _caption(label, large.shape[2])
        panels.append(np.concatenate([np.broadcast_to(caption, (large.shape[0], *caption.shape)), large], axis=1))
    gutter = np.ones((left.shape[0], panels[0].shape[1], 4, 3), dtype=np.float32)
    return np.concatenate([panels[0], gutter, panels[1], gutter, panels[2]], axis=2)


def _caption(text: str, width: int, height: int = 28) -> Frames:
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (width, height), (24, 24, 28))
    # The bundled font of Pillow: no font file of the system is needed.
    ImageDraw.Draw(image).text((8, 6), text, fill=(240, 240, 240), font=ImageFont.load_default(size=14))
    return np.asarray(image, dtype=np.float32) / np.float32(255.0)
