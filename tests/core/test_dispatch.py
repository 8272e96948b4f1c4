"""The whole corridor, tensors to launch and back, against the fake library."""

import contextlib
import os
import threading
import warnings

import numpy as np
import pytest
import torch

import moon_diffusers
from moon_diffusers import adapt, counters, dispatch, emulation, ops
from moon_diffusers.errors import ArgumentError, HipError, LibraryError, StrictError
from moon_diffusers.request import Request
from moon_diffusers.runtime import device, library
from moon_diffusers.runtime.memory import staging

from .conftest import NOTHING, REFUSE, RIGHT, WRONG
from .helpers import bhsd, reference, relative, visible

LABEL = "gfx942 rtne, offloaded"


def served() -> int:
    counts = counters.snapshot()
    assert counts.num_fallbacks == 0, counts.line()
    return counts.num_served


@pytest.mark.parametrize("layout", ["bshd", "bhsd", "bhsd over bshd"])
def test_offload_computes_and_counts(fake, layout):
    q, k, v = bhsd(2, 4, 2, 33, 50)
    expected, expected_lse = reference(q, k, v, scale=0.2)
    if layout == "bshd":
        q, k, v = (t.transpose(1, 2).contiguous() for t in (q, k, v))
    if layout == "bhsd over bshd":
        q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v))
    with moon_diffusers.offload():
        out, lse = moon_diffusers.attention(q, k, v, layout=layout[:4], softmax_scale=0.2, return_lse=True)
    heads_first = out.transpose(1, 2) if layout == "bshd" else out
    assert relative(heads_first, expected) < 3e-3
    torch.testing.assert_close(lse.double(), expected_lse, atol=1e-5, rtol=1e-5)
    assert out.stride() == (q.stride() if layout != "bhsd" else q.contiguous().stride())
    assert counters.snapshot().served == {LABEL: 1}
    assert moon_diffusers.summary() == f"moon_diffusers: 1 of 1 attention calls ran on the kernel (1 {LABEL})"
    assert fake.allocations == 0


def test_strided_views_and_storage_offsets(fake):
    fused = torch.randn(2, 40, 3, 4, 128).bfloat16()
    q, k, v = fused.unbind(2)
    odd = torch.randn(2 * 40 * 4 * 128 + 3).bfloat16()[3:].view(2, 40, 4, 128)
    with moon_diffusers.offload():
        for a, b, c in (
            (q, k, v),
            (odd, k, v),
            (q[:, 1:], k[:, 5:], v[:, 5:]),
            (q[:, :, 1:3], k[:, :, 2:], v[:, :, 2:]),
        ):
            out = moon_diffusers.attention(a, b, c)
            expected, _ = reference(*(t.transpose(1, 2) for t in (a, b, c)))
            assert relative(out.transpose(1, 2), expected) < 3e-3
            assert out.is_contiguous()
    assert served() == 4


def test_broadcast_views(fake):
    q, k, v = bhsd(1, 1, 1, 9, 9)
    with moon_diffusers.offload():
        out = moon_diffusers.attention(
            q.expand(2, 3, -1, -1), k.expand(2, 3, -1, -1), v.expand(2, 3, -1, -1), layout="bhsd"
        )
    expected, _ = reference(q, k, v)
    assert relative(out[1, 2], expected[0, 0]) < 3e-3
    assert served() == 1


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [None, [50, 17]])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_causal_and_key_lengths(fake, causal, lengths, dtype):
    q, k, v = bhsd(2, 2, 2, 20, 50)
    seqlens_k = None if lengths is None else torch.tensor(lengths, dtype=dtype)
    expected, _ = reference(q, k, v, allowed=visible(2, 20, 50, causal, lengths))
    with moon_diffusers.offload():
        out = ops.attention(q, k, v, layout="bhsd", causal=causal, seqlens_k=seqlens_k)
    assert relative(out, expected) < 3e-3
    assert served() == 1


