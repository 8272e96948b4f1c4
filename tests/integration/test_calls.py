"""Single attention calls on both routes, against torch SDPA with the same arguments."""

from __future__ import annotations

import diffusers
import pytest
import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from moon_diffusers import counters
from moon_diffusers.errors import StrictError
from moon_diffusers.integrations.diffusers.backend import install_backend
from moon_diffusers.integrations.diffusers.intercept import RouteSdpa, routed_class
from moon_diffusers.integrations.diffusers.options import Options

B, H, S, D = 2, 3, 12, 128


def qkv(batch=B, heads=H, q_len=S, k_len=S, dim=D, dtype=torch.bfloat16, kv_heads=None):
    torch.manual_seed(0)
    kv_heads = kv_heads or heads
    shapes = ((batch, heads, q_len, dim), (batch, kv_heads, k_len, dim), (batch, kv_heads, k_len, dim))
    return [torch.randn(*shape).to(dtype) for shape in shapes]


def by_intercept(q: Tensor, k: Tensor, v: Tensor, options: Options | None = None, **kwargs) -> Tensor:
    with RouteSdpa(options or Options()):
        return scaled_dot_product_attention(q, k, v, **kwargs)


def by_dispatch(q: Tensor, k: Tensor, v: Tensor, options: Options | None = None, **kwargs) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return dispatch_attention_fn(q, k, v, backend=install_backend(options or Options()), **kwargs).transpose(1, 2)


@pytest.fixture(params=[by_intercept, by_dispatch])
def route(request):
    return request.param


def served() -> dict[str, int]:
    counts = counters.snapshot()
    return {**({"served": counts.num_served} if counts.num_served else {}), **counts.fallbacks}


def close(out: Tensor, wanted: Tensor) -> None:
    assert out.shape == wanted.shape and out.dtype == wanted.dtype
    torch.testing.assert_close(out.float(), wanted.float(), atol=2e-2, rtol=2e-2)


KEYS = torch.tensor([[True] * 7 + [False] * 5, [True, False] * 6])
MASKS = {
    "all true": torch.ones(B, 1, 1, S, dtype=torch.bool),
    "prefix": KEYS[:1, None, None],
    "prefix and gaps": KEYS[:, None, None],
    "materialised": KEYS[:, None, None].expand(B, H, S, S).clone(),
    "rows x keys": (KEYS[:1, :, None] & KEYS[:1, None, :])[None],
    "zero bias": torch.zeros(B, 1, S, S, dtype=torch.bfloat16),
    "-inf bias": torch.zeros(B, 1, 1, S).masked_fill(~KEYS[:, None, None], -torch.inf).bfloat16(),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_are_honoured_and_served(name, route, kernel):
    q, k, v = qkv()
    mask = MASKS[name]
    out = route(q, k, v, attn_mask=mask)
    assert served() == {"served": 1}
    wanted = scaled_dot_product_attention(
        q.float(), k.float(), v.float(), mask if mask.dtype == torch.bool else mask.float()
    )
    if mask.dtype == torch.bool:
        wanted = wanted.masked_fill(~mask.any(-1, keepdim=True), 0.0)
    close(out, wanted.bfloat16())
    counters.reset_summary()
    plain = route(q, k, v)
    assert ("all true" in name or "zero" in name) == torch.equal(out, plain)


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        (torch.ones(S, S, dtype=torch.bool).tril(), "mask differs by query"),
        (torch.block_diag(*[torch.ones(4, 4)] * 3).bool()[None, None], "mask differs by query"),
        (torch.randn(1, 1, S, S).bfloat16(), "additive mask"),
        (torch.randn(1, H, S, S).bfloat16(), "mask differs by head"),
        (torch.rand(B, H, 1, S).bfloat16().round().bool(), "mask differs by head"),
        (KEYS[:, None, None].bfloat16(), "additive mask"),
        (torch.zeros(B, 1, 1, S).masked_fill(~KEYS[:, None, None], -10000.0).bfloat16(), "additive mask"),
    ],
)
def test_masks_that_no_choice_of_keys_expresses_fall_back(mask, reason, route, kernel):
    q, k, v = qkv()
    out = route(q, k, v, attn_mask=mask)
    assert served() == {reason: 1}
    wanted = scaled_dot_product_attention(q, k, v, mask)
    if mask.dtype == torch.bool:
        wanted = wanted.masked_fill(~mask.any(-1, keepdim=True), 0.0)
    assert torch.equal(out, wanted)


