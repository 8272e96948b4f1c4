"""The facts that `moon-diffusers doctor` prints."""

import json

import pytest

from moon_diffusers.routing import Route
from moon_diffusers.runtime import device, doctor, selftest

from .conftest import WRONG


def test_a_machine_with_a_gpu(fake):
    machine = doctor.describe_machine()
    real, _, emulator = machine.libraries
    assert real.path == str(fake.path) and not real.problem
    (facts,) = real.devices
    assert facts.info.arch == "gfx942"
    assert [(v.kernel, v.runs, v.why) for v in facts.kernels] == [
        ("fake_rtne", True, "self-test at first use"),
        ("fake_rtz", True, "self-test at first use"),
    ]
    assert "no emulator for this CPU" in emulator.problem
    assert machine.advice == ()
    assert json.loads(json.dumps(machine.as_dict()))["kernels"][0]["lds_bytes"] == 35840
    assert any("Fake MI300X (gfx942), 304 CUs on 8 dies, 64 KiB LDS" in line for line in machine.lines())


def test_selftests_show(fake):
    opened = device.open_real()
    selftest.ensure(opened, Route(opened.kernels[0]))
    fake.mode(WRONG)
    with pytest.warns(RuntimeWarning):
        selftest.ensure(opened, Route(opened.kernels[1]))
    verdicts = doctor.describe_machine().libraries[0].devices[0].kernels
    assert [(v.runs, v.why) for v in verdicts] == [
        (True, "self-test passed"),
        (False, "the kernel failed its self-test on this device"),
    ]


def test_another_gpu(fake):
    fake.library.fakeArch(1)
    machine = doctor.describe_machine()
    assert machine.libraries[0].devices[0].problem == "no kernel is built for gfx90a"
    assert "no device here runs these kernels" in machine.advice[0]


def test_damaged_code_object(fake):
    (fake.folder / "fake.co").write_bytes(b"\x7fELF")
    verdicts = doctor.describe_machine().libraries[0].devices[0].kernels
    assert all(not v.runs and "sha256" in v.why for v in verdicts)


def test_a_bare_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("MOON_COMPILED", str(tmp_path))
    monkeypatch.setenv("MOON_HIP_LIBRARY", str(tmp_path / "none.so"))
    machine = doctor.describe_machine()
    assert "is missing" in machine.manifest_problem
    assert "none.so" in machine.libraries[0].problem
    assert machine.advice == ("build the kernels: python csrc/build/build.py",)
    assert machine.environment["MOON_COMPILED"] == str(tmp_path)
    assert any("is missing" in line for line in machine.lines())