MASKS = {
    "all": lambda: torch.ones(1, 1, 1, 50, dtype=torch.bool),
    "prefix": lambda: (torch.arange(50) < 13).reshape(1, 1, 1, 50),
    "gaps": lambda: (torch.arange(50) % 3 > 0).reshape(1, 1, 1, 50),
    "prefixes": lambda: (torch.arange(50) < torch.tensor([[9], [41]])).reshape(2, 1, 1, 50),
    "mixed gaps": lambda: torch.stack([torch.arange(50) % 3 > 0, torch.arange(50) > 30]).reshape(2, 1, 1, 50),
    "rows too": lambda: (torch.arange(20) < 11).reshape(1, 1, 20, 1) & (torch.arange(50) < 13).reshape(1, 1, 1, 50),
    "zero bias": lambda: torch.zeros(20, 50, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("case", MASKS)
def test_key_masks_are_served_exactly(fake, case, layout):
    mask = MASKS[case]()
    q, k, v = bhsd(2, 2, 1, 20, 50)
    v[:, :, 49] = torch.nan if case not in ("all", "zero bias", "gaps", "mixed gaps") else 1.0
    allowed = None if case == "zero bias" else mask
    expected, expected_lse = reference(q, k, v.nan_to_num(0.0), allowed=allowed)
    if layout == "bshd":
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    for _ in range(2):
        with moon_diffusers.offload():
            out, lse = ops.attention(q, k, v, layout=layout, attn_mask=mask, return_lse=True)
        out = out.transpose(1, 2) if layout == "bshd" else out
        assert relative(out, expected) < 3e-3
        torch.testing.assert_close(lse.double(), expected_lse.expand_as(lse), atol=1e-4, rtol=1e-4)
    assert served() == 2


def test_other_masks_are_honoured_by_torch(fake):
    q, k, v = bhsd(1, 2, 2, 20, 50)
    block = torch.rand(1, 1, 20, 50) < 0.5
    block[..., 0] = True
    bias = torch.randn(1, 1, 20, 50).bfloat16()
    with moon_diffusers.offload():
        for mask in (block, bias):
            out = ops.attention(q, k, v, layout="bhsd", attn_mask=mask)
            torch.testing.assert_close(out, torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask))
        ops.attention(q, k, v, layout="bhsd", causal=True, attn_mask=MASKS["prefix"]())
    assert counters.snapshot().fallbacks == {
        "mask differs by query": 1,
        "additive mask": 1,
        "a mask together with causal or seqlens_k": 1,
    }


def test_a_changed_mask_is_read_again(fake):
    q, k, v = bhsd(1, 1, 1, 5, 50)
    mask = MASKS["prefix"]().clone()
    with moon_diffusers.offload():
        first = ops.attention(q, k, v, layout="bhsd", attn_mask=mask)
        mask[..., 20] = True
        second = ops.attention(q, k, v, layout="bhsd", attn_mask=mask)
    assert not torch.equal(first, second)


def test_a_mask_over_memory_that_numpy_writes_is_read_again(fake):
    """Torch counts no version there: what the first mask said was taken for the second."""
    q, k, v = bhsd(1, 1, 1, 5, 50)
    memory = np.zeros((1, 1, 1, 50), dtype=bool)
    with moon_diffusers.offload():
        for length in (30, 20):
            memory[...] = np.arange(50) < length
            mask = torch.from_numpy(memory)
            out = ops.attention(q, k, v, layout="bhsd", attn_mask=mask)
            assert relative(out, reference(q, k, v, allowed=mask)[0]) < 3e-3
    assert served() == 2


UNSUPPORTED = {
    "dtype float32 is not bfloat16": lambda q, k, v: (q.float(), k.float(), v.float()),
    "head_dim 64 is not 128": lambda q, k, v: (q[..., :64].clone(), k[..., :64].clone(), v[..., :64].clone()),
    "head dims of v and q differ": lambda q, k, v: (q, k, v[..., :64].clone()),
    "head dim not contiguous": lambda q, k, v: (q.transpose(2, 3).contiguous().transpose(2, 3), k, v),
}


@pytest.mark.parametrize("reason", UNSUPPORTED)
def test_what_the_kernel_cannot_do_falls_back_by_name(fake, reason):
    q, k, v = UNSUPPORTED[reason](*bhsd(1, 2, 2, 20, 50))
    with moon_diffusers.offload():
        out = ops.attention(q, k, v, layout="bhsd")
        torch.testing.assert_close(out, torch.nn.functional.scaled_dot_product_attention(q, k, v))
        with pytest.raises(StrictError, match=reason):
            ops.attention(q, k, v, layout="bhsd", strict=True)
    assert counters.snapshot().fallbacks == {reason: 1}


def test_a_rounding_without_kernel_falls_back(fake):
    q, k, v = bhsd(1, 1, 1, 4, 4)
    with moon_diffusers.offload():
        moon_diffusers.attention(q, k, v, rounding="rtna")
        moon_diffusers.attention(q, k, v, rescale="lazy")
        moon_diffusers.attention(q, k, v, rounding="rtz")
    counts = counters.snapshot()
    assert counts.fallbacks == {"no gfx942 kernel rounds by rtna": 1, "no gfx942 kernel rescales by lazy": 1}
    assert counts.served == {"gfx942 rtz, offloaded": 1}


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_misfits_raise_before_any_launch(fake, layout):
    q, k, v = bhsd(1, 2, 2, 20, 50)
    before = fake.launches
    with moon_diffusers.offload():
        with pytest.raises(ArgumentError, match="v: "):
            ops.attention(q, k, v[:, :, 1:], layout=layout)
        with pytest.raises(ArgumentError, match="softmax_scale: nan is not accepted"):
            moon_diffusers.attention(q, k, v, layout="bhsd", softmax_scale=float("nan"))
        with pytest.raises(ArgumentError, match="rounding"):
            ops.attention(q, k, v, layout="bhsd", rounding="up")
    assert fake.launches == before


@pytest.mark.parametrize("mode", [NOTHING, WRONG])
def test_a_failed_selftest_falls_back_loudly_once(fake, mode):
    fake.mode(mode)
    q, k, v = bhsd(1, 2, 2, 20, 50)
    with moon_diffusers.offload():
        with pytest.warns(RuntimeWarning, match="self-test of fake_rtne FAILED: relative L2"):
            out = moon_diffusers.attention(q, k, v, layout="bhsd")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for length in (20, 30):
                moon_diffusers.attention(*bhsd(1, 2, 2, 20, length), layout="bhsd")
    assert torch.equal(out, torch.nn.functional.scaled_dot_product_attention(q, k, v))
    assert counters.snapshot().fallbacks == {"the kernel failed its self-test on this device": 3}


def test_a_full_device_puts_the_selftest_off(fake):
    """Nothing is known of the kernel then: it must not be switched off for the rest of the process."""
    q, k, v = bhsd(1, 2, 2, 20, 50)
    with moon_diffusers.offload(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for memory in (0, 2):
            fake.library.fakeMemory(memory)
            out = moon_diffusers.attention(q, k, v, layout="bhsd")
            assert torch.equal(out, torch.nn.functional.scaled_dot_product_attention(q, k, v))
        assert counters.snapshot().fallbacks == {"no memory for a kernel's self-test": 2}
        assert "hipMalloc" in counters.snapshot().details["no memory for a kernel's self-test"]
        assert fake.allocations == 0
        fake.library.fakeMemory(-1)
        moon_diffusers.attention(q, k, v, layout="bhsd", strict=True)
    assert counters.snapshot().num_served == 1


@pytest.mark.parametrize("enough", [True, False])
def test_torchs_own_reserve_is_given_back_for_the_selftest(fake, monkeypatch, enough):
    session = dispatch.Session(device.open_real(), staged=False)
    emptied = []

    def empty_cache():
        emptied.append(True)
        fake.library.fakeMemory(-1 if enough else 0)

    monkeypatch.setattr(torch.cuda, "empty_cache", empty_cache)
    fake.library.fakeMemory(0)
    q, k, v = bhsd(1, 2, 2, 20, 50)
    for turn in (1, 2):
        ready = session.ready(q, k, v, None, Request("bhsd", None, False, "rtne", "auto", False))
        assert isinstance(ready, dispatch.Ready) == enough
        assert len(emptied) == (1 if enough else turn)


def test_a_launch_that_fails_raises_and_frees(fake):
    q, k, v = bhsd(1, 2, 2, 20, 50)
    with moon_diffusers.offload():
        moon_diffusers.attention(q, k, v, layout="bhsd")
        fake.mode(REFUSE)
        with pytest.raises(HipError, match="launch of fake_rtne"):
            moon_diffusers.attention(q, k, v, layout="bhsd")
        fake.mode(RIGHT)
        moon_diffusers.attention(q, k, v, layout="bhsd")
    assert fake.allocations == 0


def test_an_unknown_gpu_falls_back(fake):
    fake.library.fakeArch(1)
    with moon_diffusers.offload():
        moon_diffusers.attention(*bhsd(1, 1, 1, 4, 4), layout="bhsd")
    assert counters.snapshot().fallbacks == {"no kernel for gfx90a": 1}


def test_no_build_is_an_error_for_those_who_ask_and_a_fallback_by_environment(fake, monkeypatch, tmp_path):
    monkeypatch.setenv("MOON_COMPILED", str(tmp_path))
    with pytest.raises(moon_diffusers.MoonError, match="build the kernels by"), moon_diffusers.offload():
        pass
    with pytest.raises(moon_diffusers.MoonError, match="build the kernels by"), moon_diffusers.emulate("gfx942"):
        pass
    monkeypatch.setenv("MOON_OFFLOAD", "1")
    moon_diffusers.attention(*bhsd(1, 1, 1, 4, 4), layout="bhsd")
    counts = counters.snapshot()
    assert counts.fallbacks == {"no usable kernels or HIP library": 1}
    assert "build the kernels by" in counts.line()


def test_no_library_is_an_error_for_those_who_ask(fake, monkeypatch, tmp_path):
    monkeypatch.setenv("MOON_HIP_LIBRARY", str(tmp_path / "none.so"))
    with pytest.raises(LibraryError, match=r"none\.so"), moon_diffusers.offload():
        pass


def test_environment_switches_offload_on(fake, monkeypatch):
    monkeypatch.setenv("MOON_OFFLOAD", "1")
    moon_diffusers.attention(*bhsd(1, 1, 1, 4, 4), layout="bhsd")
    assert served() == 1


def test_blocks_nest_and_are_thread_bound(fake):
    q, k, v = bhsd(1, 1, 1, 4, 4)
    with moon_diffusers.offload() as outer, moon_diffusers.offload():
        moon_diffusers.attention(q, k, v, layout="bhsd")
        thread = threading.Thread(target=moon_diffusers.attention, args=(q, k, v))
        thread.start()
        thread.join()
    assert outer.kind == "offload"
    moon_diffusers.attention(q, k, v, layout="bhsd")
    counts = counters.snapshot()
    assert counts.num_served == 1 and counts.num_fallbacks == 2


def test_one_block_object_may_be_open_in_several_threads(fake):
    """Each left the block with the token of another: ValueError, and the placement stayed."""
    block, both = moon_diffusers.offload(), threading.Barrier(2, timeout=10)
    problems = []

    def work(last):
        try:
            with block:
                both.wait()
                if last:
                    both.wait()
            if not last:
                both.wait()
            assert emulation.current_placement() is None
        except Exception as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(last,)) for last in (False, True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    with block, block:
        pass
    assert emulation.current_placement() is None


def test_the_devices_of_all_tensors_are_part_of_the_kind(fake):
    """A good call of the same shapes was refused after a bad one, and a bad one launched after a good one."""
    q, k, v = bhsd(1, 1, 1, 4, 4)
    with moon_diffusers.offload():
        for _ in range(2):
            with pytest.raises(RuntimeError, match="device"):
                ops.attention(q, k.to("meta"), v, layout="bhsd")
            ops.attention(q, k, v, layout="bhsd")
    counts = counters.snapshot()
    assert counts.num_served == 2 and counts.fallbacks == {"q, k and v on different devices": 2}


def test_threads_share_sessions_and_get_their_own_results(fake):
    shapes = [(1, 2, 2, 3 + n, 5 + n) for n in range(6)]
    wrong = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        with moon_diffusers.offload():
            for _ in range(5):
                for batch, heads, heads_kv, seqlen_q, seqlen_k in shapes:
                    q = torch.randn(batch, heads, seqlen_q, 128, generator=generator).bfloat16()
                    k, v = (torch.randn(batch, heads_kv, seqlen_k, 128, generator=generator).bfloat16() for _ in "kv")
                    out = moon_diffusers.attention(q, k, v, layout="bhsd")
                    if relative(out, reference(q, k, v)[0]) > 3e-3:
                        wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert served() == 4 * 5 * len(shapes)


def test_a_forked_child_works(fake):
    q, k, v = bhsd(1, 1, 1, 4, 4)
    with moon_diffusers.offload():
        expected = moon_diffusers.attention(q, k, v, layout="bhsd")
        child = os.fork()
        if child == 0:
            # No pytest in here: the exit status says it all.
            status = 1
            fresh = not dispatch._sessions and not device._devices
            try:
                out = moon_diffusers.attention(q, k, v, layout="bhsd")
                same = torch.equal(out, expected) and counters.snapshot().served == {LABEL: 1}
                status = 0 if same and fresh else 2
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiles_into_one_graph(fake, backend):
    torch._dynamo.reset()

    def block(q, k, v, mask):
        out, lse = ops.attention(q * 2, k, v, attn_mask=mask, return_lse=True)
        return out + 1, lse

    compiled = torch.compile(block, backend=backend, fullgraph=True, dynamic=True)
    with moon_diffusers.offload():
        for length in (5, 9, 12):
            q, k, v = (torch.randn(2, n, 3, 128).bfloat16() for n in (length, length + 2, length + 2))
            mask = (torch.arange(length + 2) < length).reshape(1, 1, 1, -1)
            for ours, expected in zip(compiled(q, k, v, mask), block(q, k, v, mask), strict=True):
                assert torch.equal(ours, expected)
    assert served() == 6


def test_kinds_are_remembered_but_not_without_bound(fake, monkeypatch):
    calls = []
    original = dispatch.route
    monkeypatch.setattr(dispatch, "route", lambda *a: calls.append(1) or original(*a))
    monkeypatch.setattr(dispatch, "MAX_KINDS", 2)
    with moon_diffusers.offload():
        for length in (3, 3, 4, 4, 5, 5):
            moon_diffusers.attention(*bhsd(1, 1, 1, length, 7), layout="bhsd")
        assert len(calls) == 3
        moon_diffusers.attention(*bhsd(1, 1, 1, 3, 7), layout="bhsd")
        assert len(calls) == 4


def test_what_differs_is_another_kind(fake):
    q, k, v = bhsd(2, 3, 3, 3, 7)
    lengths = torch.tensor([2, 7], dtype=torch.int32)
    other = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)]
    with moon_diffusers.offload():
        for a in (q, other[0]):
            for b in (k, other[1]):
                for c in (v, other[2]):
                    for seqlens_k, scale in ((None, None), (lengths, None), (None, 0.3)):
                        out = moon_diffusers.attention(a, b, c, layout="bhsd", seqlens_k=seqlens_k, softmax_scale=scale)
                        allowed = None if seqlens_k is None else visible(2, 3, 7, False, [2, 7])
                        assert relative(out, reference(q, k, v, scale, allowed)[0]) < 3e-3
    assert served() == 24


