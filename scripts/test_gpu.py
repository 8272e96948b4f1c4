"""Run the tests of this machine's GPU and keep what they found: outcomes, times and figures, as a dated JSON.

    python scripts/test_gpu.py [--output DIR] [--device cuda] [--budget-seconds 300] [--fault NAME] [-- PYTEST ARGUMENTS]

The same as `make test-gpu`. `--device cpu` (or `cpu:gfx950`) runs the part that the emulator can, to prove the tests
themselves; `--fault NAME` makes the product wrong in one way, and prints which tests did not notice.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


class Recorder:
    """A pytest plugin that keeps every test's outcome, and stops when the time is up."""

    def __init__(self, output: Path | None, budget: float | None) -> None:
        from moon_diffusers.evidence.budget import Budget

        self.output = output
        self.budget = Budget(budget)
        self.tests: dict[str, dict[str, Any]] = {}
        self._written = 0.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Setup, call and teardown of a test; the worst of them is its outcome."""
        test = self.tests.setdefault(report.nodeid, {"outcome": "passed", "seconds": 0.0})
        test["seconds"] = round(test["seconds"] + report.duration, 3)
        if report.user_properties:
            test["figures"] = dict(report.user_properties)
        if report.outcome != "passed" and test["outcome"] != "failed":
            test["outcome"] = report.outcome
            told = report.longrepr
            text = (
                told[2] if isinstance(told, tuple) else getattr(getattr(told, "reprcrash", None), "message", str(told))
            )
            test["message"] = text[:500]
        if self.budget.spent - self._written > 5:
            self._written = self.budget.spent
            self.write(finished=False)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Ask for the end between two tests."""
        if self.budget.left == 0:
            item.session.shouldstop = f"{self.budget.seconds:.0f} s are up"

    def count(self, outcome: str) -> int:
        """Tests with this outcome."""
        return sum(test["outcome"] == outcome for test in self.tests.values())

    def write(self, finished: bool) -> None:
        """The file, whole; written while the tests run, so that a killed run leaves one too."""
        if self.output is None:
            return
        import torch

        from moon_diffusers.evidence.bench import telemetry
        from moon_diffusers.evidence.bench.report import environment
        from moon_diffusers.evidence.files import whole_file

        gpu = os.environ["MOON_GPU_TESTS_DEVICE"].startswith("cuda")
        device = torch.device("cuda", 0) if gpu else torch.device("cpu")
        whole = {
            "schema": 1,
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            "finished": finished,
            "seconds": round(self.budget.spent, 1),
            "environment": environment(device, telemetry.find_source(0) if gpu else None),
            "gpus": torch.cuda.device_count(),
            **{outcome: self.count(outcome) for outcome in ("passed", "failed", "skipped")},
            "tests": self.tests,
        }
        self.output.mkdir(parents=True, exist_ok=True)
        with whole_file(self.output / "gpu-tests.json") as path:
            path.write_text(json.dumps(whole, indent=1), encoding="utf-8")


def main() -> int:
    """Command line; pytest's exit code, or 1 if a fault went unnoticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="folder for gpu-tests.json")
    parser.add_argument("--device", default="cuda", help="cuda, cpu, cpu:gfx950 (default: %(default)s)")
    parser.add_argument("--budget-seconds", type=float, help="begin no test after this")
    parser.add_argument("--fault", default="", help="make the product wrong, see tests/gpu/faults.py")
    parser.add_argument("arguments", nargs="*", metavar="PYTEST ARGUMENT", help="behind --, e.g. -k causal")
    args = parser.parse_args()

    os.environ["MOON_GPU_TESTS_DEVICE"] = args.device
    os.environ["MOON_GPU_TESTS_FAULT"] = args.fault
    sys.path.insert(0, str(ROOT))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    os.chdir(ROOT)
    import torch

    if args.device.startswith("cuda") and not torch.cuda.is_available():
        print("test_gpu: no GPU that torch can use; --device cpu runs what the emulator can", file=sys.stderr)
        return 2
    try:
        from tests.gpu import machine  # noqa: F401
        from tests.gpu.faults import NAMES
    except ValueError:
        parser.error(f"--device: {args.device!r} is not accepted; accepted: cuda, cpu, cpu:gfx942, cpu:gfx950")
    # Else every test fails on it, as if it had noticed the fault.
    if args.fault and args.fault not in NAMES:
        parser.error(f"--fault: {args.fault!r} is not accepted; accepted: {', '.join(NAMES)}")
    recorder = Recorder(args.output, args.budget_seconds)
    where = [] if any(argument.startswith("tests/") for argument in args.arguments) else ["tests/gpu"]
    code = int(pytest.main([*where, "-q", "-p", "no:cacheprovider", *args.arguments], plugins=[recorder]))
    recorder.write(finished=recorder.budget.left > 0)
    if args.fault:
        unnoticed = [name for name, test in recorder.tests.items() if test["outcome"] == "passed"]
        print(
            f"{args.fault}: {recorder.count('failed')} tests noticed, {len(unnoticed)} did not:", *unnoticed, sep="\n  "
        )
        return int(recorder.count("failed") == 0)
    return code


if __name__ == "__main__":
    sys.exit(main())
