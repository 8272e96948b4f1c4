"""The compiled kernels themselves, run by the emulator through the public function, against fp64."""

from __future__ import annotations

import itertools
import os
import threading

import pytest
import torch

import moon_diffusers
from moon_diffusers import counters, ops
from moon_diffusers.errors import ArgumentError, StrictError
from moon_diffusers.planning import plan
from moon_diffusers.routing import Target, route
from moon_diffusers.runtime import device, doctor, selftest, selftest_cases
from moon_diffusers.runtime.memory import staging

from .helpers import bhsd, reference, relative, visible

LENGTHS = (1, 15, 16, 17, 63, 64, 65, 200, 257, 512)
TOLERANCE = {"rtne": 3e-3, "rtna": 3e-3, "rtz": 8e-3}
ROUNDINGS = tuple(TOLERANCE)


def run(q, k, v, **options):
    """BHSD in, BHSD out, whatever the layout asked for; strict, so a fallback cannot pass for the kernel."""
    layout = options.pop("layout", "bhsd")
    if layout == "bshd":
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    with moon_diffusers.emulate("gfx942"):
        result = moon_diffusers.attention(q, k, v, layout=layout, strict=True, **options)
    if isinstance(result, tuple):
        out, lse = result
        return (out.transpose(1, 2) if layout == "bshd" else out), lse
    return result.transpose(1, 2) if layout == "bshd" else result


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("seqlen_q", LENGTHS)
def test_every_pair_of_lengths(seqlen_q, rounding):
    # Batch, heads, layout and the form of V take turns, so that each meets every length.
    heads = ((2, 2, 2), (1, 3, 1), (2, 4, 2))
    forms = itertools.cycle(itertools.product(("bshd", "bhsd"), ("plain", "fused", "offset"), heads))
    for _ in range((seqlen_q + len(rounding)) % 7):
        next(forms)
    for seqlen_k in LENGTHS:
        layout, form, (batch, num_heads, heads_kv) = next(forms)
        q, k, v = bhsd(batch, num_heads, heads_kv, seqlen_q, seqlen_k)
        if form == "fused":
            fused = torch.randn(batch, seqlen_k, 3, heads_kv, 128).bfloat16()
            fused[:, :, 1], fused[:, :, 2] = k.transpose(1, 2), v.transpose(1, 2)
            k, v = fused[:, :, 1].transpose(1, 2), fused[:, :, 2].transpose(1, 2)
        if form == "offset":
            k, v = (torch.cat([t.flatten().new_zeros(5), t.flatten()])[5:].view(t.shape) for t in (k, v))
            assert k.storage_offset() == 5
        out = run(q, k, v, layout=layout, rounding=rounding)
        error = relative(out, reference(q, k, v)[0])
        assert error <= TOLERANCE[rounding], (seqlen_q, seqlen_k, layout, form, batch, num_heads, heads_kv, error)
    assert counters.snapshot().num_served == len(LENGTHS)


def test_roundings_differ_and_truncation_shrinks():
    q, k, v = bhsd(1, 1, 1, 64, 128)
    v = v.abs()
    results = {rounding: run(q, k, v, rounding=rounding).double() for rounding in ROUNDINGS}
    expected, _ = reference(q, k, v)
    assert float((results["rtz"] - expected).mean()) < -1e-3
    assert abs(float((results["rtne"] - expected).mean())) < 3e-4
    assert not torch.equal(results["rtz"], results["rtne"])


@pytest.mark.parametrize("lengths", [None, [130, 0, 64]])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seqlen_q", [1, 129, 140])
def test_masks_and_lse(seqlen_q, causal, lengths):
    q, k, v = bhsd(3, 4, 2, seqlen_q, 130)
    seqlens_k = None if lengths is None else torch.tensor(lengths, dtype=torch.int32)
    out, lse = run(q, k, v, causal=causal, seqlens_k=seqlens_k, return_lse=True, softmax_scale=0.2)
    expected, expected_lse = reference(q, k, v, 0.2, visible(3, seqlen_q, 130, causal, lengths))
    assert relative(out, expected) <= 3e-3
    torch.testing.assert_close(lse.double(), expected_lse, atol=1e-4, rtol=1e-5)


