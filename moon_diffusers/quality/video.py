"""Reading and writing videos through the ffmpeg that comes with imageio-ffmpeg.

Never score an mp4: H.264 at its usual settings is only about 42 dB from its own source. `write_lossless` keeps 8-bit
RGB exactly, for comparing runs later.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from moon_diffusers.errors import MoonError
from moon_diffusers.quality.frames import Frames, to_uint8

__all__ = ["VideoError", "read_video", "require_video_packages", "write_lossless", "write_mp4"]


class VideoError(MoonError, OSError):
    """A video that could not be read or written."""


def require_video_packages() -> None:
    """Check that the optional packages of this room are installed, and that there is an ffmpeg.

    Raises:
        VideoError: something is missing.
    """
    packages = {"imageio_ffmpeg": "imageio-ffmpeg", "skimage": "scikit-image", "jinja2": "jinja2", "tqdm": "tqdm"}
    missing = [name for module, name in packages.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise VideoError(f"not installed: {', '.join(missing)}; pip install 'moon-diffusers[video]'")
    import imageio_ffmpeg

    try:
        imageio_ffmpeg.get_ffmpeg_exe()
    except RuntimeError as error:
        raise VideoError("no ffmpeg: neither imageio-ffmpeg's own nor one that IMAGEIO_FFMPEG_EXE names") from error


def write_mp4(path: Path, frames: Frames, fps: float) -> None:
    """Write an H.264 yuv420p mp4, which every browser plays. Odd sizes are padded by one repeated row or column."""
    array = to_uint8(frames)
    pad = ((0, 0), (0, array.shape[1] % 2), (0, array.shape[2] % 2), (0, 0))
    parameters = ["-crf", "12", "-preset", "medium", "-movflags", "+faststart", "-pix_fmt", "yuv420p"]
    # Without tags a browser guesses the matrix from the height; frames are sRGB, so that is what the transfer says.
    tags = "setparams=color_primaries=bt709:color_trc=iec61966-2-1:colorspace=bt709:range=tv"
    parameters += ["-vf", f"scale=out_color_matrix=bt709:out_range=tv,{tags}"]
    _write(path, np.pad(array, pad, mode="edge"), fps, "libx264", "yuv420p", parameters)


def write_lossless(path: Path, frames: Frames, fps: float) -> None:
    """Write 8-bit RGB without loss (libx264rgb, crf 0); the path should end in `.mkv`."""
    _write(path, to_uint8(frames), fps, "libx264rgb", "rgb24", ["-crf", "0", "-preset", "medium"])


def read_video(path: Path, max_frames: int | None = None) -> tuple[Frames, float]:
    """Read a video, or its first `max_frames` frames: the frames and the frames per second.

    Raises:
        VideoError: the file is missing, or ffmpeg cannot decode it.
    """
    import imageio_ffmpeg

    if not path.is_file():
        raise VideoError(f"video {str(path)!r} does not exist")
    try:
        reader = imageio_ffmpeg.read_frames(str(path), pix_fmt="rgb24")
        meta = next(reader)
        width, height = meta["size"]
        data = itertools.islice(reader, max_frames)
        frames = [np.frombuffer(item, np.uint8).reshape(height, width, 3) for item in data]
        reader.close()
    except (OSError, RuntimeError, StopIteration, KeyError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise VideoError(f"video {str(path)!r} cannot be decoded: {reason}") from error
    if not frames:
        raise VideoError(f"video {str(path)!r} holds no frame")
    return np.stack(frames).astype(np.float32) / np.float32(255.0), float(meta["fps"])


def _count_frames(path: Path) -> int:
    """The frames of a video, without decoding them; 0 where ffmpeg cannot read it."""
    import imageio_ffmpeg

    try:
        return int(imageio_ffmpeg.count_frames_and_secs(str(path))[0])
    except (OSError, RuntimeError):
        return 0


def _write(
    path: Path, array: npt.NDArray[np.uint8], fps: float, codec: str, pixel_format: str, parameters: list[str]
) -> None:
    import imageio_ffmpeg

    height, width = array.shape[1:3]
    temporary = path.with_name(f".{path.stem}.partial-{os.getpid()}{path.suffix}")
    try:
        writer = imageio_ffmpeg.write_frames(
            str(temporary),
            (width, height),
            fps=fps,
            codec=codec,
            pix_fmt_in="rgb24",
            pix_fmt_out=pixel_format,
            macro_block_size=1,
            quality=None,
            ffmpeg_log_level="error",
            output_params=parameters,
        )
        writer.send(None)
        try:
            for frame in array:
                writer.send(np.ascontiguousarray(frame))
        finally:
            writer.close()
        # A full disk is ffmpeg's trouble, of which the writer says nothing.
        written = _count_frames(temporary)
        if written != len(array):
            raise OSError(f"{written} of {len(array)} frames arrived in the file; is the disk full?")
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:
        # What ffmpeg was told, and what it said itself, follow on further lines.
        raise VideoError(f"video {str(path)!r} cannot be written: {str(error).partition(chr(10))[0]}") from error
    finally:
        temporary.unlink(missing_ok=True)
