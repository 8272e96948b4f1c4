"""The CUDA driver behind the same corridor: contexts, modules, tensor maps, launches, against the fake driver."""

import contextlib
import json
import threading
from dataclasses import replace

import pytest
import torch

import moon_diffusers
from moon_diffusers import counters, dispatch, ops
from moon_diffusers.errors import CudaError, DriverError, LibraryError, PlanError, StrictError
from moon_diffusers.planning import Launch, TensorMap, plan
from moon_diffusers.request import Request
from moon_diffusers.routing import SLOWER, Route
from moon_diffusers.runtime import cuda, device, doctor, launcher, library, selftest, selftest_cases
from moon_diffusers.runtime.hip import Hip

from .conftest import NOTHING, REFUSE, WRONG, WRONG_LSE, write_cuda_manifest
from .helpers import bhsd, reference, relative, visible
from .test_dispatch import DeviceTensor

LABEL = "sm_90a rtne, offloaded"
REQUEST = Request("bhsd", None, False, "rtne", "auto", False)


def forward(opened):
    kernels = {kernel.role: kernel for kernel in opened.kernels}
    return Route(kernels["forward"], merge=kernels["merge"])


def in_thread(function):
    """Run in a thread of its own, which has no context yet."""
    result = []
    thread = threading.Thread(target=lambda: result.append(function()))
    thread.start()
    thread.join()
    return result[0]


# --- devices, contexts, modules --------------------------------------------------------------------------------------


def test_device_facts(fake_cuda):
    info = device.open_real(1).info
    assert (info.arch, info.name, info.cu_count, info.xcd_count) == ("sm_90a", "Fake H200 1", 132, 1)
    assert (info.lds_bytes, info.wavefront_size, info.driver_version) == (232448, 32, 12090)
    with pytest.raises(LibraryError, match="sees 2 devices; device 2 was asked for"):
        device.open_real(2)
    assert device.open_real().driver.version_text().startswith("CUDA 12.9")


def test_a_library_without_the_functions_is_an_error():
    with pytest.raises(LibraryError, match="CUDA 12"):
        cuda.Cuda("libc.so.6")


def test_no_device_is_none(fake_cuda):
    fake_cuda.library.fakeDevices(0)
    with pytest.raises(LibraryError, match="sees 0 devices"):
        device.open_real()


def test_the_environment_chooses_among_vendors(fake_cuda, fake_library, monkeypatch):
    assert isinstance(library.find_real(), cuda.Cuda)
    monkeypatch.setenv("MOON_HIP_LIBRARY", str(fake_library))
    assert isinstance(library.find_real(), Hip)
    monkeypatch.delenv("MOON_HIP_LIBRARY")
    monkeypatch.delenv("MOON_CUDA_LIBRARY")
    # Unnamed: the one that sees a device.
    monkeypatch.setattr(library, "CUDA_SONAME", str(fake_cuda.path))
    monkeypatch.setattr(library, "hip_candidates", lambda: iter(["libnothing.so"]))
    assert isinstance(library.find_real(), cuda.Cuda)
    monkeypatch.setattr(library, "hip_candidates", lambda: iter([str(fake_library)]))
    assert isinstance(library.find_real(), Hip)
    with monkeypatch.context() as patch:
        patch.setattr(Hip, "device_count", lambda self: 0)
        assert isinstance(library.find_real(), cuda.Cuda)
        fake_cuda.library.fakeDevices(0)
        assert isinstance(library.find_real(), Hip)
        fake_cuda.library.fakeDevices(2)
    monkeypatch.setattr(library, "CUDA_SONAME", "libnocuda.so")
    monkeypatch.setattr(library, "hip_candidates", lambda: iter(["libnothing.so"]))
    with pytest.raises(LibraryError, match=r"no HIP library; tried: libnothing\.so; CUDA driver libnocuda\.so"):
        library.find_real()


