"""Break kernels one instruction at a time, run every mutant in the emulator, and say what gives each away.

    python scripts/inject_faults.py                        a sample of every subject, in minutes
    python scripts/inject_faults.py --per-operator 0       every mutant
    python scripts/inject_faults.py --docs docs/fault-injection.md    also rewrite the tables of the page

A mutant is caught by a check (a finding that the unchanged kernel does not have), by a launch error, or by an output
bit that differs from the unchanged kernel's, under one of several wavefront orders. Exits with 1 below 95 %, 2 on bad input.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from moon_diffusers.errors import MoonError
from moon_diffusers.evidence import campaign


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per-operator", type=int, default=12, help="mutants per operator and subject; 0: all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--processes", type=int, default=1, help="how many mutants run at a time")
    parser.add_argument("--only", default="", help="only subjects whose name contains this")
    parser.add_argument("--docs", type=Path, help="page whose generated part is rewritten")
    arguments = parser.parse_args()
    if arguments.processes < 1 or arguments.per_operator < 0:
        parser.error("--processes must be at least 1 and --per-operator at least 0")
    try:
        if arguments.docs:
            campaign.check_page(arguments.docs)
        result = campaign.run(
            only=arguments.only,
            per_operator=arguments.per_operator,
            seed=arguments.seed,
            processes=arguments.processes,
            progress=lambda line: print(line, file=sys.stderr, flush=True),
        )
    except MoonError as error:
        print(f"inject_faults: {error}", file=sys.stderr)
        return 2
    print(campaign.summary(result))
    if arguments.docs:
        campaign.rewrite(arguments.docs, result)
    return 0 if result.caught_share >= campaign.TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
