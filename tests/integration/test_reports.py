"""What users of other accelerators reported publicly, reproduced on the CPU as far as it can be."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import moon_diffusers
from moon_diffusers import MoonAttnProcessor, counters, masks, set_attn_processor
from moon_diffusers.errors import LibraryError
from moon_diffusers.integrations.diffusers import routed_modules

from . import zoo
from .test_calls import by_dispatch, by_intercept, close, qkv, served
from .test_models import error


@pytest.fixture
def emulator():
    try:
        with moon_diffusers.emulate("gfx942"):
            yield
    except LibraryError as missing:
        pytest.skip(f"not built: {missing}")


def test_values_as_a_transposed_view_of_another_layout(emulator):
    """ROCm/pytorch#3230: q and k contiguous BHSD, v a transposed BSHD view."""
    torch.manual_seed(0)
    q, k = (torch.randn(1, 16, 62, 128).bfloat16() for _ in range(2))
    v = torch.randn(1, 62, 16 * 128).bfloat16().view(1, 62, 16, 128).transpose(1, 2)
    out = by_intercept(q, k, v)
    assert served() == {"served": 1}
    close(out, scaled_dot_product_attention(q.float(), k.float(), v.float()).bfloat16())


def test_a_mask_of_a_row_per_query_is_never_expanded_to_heads(emulator):
    """diffusers#10314, tt-xla#6071: bool [1,1,N,N] with H*N*N beyond 2^31, and no copy of it."""
    torch.manual_seed(0)
    n, valid = 4096, 40
    q = torch.randn(1, 1, 64, 128).bfloat16()
    k, v = (torch.randn(1, 1, n, 128).bfloat16() for _ in range(2))
    mask = torch.zeros(1, 1, 64, n, dtype=torch.bool)
    mask[..., :valid] = True
    out = by_intercept(q, k, v, attn_mask=mask)
    assert served() == {"served": 1}
    close(out, scaled_dot_product_attention(q.float(), k.float(), v.float(), mask).bfloat16())


def test_reading_a_large_mask_takes_no_memory_like_its_own(monkeypatch):
    """tt-xla#6071: HunyuanVideo-1.5's mask is 2.6 GB at 51,275 tokens; here a small one, read in small pieces."""
    monkeypatch.setattr(masks, "CHUNK_BYTES", 1 << 16)
    rows = torch.arange(4096) < 3000
    mask = (rows[:, None] & rows[None])[None, None]
    seen = []
    real = torch.Tensor.any

    def any_(tensor, *args, **kwargs):
        seen.append(tensor.numel())
        return real(tensor, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "any", any_)
    plan = masks.read_mask(mask, 1, 24, 4096, 4096)
    assert plan.keys == (slice(0, 3000),) and plan.rows is not None and int(plan.rows.sum()) == 3000
    assert max(seen) <= 1 << 16


def test_ernie_mask_of_one_row(kernel):
    """diffusers#13801: bool [1,1,1,N]."""
    q, k, v = qkv()
    mask = torch.tensor([True] * 9 + [False] * 3)[None, None, None]
    for route in (by_dispatch, by_intercept):
        close(route(q, k, v, attn_mask=mask), scaled_dot_product_attention(q, k, v, mask))
    assert served() == {"served": 2}


def test_masks_are_neither_ignored_nor_fatal(kernel):
    """diffusers#12605 (a mask silently ignored), #13802 (an all-true mask crashes)."""
    q, k, v = qkv()
    plain = by_dispatch(q, k, v)
    assert torch.equal(by_dispatch(q, k, v, attn_mask=torch.ones(2, 1, 1, 12, dtype=torch.bool)), plain)
    assert torch.equal(by_dispatch(q, k, v, attn_mask=torch.ones(2, 12, dtype=torch.bool)), plain)
    masked = by_dispatch(q, k, v, attn_mask=torch.tensor([True] * 3 + [False] * 9)[None, None, None])
    assert (masked - plain).abs().max() > 0.1


def test_float_ones_and_zeros_are_a_bias_and_no_mask(kernel):
    """Chroma's pipeline hands 0/1 in bf16, and torch adds it: treating it as a mask would change pictures."""
    q, k, v = qkv()
    bias = torch.tensor([1.0] * 6 + [0.0] * 6).bfloat16()[None, None, None].expand(2, 1, 1, 12)
    assert torch.equal(by_dispatch(q, k, v, attn_mask=bias), scaled_dot_product_attention(q, k, v, bias))
    assert served() == {"additive mask": 1}


def test_the_vae_is_never_touched(kernel):
    """vllm-omni#7484, SageAttention#134: head dims of 384 and 512 in VAEs."""
    from diffusers import AutoencoderKL

    from .test_pipeline import stable_diffusion

    pipe = stable_diffusion()
    before = dict(pipe.vae.attn_processors)
    assert before
    pipe.set_attn_processor(MoonAttnProcessor())
    assert dict(pipe.vae.attn_processors) == before
    # Who insists gets a counted fallback.
    vae: AutoencoderKL = pipe.vae
    set_attn_processor(vae, MoonAttnProcessor())
    assert routed_modules(vae)
    with torch.no_grad():
        vae.decode(torch.randn(1, 4, 8, 8).bfloat16())
    assert served() == {"head_dim 8 is not 128": 1}


def test_autocast_with_values_of_another_dtype(kernel):
    """diffusers#14104: fp32 q and k from norms, bf16 v, under autocast."""
    model, inputs = zoo.CASES["wan"].make()
    model.float()
    floats = {key: x.float() if torch.is_tensor(x) and x.is_floating_point() else x for key, x in inputs.items()}
    with torch.autocast("cpu", torch.bfloat16):
        plain = zoo.run(model, floats)
        set_attn_processor(model, MoonAttnProcessor())
        out = zoo.run(model, floats)
    assert served() == {"served": 4}
    assert error(out, plain) < 0.02


def test_the_fallback_needs_no_score_matrix():
    """unsloth#8225: a fallback to torch's MATH path allocates B*H*Sq*Sk scores."""
    q = torch.randn(1, 24, 4096, 16)
    with torch.profiler.profile(profile_memory=True) as profile:
        by_dispatch(q, q, q)
    largest = max(event.cpu_memory_usage for event in profile.events())
    assert counters.snapshot().num_fallbacks == 1
    assert largest < q.shape[1] * q.shape[2] ** 2, "bytes of a score matrix are four times that"


def test_one_module_alone_needs_no_other_call(kernel):
    """diffusers#13284: choosing a backend per module skipped the loading of its kernel."""
    model, inputs = zoo.CASES["wan"].make()
    model.blocks[1].attn1.set_attention_backend("moon")
    zoo.run(model, inputs)
    assert served() == {"served": 1}
