"""The fallback alone: right, counted, differentiable, traceable, memory-efficient."""

import numpy as np
import pytest
import torch

import moon_diffusers
from moon_diffusers import counters, fallback, ops
from moon_diffusers.errors import ArgumentError, StrictError

from .helpers import bhsd, reference, relative, visible

NO_PLACE = "CPU tensors outside emulate() and offload()"


def test_plain_call_is_torch_sdpa_and_counted():
    q, k, v = bhsd(2, 3, 3, 17, 33)
    out = moon_diffusers.attention(q, k, v, layout="bhsd")
    assert torch.equal(out, torch.nn.functional.scaled_dot_product_attention(q, k, v))
    assert counters.snapshot().fallbacks == {NO_PLACE: 1}
    assert moon_diffusers.summary() == (
        f"moon_diffusers: 0 of 1 attention calls ran on the kernel; 1 fell back to torch SDPA: 1 {NO_PLACE}"
    )


def test_layouts_agree_and_output_keeps_the_memory_order():
    q, k, v = bhsd(2, 3, 3, 17, 33)
    first = moon_diffusers.attention(q, k, v, layout="bhsd")
    second = moon_diffusers.attention(*(t.transpose(1, 2).contiguous() for t in (q, k, v)))
    assert second.is_contiguous()
    assert torch.equal(first, second.transpose(1, 2))
    third = moon_diffusers.attention(
        *(t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)), layout="bhsd"
    )
    assert third.transpose(1, 2).is_contiguous()
    assert torch.equal(first, third)


@pytest.mark.parametrize("seqlen_q, seqlen_k", [(5, 5), (5, 9), (9, 5), (1, 1)])
@pytest.mark.parametrize("limit", [2**27, 60])
@pytest.mark.parametrize("lengths", [None, [4, 0], [100, 1]])
@pytest.mark.parametrize("causal", [False, True])
def test_masks_lse_and_chunks(monkeypatch, seqlen_q, seqlen_k, limit, lengths, causal):
    monkeypatch.setattr(fallback, "MAX_SCORES", limit)
    q, k, v = bhsd(2, 4, 2, seqlen_q, seqlen_k)
    allowed = visible(2, seqlen_q, seqlen_k, causal, lengths)
    seqlens_k = None if lengths is None else torch.tensor(lengths, dtype=torch.int32)
    expected, expected_lse = reference(q, k, v, allowed=allowed)
    out, lse = moon_diffusers.attention(q, k, v, layout="bhsd", causal=causal, seqlens_k=seqlens_k, return_lse=True)
    assert not out.isnan().any()
    assert float((out.double() - expected).abs().max()) < 0.02
    torch.testing.assert_close(lse.double(), expected_lse, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", [torch.bool, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1, 9, 12), (2, 1, 1, 12), (9, 12), (2, 4, 9, 12)])
def test_masks_are_cut_with_the_chunks(monkeypatch, shape, kind):
    q, k, v = bhsd(2, 4, 2, 9, 12)
    keep = torch.rand(shape) < 0.6
    keep[..., 0] = True
    mask = keep if kind == torch.bool else torch.zeros(shape, dtype=kind).masked_fill(~keep, -torch.inf)
    expected, expected_lse = reference(q, k, v, allowed=keep)
    monkeypatch.setattr(fallback, "MAX_SCORES", 300)
    monkeypatch.setattr(fallback, "_FUSED", [torch.nn.attention.SDPBackend.CUDNN_ATTENTION])
    out, lse = ops.attention(q, k, v, layout="bhsd", attn_mask=mask, return_lse=True)
    assert relative(out, expected) < 6e-3
    torch.testing.assert_close(lse.double(), expected_lse, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_bias_is_added_as_it_is(dtype):
    """Rounded to the dtype of q, a float32 bias lost 16 of its 24 bits."""
    q, k, v = bhsd(2, 2, 2, 9, 12)
    bias = (torch.randn(2, 1, 9, 12) * 50).to(dtype)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    assert torch.equal(ops.attention(q, k, v, layout="bhsd", attn_mask=bias), expected)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float16])
def test_a_mask_of_a_dtype_that_torch_refuses_is_refused(dtype):
    """Made a bias, ones and zeros would mask next to nothing."""
    with pytest.raises(RuntimeError, match="Expected attn_mask dtype"):
        ops.attention(*bhsd(1, 2, 2, 5, 7), layout="bhsd", attn_mask=torch.ones(5, 7, dtype=dtype))