def test_copies_keep_the_alignment_of_their_originals(fake):
    opened = device.open_real()
    base = torch.arange(64, dtype=torch.bfloat16)
    with staging(opened.hip) as stage:
        for offset in (0, 1, 3, 8):
            view = base[offset : offset + 4]
            assert (stage.upload(dispatch._host(view)) - view.data_ptr()) % 16 == 0


def test_masks_are_remembered_in_eager_code_only(fake, monkeypatch):
    torch._dynamo.reset()
    seen = []
    original = adapt.serve
    monkeypatch.setattr(adapt, "serve", lambda *a: seen.append(a[-1]) or original(*a))
    q, k, v = bhsd(1, 1, 1, 5, 50)
    mask = MASKS["prefix"]()

    def block(q):
        return ops.attention(q, k, v, layout="bhsd", attn_mask=mask)

    with moon_diffusers.offload():
        block(q)
        torch.compile(block, backend="eager", fullgraph=True)(q)
    assert seen == [True, False]


def test_misalignment_is_part_of_the_kind(fake, monkeypatch):
    import json

    path = fake.folder / "manifest.json"
    manifest = json.loads(path.read_text())
    for kernel in manifest["code_objects"][0]["kernels"]:
        kernel["variant"]["alignment"] = 16
    path.write_text(json.dumps(manifest))
    base = torch.randn(2 * 9 * 128).bfloat16()
    with moon_diffusers.offload():
        for offset in (0, 8, 3, 4):
            q = base[offset : offset + 4 * 128].view(1, 4, 1, 128)
            moon_diffusers.attention(q, q, q)
        odd = base[: 4 * 132].view(1, 4, 1, 132)[..., :128]
        moon_diffusers.attention(odd, odd, odd)
        moon_diffusers.attention(odd[:, :1], odd[:, :1], odd[:, :1])
    counts = counters.snapshot()
    assert counts.num_served == 3
    assert counts.fallbacks == {"tensors aligned to 2 bytes only": 1, "tensors aligned to 8 bytes only": 2}


