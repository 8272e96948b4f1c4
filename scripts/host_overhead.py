"""What a routed call costs on the host: everything from `attention(q, k, v)` to the launch, the launch itself left out.

    python scripts/host_overhead.py [--arch gfx942] [--calls 2000] [--repeats 9]

The launch function is replaced by a C function that returns at once, called with the same arguments through the same
binding, and tensors' addresses are passed as they are, as on a device of their own. So this is the host's part of a call
on a real GPU, without the driver's. Prints microseconds of this thread's processor time a call, so that other load counts
little: the median over repeats and their range.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
import time
from collections.abc import Callable

import torch

import moon_diffusers
from moon_diffusers import dispatch, ops
from moon_diffusers.errors import MoonError
from moon_diffusers.runtime import device
from moon_diffusers.runtime.hip import REQUIRED


def measure(call: Callable[[], object], calls: int, repeats: int) -> tuple[float, float, float]:
    """Median, least and most microseconds a call."""
    for _ in range(200):
        call()
    figures = []
    for _ in range(repeats):
        start = time.thread_time()
        for _ in range(calls):
            call()
        figures.append((time.thread_time() - start) / calls * 1e6)
    return statistics.median(figures), min(figures), max(figures)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="gfx942", help="whose kernels (default: %(default)s)")
    parser.add_argument("--calls", type=int, default=2000, help="calls a repeat (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=9, help="repeats (default: %(default)s)")
    parser.add_argument("--profile", action="store_true", help="also print where the time goes, by function")
    args = parser.parse_args()

    torch.set_num_threads(1)
    try:
        emulated = moon_diffusers.emulate(args.arch)
        with emulated as placement:
            opened = device.open_emulated(args.arch)
            nothing = ctypes.CDLL(None).getpid
            nothing.argtypes = REQUIRED["hipModuleLaunchKernel"]
            launches = 0

            def launch(*arguments: object) -> int:
                nonlocal launches
                launches += 1
                return 0

            # One counted call proves that the path measured below ends in a launch.
            opened.hip.launch_kernel = launch
            dispatch._sessions[placement] = dispatch.Session(opened, staged=False, suffix=", nothing launched")
            q, k, v = (torch.zeros(1, 16, 12, 128, dtype=torch.bfloat16) for _ in range(3))
            moon_diffusers.attention(q, k, v, strict=True)
            if launches == 0:
                raise MoonError("the call ended in no launch: nothing to measure")
            nothing.restype = ctypes.c_int
            opened.hip.launch_kernel = lambda *arguments: nothing(*arguments) * 0

            with torch.inference_mode():
                rows = {
                    "attention(q, k, v), bshd": lambda: moon_diffusers.attention(q, k, v),
                    "attention(..., return_lse=True)": lambda: moon_diffusers.attention(q, k, v, return_lse=True),
                    "ops.attention, bhsd (pipelines)": lambda: ops.attention(q, k, v, layout="bhsd"),
                    "one torch.empty of the output": lambda: torch.empty_like(q),
                    "torch SDPA's own host part (1 row)": lambda: torch.nn.functional.scaled_dot_product_attention(
                        q[:, :1, :1], k[:, :1, :1], v[:, :1, :1]
                    ),
                }
                print(f"{args.arch}: {launches} launches a call")
                print(f"{'host microseconds a call':38} {'median':>8} {'least':>8} {'most':>8}")
                for name, call in rows.items():
                    print(f"{name:38} " + " ".join(f"{x:8.1f}" for x in measure(call, args.calls, args.repeats)))
                if args.profile:
                    import cProfile
                    import pstats

                    profile = cProfile.Profile()
                    profile.enable()
                    for _ in range(args.calls):
                        moon_diffusers.attention(q, k, v)
                    profile.disable()
                    pstats.Stats(profile).sort_stats("tottime").print_stats(18)
    except MoonError as error:
        print(f"host_overhead: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