def test_a_two_dimensional_mask_means_keys_per_batch_entry_in_dispatch(kernel):
    q, k, v = qkv()
    out = by_dispatch(q, k, v, attn_mask=KEYS)
    assert served() == {"served": 1}
    close(out, scaled_dot_product_attention(q, k, v, KEYS[:, None, None]))


CALLS = {
    "plain": ({}, {}, "served"),
    "cross": ({"k_len": 5}, {}, "served"),
    "one key": ({"k_len": 1}, {}, "served"),
    "one query": ({"q_len": 1}, {}, "served"),
    "scale": ({}, {"scale": 0.3}, "served"),
    "causal": ({}, {"is_causal": True}, "served"),
    "grouped heads": ({"heads": 4, "kv_heads": 2}, {"enable_gqa": True}, "served"),
    "D=96": ({"dim": 96}, {}, "served"),
    "D=112, scale": ({"dim": 112}, {"scale": 0.2}, "served"),
    "D=64": ({"dim": 64}, {}, "head_dim 64 is not 128"),
    "D=256": ({"dim": 256}, {}, "head_dim 256 is not 128"),
    "fp32": ({"dtype": torch.float32}, {}, "dtype float32 is not bfloat16"),
    "fp16": ({"dtype": torch.float16}, {}, "dtype float16 is not bfloat16"),
    "causal cross": ({"k_len": 5}, {"is_causal": True}, "causal with another mask or unequal lengths"),
    "empty": ({"q_len": 0}, {}, "empty tensors"),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls(name, route, kernel):
    shape, kwargs, outcome = CALLS[name]
    q, k, v = qkv(**shape)
    out = route(q, k, v, **kwargs)
    assert served() == {outcome: 1}
    wanted = scaled_dot_product_attention(q, k, v, **kwargs)
    if outcome == "served":
        close(out, wanted)
    else:
        assert torch.equal(out, wanted)


def test_dropout_falls_back_and_drops(route, kernel):
    q, k, v = qkv()
    torch.manual_seed(3)
    out = route(q, k, v, dropout_p=0.5)
    torch.manual_seed(3)
    assert torch.equal(out, scaled_dot_product_attention(q, k, v, dropout_p=0.5))
    assert served() == {"dropout": 1}
    with pytest.raises(StrictError, match="dropout"):
        route(q, k, v, Options(strict=True), dropout_p=0.5)


def test_shapes_that_only_torch_takes(kernel):
    q, k, v = qkv()
    out = by_intercept(q[0], k[0], v[0])
    assert torch.equal(out, scaled_dot_product_attention(q[0], k[0], v[0]))
    assert served() == {"tensors without four dimensions": 1}
    out = by_intercept(q, k[:1], v[:1])
    assert torch.equal(out, scaled_dot_product_attention(q, k[:1], v[:1]))
    assert served() == {"tensors without four dimensions": 1, "shapes that torch broadcasts": 1}


def test_a_scale_in_a_tensor_goes_to_torch(route, kernel):
    q, k, v = qkv()
    out = route(q, k, v, scale=torch.tensor(0.2))
    assert torch.equal(out, scaled_dot_product_attention(q, k, v, scale=0.2))
    assert served() == {"scale in a tensor": 1}


@pytest.mark.filterwarnings("ignore:.*nested tensors.*:UserWarning")
def test_nested_tensors_go_to_torch(kernel):
    ragged = [torch.randn(length, H, D).bfloat16() for length in (3, 5)]
    nested = torch.nested.nested_tensor(ragged, layout=torch.jagged).transpose(1, 2)
    out = by_intercept(nested, nested, nested)
    wanted = scaled_dot_product_attention(nested, nested, nested)
    assert all(torch.equal(a, b) for a, b in zip(out.unbind(), wanted.unbind(), strict=True))
    assert served() == {"NestedTensor": 1}


def test_arguments_that_torch_refuses_are_refused_in_its_words(route, kernel):
    q, k, v = qkv()
    with pytest.raises(RuntimeError, match="same dtype"):
        route(q, k, v.float())
    with pytest.raises(RuntimeError):
        route(q, k, v, attn_mask=torch.ones(S, S + 1, dtype=torch.bool))


def test_autocast_casts_as_torch_does(route, kernel):
    q, k, v = qkv(dtype=torch.float32)
    v = v.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        out = route(q, k, v)
        wanted = scaled_dot_product_attention(q, k, v)
    assert served() == {"served": 1}
    close(out, wanted)
    counters.reset_summary()
    bias = torch.randn(B, 1, S, S)
    with torch.autocast("cpu", torch.bfloat16):
        out = route(q, k, v, attn_mask=bias)
        wanted = scaled_dot_product_attention(q, k, v, bias)
    assert served() == {"additive mask": 1}
    assert torch.equal(out, wanted)


def test_a_flex_block_mask_goes_to_flex_attention(kernel):
    from torch.nn.attention.flex_attention import create_block_mask

    q, k, v = qkv(batch=1, q_len=128, k_len=128)
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 128, 128, device="cpu")
    out = by_dispatch(q, k, v, attn_mask=mask)
    assert served() == {"mask of type BlockMask": 1}
    close(out, scaled_dot_product_attention(q, k, v, is_causal=True))