def test_errors_carry_name_and_text(fake_cuda):
    opened = device.open_real()
    with opened.current(), pytest.raises(CudaError, match=r"cuMemAlloc_v2: CUDA_ERROR_INVALID_VALUE \(1\), invalid"):
        opened.driver.malloc(0)
    with pytest.raises(DriverError, match=r"CUDA_ERROR_INVALID_CONTEXT \(201\), no description"):
        in_thread_raising(lambda: opened.driver.malloc(16))
    assert issubclass(CudaError, moon_diffusers.MoonError)


def in_thread_raising(function):
    errors = []

    def run():
        try:
            function()
        except Exception as error:
            errors.append(error)

    in_thread(run)
    if errors:
        raise errors[0]


def test_the_primary_context_is_retained_once_and_given_back_to_nobody(fake_cuda):
    before = fake_cuda.library.fakeRetained(1)
    driver = cuda.Cuda(str(fake_cuda.path))
    for _ in range(3):
        in_thread(lambda: driver.context(1))
    assert fake_cuda.library.fakeRetained(1) == before + 1


def test_another_context_comes_back_after_a_block(fake_cuda):
    opened = device.open_real(1)
    fake_cuda.library.fakeForeignContext(1)
    assert fake_cuda.library.fakeCurrent() == 9
    with pytest.raises(ZeroDivisionError), opened.current():
        assert fake_cuda.library.fakeCurrent() == 1
        with device.open_real(0).current():
            assert fake_cuda.library.fakeCurrent() == 0
        with opened.current():
            assert fake_cuda.library.fakeDepth() == 2
        1 / 0  # noqa: B018
    assert fake_cuda.library.fakeCurrent() == 9
    fake_cuda.library.fakeForeignContext(0)


def test_the_first_call_of_a_thread_breaks_no_capture_of_another(fake_cuda):
    fake_cuda.library.fakeCapturedElsewhere(1)
    with moon_diffusers.offload():
        moon_diffusers.attention(*bhsd(1, 1, 1, 4, 4), layout="bhsd")
    assert counters.snapshot().served == {LABEL: 1}
    opened = device.open_real()
    with pytest.raises(ZeroDivisionError), opened.current(), opened.current():
        1 / 0  # noqa: B018
    assert fake_cuda.library.fakeCaptureMode() == 0
    fake_cuda.library.fakeForeignContext(1)
    with opened.current():
        assert fake_cuda.library.fakeCaptureMode() == 2
    assert fake_cuda.library.fakeCaptureMode() == 0 and fake_cuda.library.fakeCurrent() == 9


def test_ptx_is_compiled_where_the_cubin_is_refused(fake_cuda):
    fake_cuda.library.fakeRefuseCubin(209)
    opened = device.open_real()
    opened.load(forward(opened))
    assert opened.compiled_here == {"moon_attention_sm90a.cubin", "moon_attention_sm90a_merge.cubin"}
    assert selftest.run(opened, forward(opened)).passed


def test_other_refusals_of_a_cubin_are_no_matter_of_ptx(fake_cuda):
    fake_cuda.library.fakeRefuseCubin(1)
    opened = device.open_real()
    with pytest.raises(CudaError, match="cuModuleLoadData: CUDA_ERROR_INVALID_VALUE"):
        opened.load(forward(opened))


def test_errors_of_the_drivers_compiler_show_its_words(fake_cuda):
    opened = device.open_real()
    with opened.current(), pytest.raises(CudaError, match=r"\(line 1; error: no version\): CUDA_ERROR_INVALID_PTX"):
        opened.driver.load_module(b"nonsense")


def test_a_damaged_fallback_never_reaches_the_driver(fake_cuda):
    fake_cuda.library.fakeRefuseCubin(200)
    (fake_cuda.folder / "moon_attention_sm90a.ptx").write_bytes(b".version 8.0\nelse")
    opened = device.open_real()
    with pytest.raises(moon_diffusers.MoonError, match="sha256"):
        opened.load(forward(opened))


