"""Metrics: known answers, identities, and what must not be a number."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from moon_diffusers.quality import frames as frames_module
from moon_diffusers.quality.frames import FramesError, as_frames, difference_panel, side_by_side, to_uint8
from moon_diffusers.quality.metrics import compare_frames, compare_latents, warp_error


def moving_square(count: int = 6, size: int = 48, step: int = 2) -> frames_module.Frames:
    rng = np.random.default_rng(0)
    texture = rng.random((size, size, 3)).astype(np.float32)
    out = np.full((count, size, size, 3), 0.3, np.float32)
    for t in range(count):
        x = 6 + step * t
        out[t, 16:32, x : x + 16] = texture[16:32, 6:22]
    return out


def test_psnr_of_a_known_error():
    a = np.full((2, 16, 16, 3), 0.5, np.float32)
    metrics = compare_frames(a, a + np.float32(0.1))
    assert metrics.psnr == pytest.approx(20.0, abs=1e-4) and metrics.psnr_worst == pytest.approx(20.0, abs=1e-4)
    assert metrics.max_abs == pytest.approx(0.1, abs=1e-6) and metrics.temporal == 0.0


def test_identical_videos_have_no_psnr_and_full_ssim():
    a = moving_square()
    metrics = compare_frames(a, a.copy())
    assert metrics.psnr is None and metrics.psnr_worst is None and metrics.identical_frames == len(a)
    assert metrics.ssim == pytest.approx(1.0) and metrics.max_abs == 0.0
    assert metrics.psnr_per_frame == (None,) * len(a)


def test_psnr_pools_over_frames_and_names_the_worst():
    a = np.zeros((2, 16, 16, 3), np.float32)
    b = a.copy()
    b[1] += np.float32(0.2)
    metrics = compare_frames(a, b)
    assert metrics.psnr == pytest.approx(-10 * math.log10(0.02), abs=1e-4)
    assert metrics.psnr_worst == pytest.approx(-10 * math.log10(0.04), abs=1e-4)
    assert metrics.psnr_per_frame[0] is None and metrics.identical_frames == 1


def test_ssim_agrees_with_its_definition_where_it_is_simple():
    # Constant images: SSIM is the luminance term alone.
    a, b = np.full((1, 32, 32, 3), 0.2, np.float32), np.full((1, 32, 32, 3), 0.6, np.float32)
    c1 = 0.01**2
    expected = (2 * 0.2 * 0.6 + c1) / (0.2**2 + 0.6**2 + c1)
    assert compare_frames(a, b).ssim == pytest.approx(expected, abs=1e-5)


def test_ssim_does_not_exist_below_its_window():
    a = np.zeros((1, 8, 8, 3), np.float32)
    assert compare_frames(a, a).ssim is None


def test_temporal_error_sees_flicker_that_a_mean_does_not():
    a = np.full((8, 16, 16, 3), 0.5, np.float32)
    steady, flickering = a + np.float32(0.05), a.copy()
    flickering[::2] += np.float32(0.05)
    flickering[1::2] -= np.float32(0.05)
    assert compare_frames(a, steady).psnr == pytest.approx(compare_frames(a, flickering).psnr, abs=1e-3)
    assert compare_frames(a, steady).temporal == pytest.approx(0.0, abs=1e-6)
    assert compare_frames(a, flickering).temporal == pytest.approx(0.1, abs=1e-6)


def test_warp_error_is_for_flicker_not_for_motion():
    pytest.importorskip("cv2")
    smooth = moving_square()
    flickering = smooth.copy()
    flickering[::2] = np.clip(flickering[::2] + np.float32(0.1), 0, 1)
    assert warp_error(flickering) > 3 * warp_error(smooth)
    assert warp_error(smooth[:1]) is None


def test_nan_frames_are_compared_as_black_and_do_not_become_nan():
    a = np.full((2, 16, 16, 3), 0.5, np.float32)
    b = a.copy()
    b[0] = np.nan
    metrics = compare_frames(a, b)
    assert metrics.psnr is not None and math.isfinite(metrics.psnr) and metrics.max_abs == pytest.approx(0.5)


def test_latents():
    a = torch.tensor([3.0, 4.0])
    metrics = compare_latents(a, a + torch.tensor([0.0, 0.05]))
    assert metrics.relative_l2 == pytest.approx(0.01, rel=1e-5) and metrics.max_abs == pytest.approx(0.05, rel=1e-5)
    assert not metrics.identical and compare_latents(a, a.clone()).identical
    broken = compare_latents(a, torch.tensor([3.0, math.nan]))
    assert broken.relative_l2 == math.inf and broken.nonfinite == 1 and broken.as_dict()["relative_l2"] is None
    assert compare_latents(torch.zeros(2), torch.ones(2)).relative_l2 == math.inf
    assert compare_latents(torch.zeros(2), torch.zeros(2)).relative_l2 == 0.0


@pytest.mark.parametrize("shape", [(3,), (0,)])
def test_latents_of_other_shapes_are_refused(shape):
    with pytest.raises(FramesError, match="shapes"):
        compare_latents(torch.zeros(2) if shape == (3,) else torch.zeros(0), torch.zeros(shape))


def test_as_frames_takes_what_pipelines_return():
    from PIL import Image

    video = np.random.default_rng(0).random((1, 2, 4, 6, 3)).astype(np.float32)
    assert as_frames(video).shape == (2, 4, 6, 3)
    images = [Image.new("RGB", (6, 4), (255, 0, 0))] * 2
    assert as_frames(images).shape == (2, 4, 6, 3) and as_frames(images)[0, 0, 0].tolist() == [1, 0, 0]
    assert as_frames([video[0, 0], video[0, 1]]).shape == (2, 4, 6, 3)
    for bad in (np.zeros((2, 2, 4, 6, 3)), np.zeros((2, 4, 6, 1)), np.zeros((2, 4, 6, 3), np.int32)):
        with pytest.raises(FramesError):
            as_frames(bad)


def test_frames_of_other_shapes_are_refused():
    with pytest.raises(FramesError, match="equal shapes"):
        compare_frames(np.zeros((1, 4, 4, 3), np.float32), np.zeros((2, 4, 4, 3), np.float32))


def test_difference_panel_gain():
    a = np.zeros((1, 4, 4, 3), np.float32)
    panel, gain = difference_panel(a, a + np.float32(0.1))
    assert gain == 8 and panel.max() == pytest.approx(0.8)
    assert difference_panel(a, a)[1] == 256 and difference_panel(a, a + np.float32(0.9))[1] == 1


def test_side_by_side_has_three_panels():
    a = moving_square(2, 48)
    joined = side_by_side(a, a, ("left", "right"))
    assert joined.shape[0] == 2 and joined.shape[1] >= 256 and joined.shape[2] == 3 * 288 + 8
    # enlarged by repetition alone: every pixel is there
    assert np.array_equal(joined[:, 28::6, :288:6], a)


def test_to_uint8_survives_nan():
    assert to_uint8(np.array([[[[np.nan, 2.0, -1.0]]]], np.float32)).tolist() == [[[[0, 255, 0]]]]