def test_nothing_behind_the_valid_keys_matters():
    q, k, v = bhsd(1, 2, 2, 40, 100)
    lengths = torch.tensor([70], dtype=torch.int32)
    clean = run(q, k, v, seqlens_k=lengths)
    k[:, :, 70:], v[:, :, 70:] = torch.nan, torch.inf
    assert torch.equal(run(q, k, v, seqlens_k=lengths), clean)
    assert torch.equal(run(q, k[:, :, :70], v[:, :, :70]), clean)


@pytest.mark.parametrize("where", ["q", "k", "v"])
def test_nan_reaches_what_it_must_and_nothing_else(where):
    q, k, v = bhsd(1, 2, 2, 40, 70)
    clean = run(q, k, v)
    {"q": q, "k": k, "v": v}[where][0, 1, 7, 3] = torch.nan
    out = run(q, k, v)
    assert torch.equal(out[0, 0], clean[0, 0])
    bad = out[0, 1].isnan()
    if where == "q":
        assert bad[7].all() and int(bad.sum()) == 128
    elif where == "k":
        assert bad.all()
    else:
        assert bad[:, 3].all() and int(bad.sum()) == 40


def test_strides_past_two_gibi_elements():
    # Offsets pass 2^31 elements and 2^32 bytes; only the rows themselves are ever touched or copied.
    q, k, v = bhsd(1, 1, 1, 5, 3)
    stride = 2**30 + 128
    storage = torch.empty(2 * stride + 128, dtype=torch.bfloat16)
    far = storage.as_strided((1, 1, 3, 128), (0, 0, stride, 1))
    far.copy_(v)
    assert relative(run(q, k, far), reference(q, k, v)[0]) <= 3e-3
    far.copy_(k)
    assert relative(run(q, far, v), reference(q, k, v)[0]) <= 3e-3


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("strides", [(2**31 + 128, 65 * 128), (2 * 65 * 128, 2**31 + 2048)], ids=["batch", "head"])
def test_batch_and_head_strides_past_four_gibi_bytes(arch, strides):
    tensors = bhsd(2, 2, 2, 65, 65)
    expected, _ = reference(*tensors)
    for position in range(3):
        moved = list(tensors)
        storage = torch.empty(strides[0] + strides[1] + 65 * 128, dtype=torch.bfloat16)
        moved[position] = storage.as_strided((2, 2, 65, 128), (*strides, 128, 1))
        moved[position].copy_(tensors[position])
        with moon_diffusers.emulate(arch):
            out = moon_diffusers.attention(*moved, layout="bhsd", strict=True)
        assert relative(out, expected) <= 3e-3


def test_the_tuned_kernel_serves_what_it_can_and_the_general_one_the_rest():
    q, k, v = bhsd(1, 2, 2, 20, 30)
    run(q, k, v)
    run(q, k, v, rescale="exact")
    odd = torch.zeros(2 * 30 * 128 + 1).bfloat16()[1:].view(1, 2, 30, 128).copy_(k)
    run(q, odd, v)
    assert counters.snapshot().kernels == {
        "moon_attention_cdna3_rtne_lazy": 1,
        "moon_attention_cdna3_rtne_exact": 1,
        "moon_attention_general_rtne": 1,
    }


def test_same_bits_again_and_in_any_batch():
    q, k, v = bhsd(2, 3, 3, 150, 200)
    out = run(q, k, v)
    assert torch.equal(run(q, k, v), out)
    assert torch.equal(run(q[1:, 2:], k[1:, 2:], v[1:, 2:]), out[1:, 2:])


def test_wrong_kernel_would_be_noticed():
    """The comparison itself: two heads swapped, or the last keys dropped, is far outside the tolerance."""
    q, k, v = bhsd(1, 2, 2, 64, 130)
    expected, _ = reference(q, k, v)
    assert relative(run(q, k.flip(1), v), expected) > 0.1
    assert relative(run(q, k[:, :, :128], v[:, :, :128]), expected) > 1e-2


