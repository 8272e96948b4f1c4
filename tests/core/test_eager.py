"""Plain eager calls go past torch's dispatcher; whatever lives in it still sees the operators."""

import contextlib

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import moon_diffusers
from moon_diffusers import eager, ops

from .helpers import bhsd, reference, relative


@pytest.fixture
def qkv():
    return bhsd(1, 2, 2, 40, 40)


def attend(q, k, v, **options):
    return ops.attention(q, k, v, layout="bhsd", **options)


@pytest.fixture
def operator_calls(monkeypatch):
    """The arguments of each call that goes through the dispatcher."""
    seen = []
    whole = torch.ops.moon_diffusers.attention.default

    class Watched:
        def default(self, *arguments):
            seen.append(arguments)
            return whole(*arguments)

    monkeypatch.setattr(torch.ops.moon_diffusers, "attention", Watched())
    return seen


def test_a_plain_call_goes_past_the_dispatcher_with_the_same_result(qkv, operator_calls):
    direct = attend(*qkv)
    assert operator_calls == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ops, "is_plain", lambda *tensors: False)
        through = attend(*qkv)
    assert len(operator_calls) == 1
    assert torch.equal(direct, through) and direct.stride() == through.stride()
    assert moon_diffusers.summary().startswith("moon_diffusers: 0 of 2")


class Watching:
    def __init__(self):
        super().__init__()
        self.names = []

    def see(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Dispatched(Watching, TorchDispatchMode):
    __torch_dispatch__ = Watching.see


class Functions(Watching, TorchFunctionMode):
    __torch_function__ = Watching.see


@pytest.mark.parametrize("kind", [Dispatched, Functions])
def test_modes_see_the_operator(qkv, kind):
    with kind() as mode:
        attend(*qkv)
    assert "moon_diffusers.attention.default" in mode.names


def test_the_profiler_names_the_operator(qkv):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        attend(*qkv)
    assert "moon_diffusers::attention" in {event.key for event in profile.key_averages()}


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_torchs_flop_counter_counts_the_operator(layout):
    q, k, v = bhsd(2, 4, 2, 5, 7)
    if layout == "bshd":
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    for return_lse in (False, True):
        with FlopCounterMode(display=False) as counter:
            ops.attention(q, k, v, layout=layout, return_lse=return_lse)
        assert counter.get_total_flops() == 4 * 2 * 4 * 5 * 7 * 128


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
def test_a_trace_holds_the_operator(qkv):
    traced = torch.jit.trace(lambda q, k, v: attend(q, k, v), qkv, check_trace=False)
    assert "moon_diffusers::attention" in str(traced.graph)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_sees_the_operator(qkv, operator_calls):
    q, k, v = qkv
    batched = torch.vmap(lambda q: attend(q, k, v))(torch.stack([q, 2 * q]))
    assert operator_calls
    torch.testing.assert_close(batched, torch.stack([attend(q, k, v), attend(2 * q, k, v)]))


def jacobian_product(function, q, tangent, kind):
    if kind == "func":
        return torch.func.jvp(function, (q,), (tangent,))[1]
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(function(forward_ad.make_dual(q, tangent))).tangent


@pytest.mark.parametrize("kind", ["func", "dual"])
@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
def test_forward_gradients_are_torchs(kind, packed):
    """No kernel computes them: by the operators they were zeros."""
    q, k, v = bhsd(1, 2, 2, 40, 40)
    tangent = torch.randn_like(q)

    def function(q):
        if not packed:
            return attend(q, k, v)
        starts = torch.tensor([0, 40], dtype=torch.int32)
        flat = (t[0].transpose(0, 1) for t in (q, k, v))
        return moon_diffusers.attention_varlen(*flat, starts, starts).transpose(0, 1)[None]

    def exact(q):
        scores = q @ k.double().mT * 128**-0.5
        return scores.softmax(-1) @ v.double()

    with sdpa_kernel(SDPBackend.MATH):  # the only one of torch's that has them
        product = jacobian_product(function, q, tangent, kind)
    expected = torch.func.jvp(exact, (q.double(),), (tangent.double(),))[1]
    assert relative(product, expected) < 2e-2
    assert set(moon_diffusers.counters.snapshot().fallbacks) == {"requires grad"}


def test_outside_a_dual_level_nothing_is_differentiable(qkv):
    q, k, _ = qkv
    assert not eager.wants_gradients(q, None)
    with forward_ad.dual_level():
        assert not eager.wants_gradients(q, k)
        assert eager.wants_gradients(forward_ad.make_dual(q, q), k)
    needs = q.detach().requires_grad_()
    assert eager.wants_gradients(k, needs)
    with torch.no_grad():
        assert not eager.wants_gradients(k, needs)


def by_torch(q, k, v, attn_mask=None):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask)


DERIVATIVES = {
    "jvp inside": lambda compiler, f, q, k, v: compiler(
        lambda q: torch.func.jvp(lambda q: f(q, k, v), (q,), (torch.ones_like(q),))[1]
    )(q),
    "dual tensors outside": lambda compiler, f, q, k, v: jacobian_product(
        compiler(lambda q: f(q, k, v)), q, torch.ones_like(q), "dual"
    ),
    "grad inside": lambda compiler, f, q, k, v: compiler(torch.func.grad(lambda q: f(q, k, v).float().square().sum()))(
        q
    ),
    "a bias": lambda compiler, f, q, k, v: torch.autograd.grad(
        compiler(lambda bias: f(q, k, v, attn_mask=bias).float().square().sum())(BIAS), BIAS
    )[0],
}
BIAS = torch.zeros(40, 40, dtype=torch.bfloat16, requires_grad=True)