def test_gradients_through_a_served_session_are_torchs(fake):
    q, k, v = (t.requires_grad_() for t in bhsd(1, 2, 2, 5, 7))
    with moon_diffusers.offload():
        moon_diffusers.attention(q, k, v, layout="bhsd").float().sum().backward()
        with torch.no_grad():
            moon_diffusers.attention(q, k, v, layout="bhsd")
    assert q.grad is not None
    counts = counters.snapshot()
    assert counts.fallbacks == {"requires grad": 1} and counts.num_served == 1


def test_huge_sparse_views_are_copied_by_rows(fake, monkeypatch):
    copies = []
    with moon_diffusers.offload():
        q, k, v = bhsd(1, 1, 1, 4, 4)
        moon_diffusers.attention(q, k, v, layout="bhsd")
        opened = device.open_real()
        original = opened.hip.copy_to_device
        monkeypatch.setattr(opened.hip, "copy_to_device", lambda d, h, n: copies.append(n) or original(d, h, n))
        # Rows 64 MiB apart: 192 MiB of address space, of which 1 KiB is touched.
        storage = torch.empty(3 * 2**25 + 128, dtype=torch.bfloat16)
        far = storage.as_strided((1, 4, 1, 128), (0, 2**25, 128, 1))
        far.copy_(v.transpose(1, 2))
        out = moon_diffusers.attention(q.transpose(1, 2), k.transpose(1, 2), far)
    assert relative(out.transpose(1, 2), reference(q, k, v)[0]) < 3e-3
    assert sorted(copies) == [256] * 4 + [1024] * 2
    assert served() == 2