@pytest.mark.parametrize("change", ["dtype", "head dim", "stride", "empty", "lengths"])
def test_bad_input_raises_before_any_launch(change):
    q, k, v = bhsd(1, 2, 2, 8, 8)
    bad = {
        "dtype": lambda: (q.half(), k, v),
        "head dim": lambda: (q[..., :64], k[..., :64], v[..., :64]),
        "stride": lambda: (q.transpose(2, 3).contiguous().transpose(2, 3), k, v),
        "empty": lambda: (q[:, :, :0], k, v),
        "lengths": lambda: (q, k, v[:, :, 1:]),
    }[change]()
    with moon_diffusers.emulate("gfx942"), pytest.raises(ArgumentError):
        moon_diffusers.attention(*bad, layout="bhsd")
    assert counters.snapshot().num_served == 0


def test_environment_and_work_limit(monkeypatch):
    monkeypatch.setenv("MOON_EMULATE", "gfx942")
    q, k, v = bhsd(1, 1, 1, 20, 20)
    moon_diffusers.attention(q, k, v, layout="bhsd")
    monkeypatch.setenv("MOON_EMULATION_LIMIT", "1e-9")
    out = moon_diffusers.attention(q, k, v, layout="bhsd")
    assert torch.equal(out, torch.nn.functional.scaled_dot_product_attention(q, k, v))
    with moon_diffusers.emulate("gfx942", work_limit=0):
        moon_diffusers.attention(q, k, v, layout="bhsd")
    with moon_diffusers.emulate("gfx942", work_limit=1e-9), pytest.raises(StrictError, match="too much work"):
        moon_diffusers.attention(q, k, v, layout="bhsd", strict=True)
    counts = counters.snapshot()
    assert counts.served == {"gfx942 rtne, emulated": 2}
    assert counts.fallbacks == {"too much work for the emulator": 1}
    assert "raise it by emulate(..., work_limit=SECONDS) or MOON_EMULATION_LIMIT" in counts.line()
    for name, value in (("MOON_EMULATION_LIMIT", "soon"), ("MOON_EMULATE", "gfx90a")):
        monkeypatch.setenv(name, value)
        with pytest.raises(ArgumentError, match=f"{name}: '{value}' is not accepted"):
            moon_diffusers.attention(q, k, v, layout="bhsd")


def test_hours_are_refused_by_default():
    q = torch.zeros(1, 1, 40, 128, dtype=torch.bfloat16).expand(1, 2**18, 40, 128)
    with moon_diffusers.emulate("gfx942"), pytest.raises(StrictError, match="too much work for the emulator"):
        moon_diffusers.attention(q, q, q, strict=True)


def test_compiles_into_one_graph():
    torch._dynamo.reset()

    def block(q, k, v):
        return moon_diffusers.attention(q * 2, k, v, layout="bhsd", strict=True) + 1

    compiled = torch.compile(block, backend="aot_eager", fullgraph=True, dynamic=True)
    with moon_diffusers.emulate("gfx942"):
        for length in (5, 9):
            q, k, v = bhsd(1, 2, 2, length, length + 3)
            assert torch.equal(compiled(q, k, v), block(q, k, v))


def test_threads():
    inputs = [bhsd(1, 2, 2, 30 + n, 70) for n in range(4)]
    expected = [run(*tensors) for tensors in inputs]
    results = {}

    def work(index):
        results[index] = [run(*inputs[index]) for _ in range(3)]

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(out, expected[index]) for index in range(4) for out in results[index])


