"""What a routed call costs on the host: everything from `attention(q, k, v)` to the launch.

    python scripts/host_overhead.py [--arch gfx942] [--calls 2000] [--repeats 9]
    python scripts/host_overhead.py --device 0            on a real GPU, the driver's launch included

Without a GPU the launch itself is left out: its function is replaced by a C function that returns at once, called with the
same arguments through the same binding, and tensors' addresses are passed as they are, as on a device of their own. Prints
microseconds of this thread's processor time a call, so that other load counts little: the median over repeats and their
range.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

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
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        start = time.thread_time()
        for _ in range(calls):
            call()
        figures.append((time.thread_time() - start) / calls * 1e6)
    return statistics.median(figures), min(figures), max(figures)


def rows(q: Tensor, k: Tensor, v: Tensor) -> dict[str, Callable[[], object]]:
    """What is measured. On a GPU torch computes the same problem; else one row, so that its work counts little."""
    theirs = [t.transpose(1, 2) if t.is_cuda else t[:, :1, :1] for t in (q, k, v)]
    theirs_name = "torch SDPA" if q.is_cuda else "torch SDPA's own host part (1 row)"
    return {
        "attention(q, k, v), bshd": lambda: moon_diffusers.attention(q, k, v),
        "attention(..., return_lse=True)": lambda: moon_diffusers.attention(q, k, v, return_lse=True),
        "ops.attention, bhsd (pipelines)": lambda: ops.attention(q, k, v, layout="bhsd"),
        "one torch.empty of the output": lambda: torch.empty_like(q),
        theirs_name: lambda: torch.nn.functional.scaled_dot_product_attention(*theirs),
    }


@contextmanager
def nothing_launched(arch: str) -> Iterator[int]:
    """The emulator's device with a launch function that returns at once; the launches of a call."""
    with moon_diffusers.emulate(arch) as placement:
        opened = device.open_emulated(arch)
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
        moon_diffusers.attention(*inputs("cpu"), strict=True)
        if launches == 0:
            raise MoonError("the call ended in no launch: nothing to measure")
        nothing.restype = ctypes.c_int
        opened.hip.launch_kernel = lambda *arguments: nothing(*arguments) * 0
        yield launches


def inputs(where: str) -> tuple[Tensor, Tensor, Tensor]:
    """So few rows that a GPU is done before the host: its queue must not fill."""
    q, k, v = (torch.zeros(1, 16, 12, 128, dtype=torch.bfloat16, device=where) for _ in range(3))
    return q, k, v


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="gfx942", help="whose kernels (default: %(default)s)")
    parser.add_argument("--device", type=int, help="a real GPU by its number, instead of --arch")
    parser.add_argument("--calls", type=int, default=2000, help="calls a repeat (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=9, help="repeats (default: %(default)s)")
    parser.add_argument("--profile", action="store_true", help="also print where the time goes, by function")
    args = parser.parse_args()
    for name in ("calls", "repeats"):
        if getattr(args, name) < 1:
            parser.error(f"--{name}: {getattr(args, name)} is not accepted; accepted: 1 or more")

    torch.set_num_threads(1)
    try:
        if args.device is None:
            with nothing_launched(args.arch) as launches:
                print(f"{args.arch}: {launches} launches a call")
                report(inputs("cpu"), args)
        else:
            if not torch.cuda.is_available():
                raise MoonError("no GPU that torch can use; without --device the emulator's is taken")
            os.environ["MOON_FORCE"] = "1"  # small work is torch's by rule
            tensors = inputs(f"cuda:{args.device}")
            moon_diffusers.attention(*tensors, strict=True)
            print(f"{torch.cuda.get_device_name(args.device)}: {moon_diffusers.summary()}")
            report(tensors, args)
    except MoonError as error:
        print(f"host_overhead: {error}", file=sys.stderr)
        return 1
    return 0


def report(tensors: tuple[Tensor, Tensor, Tensor], args: argparse.Namespace) -> None:
    """The table, and where the time goes."""
    with torch.inference_mode():
        print(f"{'host microseconds a call':38} {'median':>8} {'least':>8} {'most':>8}")
        for name, call in rows(*tensors).items():
            figures = measure(call, args.calls, args.repeats)
            print(f"{name:38} " + " ".join(f"{x:8.1f}" for x in figures))
        if not args.profile:
            return
        import cProfile
        import pstats

        profile = cProfile.Profile()
        profile.enable()
        for _ in range(args.calls):
            moon_diffusers.attention(*tensors)
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(18)


if __name__ == "__main__":
    sys.exit(main())