def test_hip_has_no_maps(fake):
    opened = device.open_real()
    with pytest.raises(PlanError, match="HIP has no tensor maps"):
        opened.driver.encode_map(TensorMap("q", (128, 1, 1, 1), (256,) * 3, (64, 64, 1, 1)), 4096)
    assert opened.hip is opened.driver


def test_cuda_is_no_hip(fake_cuda):
    with pytest.raises(LibraryError, match="Fake H200 0: driven by CUDA, not by HIP"):
        device.open_real().hip  # noqa: B018


# --- maps and launches -----------------------------------------------------------------------------------------------


def prepared_case(opened, index=0):
    problem = selftest_cases.cases(forward(opened).forward)[index].problem
    return problem, plan(problem, forward(opened), opened.info_for(forward(opened)))


def test_maps_are_encoded_into_the_segment(fake_cuda):
    opened = device.open_real()
    problem, launches = prepared_case(opened)
    launch = launches.launches[0]
    layout = opened.manifest.layouts["sm90a"]
    data, pointers = launcher.pack(launch, layout)
    with opened.current():
        segment, maps = launcher.encode_maps(opened.driver, launch, layout, data)
        assert maps == ((0, "q"), (128, "k"), (256, "v"))
        for offset, name in maps:
            assert segment[offset : offset + 128] == opened.driver.encode_map(
                launch.values[f"{name}_map"], launcher.ANY_ADDRESS
            )
    assert segment[384:] == data[384:] and not any(data[:384])
    assert {buffer for _, buffer, _ in pointers} == {
        "q",
        "k",
        "o",
        "lse",
        *(["workspace"] if launches.workspace_bytes else []),
    }
    assert problem.num_heads_kv == 2 and launch.values["k_map"].dims == (128, 333, 2, 2)


def test_a_map_that_the_driver_refuses_is_an_error_before_any_launch(fake_cuda):
    opened = device.open_real()
    _, launches = prepared_case(opened)
    launch = launches.launches[0]
    odd = replace(launch.values["k_map"], strides=(8, 256, 256))
    broken = replace(launches, launches=(replace(launch, values={**launch.values, "k_map": odd}),))
    with pytest.raises(CudaError, match="cuTensorMapEncodeTiled: CUDA_ERROR_INVALID_VALUE"):
        opened.prepare(broken)
    misfit = replace(launch, values={**launch.values, "k_map": replace(odd, box=(64, 80))})
    with pytest.raises(PlanError, match="do not fit 4 dimensions"):
        opened.prepare(replace(launches, launches=(misfit,)))
    for name, value in (("k_map", 0), ("o", launch.values["k_map"])):
        swapped = replace(launch, values={**launch.values, name: value})
        with pytest.raises(PlanError, match=f"argument '{name}' cannot hold"):
            opened.prepare(replace(launches, launches=(swapped,)))


def test_a_grid_is_a_multiple_of_the_cluster(fake_cuda):
    opened = device.open_real()
    kernel = forward(opened).forward
    with pytest.raises(PlanError, match="grid x of 3 is no multiple of the cluster, 2"):
        launcher.PreparedLaunch(
            opened.driver, 1, Launch(kernel, (3, 1, 1), {}, 0), opened.manifest.layouts["sm90a"], 232448
        )


def test_clusters_come_from_the_driver_and_are_asked_for_once(fake_cuda, monkeypatch):
    fake_cuda.library.fakeClusters(7)
    opened = device.open_real()
    assert opened.info_for(forward(opened)).clusters == 7
    fake_cuda.library.fakeClusters(9)
    assert opened.info_for(forward(opened)).clusters == 7


def test_more_shared_memory_than_there_is_falls_back(fake_cuda):
    write_cuda_manifest(fake_cuda.folder, dynamic_lds=232449)
    with moon_diffusers.offload(), pytest.warns(RuntimeWarning, match="could not run"):
        moon_diffusers.attention(*bhsd(1, 1, 1, 4, 4), layout="bhsd")
    assert counters.snapshot().fallbacks == {"the kernel failed its self-test on this device": 1}