@pytest.mark.parametrize("compiled", [False, True])
def test_autocast_rounds_a_bias_as_torch_does(compiled):
    torch._dynamo.reset()
    q, k, v = (t.float() for t in bhsd(1, 2, 2, 9, 12))
    bias = torch.randn(9, 12) * 50

    def ours(bias):
        return ops.attention(q, k, v, layout="bhsd", attn_mask=bias)

    function = torch.compile(ours, backend="aot_eager", fullgraph=True) if compiled else ours
    with torch.autocast("cpu", torch.bfloat16):
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        assert torch.equal(function(bias), expected)


def test_meta_tensors_have_shapes():
    q, k, v = (t.to("meta") for t in bhsd(2, 4, 2, 5, 7))
    out, lse = moon_diffusers.attention(q, k, v, layout="bhsd", return_lse=True)
    assert out.is_meta and out.shape == q.shape and lse.shape == (2, 4, 5)


def test_big_shapes_never_use_the_math_backend(monkeypatch):
    seen = []
    original = fallback._call

    def spy(q, k, v, mask, causal, scale):
        seen.append((q.shape[2], torch.backends.cuda.math_sdp_enabled()))
        return original(q, k, v, mask, causal, scale)

    monkeypatch.setattr(fallback, "_call", spy)
    monkeypatch.setattr(fallback, "MAX_SCORES", 2 * 64 * 8)
    q, k, v = bhsd(1, 2, 2, 64, 64)
    expected, _ = reference(q, k, v)
    assert relative(fallback.sdpa(q, k, v), expected) < 5e-3
    assert seen == [(64, False)]
    seen.clear()
    monkeypatch.setattr(fallback, "_FUSED", [torch.nn.attention.SDPBackend.CUDNN_ATTENTION])
    assert relative(fallback.sdpa(q, k, v), expected) < 5e-3
    assert seen[0] == (64, False) and len(seen) == 9 and all(rows == 8 for rows, _ in seen[1:])


def test_what_torch_takes_on_a_gpu_is_aligned():
    from moon_diffusers.fallback import _aligned

    whole = torch.randn(2, 3, 5, 128).bfloat16()
    for tensor in (
        whole,
        whole[:, :, 1:],
        whole.expand(2, 3, 5, 128),
        whole[:1, :1, :1].as_strided((1, 1, 1, 128), (3, 5, 7, 1)),
    ):
        assert _aligned(tensor) is tensor
    shifted = torch.zeros(whole.numel() + 3, dtype=torch.bfloat16)[3:].view(whole.shape).copy_(whole)
    spread = torch.zeros(2, 3, 5, 131, dtype=torch.bfloat16)[..., :128].copy_(whole)
    for tensor in (shifted, spread):
        copy = _aligned(tensor)
        assert copy is not tensor and copy.is_contiguous() and copy.data_ptr() % 16 == 0 and torch.equal(copy, whole)


def test_tensors_that_hide_their_address_are_copied():
    """On a GPU the fallback raised under torch.func's transforms, and took tensors that are only traced for aligned."""
    from torch._subclasses import FakeTensorMode

    from moon_diffusers.fallback import _aligned

    def square(x):
        return _aligned(x).square().sum()

    x = torch.randn(2, 3, 5, 128)
    assert torch.equal(torch.func.grad(square)(x), 2 * x)
    assert torch.func.jvp(square, (x,), (x,))[1] == 2 * square(x)
    assert torch.equal(torch.vmap(square)(x), torch.stack([square(entry) for entry in x]))
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        assert _aligned(fake) is not fake


@pytest.mark.parametrize("scale", [-0.3, 0.0, 0.2, None])
def test_what_torch_takes_on_a_gpu_has_a_positive_scale(scale):
    from moon_diffusers.fallback import _positive_scale

    q, k = torch.randn(1, 2, 3, 128), torch.randn(1, 2, 5, 128)
    changed, positive = _positive_scale(q, scale)
    assert positive is None or positive > 0
    assert torch.equal(changed @ k.mT * (positive or 1), q @ k.mT * (1 if scale is None else scale))


