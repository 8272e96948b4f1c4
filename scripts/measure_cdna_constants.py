"""Measure the constants of the timing model on an MI300X or MI355X, and print them as `model-timing --constants` reads them.

    python scripts/measure_cdna_constants.py --output constants.json          # on the GPU
    moon-diffusers model-timing --constants constants.json

    python scripts/measure_cdna_constants.py --emulate gfx942                 # tries the script out; measures nothing

Microbenchmarks of csrc/kernels/measure run as one workgroup each and read the cycle counter themselves. Every result that
they compute is checked. The constants are those under which the timing model needs as many cycles as were measured; what
it then says of the benchmarks that fix no constant (a matrix instruction beside the partner's exponentials among them) is
printed beside the measurement, and says how far to trust the model. Needs a device that nobody else is using.

In the emulator the kernels run and are checked, every wait and race included, but there is no time to measure: the
cycles are the model's own, under the published constants, and the constants that come out must be those.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from moon_diffusers.emulator.options import emulator_options
from moon_diffusers.errors import MoonError
from moon_diffusers.evidence.device import EMULATED, RawDevice, open_emulator
from moon_diffusers.evidence.files import check_file, whole_file
from moon_diffusers.evidence.timing import calibration, microbenchmarks
from moon_diffusers.evidence.timing.constants import PUBLISHED, UNCERTAIN
from moon_diffusers.runtime import library
from moon_diffusers.runtime.code_objects import load_manifest

EMULATED_SOURCE = "the emulator: nothing was measured, these are the published constants as the model gives them back"


def emulate(arch: str) -> tuple[dict[str, microbenchmarks.Seen], str]:
    """Run every benchmark in the emulator with its checks on, and put the model's cycles in the counter's place."""
    device, image = open_emulator(arch), microbenchmarks.image_of(load_manifest(), arch)
    seen = {}
    with emulator_options(device.hip, checks="on", threads="1"):
        for name, benchmark in microbenchmarks.BENCHMARKS.items():
            found = microbenchmarks.run(device, image, benchmark, arch)
            for finding in device.report().get("findings", []):
                # Readers of matrix results come too early on purpose.
                if finding["severity"] == "error" or not name.startswith("mfma_read"):
                    raise MoonError(f"{name}: the emulator found {finding['kind']}: {finding['detail']}")
            times = calibration.modelled_times(arch, name, PUBLISHED[arch])
            cycles, ended = microbenchmarks.cycles(benchmark, times), microbenchmarks.overlapped(benchmark, times)
            seen[name] = microbenchmarks.Seen(cycles, 0.0, found.right, ended, found.pairs)
    return seen, EMULATED_SOURCE


def measure(ordinal: int, launches: int) -> tuple[str, dict[str, microbenchmarks.Seen], str]:
    """Run every benchmark on a real device: its architecture, what was seen, what it is."""
    hip = library.find_hip()
    if ordinal >= hip.device_count():
        raise MoonError(f"the HIP library {hip.path} sees {hip.device_count()} devices; device {ordinal} was asked for")
    info = hip.device_info(ordinal)
    if info.arch not in PUBLISHED:
        raise MoonError(f"device {ordinal} is {info.name} ({info.arch}); accepted: {', '.join(PUBLISHED)}")
    device, image = RawDevice(hip, ordinal), microbenchmarks.image_of(load_manifest(), info.arch)
    seen = {
        name: microbenchmarks.run(device, image, benchmark, info.arch, launches)
        for name, benchmark in microbenchmarks.BENCHMARKS.items()
    }
    return info.arch, seen, f"{info.name} ({info.arch}), device {ordinal}, driver {info.driver_version}"


def doubts(seen: dict[str, microbenchmarks.Seen]) -> list[str]:
    """What makes the measurement questionable."""
    found = []
    for name, item in seen.items():
        if not item.right and not name.startswith("mfma_read"):
            found.append(f"{name}: wrong results")
        if not item.overlapped:
            found.append(f"{name}: a partner ended before the matrix instructions that it was to run beside")
        if item.spread > max(1.0, 0.05 * item.cycles):
            found.append(f"{name}: launches differ by {item.spread:.1f} cycles: is somebody else on the device?")
    if not all(item.pairs for item in seen.values()):
        found.append("waves w and w + 4 did not share a SIMD: whatever ran beside a partner is not what it says")
    for name, cycles in (("valu", 4), ("mfma", 16)):
        if abs(seen[name].cycles - cycles) > 0.02 * cycles:
            found.append(
                f"{name}: {seen[name].cycles:.2f} cycles, published {cycles}: does the counter count the core's clock?"
            )
    if not seen["mfma_read_8"].right:
        found.append("mfma_read_8: a result was not there after 8 wait states")
    return found


def report(arch: str, seen: dict[str, microbenchmarks.Seen], constants: calibration.Constants) -> dict[str, Any]:
    """Print measured beside modelled cycles; the same as a table for the JSON."""
    rows = {}
    print(f"{'benchmark':20s} {'measured':>9s} {'spread':>7s} {'modelled':>9s}  cycles of", file=sys.stderr)
    for name, item in seen.items():
        again = calibration.modelled(arch, name, constants)
        rows[name] = {"cycles": item.cycles, "spread": item.spread, "right": item.right, "modelled": again}
        what = microbenchmarks.BENCHMARKS[name].what + ("" if item.right else "  (read too early)")
        print(f"{name:20s} {item.cycles:9.2f} {item.spread:7.2f} {again:9.2f}  {what}", file=sys.stderr)
    return rows


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--emulate", choices=tuple(EMULATED), help="try the script out without a GPU")
    parser.add_argument("--device", type=int, default=0, help="ordinal of the HIP device (default: %(default)s)")
    parser.add_argument("--launches", type=int, default=21, help="of each benchmark (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="write the constants there instead of standard output")
    args = parser.parse_args()
    if args.launches < 1:
        parser.error(f"--launches: {args.launches} is not accepted; accepted: 1 or more")
    try:
        if args.output:
            check_file(args.output)
        if args.emulate:
            arch = args.emulate
            seen, source = emulate(arch)
        else:
            arch, seen, source = measure(args.device, args.launches)
        print(f"source: {source}", file=sys.stderr)
        right = {name: item.right for name, item in seen.items()}
        constants = calibration.fit(arch, {name: item.cycles for name, item in seen.items()}, right)
        rows = report(arch, seen, constants)
    except (MoonError, OSError) as error:
        print(f"measure_cdna_constants: {error}", file=sys.stderr)
        return 2
    found = doubts(seen)
    for text in found:
        print(f"doubtful: {text}", file=sys.stderr)
    for name in UNCERTAIN[arch]:
        print(f"{name:20s} {getattr(constants, name)}", file=sys.stderr)
    data = calibration.document(arch, source, constants, measured=rows, doubts=found)
    text = json.dumps(data, indent=1)
    if args.output:
        with whole_file(args.output) as path:
            path.write_text(text + "\n")
        print(f"constants: {args.output}", file=sys.stderr)
    else:
        print(text)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