class DeviceTensor:
    """What the direct path needs of a tensor on a ROCm device, which no machine here has."""

    def __init__(self, tensor, index=1):
        self.tensor, self.device = tensor, torch.device("cuda", index)

    def data_ptr(self):
        return self.tensor.data_ptr()


@pytest.mark.parametrize("current", [1, 0])
def test_device_tensors_go_by_address_on_torchs_stream(fake, monkeypatch, current):
    session = dispatch.Session(device.open_real(), staged=False)
    q, k, v = bhsd(2, 2, 2, 9, 11)
    ready = session.ready(q, k, v, None, Request("bhsd", None, False, "rtne", "auto", False))
    switched = []

    @contextlib.contextmanager
    def switch(index):
        switched.append(index)
        yield

    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(torch.cuda, "device", switch)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7000 + index, raising=False)
    monkeypatch.setattr(session.device.hip, "malloc", lambda size: pytest.fail("copied"))
    out = torch.empty_like(q)
    session._run(ready, {name: DeviceTensor(t) for name, t in (("q", q), ("k", k), ("v", v))}, DeviceTensor(out), None)
    assert relative(out, reference(q, k, v)[0]) < 3e-3
    assert fake.library.fakeStream() == 7001
    assert switched == ([] if current == 1 else [1])