def test_strict_raises_and_names_the_reason(monkeypatch):
    q, k, v = bhsd(1, 1, 1, 4, 4)
    with pytest.raises(StrictError, match="outside emulate"):
        moon_diffusers.attention(q, k, v, layout="bhsd", strict=True)
    with counters.strict(), pytest.raises(StrictError):
        moon_diffusers.attention(q, k, v, layout="bhsd")
    monkeypatch.setenv("MOON_STRICT", "1")
    with pytest.raises(StrictError):
        moon_diffusers.attention(q, k, v, layout="bhsd")
    moon_diffusers.attention(q, k, v, layout="bhsd", strict=False)
    assert counters.snapshot().num_fallbacks == 1


BAD = {
    "dtype": (lambda q, k, v: (q.float(), k, v), {}, "q: dtype float32 is not accepted; accepted: bfloat16"),
    "head dim": (lambda q, k, v: (q[..., :64], k[..., :64], v[..., :64]), {}, "q: head dim 64 .* accepted: 128"),
    "lengths": (lambda q, k, v: (q, k, v[:, :-1]), {}, "v: length 5 .* accepted: the length of k, 6"),
    "batch": (lambda q, k, v: (q, k[:1], v[:1]), {}, "k: batch 1 .* accepted: the batch of q, 2"),
    "heads": (lambda q, k, v: (q, k[:, :, :2], v[:, :, :2]), {}, "k: 2 heads .* accepted: a divisor of q's 3 heads"),
    "empty": (lambda q, k, v: (q, k[:, :0], v[:, :0]), {}, "k: shape .* accepted: no empty dimension"),
    "empty q": (lambda q, k, v: (q[:, :0], k, v), {}, "q: shape .* accepted: no empty dimension"),
    "stride": (
        lambda q, k, v: (torch.empty_strided(q.shape, (q.stride(0) * 2, q.stride(1) * 2, 256, 2), dtype=q.dtype), k, v),
        {},
        "q: head-dim stride 2 .* accepted: a contiguous head dim",
    ),
    "rank": (lambda q, k, v: (q[0], k, v), {}, r"q: shape \(5, 3, 128\) .* four dimensions \(B, S, H, D\)"),
    "rounding": (lambda q, k, v: (q, k, v), {"rounding": "up"}, "rounding: 'up' .* accepted: 'rtne', 'rtna', 'rtz'"),
    "rescale": (lambda q, k, v: (q, k, v), {"rescale": "never"}, "rescale: 'never' .* accepted: 'auto'"),
    "layout": (lambda q, k, v: (q, k, v), {"layout": "sbhd"}, "layout: 'sbhd' .* accepted: 'bshd', 'bhsd'"),
    "scale": (lambda q, k, v: (q, k, v), {"softmax_scale": float("nan")}, "softmax_scale: nan .* a finite number"),
    # Its value could change under the plan made for it, and its gradient was lost.
    "tensor scale": (
        lambda q, k, v: (q, k, v),
        {"softmax_scale": torch.ones(2, 2, requires_grad=True)},
        "softmax_scale: a Tensor is not accepted; accepted: a finite number",
    ),
    "huge scale": (lambda q, k, v: (q, k, v), {"softmax_scale": 10**400}, "softmax_scale: 1000.* a finite number"),
    "scale text": (lambda q, k, v: (q, k, v), {"softmax_scale": "0.1"}, "softmax_scale: a str is not accepted"),
    "scale array": (lambda q, k, v: (q, k, v), {"softmax_scale": np.array(0.1)}, "softmax_scale: a ndarray is not"),
    "array": (lambda q, k, v: (q.float().numpy(), k, v), {}, "q: a ndarray is not accepted; accepted: a torch.Tensor"),
    "nothing": (lambda q, k, v: (q, k, None), {}, "v: a NoneType is not accepted; accepted: a torch.Tensor"),
    "causal": (lambda q, k, v: (q, k, v), {"causal": "yes"}, "causal: 'yes' is not accepted; accepted: True or False"),
    "causal tensor": (lambda q, k, v: (q, k, v), {"causal": torch.tensor(True)}, "causal: a tensor is not accepted"),
    "strict": (lambda q, k, v: (q, k, v), {"strict": "no"}, "strict: 'no' is not accepted; accepted: True or False"),
    "seqlens list": (lambda q, k, v: (q, k, v), {"seqlens_k": [1, 2]}, "seqlens_k: a list is not accepted"),
    "seqlens dtype": (
        lambda q, k, v: (q, k, v),
        {"seqlens_k": torch.tensor([1, 2])},
        "seqlens_k: dtype int64 .* accepted: int32",
    ),
    "seqlens shape": (
        lambda q, k, v: (q, k, v),
        {"seqlens_k": torch.tensor([1], dtype=torch.int32)},
        r"seqlens_k: shape \(1,\) .* accepted: \(2,\)",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_naming_the_argument(case):
    change, options, message = BAD[case]
    q, k, v = (
        torch.randn(2, 5, 3, 128).bfloat16(),
        torch.randn(2, 6, 3, 128).bfloat16(),
        torch.randn(2, 6, 3, 128).bfloat16(),
    )
    with pytest.raises(ArgumentError, match=message) as error:
        moon_diffusers.attention(*change(q, k, v), **options)
    assert "\n" not in str(error.value)
    assert counters.snapshot().num_fallbacks == 0


def test_gradients_are_torchs_own_and_counted():
    q, k, v = (t.requires_grad_() for t in bhsd(1, 2, 2, 5, 7))
    moon_diffusers.attention(q, k, v, layout="bhsd").float().square().sum().backward()
    ours = [t.grad.clone() for t in (q, k, v)]
    for t in (q, k, v):
        t.grad = None
    torch.nn.functional.scaled_dot_product_attention(q, k, v).float().square().sum().backward()
    assert all(torch.equal(a, t.grad) for a, t in zip(ours, (q, k, v), strict=True))
    assert counters.snapshot().fallbacks == {"requires grad": 1}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("limit", [2**27, 60])
def test_compiled_gradients(monkeypatch, causal, limit):
    monkeypatch.setattr(fallback, "MAX_SCORES", limit)
    q, k, v = (t.float().requires_grad_() for t in bhsd(1, 4, 2, 5, 7))

    def loss(q, k, v):
        out, lse = ops.attention(q, k, v, layout="bhsd", causal=causal, return_lse=True)
        return out.square().sum() + lse.sin().sum()

    def compiled(q, k, v):
        return torch.compile(loss, backend="aot_eager", fullgraph=True)(q, k, v)

    expected = torch.autograd.grad(loss(q, k, v), (q, k, v))
    actual = torch.autograd.grad(compiled(q, k, v), (q, k, v))
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)
    assert counters.snapshot().fallbacks == {"requires grad": 2}


def test_other_dtypes_and_head_dims_fall_back_in_a_pipeline():
    q, k, v = bhsd(1, 2, 2, 5, 7, dim=64, dtype=torch.float32)
    mask = torch.tensor([True] * 4 + [False] * 3).reshape(1, 1, 1, 7)
    out = ops.attention(q, k, v, layout="bhsd", attn_mask=mask, scope="a pipe")
    torch.testing.assert_close(out, torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask))
    assert counters.snapshot("a pipe").num_fallbacks == 1
    assert counters.snapshot("another").num_fallbacks == 0


