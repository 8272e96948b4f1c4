"""Writing and reading videos."""

from __future__ import annotations

import resource

import numpy as np
import pytest

from moon_diffusers.quality.frames import to_uint8
from moon_diffusers.quality.metrics import compare_frames
from moon_diffusers.quality.video import VideoError, read_video, require_video_packages, write_lossless, write_mp4


@pytest.fixture
def clip():
    y, x = np.mgrid[0:48, 0:64].astype(np.float32)
    return np.stack([np.stack([x / 64, y / 48, np.full_like(x, t / 5)], -1) for t in range(5)]).astype(np.float32)


def test_mp4_is_close_and_keeps_rate_and_colours(tmp_path, clip):
    write_mp4(tmp_path / "a.mp4", clip, 8)
    back, fps = read_video(tmp_path / "a.mp4")
    assert back.shape == clip.shape and fps == pytest.approx(8)
    assert compare_frames(clip, back).psnr > 35
    # a wrong colour matrix or range shifts whole channels
    assert np.abs(back.mean((0, 1, 2)) - clip.mean((0, 1, 2))).max() < 0.01


def test_odd_sizes_are_padded(tmp_path, clip):
    write_mp4(tmp_path / "a.mp4", clip[:, :47, :63], 8)
    assert read_video(tmp_path / "a.mp4")[0].shape == (5, 48, 64, 3)


def test_lossless_is_lossless(tmp_path, clip):
    write_lossless(tmp_path / "a.mkv", clip, 12.5)
    back, fps = read_video(tmp_path / "a.mkv")
    assert np.array_equal(to_uint8(back), to_uint8(clip)) and fps == pytest.approx(12.5)


@pytest.mark.parametrize(("write", "name"), [(write_mp4, "a.mp4"), (write_lossless, "a.mkv")])
@pytest.mark.parametrize("room", [0, 20_000, 100_000])
def test_a_video_that_does_not_fit_is_an_error_and_not_there(tmp_path, write, name, room):
    """As on a full disk: ffmpeg cannot write on, and its pipe says nothing of it."""
    frames = np.random.default_rng(0).random((6, 128, 128, 3)).astype(np.float32)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.raises(VideoError, match="cannot be written") as caught:
            write(tmp_path / name, frames, 8)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(caught.value) and [*tmp_path.iterdir()] == []


def test_a_single_frame(tmp_path, clip):
    write_mp4(tmp_path / "a.mp4", clip[:1], 8)
    assert len(read_video(tmp_path / "a.mp4")[0]) == 1


def test_errors_name_the_file(tmp_path, clip):
    with pytest.raises(VideoError, match=r"nothing\.mp4"):
        read_video(tmp_path / "nothing.mp4")
    (tmp_path / "bad.mp4").write_text("no video")
    with pytest.raises(VideoError, match=r"bad\.mp4"):
        read_video(tmp_path / "bad.mp4")
    with pytest.raises(VideoError, match="cannot be written"):
        write_mp4(tmp_path / "missing" / "a.mp4", clip, 8)


def test_no_partial_file_is_left(tmp_path, clip, monkeypatch):
    import imageio_ffmpeg

    def failing(*_args, **_kwargs):
        raise RuntimeError("ffmpeg stopped")
        yield

    monkeypatch.setattr(imageio_ffmpeg, "write_frames", failing)
    with pytest.raises(VideoError, match="ffmpeg stopped"):
        write_mp4(tmp_path / "a.mp4", clip, 8)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named_with_its_remedy(monkeypatch):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "skimage" else find(name, *rest)
    )
    with pytest.raises(VideoError, match=r"scikit-image; pip install 'moon-diffusers\[video\]'"):
        require_video_packages()


def test_a_missing_ffmpeg_is_named(monkeypatch):
    import imageio_ffmpeg

    def missing():
        raise RuntimeError("No ffmpeg exe could be found.")

    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", missing)
    with pytest.raises(VideoError, match="no ffmpeg"):
        require_video_packages()


def test_mp4_says_how_its_colours_are_meant(tmp_path, clip):
    """Without the tags browsers show other colours than were written."""
    import subprocess

    import imageio_ffmpeg

    write_mp4(tmp_path / "a.mp4", clip, 8)
    told = subprocess.run(
        [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(tmp_path / "a.mp4")], capture_output=True, text=True
    )
    assert "yuv420p(tv, bt709/bt709/iec61966-2-1" in told.stderr


def test_reading_the_first_frames_alone(tmp_path, clip):
    write_lossless(tmp_path / "a.mkv", clip, 8)
    assert np.array_equal(read_video(tmp_path / "a.mkv", 2)[0], read_video(tmp_path / "a.mkv")[0][:2])