@pytest.mark.parametrize("foreign", [False, True])
def test_a_thread_without_a_context_gets_the_devices(fake_cuda, foreign):
    opened = device.open_real(1)
    _, launches = prepared_case(opened)
    ready = opened.prepare(launches)
    q = torch.zeros(2**20)
    fake_cuda.mode(NOTHING)
    addresses = dict.fromkeys(("q", "k", "v", "o", "lse", "workspace"), -(-q.data_ptr() // 16) * 16)

    def launch():
        if foreign:
            fake_cuda.library.fakeForeignContext(1)
        ready(0, addresses)
        return fake_cuda.library.fakeCurrent(), fake_cuda.library.fakeDevice()

    if foreign:
        # Another context is the caller's own affair: nobody takes it away.
        with pytest.raises(CudaError, match=r"launch of moon_attention_sm90a: an unknown error \(400\)"):
            in_thread_raising(launch)
    else:
        assert in_thread(launch) == (1, 1)


def test_launch_errors_name_the_kernel(fake_cuda):
    opened = device.open_real()
    _, launches = prepared_case(opened)
    ready = opened.prepare(launches)
    fake_cuda.mode(REFUSE)
    with opened.current():
        with pytest.raises(CudaError, match="launch of moon_attention_sm90a: CUDA_ERROR_INVALID_VALUE"):
            ready(0, dict.fromkeys(("q", "k", "v", "o", "lse", "workspace"), 4096))
        attempts = fake_cuda.library.fakeAttempts()
        # A map that the driver would not move still points elsewhere: nothing may be launched on it.
        with pytest.raises(CudaError, match="launch of moon_attention_sm90a: CUDA_ERROR_INVALID_VALUE"):
            ready(0, dict.fromkeys(("q", "k", "v", "o", "lse", "workspace"), 4098))
        assert fake_cuda.library.fakeAttempts() == attempts


def test_streams_and_events(fake_cuda):
    driver = device.open_real().driver
    with device.open_real().current():
        stream, event = driver.create_stream(), driver.create_event()
        driver.record_event(event, stream)
        driver.synchronize_stream(stream)
        assert driver.elapsed_ms(event, event) == 1
        driver.destroy_event(event)
        driver.destroy_stream(stream)


# --- the corridor ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["bshd", "bhsd", "bhsd over bshd"])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (3, 1)])
def test_offload_computes_and_counts(fake_cuda, layout, heads):
    q, k, v = bhsd(2, *heads, 33, 50)
    expected, expected_lse = reference(q, k, v, scale=0.2)
    if layout == "bshd":
        q, k, v = (t.transpose(1, 2).contiguous() for t in (q, k, v))
    if layout == "bhsd over bshd":
        q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v))
    with moon_diffusers.offload():
        out, lse = moon_diffusers.attention(q, k, v, layout=layout[:4], softmax_scale=0.2, return_lse=True)
    assert relative(out.transpose(1, 2) if layout == "bshd" else out, expected) < 3e-3
    torch.testing.assert_close(lse.double(), expected_lse, atol=1e-5, rtol=1e-5)
    assert moon_diffusers.summary() == f"moon_diffusers: 1 of 1 attention calls ran on the kernel (1 {LABEL})"
    assert fake_cuda.allocations == 0