class Watcher(TorchFunctionMode):
    """What diffusers' guiders do: replace the attention by its values."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is scaled_dot_product_attention:
            return kwargs.get("value", args[2] if len(args) > 2 else None)
        if func is Tensor.unflatten:
            return torch.unflatten(*args, **kwargs)
        return func(*args, **kwargs)


def test_other_function_modes_still_see_the_call(route, kernel):
    q, k, v = qkv()
    with Watcher():
        assert torch.equal(route(q, k, v), v)
    assert served() == {"another TorchFunctionMode wants to see the call": 1}
    with torch.device("cpu"):
        route(q, k, v)
    assert served()["served"] == 1


@pytest.mark.parametrize(
    ("what", "name"), [("scores", "qwen image"), ("scores", "cogview4"), ("attention", "cogview4")]
)
def test_layer_skipping_guiders_work_on_a_routed_model(what, name, kernel):
    from diffusers.hooks import LayerSkipConfig, apply_layer_skip

    from moon_diffusers import MoonAttnProcessor, set_attn_processor

    from .zoo import CASES, run

    if name == "qwen image" and diffusers.__version__ < "0.36":
        pytest.skip("this diffusers skips no layers of this model")
    plain, inputs = CASES[name].make()
    routed, _ = CASES[name].make()
    untouched = run(plain, inputs)
    set_attn_processor(routed, MoonAttnProcessor())
    config = LayerSkipConfig(
        [0],
        "transformer_blocks",
        skip_attention=what == "attention",
        skip_attention_scores=what == "scores",
        skip_ff=False,
    )
    for model in (plain, routed):
        apply_layer_skip(model, config)
    wanted = run(plain, inputs)
    assert not torch.equal(wanted, untouched)
    close(run(routed, inputs), wanted)
    # Skipped attention makes no call; a call whose scores are skipped must reach the hook.
    assert served() == {
        "served": 1,
        **({"another TorchFunctionMode wants to see the call": 1} if what == "scores" else {}),
    }


def test_a_subclass_made_for_routing_is_known_to_diffusers_hooks():
    from diffusers.hooks._helpers import AttentionProcessorRegistry
    from diffusers.models.attention_processor import AttnProcessor2_0

    routed = routed_class(AttnProcessor2_0, Options())
    assert AttentionProcessorRegistry.get(routed) is AttentionProcessorRegistry.get(AttnProcessor2_0)
    assert routed_class(AttnProcessor2_0, Options()) is routed
    assert routed_class(AttnProcessor2_0, Options(rounding="rtz")) is not routed
