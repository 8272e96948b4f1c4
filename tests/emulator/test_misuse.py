"""The library outlives misuse: an error code with a line of text through the same API, never a crash."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import struct
import subprocess
import sys

import numpy as np
import pytest

from moon_diffusers.errors import HipError
from moon_diffusers.evidence.device import loaded

from . import small
from .conftest import COMPILED

ARCHS = ("gfx942", "gfx950")
INVALID_VALUE, INVALID_IMAGE, NO_BINARY, INVALID_HANDLE, NOT_FOUND = 1, 200, 209, 400, 500
BODY = """
s_load_dwordx2 s[4:5], s[0:1], 0x0
v_and_b32_e32 v0, 0x3ff, v0
v_lshlrev_b32_e32 v1, 2, v0
s_waitcnt lgkmcnt(0)
global_store_dword v1, v0, s[4:5]
"""
ENDLESS = "again:\ns_branch again"


def refused(action) -> HipError:
    with pytest.raises(HipError) as caught:
        action()
    text = str(caught.value)
    assert "\n" not in text and len(text) > 20, "one line that says what is wrong"
    return caught.value


@pytest.fixture(params=ARCHS)
def device(request, emulator):
    opened = emulator(request.param)
    opened.arch = request.param
    return opened


def before_a_guard_page(data: bytes) -> int:
    """The address of a copy of ``data`` whose end is the end of readable memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    page = mmap.PAGESIZE
    size = -(-max(len(data), 1) // page) * page
    base = libc.mmap(None, size + page, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    assert base not in (None, ctypes.c_void_p(-1).value) and libc.mprotect(base + size, page, 0) == 0
    ctypes.memmove(base + size - len(data), data, len(data))
    return base + size - len(data)


LENGTHS = (0, 1, 4, 16, 63, 64, 120, 500, 1000, 2000, -1)


@pytest.mark.parametrize("length", LENGTHS)
def test_truncated_code_object_in_memory(device, length):
    """HIP is told an address alone: the library must find out by itself where readable memory ends."""
    device.select()
    address = before_a_guard_page(small.image(BODY, device.arch, kernarg=8)[:length])
    out = ctypes.c_void_p()
    load = device.hip._library.hipModuleLoadData
    error = refused(lambda: device.hip.check("hipModuleLoadData", load(ctypes.byref(out), address)))
    assert error.code in (INVALID_IMAGE, NO_BINARY)


@pytest.mark.parametrize("length", LENGTHS)
def test_truncated_code_object_in_a_file(device, length, tmp_path):
    device.select()
    path = tmp_path / "part.co"
    path.write_bytes(small.image(BODY, device.arch, kernarg=8)[:length])
    out = ctypes.c_void_p()
    load = device.hip._library.hipModuleLoad
    load.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    error = refused(lambda: device.hip.check("hipModuleLoad", load(ctypes.byref(out), str(path).encode())))
    assert error.code in (INVALID_IMAGE, NO_BINARY)


def test_garbage(device):
    assert refused(lambda: device.load(bytes(range(256)) * 4)).code == INVALID_IMAGE


def test_code_object_of_another_architecture(device):
    other = ARCHS[device.arch == ARCHS[0]]
    error = refused(lambda: device.load(small.image(BODY, other, kernarg=8)))
    assert error.code == NO_BINARY and other in str(error) and device.arch in str(error)


def test_missing_symbol(device):
    with loaded(device, small.image(BODY, device.arch, kernarg=8)) as module:
        for name in ("nothing_like_it", "small.kd", ""):
            error = refused(lambda name=name: device.function(module, name))
            assert error.code == NOT_FOUND


@pytest.mark.parametrize(
    ("grid", "block"),
    [((0, 1, 1), (64, 1, 1)), ((1, 0, 1), (64, 1, 1)), ((1, 1, 1), (0, 1, 1)), ((1, 1, 1), (2048, 1, 1))],
)
def test_launch_sizes(device, grid, block):
    with loaded(device, small.image(BODY, device.arch, kernarg=8)) as module:
        function = device.function(module, "small")
        assert refused(lambda: device.launch(function, grid, block, bytes(8))).code == INVALID_VALUE


def test_more_lds_than_there_is(device):
    with loaded(device, small.image(BODY, device.arch, kernarg=8)) as module:
        function = device.function(module, "small")
        error = refused(lambda: device.launch(function, (1, 1, 1), (64, 1, 1), bytes(8), dynamic_lds=200_000))
        assert error.code == INVALID_VALUE


def test_kernel_arguments_too_short(device):
    with loaded(device, small.image(BODY, device.arch, kernarg=24)) as module:
        function = device.function(module, "small")
        error = refused(lambda: device.launch(function, (1, 1, 1), (64, 1, 1), bytes(16)))
        assert error.code == INVALID_VALUE and "16" in str(error)


def test_null_function(device):
    assert refused(lambda: device.launch(0, (1, 1, 1), (64, 1, 1), bytes(8))).code == INVALID_HANDLE


def test_endless_kernel_meets_its_budget(emulator, device):
    limited = emulator(device.arch, budget="100000")
    ran = small.run(limited, ENDLESS, device.arch, [np.zeros(1, np.uint32)])
    assert ran.error is not None and "budget" in str(ran.error)
    # The library is as good as before.
    after = small.run(limited, BODY, device.arch, [np.zeros(64, np.uint32)])
    assert after.error is None
    np.testing.assert_array_equal(after.arrays[0], np.arange(64))


def test_wild_pointer(device):
    with loaded(device, small.image(BODY, device.arch, kernarg=8)) as module:
        function = device.function(module, "small")
        for address in (0, 8, 1 << 47, (1 << 64) - 4096):
            try:
                device.launch(function, (1, 1, 1), (64, 1, 1), struct.pack("<Q", address))
            except HipError:
                continue
            assert [f for f in device.report()["findings"] if f["severity"] == "error"]


def test_unknown_options(device):
    for key, value in (("nonsense", "1"), ("mma", "slow"), ("checks", ""), ("order", "random:x"), ("threads", "-1")):
        with pytest.raises(HipError) as caught:
            device.set_options({key: value})
        assert caught.value.code == INVALID_VALUE


def test_unknown_instruction(device):
    """Bytes that are no instruction: refused when loaded or when reached, by name."""
    ran = small.run(device, ".long 0xbf7fffff\n.long 0xffffffff", device.arch, [np.zeros(1, np.uint32)])
    assert ran.error is not None


FUZZ = """
import ctypes, random, sys
sys.path.insert(0, sys.argv[2])
from moon_diffusers.errors import HipError
from moon_diffusers.evidence.device import open_emulator
image = open(sys.argv[1], "rb").read()
device = open_emulator(sys.argv[3])
device.set_options({"checks": "on", "budget": "20000", "threads": "1"})
rng = random.Random(5)
answered = 0
for turn in range(400):
    bad = bytearray(image)
    for _ in range(rng.choice((1, 2, 8, 64))):
        # Half of the damage in headers and metadata, half anywhere.
        bad[rng.randrange(1024 if rng.random() < 0.5 else len(bad))] = rng.randrange(256)
    try:
        module = device.load(bytes(bad))
        out = device.hip.malloc(4096)
        function = device.function(module, "small")
        device.launch(function, (1, 1, 1), (64, 1, 1), out.to_bytes(8, "little") * 3)
    except HipError:
        pass
    answered += 1
print("answered", answered)
"""


@pytest.mark.parametrize("arch", ARCHS)
def test_damaged_code_objects_never_crash(arch, tmp_path):
    path = tmp_path / "whole.co"
    path.write_bytes(small.image(BODY, arch, kernarg=8))
    root = str(COMPILED.parents[1])
    command = [sys.executable, "-c", FUZZ, str(path), root, arch]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and "answered 400" in done.stdout, done.stderr[-800:]


EXTREMES = """
import struct, sys
sys.path.insert(0, sys.argv[2])
import msgpack
from moon_diffusers.errors import HipError
from moon_diffusers.evidence.device import open_emulator
image = open(sys.argv[1], "rb").read()
device = open_emulator(sys.argv[3])

def tried(image):
    for action in (device.load, device.hip.disassemble):
        try:
            action(bytes(image))
        except HipError:
            continue
        yield action.__name__

def put(offset, value, image=image, form="<Q"):
    bad = bytearray(image)
    struct.pack_into(form, bad, offset, value % 2 ** (8 * struct.calcsize(form)))
    return bad

table, = struct.unpack_from("<Q", image, 40)
count, = struct.unpack_from("<H", image, 60)
refused = 0
for n in range(count):
    at = table + 64 * n
    kind, = struct.unpack_from("<I", image, at + 4)
    offset, size = struct.unpack_from("<QQ", image, at + 24)
    if kind in (2, 11):
        # Descriptors that begin, in arithmetic modulo 2^64, before the first byte.
        for symbol in range(offset, offset + size, 24):
            for value in (-1, -32, -64, -65, 2**63):
                refused += "load" not in tried(put(symbol + 8, value))
    if kind == 4:
        for entry in range(offset, offset + size, 24):
            for value in (-1, -4, -8):
                assert "load" not in tried(put(entry, value)), "a relocation outside the image"
    if kind == 7:
        name, length, _ = struct.unpack_from("<III", image, offset)
        data = image[offset + 12 + -(-name // 4) * 4 :][:length]
        metadata = msgpack.unpackb(data)
        for where, wide in ((2**32 - 8, 8), (2**32 - 1, 2**32 - 1), (2**31, 0)):
            argument = {".offset": where, ".size": wide, ".value_kind": "by_value"}
            metadata["amdhsa.kernels"][0][".args"] = [argument]
            packed = msgpack.packb(metadata)
            note = struct.pack("<III8s", 7, len(packed), 32, b"AMDGPU") + packed
            bad = put(at + 32, len(note), put(at + 24, len(image), image + note))
            assert "load" not in tried(bad), argument
            refused += 1
assert refused > 3, refused
bundle = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<QQQQ", 1, 0, 0, 6) + sys.argv[3].encode()
assert not [*tried(bundle + bytes(4096))], "a bundle that holds itself"
print("answered")
"""


@pytest.mark.parametrize("arch", ARCHS)
def test_numbers_that_wrap_around_never_crash(arch, tmp_path):
    path = tmp_path / "whole.co"
    path.write_bytes(small.image(BODY, arch, kernarg=8))
    for image in (path, COMPILED / f"general-{arch}.co"):
        command = [sys.executable, "-c", EXTREMES, str(image), str(COMPILED.parents[1]), arch]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0 and "answered" in done.stdout, (done.returncode, done.stderr[-800:])


def test_names_that_are_no_text(device):
    """What a damaged code object calls itself is shown, never a JSON that nobody can read."""
    for name, shown in ((b"sm\xffll", "sm\ufffdll"), ("sm\u00e4l".encode(), "sm\u00e4l"), (b"s\xe0\x80ll", None)):
        image = small.image(BODY, device.arch, kernarg=8).replace(b"small", name)
        (listing,) = json.loads(device.hip.disassemble(image))
        assert shown is None or listing["kernel"] == shown


def test_an_option_of_the_environment_that_has_no_effect_is_named(device):
    code = "import sys; sys.path.insert(0, sys.argv[1]); from moon_diffusers.emulator import emulator_library"
    code += "; emulator_library().set_option('mma', 'fast')"
    settings = {"MOON_EMULATOR_CHECKS": "yes", "MOON_EMULATOR_CHECK": "on", "MOON_EMULATOR_COUNTS": "on"}
    command = [sys.executable, "-c", code, str(COMPILED.parents[1])]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=True)
    assert "MOON_EMULATOR_CHECKS=yes has no effect; accepted: on, off" in done.stderr
    assert "MOON_EMULATOR_CHECK=on has no effect; accepted: the options mma" in done.stderr
    assert "COUNTS" not in done.stderr
    assert "accepted: fast, exact" in str(refused(lambda: device.set_options({"mma": "slow"})))


NO_THREADS = """
import resource, sys
sys.path.insert(0, sys.argv[2])
from moon_diffusers.evidence.device import open_emulator, loaded
device = open_emulator(sys.argv[3])
device.set_options({"threads": "1000"})
with loaded(device, open(sys.argv[1], "rb").read()) as module:
    function, out = device.function(module, "small"), device.hip.malloc(4096)
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20),) * 2)
    device.launch(function, (1000, 1, 1), (64, 1, 1), out.to_bytes(8, "little"))
print("launched")
"""


def test_a_system_without_threads_to_give(tmp_path):
    path = tmp_path / "whole.co"
    path.write_bytes(small.image(BODY, "gfx942", kernarg=8))
    command = [sys.executable, "-c", NO_THREADS, str(path), str(COMPILED.parents[1]), "gfx942"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 or "hipErrorOutOfMemory" in done.stderr, (done.returncode, done.stderr[-800:])


def test_a_trace_that_cannot_be_written_leaves_no_temporary_file(device, tmp_path):
    for name in ("a.json", "b.wave0.bin"):
        (tmp_path / name).mkdir()
        device.set_options({"trace": str(tmp_path / name.partition(".")[0])})
        ran = small.run(device, BODY, device.arch, [np.zeros(64, np.uint32)])
        device.set_options({"trace": ""})
        assert ran.error is not None and "trace cannot be written" in str(ran.error)
        assert not [path.name for path in tmp_path.iterdir() if path.name.endswith(".tmp")]


def test_launch_with_a_malformed_extra_list(device):
    with loaded(device, small.image(BODY, device.arch, kernarg=8)) as module:
        function = device.function(module, "small")
        sizes = (1, 1, 1, 64, 1, 1, 0, None, None)
        for entries in ((), (3,), (2, 0, 1, 0, 3), (1, 0, 2, 0, 3)):
            extra = (ctypes.c_void_p * 6)(*entries)
            error = refused(
                lambda extra=extra: device.hip.check("launch", device.hip.launch_kernel(function, *sizes, extra))
            )
            assert error.code == INVALID_VALUE


@pytest.mark.parametrize("code", ["0xd3e000f8, 0x07e20500", "0xd3e080f8, 0x07e20500"])
def test_register_ranges_past_the_file_are_refused(emulator, code: str) -> None:
    """An MFMA whose registers begin near v255 or a255 stops the launch and leaves the emulator whole."""
    ran = small.run(emulator("gfx942"), f".long {code}\ns_endpgm", "gfx942", [np.zeros(64, np.uint32)])
    assert ran.error is not None and "v_mfma" in str(ran.error)