def test_a_workspace_comes_from_torch(fake):
    session = dispatch.Session(device.open_real(), staged=False)
    seen = {}

    class Prepared:
        workspace_bytes = 512

        def __call__(self, stream, addresses):
            seen.update(addresses, stream=stream)

    q = torch.zeros(1, 1, 1, 128)
    session._run(dispatch.Ready("a kernel", Prepared(), False), {"q": q}, torch.empty_like(q), None)
    assert seen["workspace"] % 16 == 0 and seen["workspace"] not in (0, seen["q"], seen["o"])
    assert seen["q"] == q.data_ptr() and seen["stream"] == 0


def test_a_gpu_without_its_library_falls_back_by_name(monkeypatch):
    monkeypatch.setattr(library, "CUDA_SONAME", "libcuda-that-is-not-here.so.1")
    refused = dispatch._session(torch.device("cuda", 0))
    assert refused.reason == "no usable kernels or CUDA library"
    assert "libcuda-that-is-not-here.so.1" in refused.detail
    assert dispatch._session(torch.device("meta")).reason == "meta tensors"


def test_rocm_torch_opens_its_own_library(fake, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "7.2.0")
    # A library of the user's own does not know torch's addresses.
    monkeypatch.setenv("MOON_HIP_LIBRARY", "libanother.so")
    session = dispatch._session(torch.device("cuda", 0))
    assert not session.staged and session.suffix == "" and session.device.info.arch == "gfx942"
    assert dispatch._session(torch.device("cuda", 3)).reason == "no usable kernels or HIP library"
    monkeypatch.setattr(library, "mapped_libraries", list)
    dispatch.reset()
    assert "no HIP library is mapped" in dispatch._session(torch.device("cuda", 0)).detail


def test_first_use_inside_a_graph_capture_waits(fake, monkeypatch):
    session = dispatch.Session(device.open_real(), staged=False)
    q, k, v = bhsd(1, 1, 1, 4, 4)
    request = Request("bhsd", None, False, "rtne", "auto", False)
    monkeypatch.setattr(dispatch, "_capturing", lambda: True)
    assert "graph capture" in session.ready(q, k, v, None, request).reason
    monkeypatch.setattr(dispatch, "_capturing", lambda: False)
    assert session.ready(q, k, v, None, request).label == "gfx942 rtne"
    monkeypatch.setattr(dispatch, "_capturing", lambda: True)
    assert session.ready(*bhsd(1, 1, 1, 4, 5), None, request).label == "gfx942 rtne"
