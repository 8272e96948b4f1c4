"""Compare our gfx942 kernel's bits with AITER's, in all three rounding modes, and print a table.

    python scripts/aiter_parity.py [--thorough] [--rescale exact|lazy]

With an AMD GPU, a ROCm torch and the package `aiter`, `aiter.flash_attn_func` and `moon_diffusers.attention` run on it.
Elsewhere AITER's code objects (fetched once by pip, never imported) and ours run in the emulator, matrix instructions
bit-exact. Exit status: 0 parity holds, 1 parity is lost, 2 the comparison cannot be made here.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from moon_diffusers.errors import MoonError
from moon_diffusers.evidence import parity
from moon_diffusers.runtime.device import open_emulated


def choose(rescale: str) -> tuple[parity.Pair, str]:
    """The device with AITER where there is one, else the emulator."""
    import torch

    if torch.version.hip and torch.cuda.is_available():
        arch = torch.cuda.get_device_properties(0).gcnArchName.split(":")[0]
        if arch != "gfx942":
            raise SystemExit(f"the device is {arch}; parity is about gfx942")
        return parity.OnDevice(rescale), torch.cuda.get_device_name(0)
    return parity.Emulated(open_emulated("gfx942"), rescale), "emulator, matrix instructions bit-exact"


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--thorough", action="store_true", help="more and longer shapes, every kind of NaN (minutes)")
    parser.add_argument("--rescale", choices=("exact", "lazy"), default="exact", help="our policy (default: exact)")
    args = parser.parse_args()
    rows = []
    try:
        pair, where = choose(args.rescale)
        print(f"ours ({args.rescale}) against AITER v3, {where}\n")
        print(
            f"{'mode':5s} {'case':44s} {'identical':>10s} {'> 1 ULP':>8s} {'max ULP':>8s} {'row ULPs':>9s}  non-finite"
        )
        for row in parity.measure(pair, parity.cases(args.thorough)):
            rows.append(row)
            d = row.difference
            ends = f"{d.nonfinite} {'equal' if d.nonfinite_equal else 'DIFFER'}" if d.nonfinite else "-"
            print(
                f"{row.case.rounding:5s} {row.case!s:44s} {d.identical:10.4%} {d.beyond_1_ulp:8d} {d.max_ulp:8d} "
                f"{d.row_ulps:9.3f}  {ends}",
                flush=True,
            )
    except (MoonError, ImportError) as error:
        print(f"cannot compare: {error}", file=sys.stderr)
        return 2
    print()
    for rounding in ("rtne", "rtna", "rtz"):
        mine = [row.difference for row in rows if row.case.rounding == rounding]
        elements, differing = sum(d.elements for d in mine), sum(d.differing for d in mine)
        print(f"{rounding}: {differing} of {elements} elements differ, {1 - differing / elements:.4%} identical")
    lost = parity.verdict(rows)
    print("\n".join(["parity is lost:", *lost] if lost else ["parity holds"]))
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