def test_a_forked_child_works():
    q, k, v = bhsd(1, 2, 2, 30, 70)
    expected = run(q, k, v)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if torch.equal(run(q, k, v), expected) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_streams():
    """Several launches in flight on streams of their own share nothing."""
    opened = device.open_emulated("gfx942")
    problem = selftest_cases.cases(opened.kernels[0])[0].problem
    launches = plan(problem, route(problem, Target("gfx942", opened.kernels)), opened.info)
    prepared = opened.prepare(launches)
    from moon_diffusers.dispatch import _host

    sets = []
    for _ in range(3):
        q = torch.randn(2, problem.seqlen_q, 4, 128).bfloat16()
        fused = torch.randn(2, problem.seqlen_k, 3, problem.num_heads_kv, 128).bfloat16()
        sets.append((q, fused[:, :, 0], fused[:, :, 1], torch.empty_like(q), torch.empty(2, 4, problem.seqlen_q)))
    with opened.current(), staging(opened.hip) as stage:
        streams = [opened.hip.create_stream() for _ in sets]
        addresses = []
        for q, k, v, out, lse in sets:
            named = {"q": q, "k": k, "v": v}
            here = {name: stage.upload(_host(tensor)) for name, tensor in named.items()}
            here |= {"o": stage.output(_host(out)), "lse": stage.output(_host(lse))}
            here["workspace"] = stage.allocate(launches.workspace_bytes)
            addresses.append(here)
        for stream, here in zip(streams, addresses, strict=True):
            prepared(stream, here)
        for stream in streams:
            opened.hip.synchronize_stream(stream)
        for (_, _, _, out, lse), here in zip(sets, addresses, strict=True):
            stage.download(_host(out), here["o"])
            stage.download(_host(lse), here["lse"])
        for stream in streams:
            opened.hip.destroy_stream(stream)
    for q, k, v, out, lse in sets:
        expected, expected_lse = reference(*(t.transpose(1, 2) for t in (q, k, v)), 0.1)
        assert relative(out.transpose(1, 2), expected) <= 3e-3
        torch.testing.assert_close(lse.double(), expected_lse, atol=1e-4, rtol=1e-5)


def forward_routes(arch):
    """Every forward kernel of an architecture, each with its helpers as routing would choose them."""
    opened = device.open_emulated(arch)
    for kernel in opened.kernels:
        if kernel.role == "forward":
            others = tuple(other for other in opened.kernels if other.role != "forward")
            problem = selftest_cases.cases(kernel)[0].problem
            yield opened, route(problem, Target(arch, (kernel, *others)))


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_selftest_of_every_kernel(monkeypatch, arch):
    monkeypatch.setenv("MOON_SELFTEST", "force")
    for opened, chosen in forward_routes(arch):
        fresh = device.Device(opened.hip, opened.ordinal, opened.manifest)
        outcome = selftest.run(fresh, chosen)
        assert outcome.passed and 1e-4 < outcome.error < TOLERANCE[chosen.forward.rounding], outcome.line()
        assert selftest.ensure(fresh, chosen)
    assert not selftest.cache_file().exists()


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_selftests_launch_everything_that_was_built(arch):
    launched = set()
    for opened, chosen in forward_routes(arch):
        for case in selftest_cases.cases(chosen.forward):
            launched |= {launch.kernel.name for launch in plan(case.problem, chosen, opened.info).launches}
    # Microbenchmarks serve no call.
    assert launched == {kernel.name for kernel in opened.kernels if kernel.role != "measurement"}


def test_doctor_sees_both_emulated_devices():
    emulator = doctor.describe_machine().libraries[2]
    assert [facts.info.arch for facts in emulator.devices] == ["gfx942", "gfx950"]
    assert [facts.info.cu_count for facts in emulator.devices] == [304, 256]
    assert all(verdict.runs for facts in emulator.devices for verdict in facts.kernels)


def test_pipelines_keep_running_where_the_kernel_cannot():
    q, k, v = bhsd(1, 2, 2, 8, 8, dim=64)
    with moon_diffusers.emulate("gfx942"):
        out = ops.attention(q, k, v, layout="bhsd")
    assert torch.equal(out, torch.nn.functional.scaled_dot_product_attention(q, k, v))
    assert counters.snapshot().fallbacks == {"head_dim 64 is not 128": 1}