@pytest.mark.parametrize("clusters", [1, 3, 66])
@pytest.mark.parametrize("rows", [1, 384, 800])
def test_split_keys_are_merged(fake_cuda, clusters, rows):
    fake_cuda.library.fakeClusters(clusters)
    q, k, v = bhsd(1, 2, 1, rows, 2000)
    with moon_diffusers.offload():
        moon_diffusers.attention(*bhsd(1, 1, 1, 4, 4), layout="bhsd")
        before = fake_cuda.launches
        out, lse = moon_diffusers.attention(q, k, v, layout="bhsd", return_lse=True)
    expected, expected_lse = reference(q, k, v)
    assert relative(out, expected) < 3e-3
    torch.testing.assert_close(lse.double(), expected_lse, atol=1e-5, rtol=1e-5)
    blocks = 2 * -(-rows // 384)
    assert fake_cuda.launches - before == (2 if blocks % clusters else 1)


def test_strided_views_broadcasts_and_lengths_of_one(fake_cuda):
    fused = torch.randn(2, 40, 3, 4, 128).bfloat16()
    q, k, v = (t.transpose(1, 2) for t in fused.unbind(2))
    one = torch.randn(128).bfloat16().as_strided((1, 1, 1, 128), (3, 5, 7, 1))
    wide = torch.randn(1, 2, 9, 136).bfloat16()[..., 8:]
    with moon_diffusers.offload():
        for a, b, c in (
            (q, k, v),
            (q[:, 1:3, 3:], k[:, 2:, 5:], v[:, 2:, 5:]),
            (one, one, one),
            (one.expand(2, 3, 5, -1), one.expand(2, 3, 7, -1), one.expand(2, 3, 7, -1)),
            (wide, wide, wide),
        ):
            out = moon_diffusers.attention(a, b, c, layout="bhsd")
            assert relative(out, reference(a, b, c)[0]) < 3e-3
    assert counters.snapshot().num_served == 5


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [None, [50, 0]])
def test_causal_and_key_lengths(fake_cuda, causal, lengths):
    q, k, v = bhsd(2, 2, 2, 20, 50)
    seqlens_k = None if lengths is None else torch.tensor(lengths, dtype=torch.int32)
    expected, _ = reference(q, k, v, allowed=visible(2, 20, 50, causal, lengths))
    with moon_diffusers.offload():
        out = ops.attention(q, k, v, layout="bhsd", causal=causal, seqlens_k=seqlens_k)
    assert relative(out, expected) < 3e-3
    assert counters.snapshot().num_fallbacks == 0


def test_packed_sequences(fake_cuda):
    starts_q, starts_k = (torch.tensor(s, dtype=torch.int32) for s in ([0, 20, 20, 33], [0, 7, 19, 60]))
    q, k, v = (torch.randn(n, 2, 128).bfloat16() for n in (33, 60, 60))
    with moon_diffusers.offload():
        out = moon_diffusers.attention_varlen(q, k, v, starts_q, starts_k)
    for i in range(3):
        rows, keys = (slice(int(s[i]), int(s[i + 1])) for s in (starts_q, starts_k))
        if rows.start < rows.stop:
            expected, _ = reference(*(t.transpose(0, 1)[None] for t in (q[rows], k[keys], v[keys])))
            assert relative(out[rows].transpose(0, 1)[None], expected) < 3e-3
    assert counters.snapshot().served == {LABEL: 1}


def test_what_no_hopper_kernel_does_falls_back_by_name(fake_cuda):
    q, k, v = bhsd(1, 1, 1, 4, 4)
    odd = torch.randn(4 * 128 + 4).bfloat16()[4:].view(1, 1, 4, 128)
    far = torch.empty(0).bfloat16().set_(q.untyped_storage(), 0, (1, 1, 4, 128), (0, 0, 128, 1))
    with moon_diffusers.offload():
        moon_diffusers.attention(q, k, v, layout="bhsd", rounding="rtz")
        moon_diffusers.attention(q, k, v, layout="bhsd", rescale="exact")
        moon_diffusers.attention(odd, k, v, layout="bhsd")
        moon_diffusers.attention(far, k, v, layout="bhsd")
    assert counters.snapshot().fallbacks == {
        "no sm_90a kernel rounds by rtz": 1,
        "no sm_90a kernel rescales by exact": 1,
        "tensors aligned to 8 bytes only": 1,
    }


def test_another_card_falls_back_by_name(fake_cuda):
    fake_cuda.library.fakeCapability(8, 9)
    with moon_diffusers.offload():
        moon_diffusers.attention(*bhsd(1, 1, 1, 4, 4), layout="bhsd")
    assert counters.snapshot().fallbacks == {"no kernel for sm_89": 1}


