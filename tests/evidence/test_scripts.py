"""The scripts refuse what they cannot use at once, in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["test_gpu.py", "--device", "cpu", "--fault", "nosuch"], "--fault: 'nosuch' is not accepted"),
        (["test_gpu.py", "--device", "gpu"], "--device: 'gpu' is not accepted"),
        (["inject_faults.py", "--only", "nosuch"], "only: 'nosuch' is not accepted"),
        (["inject_faults.py", "--docs", "README.md"], "docs: README.md is not accepted"),
        (["cdna3_accuracy.py", "--keys", "0"], "--keys: 0 is not accepted"),
        (["cdna4_energy.py", "--seqlen-k", "0"], "--seqlen-k: 0 is not accepted"),
        (["host_overhead.py", "--calls", "0"], "--calls: 0 is not accepted"),
        (["sample_attention_matters.py", "--model", "nosuch"], "--model: 'nosuch' is not accepted"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_bad_input(arguments: list[str], words: str) -> None:
    command = [sys.executable, str(SCRIPTS / arguments[0]), *arguments[1:]]
    done = subprocess.run(command, capture_output=True, text=True, cwd=SCRIPTS.parent, timeout=120)
    assert done.returncode == 2 and words in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr, (
        done.stderr
    )
