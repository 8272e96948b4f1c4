"""The sm_90a kernels' own sources on the host: what they compute, behind the whole corridor, without a GPU.

Matrix instructions and copies are done at once there: results, work lists, the ring's order and deadlocks are tested, races
are not (tests/gpu and compute-sanitizer are for those).
"""

import json
import math

import pytest
import torch

import moon_diffusers
from moon_diffusers import counters
from moon_diffusers.routing import Route
from moon_diffusers.runtime import device, selftest

from .helpers import bhsd, reference, relative, visible

KERNELS = ["", "_solo", "_short", "_causal", "_solo_causal"]
NAN, INF = math.nan, math.inf


def only(fake, suffix):
    """The manifest with one forward kernel, whatever decides between them; its name."""
    name = f"moon_attention_sm90a{suffix}"
    path = fake.folder / "manifest.json"
    manifest = json.loads(path.read_text())
    files = {f"{name}.cubin", f"{name}_merge.cubin"}
    manifest["code_objects"] = [item for item in manifest["code_objects"] if item["file"] in files]
    path.write_text(json.dumps(manifest))
    return name


@pytest.fixture(autouse=True)
def tested_before(monkeypatch):
    """The self-test is a test of its own here."""
    monkeypatch.setattr(selftest, "ensure", lambda device, route: True)


def attend(q, k, v, **options):
    """BHSD in, output and log-sum-exp; never by torch."""
    with moon_diffusers.offload():  # the outputs hold NaN until they are written
        return moon_diffusers.attention(q, k, v, layout="bhsd", return_lse=True, strict=True, **options)


def check(out, lse, expected, expected_lse):
    assert relative(out, expected) < 3e-3
    torch.testing.assert_close(lse.double(), expected_lse, atol=2e-4, rtol=1e-5)


@pytest.mark.parametrize("suffix", KERNELS)
@pytest.mark.parametrize("rows, keys", [(1, 1), (65, 79), (193, 161), (400, 300)])
def test_lengths(host_hopper, suffix, rows, keys):
    name, causal = only(host_hopper, suffix), "causal" in suffix
    host_hopper.library.fakeClusters(2)
    q, k, v = bhsd(1, 2, 1, rows, keys)
    expected = reference(q, k, v, allowed=visible(1, rows, keys, causal, None) if causal else None)
    check(*attend(q, k, v, causal=causal), *expected)
    assert set(counters.snapshot().kernels) == {name}


@pytest.mark.parametrize("suffix", KERNELS)
def test_selftest(host_hopper, suffix):
    """What a real GPU must get right before its first use, scores that rise beyond fp32 included."""
    opened = device.open_real()
    by_name = {kernel.name: kernel for kernel in opened.kernels}
    kernel = by_name[f"moon_attention_sm90a{suffix}"]
    route = Route(kernel, merge=by_name[kernel.merge])
    for case in selftest.cases(kernel):
        if case.name == "several row blocks a cluster":  # minutes here
            continue
        error, row_error, lse_error = selftest._measure(opened, route, case)
        assert error < 3e-3 and row_error < 2e-2 and lse_error < 5e-3, (case.name, error, row_error, lse_error)


@pytest.mark.parametrize("suffix", ["", "_solo", "_short"])
def test_split_keys_are_merged(host_hopper, suffix):
    only(host_hopper, suffix)
    q, k, v = bhsd(1, 1, 1, 70, 1300)
    expected = reference(q, k, v)
    before = host_hopper.launches
    check(*attend(q, k, v), *expected)
    assert host_hopper.launches - before >= 2


@pytest.mark.parametrize("suffix", ["_solo", "_solo_causal"])
def test_what_lies_behind_the_keys_does_not_leak(host_hopper, suffix):
    only(host_hopper, suffix)
    causal = "causal" in suffix
    q, k, v = bhsd(3, 1, 1, 70, 170)
    lengths = torch.tensor([170, 90, 0], dtype=torch.int32)
    allowed = visible(3, 70, 170, causal, lengths)
    expected, expected_lse = reference(q, k, v, allowed=allowed)
    k, v = k.clone(), v.clone()
    for entry, length in enumerate(lengths.tolist()):
        k[entry, :, length:], v[entry, :, length:] = NAN, INF
    out, lse = attend(q, k, v, causal=causal, seqlens_k=lengths)
    assert relative(out, expected) < 3e-3
    rows = torch.isfinite(expected_lse)
    assert torch.equal(torch.isfinite(lse), rows) and not out[2].any()
    torch.testing.assert_close(lse[rows].double(), expected_lse[rows], atol=2e-4, rtol=1e-5)


def test_rows_that_see_no_key_are_zero(host_hopper):
    only(host_hopper, "_solo_causal")
    q, k, v = bhsd(1, 1, 1, 260, 100)
    out, lse = attend(q, k, v, causal=True)
    expected, expected_lse = reference(q, k, v, allowed=visible(1, 260, 100, True, None))
    assert relative(out, expected) < 3e-3 and not out[:, :, :160].any()
    assert torch.equal(torch.isneginf(lse), torch.isneginf(expected_lse))


@pytest.mark.parametrize("suffix", ["_solo", "_short"])
@pytest.mark.parametrize("factor", [3, 30, 3000])
def test_difficult_scores(host_hopper, suffix, factor):
    """References move often, exponents overflow within a tile: scores are computed twice."""
    only(host_hopper, suffix)
    q, k, v = bhsd(1, 1, 1, 70, 500)
    q = (q * factor).bfloat16()
    out, lse = attend(q, k, v)
    expected, expected_lse = reference(q, k, v)
    assert relative(out, expected) < 3e-3
    assert ((lse.double() - expected_lse).abs() / expected_lse.abs().clamp_min(1)).max() < 1e-4


def test_values_that_are_not_finite(host_hopper):
    only(host_hopper, "_solo")
    q, k, v = bhsd(1, 1, 1, 70, 250)
    q[0, 0, 3, 5], q[0, 0, 40, 0], v[0, 0, 100, 7] = NAN, INF, NAN
    out, _ = attend(q, k, v)
    expected = torch.zeros_like(out, dtype=torch.bool)
    expected[:, :, [3, 40]] = expected[..., 7] = True
    assert torch.equal(torch.isnan(out), expected)


def test_first_tile_without_a_finite_score(host_hopper):
    """Tiles run from the last: -inf there leaves rows without a reference, which the next tile must give."""
    only(host_hopper, "_solo")
    q, k, v = bhsd(1, 1, 1, 70, 240)
    q[..., 0] = q[..., 0].abs() + 1
    k[:, :, 160:, 0] = -INF
    check(*attend(q, k, v), *reference(q[..., :], k[:, :, :160], v[:, :, :160]))