@pytest.mark.parametrize("mode", [NOTHING, WRONG, WRONG_LSE, REFUSE])
def test_a_failed_selftest_falls_back_loudly(fake_cuda, mode):
    fake_cuda.mode(mode)
    q, k, v = bhsd(1, 2, 2, 20, 50)
    with (
        moon_diffusers.offload(),
        pytest.warns(RuntimeWarning, match="self-test of moon_attention_sm90a .*Fake H200 0"),
    ):
        out = moon_diffusers.attention(q, k, v, layout="bhsd")
    assert torch.equal(out, torch.nn.functional.scaled_dot_product_attention(q, k, v))
    assert counters.snapshot().fallbacks == {"the kernel failed its self-test on this device": 1}
    assert fake_cuda.allocations == 0


def test_threads_get_their_own_results(fake_cuda):
    wrong = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        with moon_diffusers.offload():
            for n in range(8):
                q, k, v = (torch.randn(1, 2, 5 + n, 128, generator=generator).bfloat16() for _ in "qkv")
                if relative(moon_diffusers.attention(q, k, v, layout="bhsd"), reference(q, k, v)[0]) > 3e-3:
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and counters.snapshot().served == {LABEL: 32}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiles_into_one_graph(fake_cuda, backend):
    torch._dynamo.reset()

    def block(q, k, v):
        return ops.attention(q * 2, k, v) + 1

    compiled = torch.compile(block, backend=backend, fullgraph=True, dynamic=True)
    with moon_diffusers.offload():
        for length in (5, 9):
            q, k, v = (torch.randn(2, n, 3, 128).bfloat16() for n in (length, length + 2, length + 2))
            assert torch.equal(compiled(q, k, v), block(q, k, v))
    assert counters.snapshot().served == {LABEL: 4}


@pytest.mark.parametrize("current", [1, 0])
def test_device_tensors_go_by_address_on_torchs_stream(fake_cuda, monkeypatch, current):
    session = dispatch.Session(device.open_real(1), staged=False)
    q, k, v = (t for t in bhsd(2, 2, 2, 9, 400))
    ready = session.ready(q, k, v, None, REQUEST)
    switched = []

    @contextlib.contextmanager
    def switch(index):
        switched.append(index)
        with device.open_real(index).current():
            yield

    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(torch.cuda, "device", switch)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7000 + index, raising=False)
    monkeypatch.setattr(session.device.driver, "malloc", lambda size: pytest.fail("copied"))
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, device, **kw: empty(*shape, **kw))
    out = empty(q.shape, dtype=q.dtype)
    with device.open_real(current).current():
        session._run(
            ready, {name: DeviceTensor(t) for name, t in (("q", q), ("k", k), ("v", v))}, DeviceTensor(out), None
        )
    assert relative(out, reference(q, k, v)[0]) < 3e-3
    assert fake_cuda.library.fakeStream() == 7001 and fake_cuda.library.fakeDevice() == 1
    assert switched == ([] if current == 1 else [1])


def test_cuda_torch_opens_its_own_library(fake_cuda, monkeypatch):
    # A library of the user's own does not know torch's addresses.
    monkeypatch.setenv("MOON_CUDA_LIBRARY", "libanother.so")
    monkeypatch.setattr(library, "CUDA_SONAME", str(fake_cuda.path))
    session = dispatch._session(torch.device("cuda", 1))
    assert not session.staged and session.suffix == "" and session.device.info.name == "Fake H200 1"
    assert dispatch._session(torch.device("cuda", 3)).reason == "no usable kernels or CUDA library"


