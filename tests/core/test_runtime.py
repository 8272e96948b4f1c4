"""The HIP binding, the manifest, the launcher, devices and self-tests, against the fake library."""

import ast
import ctypes
import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import moon_diffusers
from moon_diffusers.errors import CodeObjectError, HipError, LibraryError, PlanError
from moon_diffusers.planning import Launch, Pointer, plan
from moon_diffusers.routing import KernelSpec, Route, Target, route
from moon_diffusers.runtime import code_objects, device, hip, launcher, library, memory, selftest, selftest_cases

from .conftest import NOTHING, REFUSE, WRONG, WRONG_LSE, write_manifest

#: Problems of a self-test of the fake kernels: ragged, long, masked.
CASES = 3
PACKAGE = Path(moon_diffusers.__file__).parent


def open_fake(fake):
    return device.open_real()


def forward(opened, rounding="rtne"):
    kernel = next(kernel for kernel in opened.kernels if kernel.rounding == rounding)
    return Route(kernel)


# --- the house's own rules -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "file",
    [
        *sorted((PACKAGE / "runtime").glob("*.py")),
        PACKAGE / "problem.py",
        PACKAGE / "routing.py",
        PACKAGE / "planning.py",
    ],
    ids=lambda p: p.name,
)
def test_the_lower_rooms_do_not_import_torch(file):
    for node in ast.walk(ast.parse(file.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not any(name.split(".")[0] == "torch" for name in names), f"{file.name}:{node.lineno}"
        if file.parent == PACKAGE:
            assert not any("runtime" in name for name in names), f"{file.name}:{node.lineno}"


def test_runtime_works_in_a_process_without_torch():
    code = "import sys; import moon_diffusers.runtime.selftest; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PACKAGE.parent)


# --- hip.py ----------------------------------------------------------------------------------------------------------


def test_properties_have_the_offsets_of_r0600():
    fields = {name: getattr(hip.DeviceProperties, name).offset for name, _ in hip.DeviceProperties._fields_}
    assert fields["shared_mem_per_block"] == 296
    assert fields["warp_size"] == 308
    assert fields["multi_processor_count"] == 388
    assert fields["gcn_arch_name"] == 1160


def test_device_facts(fake):
    info = open_fake(fake).info
    assert (info.arch, info.name, info.cu_count, info.xcd_count) == ("gfx942", "Fake MI300X", 304, 8)
    assert (info.lds_bytes, info.wavefront_size, info.driver_version) == (65536, 64, 70200000)


@pytest.mark.parametrize(
    "arch, cus, dies",
    [
        ("gfx942", 304, 8),
        ("gfx942", 80, 4),
        ("gfx942", 228, 6),
        ("gfx942", 38, 1),
        ("gfx950", 256, 8),
        ("gfx950", 32, 1),
        ("gfx942", 7, 1),
    ],
)
def test_dies_are_guessed_where_hip_does_not_say(arch, cus, dies):
    assert hip.guess_xcds(arch, cus) == dies


@pytest.mark.parametrize(
    ("name", "cus", "dies", "expected"),
    [
        (b"gfx942:sramecc+:xnack-", 228, 6, ("gfx942", 228, 6)),
        (b"gfx942", 304, 0, ("gfx942", 304, 8)),
        (b"gfx942", 304, -1, ("gfx942", 304, 8)),
        (b"gfx90a:sramecc+:xnack-", 104, 1, ("gfx90a", 104, 1)),
        (b"gfx1100", 96, 1, ("gfx1100", 96, 1)),
        (b"gfx\xff\xfe", 0, 0, ("gfx\ufffd\ufffd", 1, 1)),
        (b"", -1, 0, ("", 1, 1)),
    ],
)
def test_what_a_library_may_say_of_a_device(fake, name, cus, dies, expected):
    fake.library.fakeDevice(ctypes.c_char_p(name), cus, dies)
    try:
        info = hip.Hip(str(fake.path)).device_info(0)
    finally:
        fake.library.fakeDevice(None, 304, 8)
    assert (info.arch, info.cu_count, info.xcd_count) == expected


def test_errors_carry_name_and_text_and_clear_the_sticky_error(fake):
    api = open_fake(fake).hip
    with pytest.raises(HipError, match=r"hipModuleLoadData: hipErrorInvalidImage \(200\)") as error:
        api.load_module(b"not an ELF")
    assert error.value.code == 200
    assert api._library.hipGetLastError() == 0
    assert api.attribute(4242, 0) is None
    assert api._library.hipGetLastError() == 0


def test_emulator_only_functions_are_refused_on_a_real_library(fake):
    api = open_fake(fake).hip
    for call in (lambda: api.set_option("mma", "fast"), api.report, lambda: api.disassemble(b"")):
        with pytest.raises(LibraryError, match="is not the emulator"):
            call()


# --- library.py ------------------------------------------------------------------------------------------------------


def test_a_named_library_that_cannot_be_loaded_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("MOON_HIP_LIBRARY", str(tmp_path / "none.so"))
    with pytest.raises(LibraryError, match=r"none\.so"):
        library.find_hip()


def test_a_library_without_hip_functions_is_an_error():
    with pytest.raises(LibraryError, match="HIP 6 or 7 is needed"):
        hip.Hip("libc.so.6")


def test_mapped_library_comes_first(fake, monkeypatch):
    library.load(str(fake.path))
    monkeypatch.delenv("MOON_HIP_LIBRARY")
    assert next(library.hip_candidates()) == str(fake.path)
    assert library.mapped_libraries(
        "7f r-xp 0 8:1 5 /opt/rocm/lib/libamdhip64.so.6.4.60403\n7f /lib/libamdhip64.so.7\n7f /x/libfoo.so\n"
    ) == [
        "/opt/rocm/lib/libamdhip64.so.6.4.60403",
        "/lib/libamdhip64.so.7",
    ]
    # torch's own library in an environment whose path has a space
    line = "7f12-7f13 r-xp 00001000 08:01 77    /home/a b/my env/lib/torch/lib/libamdhip64.so\n"
    assert library.mapped_libraries(line * 2) == ["/home/a b/my env/lib/torch/lib/libamdhip64.so"]
    assert library.mapped_libraries("7f12-7f13 r-xp 00001000 08:01 77 /libamdhip64.so\n7f r-xp 0 0:0 0\n") == [
        "/libamdhip64.so"
    ]


def test_emulator_build_is_chosen_by_cpu():
    builds = [("x86-64", "base"), ("x86-64-v3", "v3"), ("x86-64-v4", "v4")]
    assert library.choose_emulator(builds, library.ISA_FLAGS["x86-64-v4"], "x86_64") == "v4"
    assert library.choose_emulator(builds, library.ISA_FLAGS["x86-64-v3"], "x86_64") == "v3"
    assert library.choose_emulator(builds, {"sse2"}, "x86_64") == "base"
    assert library.choose_emulator(builds[1:], {"sse2"}, "x86_64") is None
    assert library.choose_emulator(builds, set(), "aarch64") is None
    assert library.choose_emulator([("generic", "g")], set(), "aarch64") == "g"


# --- manifest --------------------------------------------------------------------------------------------------------


def test_missing_manifest_says_how_to_build(tmp_path):
    with pytest.raises(CodeObjectError, match=r"is missing: build the kernels by `python csrc/build/build\.py`"):
        code_objects.load_manifest(tmp_path)


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda m: m.update(schema=2), "schema 2 is not accepted; accepted: 1"),
        (lambda m: m.pop("kernarg_layouts"), "damaged: KeyError"),
        (lambda m: m["code_objects"][0]["kernels"][0].update(kernarg_size=64), "takes 64 B of arguments, its layout"),
        (lambda m: m["code_objects"][0]["kernels"][0].update(kernarg_layout="odd"), "unknown kernarg layout 'odd'"),
        (
            lambda m: m["code_objects"][0]["kernels"][0]["variant"].pop("rows_per_workgroup"),
            "must say rows_per_workgroup",
        ),
        (lambda m: m["kernarg_layouts"]["forward"]["fields"][0].update(type="f16"), "type 'f16' is not accepted"),
        (lambda m: m["kernarg_layouts"]["forward"]["fields"][0].update(offset=9999), "q lies outside"),
        (lambda m: m["code_objects"][0]["kernels"][0].update(block=[1, 1]), "damaged: ValueError"),
    ],
)
def test_damaged_manifest(tmp_path, damage, message):
    manifest = write_manifest(tmp_path)
    damage(manifest)
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CodeObjectError, match=message):
        code_objects.load_manifest(tmp_path)


