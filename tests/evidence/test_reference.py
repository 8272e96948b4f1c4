"""The float64 reference and the bfloat16 arithmetic against torch and hand-worked cases."""

import numpy as np
import pytest
import torch

from moon_diffusers.evidence import bf16, reference


def _random(rng, batch, seqlen_q, seqlen_k, num_heads, num_heads_kv, head_dim=16):
    q = rng.standard_normal((batch, seqlen_q, num_heads, head_dim))
    return q, *(rng.standard_normal((batch, seqlen_k, num_heads_kv, head_dim)) for _ in range(2))


def _torch(q, k, v, mask):
    q, k, v = (torch.from_numpy(x).transpose(1, 2) for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    return out.transpose(1, 2).numpy()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("num_heads", "num_heads_kv"), [(2, 2), (4, 2), (3, 1)])
@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(7, 7), (5, 11), (1, 1)])
def test_reference_is_softmax_attention(causal, num_heads, num_heads_kv, seqlen_q, seqlen_k):
    q, k, v = _random(np.random.default_rng(0), 2, seqlen_q, seqlen_k, num_heads, num_heads_kv)
    mask = None
    if causal:
        mask = torch.ones(seqlen_q, seqlen_k, dtype=torch.bool).tril(seqlen_k - seqlen_q)
    out, lse = reference.attention(q, k, v, causal=causal)
    np.testing.assert_allclose(out, _torch(q, k, v, mask), rtol=1e-10, atol=1e-12)
    keys = k.repeat(num_heads // num_heads_kv, axis=2)
    scores = torch.from_numpy(np.einsum("bqhd,bkhd->bhqk", q, keys) * 0.25)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    np.testing.assert_allclose(lse, torch.logsumexp(scores, -1).numpy(), rtol=1e-10)


def test_rows_without_keys_are_zero_with_lse_of_minus_infinity():
    q, k, v = _random(np.random.default_rng(1), 2, 6, 4, 1, 1)
    out, lse = reference.attention(q, k, v, causal=True)
    assert not out[:, :2].any() and np.isneginf(lse[:, :, :2]).all()
    assert np.isfinite(lse[:, :, 2:]).all() and out[:, 2:].any()
    out, lse = reference.attention(q, k, v, seqlens_k=[0, 3])
    assert not out[0].any() and np.isneginf(lse[0]).all()
    shorter, _ = reference.attention(q[1:], k[1:, :3], v[1:, :3])
    np.testing.assert_allclose(out[1:], shorter)


def test_nonfinite_inputs():
    q, k, v = _random(np.random.default_rng(2), 1, 3, 4, 1, 1)
    k[0, 1, 0, 0] = np.nan
    assert np.isnan(reference.attention(q, k, v)[0]).all()
    q, k, v = _random(np.random.default_rng(2), 1, 3, 4, 1, 1)
    v[0, 2, 0, 5] = np.inf
    out, _ = reference.attention(q, k, v)
    assert np.isposinf(out[0, :, 0, 5]).all() and np.isfinite(np.delete(out, 5, axis=3)).all()
    out, _ = reference.attention(q, k, v, seqlens_k=[2])
    assert np.isfinite(out).all()


@pytest.mark.parametrize("bad", [{"k": (1, 4, 3, 16)}, {"v": (1, 5, 2, 16)}])
def test_shapes_that_do_not_fit_are_named(bad):
    shapes = {"q": (1, 3, 4, 16), "k": (1, 4, 2, 16), "v": (1, 4, 2, 16)} | bad
    with pytest.raises(ValueError, match="expected"):
        reference.attention(*(np.zeros(shapes[x]) for x in "qkv"))


def test_rounding_to_bfloat16():
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 1 << 32, 20000, np.uint32)
    x = bits.view(np.float32)
    number = ~np.isnan(x)
    expected = torch.from_numpy(x).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(bf16.from_float(x)[number], expected[number])
    assert (bf16.from_float(x)[~number] == 0x7FFF).all() and (bf16.from_float(x, "rtna")[~number] == 0x7FFF).all()
    np.testing.assert_array_equal(bf16.from_float(x, "rtz"), (bits >> 16).astype(np.uint16))
    tie = np.array([0x3F808000, 0x3F818000, 0xBF808000], np.uint32).view(np.float32)
    assert bf16.from_float(tie).tolist() == [0x3F80, 0x3F82, 0xBF80]
    assert bf16.from_float(tie, "rtna").tolist() == [0x3F81, 0x3F82, 0xBF81]
    with pytest.raises(ValueError, match="rounding='up'"):
        bf16.from_float(tie, "up")


def test_ulp_distance():
    pairs = {
        (0x0000, 0x8000): 0,
        (0x3F80, 0x3F81): 1,
        (0x0001, 0x8001): 2,
        (0x7FC0, 0x7FFF): 0,
        (0x7FC0, 0x3F80): 1 << 16,
    }
    a, b = (np.array(x, np.uint16) for x in zip(*pairs, strict=True))
    assert bf16.ulp_distance(a, b).tolist() == list(pairs.values())


def test_compare_sees_one_wrong_element():
    rng = np.random.default_rng(4)
    expected = rng.standard_normal((4, 8))
    good = bf16.from_float(expected)
    errors = reference.compare(good, expected)
    assert errors.identical == 1 and errors.max_ulp == 0 and errors.relative_l2 < 4e-3 and errors.nonfinite_equal
    good[1, 2] += 3
    errors = reference.compare(good, expected)
    assert errors.max_ulp == 3 and errors.within_1_ulp == 1 - 1 / 32 and errors.identical == 1 - 1 / 32
    good[1, 2] = 0x7FC0
    assert not reference.compare(good, expected).nonfinite_equal


@pytest.mark.parametrize("kind", reference.KINDS)
def test_inputs_are_seeded(kind):
    first = reference.inputs(1, 4, 6, 4, 2, kind=kind, seed=5)
    again = reference.inputs(1, 4, 6, 4, 2, kind=kind, seed=5)
    other = reference.inputs(1, 4, 6, 4, 2, kind=kind, seed=6)
    assert [x.shape for x in first] == [(1, 4, 4, 128), (1, 6, 2, 128), (1, 6, 2, 128)]
    assert all((a == b).all() and (a != c).any() for a, b, c in zip(first, again, other, strict=True))