@pytest.mark.parametrize("name", DERIVATIVES)
def test_compiled_derivatives_that_the_operator_lacks_are_torchs(qkv, name):
    """Forward-mode ones and those of a mask were lost in silence, `torch.func.grad` did not compile."""
    torch._dynamo.reset()

    def compiler(function):
        return torch.compile(function, backend="aot_eager")

    with sdpa_kernel(SDPBackend.MATH):
        actual = DERIVATIVES[name](compiler, attend, *qkv)
        expected = DERIVATIVES[name](lambda function: function, by_torch, *qkv)
    assert expected.any() and torch.equal(actual, expected)


def test_forward_gradients_of_compiled_packed_sequences_are_torchs(qkv):
    q, k, v = (t[0].transpose(0, 1) for t in qkv)
    starts = torch.tensor([0, 40], dtype=torch.int32)

    def function(q):
        return moon_diffusers.attention_varlen(q, k, v, starts, starts, 40, 40)

    with sdpa_kernel(SDPBackend.MATH):
        expected = jacobian_product(function, q, torch.ones_like(q), "dual")
        actual = jacobian_product(torch.compile(function, backend="aot_eager"), q, torch.ones_like(q), "dual")
    assert expected.any() and torch.equal(actual, expected)


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
@pytest.mark.parametrize("kind", ["export", "strict export", "trace"])
def test_an_exported_program_learns_where_it_runs_that_gradients_are_wanted(qkv, kind):
    if kind != "trace" and not hasattr(torch.compiler, "is_exporting"):
        pytest.skip("this torch cannot tell an export")

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(128, dtype=torch.bfloat16))

        def forward(self, q, k, v):
            return attend(q * self.scale, k, v)

    module = Module()
    if kind == "trace":
        program = torch.jit.trace(module, qkv, check_trace=False)
    else:
        program = torch.export.export(module, qkv, strict=kind == "strict export").module()
    moon_diffusers.reset_summary()
    with torch.no_grad():
        program(*qkv)
    without = moon_diffusers.counters.snapshot().fallbacks
    assert without == {"CPU tensors outside emulate() and offload()": 1}
    program(*qkv).float().square().sum().backward()
    assert moon_diffusers.counters.snapshot().fallbacks == {**without, "requires grad": 1}
    actual = next(program.parameters()).grad.clone()
    module.scale.grad = None
    module(*qkv).float().square().sum().backward()
    assert relative(actual, module.scale.grad.double()) < 2e-2


@pytest.mark.parametrize("traced", [False, True])
def test_derivatives_by_torch_are_counted_where_they_run(qkv, traced):
    q, k, v = qkv
    options = (None, None, None, "bhsd", False, "rtne", "auto", None, "", "", True, 128)
    operator = torch.ops.moon_diffusers.attention.default
    with sdpa_kernel(SDPBackend.MATH), forward_ad.dual_level(), Dispatched() if traced else contextlib.nullcontext():
        operator(forward_ad.make_dual(q, q), k, v, *options)
        assert moon_diffusers.counters.snapshot().fallbacks == ({} if traced else {"requires grad": 1})
        strict = (*options[:7], True, *options[8:])
        with pytest.raises(moon_diffusers.MoonError, match="requires grad"):
            operator(forward_ad.make_dual(q, q), k, v, *strict)


def test_a_subclass_is_not_plain(qkv):
    q, k, v = qkv
    parameter = torch.nn.Parameter(q, requires_grad=False)
    assert eager.is_plain(q, k, v, None, None)
    assert not eager.is_plain(parameter, k, v, None, None)
    assert not eager.is_plain(q, k, v, None, torch.nn.Parameter(q, requires_grad=False))
    assert not eager.is_plain(q.to("meta"), k.to("meta"), v.to("meta"), None, None)
    assert relative(attend(parameter, k, v), reference(q, k, v)[0]) < 3e-3


def test_distributed_tensors_go_to_torch(qkv):
    """The operator has no sharding strategy: it raised where torch's attention works."""
    distributed = pytest.importorskip("torch.distributed.tensor")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        spread = [distributed.distribute_tensor(t, mesh, [distributed.Shard(1)]) for t in qkv]
        out = attend(*spread)
        assert isinstance(out, distributed.DTensor) and torch.equal(out.full_tensor(), by_torch(*qkv))
        with pytest.raises(moon_diffusers.MoonError, match="DTensor"):
            attend(*spread, strict=True)
    finally:
        torch.distributed.destroy_process_group()
    assert moon_diffusers.counters.snapshot().fallbacks == {"DTensor": 1}


def test_a_torch_that_cannot_be_asked_keeps_its_dispatcher(qkv, monkeypatch):
    monkeypatch.setattr(eager, "_dispatch_modes", eager._question("_no_such_function"))
    assert not eager.is_plain(*qkv, None, None)