def test_autocast_joins_the_dtypes():
    q, k, v = bhsd(1, 2, 2, 5, 7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = moon_diffusers.attention(q.float(), k.float(), v, layout="bhsd")
    assert torch.equal(out, moon_diffusers.attention(q, k, v, layout="bhsd"))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiles_as_one_graph_with_dynamic_shapes(backend):
    torch._dynamo.reset()
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph

    def block(q, k, v):
        return moon_diffusers.attention(q * 2, k, v) + 1

    compiled = torch.compile(block, backend=count if backend == "eager" else backend, fullgraph=True, dynamic=True)
    for length in (5, 9, 12):
        q, k, v = (torch.randn(2, n, 3, 128).bfloat16() for n in (length, length + 2, length + 2))
        assert torch.equal(compiled(q, k, v), block(q, k, v))
    if backend == "eager":
        assert len(graphs) == 1
    assert counters.snapshot().num_fallbacks == 6


def test_operators_pass_torchs_own_check():
    q, k, v = (t.transpose(1, 2) for t in bhsd(1, 2, 2, 5, 7))
    arguments = (q, k, v, None, None, None, "bshd", False, "rtne", "auto", None, "", "", True, 128)
    torch.library.opcheck(torch.ops.moon_diffusers.attention.default, arguments)
    torch.library.opcheck(torch.ops.moon_diffusers.attention_lse.default, arguments)
    needs_grad = tuple(t.float().requires_grad_() for t in (q, k, v)) + arguments[3:]
    torch.library.opcheck(torch.ops.moon_diffusers.attention_lse.default, needs_grad)
