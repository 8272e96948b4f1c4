"""Two GPUs of one process, and two processes that share one sequence."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

from .cases import attend, check, reference, tensors
from .machine import MACHINE
from .parallel import MODES, SIZE, rank_main

pytest.importorskip("diffusers", minversion="0.36")

two = pytest.mark.skipif(MACHINE.gpu and torch.cuda.device_count() < 2, reason="this machine has one GPU")


@two
@pytest.mark.gpu
def test_tensors_of_a_device_that_is_not_the_current_one() -> None:
    with torch.cuda.device(0):
        made = tensors(1, 700, 900, 3)
        expected = reference(*made)
        for index in (1, 0, 1):
            q, k, v = (t.to(f"cuda:{index}") for t in made)
            torch.cuda.synchronize(index)
            out, lse = attend(q, k, v, return_lse=True)
            assert out.device == q.device and torch.cuda.current_device() == 0
            check(out.to("cuda:0"), lse.to("cuda:0"), expected, index)


@two
@pytest.mark.gpu
def test_both_devices_at_once() -> None:
    """A thread for each device, and one that alternates; equal inputs give equal bits on both."""
    calls = [tensors(1, 4000, 4000, 8), tensors(2, 100, 9000, 1)]
    wanted = [attend(*call).cpu() for call in calls]
    on = [[tuple(t.to(f"cuda:{index}") for t in call) for call in calls] for index in range(2)]
    for index in range(2):
        torch.cuda.synchronize(index)
    failures: list[str] = []

    def work(order: list[int]) -> None:
        try:
            for repeat in range(20):
                index = order[repeat % len(order)]
                which = repeat % len(calls)
                stream = torch.cuda.Stream(index)
                with torch.cuda.stream(stream):
                    out = attend(*on[index][which])
                stream.synchronize()
                if not torch.equal(out.cpu(), wanted[which]):
                    failures.append(f"device {index}, call {which}: other bits")
        except Exception as problem:
            failures.append(f"{order}: {problem}")

    workers = [threading.Thread(target=work, args=(order,)) for order in ([0], [1], [0, 1])]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures, failures[:3]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    # Multicast over NVLink can disturb the other GPUs of a shared host; nothing here needs it.
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(rank_main, args=(str(folder),), nprocs=2)
    return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(2)]


@two
@pytest.mark.parametrize("name", MODES)
def test_two_devices_compute_what_one_does(name: str, ranks: list[dict[str, Any]], record_property) -> None:
    """Ulysses exchanges heads, the ring passes keys on and merges by the log-sum-exp."""
    layers = SIZE.num_layers
    for rank in ranks:
        seen = rank[name]
        record_property("difference", seen["difference"])
        record_property("rounding", seen["rounding"])
        assert seen["fallbacks"] == 0 and seen["served"] >= 2 * layers, seen["summary"]
        # The parts are merged in bf16: a few roundings more than between torch's kernel and ours.
        assert seen["difference"] < 3 * max(seen["rounding"], 2e-3), seen["summary"]
        record_property("one_call_error", seen["one call"])
        # bf16 once, or for the ring twice; a log-sum-exp to another base gives 0.1.
        assert seen["one call"] < 4e-3
    assert torch.equal(ranks[0][name]["output"], ranks[1][name]["output"])


@two
def test_the_ring_runs_more_calls_than_ulysses(ranks: list[dict[str, Any]]) -> None:
    """Each rank meets both halves of the keys."""
    for rank in ranks:
        assert rank["ring"]["served"] > rank["ulysses"]["served"]