def test_first_use_inside_a_graph_capture_waits_and_later_uses_load_nothing(fake_cuda, monkeypatch):
    session = dispatch.Session(device.open_real(), staged=False)
    q, k, v = bhsd(1, 1, 1, 4, 4)
    monkeypatch.setattr(dispatch, "_capturing", lambda: True)
    assert "graph capture" in session.ready(q, k, v, None, REQUEST).reason
    monkeypatch.setattr(dispatch, "_capturing", lambda: False)
    # Passed in an earlier process: nothing has loaded the merge in this one.
    monkeypatch.setattr(selftest, "_recall", lambda *a: {"passed": True})
    assert session.ready(q, k, v, None, REQUEST).label == "sm_90a rtne"
    monkeypatch.setattr(dispatch, "_capturing", lambda: True)
    monkeypatch.setattr(session.device.driver, "load_module", lambda image: pytest.fail("loaded in a capture"))
    monkeypatch.setattr(session.device.driver, "get_function", lambda *a: pytest.fail("loaded in a capture"))
    split = session.ready(*bhsd(1, 1, 1, 4, 2000), None, REQUEST)
    assert split.prepared.workspace_bytes


@pytest.mark.parametrize("kernel", ["", "_solo", "_short", "_causal", "_solo_causal"])
@pytest.mark.parametrize("rows, keys", [(1, 1), (77, 100), (400, 2000)])
def test_every_kernel_is_planned_and_computes(fake_hopper, kernel, rows, keys):
    # One of them alone, whatever decides between them.
    name, causal = f"moon_attention_sm90a{kernel}", "causal" in kernel
    manifest = json.loads((fake_hopper.folder / "manifest.json").read_text())
    files = {f"{name}.cubin", f"{name}_merge.cubin"}
    manifest["code_objects"] = [item for item in manifest["code_objects"] if item["file"] in files]
    (fake_hopper.folder / "manifest.json").write_text(json.dumps(manifest))
    q, k, v = bhsd(1, 2, 1, rows, keys)
    expected, expected_lse = reference(q, k, v, allowed=visible(1, rows, keys, causal, None) if causal else None)
    with moon_diffusers.offload():
        out, lse = moon_diffusers.attention(q, k, v, layout="bhsd", causal=causal, return_lse=True)
    assert relative(out, expected) < 3e-3
    torch.testing.assert_close(lse.double(), expected_lse, atol=1e-4, rtol=1e-5)
    assert counters.snapshot().kernels == {name: 1}


def test_every_kernel_has_a_selftest(fake_hopper):
    opened = device.open_real()
    by_name = {kernel.name: kernel for kernel in opened.kernels}
    forwards = [kernel for kernel in opened.kernels if kernel.role == "forward"]
    assert len(forwards) == 5
    for kernel in forwards:
        assert selftest.run(opened, Route(kernel, merge=by_name[kernel.merge])).passed
    verdicts = doctor.describe_machine(run_selftests=True).libraries[1].devices[1].kernels
    assert [verdict.runs for verdict in verdicts] == [True] * 5
    fake_hopper.mode(WRONG)
    for kernel in forwards:
        assert not selftest.run(opened, Route(kernel, merge=by_name[kernel.merge])).passed


# --- where torch is faster -------------------------------------------------------------------------------------------


def test_slow_calls_go_to_torch_unless_the_kernel_is_asked_for(fake_cuda, monkeypatch):
    write_cuda_manifest(fake_cuda.folder, slower=[{"keys_below": 100, "causal": False}])
    q, k, v = bhsd(1, 2, 2, 20, 50)
    starts = torch.tensor([0, 20], dtype=torch.int32)
    packed = [t[0].transpose(0, 1)[:20].contiguous() for t in (q, k, v)]
    with moon_diffusers.offload():
        moon_diffusers.attention(q, k, v, layout="bhsd")
        moon_diffusers.attention_varlen(*packed, starts, starts)
        assert counters.snapshot().fallbacks == {SLOWER: 2} and "Sk=50" in counters.snapshot().details[SLOWER]
        moon_diffusers.attention(q, k, v, layout="bhsd", causal=True)
        moon_diffusers.attention(q, k, v, layout="bhsd", strict=True)
        moon_diffusers.attention_varlen(*packed, starts, starts, strict=True)
        with counters.strict():
            moon_diffusers.attention(q, k, v, layout="bhsd")
        assert counters.snapshot().served == {LABEL: 4}
        moon_diffusers.attention(q, k, v, layout="bhsd", strict=False)
        assert counters.snapshot().num_fallbacks == 3
        with pytest.raises(StrictError, match="rounds by rtz"):
            moon_diffusers.attention(q, k, v, layout="bhsd", rounding="rtz", strict=True)
        dispatch.reset()
        monkeypatch.setenv("MOON_FORCE", "1")
        moon_diffusers.attention(q, k, v, layout="bhsd")
        assert counters.snapshot().served == {LABEL: 5}


