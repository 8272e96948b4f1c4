"""Counting: scopes, the summary line, and what a process says when it ends."""

import subprocess
import sys
import threading

import pytest

from moon_diffusers import counters


def test_scopes_are_apart_and_add_up():
    counters.record_served("a kernel", "first", "its_name")
    counters.record_served("a kernel", "second", "its_name")
    assert counters.snapshot().kernels == {"its_name": 2}
    assert counters.snapshot("first").kernels == {"its_name": 1}
    counters.record_fallback("a reason", "the detail", "second")
    counters.record_fallback("a reason", "another detail", "second")
    counters.record_fallback("b reason")
    assert counters.summary("first") == "moon_diffusers: 1 of 1 attention calls ran on the kernel (1 a kernel)"
    assert counters.summary("nobody") == "moon_diffusers: no attention calls"
    assert counters.summary() == (
        "moon_diffusers: 2 of 5 attention calls ran on the kernel (2 a kernel); 3 fell back to torch SDPA: "
        "2 a reason [the detail], 1 b reason"
    )
    counters.reset_summary("second")
    assert counters.snapshot().num_fallbacks == 1
    counters.reset_summary()
    assert counters.summary() == "moon_diffusers: no attention calls"


def test_snapshots_are_copies():
    counters.record_served("a kernel")
    counters.snapshot().served["a kernel"] = 99
    assert counters.snapshot().num_served == 1


def test_threads_lose_no_count():
    def work():
        for _ in range(2000):
            counters.record_served("a kernel")
            counters.record_fallback("a reason")

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    counts = counters.snapshot()
    assert (counts.num_served, counts.num_fallbacks) == (8000, 8000)


def test_strict_in_all_its_forms(monkeypatch):
    assert not counters.is_strict()
    monkeypatch.setenv("MOON_STRICT", "1")
    assert counters.is_strict()
    with counters.strict(False):
        assert not counters.is_strict()
        assert counters.is_strict(True)
    assert not counters.is_strict(False)
    for off in ("0", "no", "off", "False", ""):
        monkeypatch.setenv("MOON_STRICT", off)
        assert not counters.is_strict()


@pytest.mark.parametrize(
    "calls, variable, expected",
    [
        ("record_served('k')", None, ""),
        ("record_served('k')", "1", "moon_diffusers: 1 of 1 attention calls"),
        ("record_fallback('r')", None, "1 fell back to torch SDPA: 1 r"),
        ("record_fallback('r')", "0", ""),
        ("summary()", None, ""),
        ("summary()", "1", "no attention calls"),
    ],
)
def test_last_words(monkeypatch, calls, variable, expected):
    if variable is None:
        monkeypatch.delenv("MOON_SUMMARY", raising=False)
    else:
        monkeypatch.setenv("MOON_SUMMARY", variable)
    code = f"from moon_diffusers import counters; counters.{calls}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert (expected in done.stderr) if expected else done.stderr == ""


def test_a_closed_stderr_does_not_send_the_summary_to_stdout():
    code = "from moon_diffusers import counters; counters.record_fallback('x')"
    done = subprocess.run(f'"{sys.executable}" -c "{code}" 2>&-', shell=True, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == ""
