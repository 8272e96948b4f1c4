"""The script that runs under a memory checker runs without one too, and notices a wrong result."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .machine import MACHINE

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "sanitize_gpu.py"


@pytest.mark.parametrize("fault", [False, True], ids=["right", "wrong"])
def test_it_says_what_is_right_and_what_is_wrong(fault: bool) -> None:
    cases = [] if MACHINE.gpu else ["--emulate", MACHINE.arch]
    code = f"import runpy, sys; sys.argv[0] = {str(SCRIPT)!r}\n"
    if fault:
        code += "import tests.gpu.faults as f; kept = f.fault('last_row_missing'); kept.__enter__()\n"
    code += f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    command = [sys.executable, "-c", code, *cases, "--case", "dense", "--case", "packed", "--case", "lengths"]
    root = SCRIPT.parents[1]
    paths = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, env=os.environ | {"PYTHONPATH": paths})
    assert done.returncode == int(fault), done.stdout + done.stderr
    assert done.stdout.count("WRONG" if fault else "right") == 3, done.stdout