def test_an_unknown_rule_is_a_damaged_manifest(fake_cuda):
    write_cuda_manifest(fake_cuda.folder, slower=[{"keys_under": 100}])
    with pytest.raises(moon_diffusers.MoonError, match=r"damaged: .*keys_under"):
        device.open_real()


# --- doctor ----------------------------------------------------------------------------------------------------------


def test_doctor_knows_the_card(fake_cuda, monkeypatch):
    monkeypatch.setattr(library, "hip_candidates", lambda: iter(["libnothing.so"]))
    machine = doctor.describe_machine()
    assert [item.kind for item in machine.libraries] == ["hip", "cuda", "emulator"]
    facts = machine.libraries[1]
    assert len(facts.devices) == 2 and facts.driver == 12090 and facts.version.startswith("CUDA 12.9")
    verdict = facts.devices[0].kernels[0]
    assert (verdict.kernel, verdict.runs, verdict.why) == ("moon_attention_sm90a", True, "self-test at first use")
    lines = "\n".join(machine.lines())
    assert "Fake H200 1 (sm_90a), 132 SMs, 227 KiB shared memory a block" in lines
    assert "moon_attention_sm90a (forward): 128 registers, 214528 B shared memory" in lines
    assert "none 0, ptxas 12.9.86" in lines
    assert machine.advice == ()
    assert json.loads(json.dumps(machine.as_dict()))["libraries"][1]["path"] == str(fake_cuda.path)


def test_doctor_runs_the_selftests_when_asked(fake_cuda, monkeypatch):
    from click.testing import CliRunner

    from moon_diffusers.cli.doctor import doctor as command

    monkeypatch.setattr(library, "hip_candidates", lambda: iter(["libnothing.so"]))
    before = fake_cuda.launches
    assert "self-test at first use" in CliRunner().invoke(command).output and fake_cuda.launches == before
    result = CliRunner().invoke(command, ["--self-test"])
    assert result.exit_code == 0, result.output
    assert "runs  moon_attention_sm90a: self-test of moon_attention_sm90a passed: relative L2" in result.output
    assert "2 of 2 kernels passed on this machine's GPUs" in result.output
    assert "self-test passed" in CliRunner().invoke(command).output
    fake_cuda.mode(WRONG)
    result = CliRunner().invoke(command, ["--self-test"])
    assert result.exit_code == 1 and "0 of 2 kernels passed" in result.output
    fake_cuda.library.fakeDevices(0)
    assert CliRunner().invoke(command, ["--self-test"]).exit_code == 1


def test_doctor_says_what_a_build_without_hopper_lacks(fake_cuda, monkeypatch):
    monkeypatch.setattr(library, "hip_candidates", lambda: iter(["libnothing.so"]))
    manifest = json.loads((fake_cuda.folder / "manifest.json").read_text())
    manifest["code_objects"] = []
    (fake_cuda.folder / "manifest.json").write_text(json.dumps(manifest))
    machine = doctor.describe_machine()
    assert machine.libraries[1].devices[0].problem == "no kernel is built for sm_90a"
    assert machine.advice[0].startswith("the kernels for this GPU are not built: pip install nvidia-cuda-nvcc-cu12")
