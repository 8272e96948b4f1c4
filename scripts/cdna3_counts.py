"""Print what a wavefront of the gfx942 kernel executes for 48 query rows and 64 keys, and AITER's kernel for as many.

    python scripts/cdna3_counts.py [--rises]

`--rises` adds tiles in which the running maximum rises. Exit status 1 if the steady loop is over its budget, 2 if nothing
can be counted here.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from moon_diffusers.errors import MoonError
from moon_diffusers.evidence import aiter, bf16
from moon_diffusers.evidence.tile_counts import RISES, TileCounts, ours, theirs
from moon_diffusers.runtime.device import open_emulated

KINDS = (
    "mfma",
    "trans",
    "valu",
    "salu",
    "lds_read",
    "lds_other",
    "vmem_load",
    "vmem_lds",
    "waitcnt",
    "nop",
    "branch",
    "barrier",
)
#: VALU instructions besides exponentials that the steady loop may have.
BUDGET = {"rtne": 244, "rtna": 196, "rtz": 148}


def line(name: str, counts: TileCounts) -> str:
    """One row of the table."""
    return f"{name:36s}" + "".join(f"{counts[kind]:10.1f}".removesuffix(".0").rjust(10) for kind in KINDS)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rises", action="store_true", help="also tiles in which the maximum rises")
    args = parser.parse_args()
    over = []
    try:
        device = open_emulated("gfx942")
        device.hip.set_option("checks", "off")
        print(" " * 36 + "".join(f"{kind:>10s}" for kind in KINDS))
        for rise in RISES if args.rises else RISES[:1]:
            print(f"maximum rises: {rise}")
            for rounding in bf16.ROUNDINGS:
                for rescale in ("exact", "lazy"):
                    counts = ours(device, rounding, rescale, rise)
                    print(line(f"  {rounding} {rescale}", counts))
                    if rise == "none" and (counts["valu"] > BUDGET[rounding] or counts["mfma"] != 192):
                        over.append(f"{rounding} {rescale}: {counts['valu']:g} VALU, {counts['mfma']:g} MFMA")
                try:
                    # 32 rows a wavefront there; its 32x32x8 matrix instructions do twice the work of ours.
                    print(line(f"  {rounding} AITER v3, of 48 rows", theirs(device, rounding, rise).scaled(48 / 32)))
                except aiter.AiterUnavailableError as error:
                    print(f"  {rounding} AITER v3: {error}")
    except MoonError as error:
        print(f"cdna3_counts: {error}", file=sys.stderr)
        return 2
    for text in over:
        print(f"over budget: {text}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
