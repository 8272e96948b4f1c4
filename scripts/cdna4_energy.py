"""Print what the gfx950 kernel moves per FLOP beside AITER's, both run in the emulator on the same tensors.

    python scripts/cdna4_energy.py [--seqlen-k 2048] [--causal]

AITER's code object is fetched from its wheel on first use. Shares of tiles that rescale are ours, by kind of input.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import astuple

from moon_diffusers.errors import MoonError
from moon_diffusers.evidence import aiter, device, energy, reference
from moon_diffusers.runtime.device import open_emulated

COLUMNS = ("kernel", "accumulator B/FLOP", "K, V B/kFLOP", "LDS B/kFLOP", "vector/score", "LDS conflicts")


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seqlen-k", type=int, default=2048, help="keys (default: %(default)s)")
    parser.add_argument("--causal", action="store_true", help="the causal kernels, over as many queries as keys")
    args = parser.parse_args()
    if args.seqlen_k < 1:
        parser.error(f"--seqlen-k: {args.seqlen_k} is not accepted; accepted: 1 or more")
    # Whole row blocks for both kernels: 384 and 256 rows.
    shape = aiter.Shape(1, args.seqlen_k if args.causal else 768, args.seqlen_k, 1, 1)
    try:
        ours = open_emulated("gfx950")
        found = energy.compare(ours, device.open_emulator("gfx950"), shape, causal=args.causal)
        shares = {}
        for kind in reference.KINDS:
            result = energy.run_ours(ours, shape, causal=args.causal, kind=kind)
            shares[kind] = energy.rescale_share(result.reports[0], energy.code_of(ours, result))
    except (MoonError, RuntimeError) as error:
        print(f"cdna4_energy: {error}", file=sys.stderr)
        return 2
    print(f"{shape.seqlen_q} queries, {shape.seqlen_k} keys, head dim 128{', causal' if args.causal else ''}\n")
    print(f"{COLUMNS[0]:42}" + "".join(f"{name:>20}" for name in COLUMNS[1:]))
    for row in (found.ours, found.aiter):
        name, *numbers, conflicts = astuple(row)
        print(f"{name[:40]:42}" + "".join(f"{x:20.3f}" for x in numbers) + f"{conflicts:20d}")
    ratios = [a / b for a, b in zip(astuple(found.ours)[1:-1], astuple(found.aiter)[1:-1], strict=True)]
    print(f"{'ratio':42}" + "".join(f"{x:20.3f}" for x in ratios))
    print("\ntiles that rescale: " + ", ".join(f"{kind} {share:.2%}" for kind, share in shares.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