def test_damaged_code_object_never_reaches_hip(fake, monkeypatch):
    opened = open_fake(fake)
    (fake.folder / "fake.co").write_bytes(b"\x7fELF fake code obj")
    monkeypatch.setattr(opened.hip, "load_module", lambda image: pytest.fail("loaded"))
    with pytest.raises(CodeObjectError, match="sha256"):
        opened.function(opened.kernels[0])


@pytest.mark.parametrize(
    "damage", [lambda image: image[: len(image) // 2], lambda image: b"", lambda image: image[:-1]]
)
def test_a_damaged_emulator_is_named_and_never_loaded(tmp_path, damage):
    """The dynamic linker ends the process on a truncated library."""
    manifest = code_objects.load_manifest(code_objects.DEFAULT_FOLDER)
    folder = tmp_path / "compiled"
    shutil.copytree(code_objects.DEFAULT_FOLDER, folder)
    for _, file in manifest.emulators:
        (folder / file).write_bytes(damage((folder / file).read_bytes()))
    code = "import moon_diffusers\ntry: moon_diffusers.emulate().__enter__()\n"
    code += "except moon_diffusers.MoonError as error: print(error)"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MOON_")}
    environment["MOON_COMPILED"] = str(folder)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PACKAGE.parent, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0 and "build it again" in done.stdout, (done.returncode, done.stderr)


def test_code_object_is_loaded_once_by_many_threads(fake, monkeypatch):
    opened = open_fake(fake)
    loads = []
    original = opened.hip.load_module
    monkeypatch.setattr(opened.hip, "load_module", lambda image: loads.append(1) or original(image))
    threads = [threading.Thread(target=opened.function, args=(kernel,)) for kernel in opened.kernels * 8]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loads) == 1


# --- launcher --------------------------------------------------------------------------------------------------------


def test_arguments_are_packed_by_name(fake):
    opened = open_fake(fake)
    problem = selftest_cases.cases(forward(opened).forward)[0].problem
    launch = plan(problem, forward(opened), opened.info).launches[0]
    layout = opened.manifest.layouts["forward"]
    data, pointers = launcher.pack(launch, layout)
    assert len(data) == 216
    at = {field.name: field for field in layout.fields}
    for name, expected in (("q_stride_row", 512), ("v_stride_row", 768), ("seqlen_k", 333), ("num_heads_kv", 2)):
        assert struct.unpack_from("<" + at[name].format, data, at[name].offset)[0] == expected
    assert struct.unpack_from("<f", data, at["softmax_scale"].offset)[0] == pytest.approx(0.1)
    assert {buffer for _, buffer, _ in pointers} == {"q", "k", "v", "o", "lse"}


def test_a_layout_in_another_order_is_packed_by_name_too(fake):
    opened = open_fake(fake)
    kernel = replace(opened.kernels[0], kernarg_size=16)
    fields = (code_objects.Field("seqlen_k", "i", 0, 4), code_objects.Field("v", "Q", 8, 8))
    layout = code_objects.Layout("odd", 16, fields)
    launch = Launch(kernel, (1, 1, 1), {"v": Pointer("v", 12), "seqlen_k": 5, "unused": 1})
    assert launcher.pack(launch, layout) == (struct.pack("<ixxxxQ", 5, 0), ((1, "v", 12),))
    with pytest.raises(PlanError, match="no value for the argument 'v'"):
        launcher.pack(Launch(kernel, (1, 1, 1), {"seqlen_k": 5}), layout)
    with pytest.raises(PlanError, match="argument 'seqlen_k' = 2147483648"):
        launcher.pack(Launch(kernel, (1, 1, 1), {"v": 0, "seqlen_k": 2**31}), layout)
    with pytest.raises(PlanError, match="'seqlen_k' cannot hold an address"):
        launcher.pack(Launch(kernel, (1, 1, 1), {"v": 0, "seqlen_k": Pointer("q")}), layout)


@pytest.mark.parametrize(
    "grid, dynamic_lds, message",
    [
        ((1, 1, 1), 65536, "101376 B of LDS; this device has 65536"),
        ((2**25, 1, 1), 0, "grid x"),
        ((0, 1, 1), 0, "grid x of 0"),
    ],
)
def test_launches_that_hip_would_hang_on_are_refused(fake, grid, dynamic_lds, message):
    opened = open_fake(fake)
    launch = Launch(opened.kernels[0], grid, {}, dynamic_lds)
    with pytest.raises(PlanError, match=message):
        launcher.PreparedLaunch(opened.hip, 1, launch, code_objects.Layout("none", 0, ()), 65536)


def test_launch_errors_name_the_kernel(fake):
    opened = open_fake(fake)
    problem = selftest_cases.cases(forward(opened).forward)[0].problem
    prepared = opened.prepare(plan(problem, forward(opened), opened.info))
    fake.mode(REFUSE)
    with pytest.raises(HipError, match="launch of fake_rtne: hipErrorInvalidValue"):
        prepared(0, dict.fromkeys(("q", "k", "v", "o", "lse"), 0))


@pytest.mark.parametrize("text", ["[]", "null", "3", '"schema"', "{", ""])
def test_a_manifest_that_is_none(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(CodeObjectError, match=r"manifest\.json"):
        code_objects.load_manifest(tmp_path)


# --- memory ----------------------------------------------------------------------------------------------------------


def test_spans_and_runs():
    array = memory.HostArray(1000, (2, 3, 4), (100, 10, 1), 2)
    assert array.span == (100 + 20 + 3 + 1) * 2
    assert list(array.runs()) == [(2 * (100 * i + 10 * j), 8) for i in range(2) for j in range(3)]
    assert memory.HostArray(0, (2, 0, 4), (1, 1, 1), 2).span == 0


def test_everything_is_freed_after_an_error(fake):
    api = open_fake(fake).hip
    before = fake.allocations
    with pytest.raises(ZeroDivisionError), memory.staging(api) as stage:
        stage.allocate(10)
        stage.allocate(0)
        assert fake.allocations == before + 2
        1 / 0  # noqa: B018
    assert fake.allocations == before


def test_the_first_trouble_is_told_where_nothing_can_be_freed_either(fake):
    api = open_fake(fake).hip
    before = fake.allocations
    fake.library.fakeFreeError(700)
    try:
        with pytest.raises(ZeroDivisionError), memory.staging(api) as stage:
            stage.allocate(10)
            1 / 0  # noqa: B018
        with pytest.raises(HipError, match="hipFree"), memory.staging(api) as stage:
            stage.allocate(10)
            stage.allocate(10)
        assert not stage._owned
    finally:
        fake.library.fakeFreeError(0)
    assert fake.allocations == before


# --- self-test -------------------------------------------------------------------------------------------------------


def test_selftest_passes_once_and_is_remembered(fake, monkeypatch):
    opened = open_fake(fake)
    before = fake.launches
    assert selftest.ensure(opened, forward(opened))
    assert fake.launches == before + CASES
    assert selftest.ensure(opened, forward(opened))
    assert fake.launches == before + CASES
    again = device.Device(opened.hip, 0, opened.manifest)
    assert selftest.ensure(again, forward(again))
    assert fake.launches == before + CASES
    # Another driver is another story.
    other = device.Device(opened.hip, 0, opened.manifest)
    other.info = replace(other.info, driver_version=1)
    assert selftest.ensure(other, forward(other))
    assert fake.launches == before + 2 * CASES
    entries = json.loads(selftest.cache_file().read_text())
    assert len(entries) == 2 and all(entry["passed"] for entry in entries.values())


@pytest.mark.parametrize("requires", [set(), {"causal"}, {"paged"}])
@pytest.mark.parametrize("family", ["general", "sm90a"])
def test_every_kind_of_kernel_has_problems_that_it_must_serve(requires, family):
    features = frozenset({"lse", "gqa", "causal", "seqlens_k", "cu_seqlens", *requires})
    kernel = KernelSpec("k", "a", "forward", "f", 8, (64, 1, 1), family, rows=64, features=features)
    kernel = replace(kernel, requires=frozenset(requires))
    chosen = selftest_cases.cases(kernel)
    for case in chosen:
        assert isinstance(route(case.problem, Target("a", (kernel,))), Route), case.name
    names = [case.name for case in chosen]
    assert ("several row blocks a cluster" in names) == (family == "sm90a" and requires != {"paged"})
    assert len(names) == (2 if requires == {"paged"} else 4 + (family == "sm90a"))
    if requires == {"causal"}:
        assert all(case.problem.causal for case in chosen)


def test_a_kernel_without_a_problem_does_not_pass(fake, monkeypatch):
    opened = open_fake(fake)
    monkeypatch.setattr(selftest, "cases", lambda kernel: [])
    with pytest.warns(RuntimeWarning, match="fake_rtne: no problem of the self-test has what it requires"):
        assert not selftest.ensure(opened, forward(opened))


@pytest.mark.parametrize("mode", [NOTHING, WRONG, REFUSE, WRONG_LSE])
def test_selftest_failure_is_loud_and_not_remembered(fake, mode):
    opened = open_fake(fake)
    fake.mode(mode)
    with pytest.warns(RuntimeWarning, match="self-test of fake_rtne") as record:
        assert not selftest.ensure(opened, forward(opened))
    assert "Fake MI300X" in str(record[0].message)
    assert opened.disabled == {"fake_rtne"}
    assert not selftest.cache_file().exists()
    problem = selftest_cases.cases(forward(opened).forward)[0].problem
    refused = route(problem, Target("gfx942", opened.kernels, opened.disabled))
    assert refused.reason == "the kernel failed its self-test on this device"


def test_unwritable_cache_does_not_matter(fake, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MOON_CACHE", str(tmp_path / "file" / "below"))
    opened = open_fake(fake)
    assert selftest.ensure(opened, forward(opened))


def test_a_user_without_a_home_is_served(fake, monkeypatch):
    monkeypatch.delenv("MOON_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    opened = open_fake(fake)
    assert selftest.ensure(opened, forward(opened))


def test_a_full_disk_leaves_no_temporary_file(fake, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(selftest.os, "replace", full)
    opened = open_fake(fake)
    assert selftest.ensure(opened, forward(opened))
    assert [*selftest.cache_file().parent.iterdir()] == []


def test_damaged_cache_is_ignored(fake):
    selftest.cache_file().parent.mkdir(parents=True)
    selftest.cache_file().write_text("[not json")
    opened = open_fake(fake)
    before = fake.launches
    assert selftest.ensure(opened, forward(opened))
    assert fake.launches == before + CASES


def test_hash_of_the_code_object_is_part_of_the_key(fake):
    opened = open_fake(fake)
    key = selftest._key(opened, forward(opened))
    image = b"\x7fELF another"
    (fake.folder / "fake.co").write_bytes(image)
    manifest = json.loads((fake.folder / "manifest.json").read_text())
    manifest["code_objects"][0]["sha256"] = hashlib.sha256(image).hexdigest()
    (fake.folder / "manifest.json").write_text(json.dumps(manifest))
    rebuilt = device.Device(opened.hip, 0, code_objects.load_manifest())
    assert selftest._key(rebuilt, forward(rebuilt)) != key
