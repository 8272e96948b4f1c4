"""Print the error of both rescale policies of the gfx942 kernel against float64, beside AITER's kernel on the same tensors.

    python scripts/cdna3_accuracy.py [--keys 512 --keys 4096 ...]

Relative L2 of the output, for normal data, keys four times as large (peaky), and keys with log-normal norms (outliers, so
that the running maximum jumps). All run in the emulator with bit-exact matrix instructions. Exit status 2 if nothing can
be compared here.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from moon_diffusers.emulator.options import emulator_options
from moon_diffusers.errors import MoonError
from moon_diffusers.evidence import aiter, bf16, calls, device, peer, reference
from moon_diffusers.runtime.device import open_emulated

ROWS = 256  # one row block of AITER's kernel
POLICIES = ("exact", "lazy")


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, action="append", help="numbers of keys (default: 512, 4096, 16384)")
    args = parser.parse_args()
    if any(keys < 1 for keys in args.keys or ()):
        parser.error(f"--keys: {min(args.keys)} is not accepted; accepted: 1 or more")
    ours, raw = open_emulated("gfx942"), device.open_emulator("gfx942")
    print(f"{'mode':5s} {'data':10s} {'keys':>6s} {'AITER v3':>10s} " + " ".join(f"{name:>10s}" for name in POLICIES))
    try:
        for kind in reference.KINDS:
            for keys in args.keys or (512, 4096, 16384):
                q, k, v = reference.inputs(1, ROWS, keys, 1, 1, kind=kind)
                expected, _ = reference.attention(*(bf16.to_float(x) for x in (q, k, v)))
                for rounding in bf16.ROUNDINGS:
                    with emulator_options(raw.hip, mma="exact", checks="off"):
                        found = [peer.run(raw, aiter.Kernel("gfx942", rounding, False), q, k, v).o]
                        for rescale in POLICIES:
                            call = calls.Call(
                                q, k, v, rounding=rounding, rescale=rescale, batch_invariant=True, family="cdna3"
                            )
                            found.append(calls.run(ours, call).o)
                    errors = " ".join(f"{reference.compare(o, expected).relative_l2:10.3e}" for o in found)
                    print(f"{rounding:5s} {kind:10s} {keys:6d} {errors}", flush=True)
    except MoonError as error:
        print(f"cdna3_accuracy: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
