"""The real clock: events of torch's GPU, CUDA and ROCm alike."""

from __future__ import annotations

import time
from typing import Any

import torch

from .schedule import Kernel

# Larger than any last-level cache met: 256 MB Infinity Cache on MI300X and MI355X, 60 MB L2 on H200.
FLUSH_BYTES = 512 << 20


def graphed(kernel: Kernel) -> Kernel:
    """The kernel's call as a captured graph: what the device takes, without the host's part of a call."""
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            kernel()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel()
    return graph.replay


class GpuClock:
    """Times blocks by device events on the current stream of `device`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._sweep = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device)

    def flush(self) -> None:
        """Write a buffer larger than the last-level cache."""
        self._sweep.zero_()

    def block(self, kernel: Kernel, calls: int) -> tuple[float, float, float]:
        """Run `calls` calls back to back: device seconds, and the host's monotonic times of begin and end."""
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize(self.device)
        begin = time.monotonic()
        start.record()
        for _ in range(calls):
            kernel()
        stop.record()
        torch.cuda.synchronize(self.device)
        return start.elapsed_time(stop) / 1e3, begin, time.monotonic()
