"""Streams, threads, graphs, compilation, repeated launches, memory that held other things before."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

import moon_diffusers

from .cases import attend, check, check_call, ints, reference, sync, tensors
from .machine import MACHINE

ROWS = MACHINE.pick(700, 70)


def test_what_torch_allocates_holds_nan_until_it_is_written() -> None:
    """The premise under every test here: a cell that a kernel forgets is NaN."""
    assert torch.empty(1000, dtype=torch.bfloat16, device=MACHINE.device).isnan().all()
    assert torch.empty(1000, dtype=torch.float32, device=MACHINE.device).isnan().all()


REPEATED = {
    "dense": lambda: (tensors(2, ROWS, ROWS, 3), {}),
    "causal": lambda: (tensors(1, ROWS, ROWS + 33, 3), {"causal": True}),
    "split": lambda: (tensors(1, 3, MACHINE.pick(20_000, 600), 1), {}),
    "lengths": lambda: (tensors(2, ROWS, ROWS, 2, 1), {"seqlens_k": ints([ROWS // 2, ROWS])}),
}


@pytest.mark.parametrize("name", REPEATED)
def test_repeated_launches_give_the_same_bits(name: str) -> None:
    (q, k, v), options = REPEATED[name]()
    first = attend(q, k, v, return_lse=True, **options)
    for _ in range(MACHINE.pick(30, 2)):
        again = attend(q, k, v, return_lse=True, **options)
        assert torch.equal(again[0], first[0]) and torch.equal(again[1], first[1])


def test_batch_invariant_rows_have_the_same_bits_alone() -> None:
    q, k, v = tensors(4, 40, MACHINE.pick(5000, 300), 2)
    together = attend(q, k, v, batch_invariant=True)
    alone = attend(q[2:3], k[2:3], v[2:3], batch_invariant=True)
    assert torch.equal(together[2:3], alone)


def test_inputs_are_left_alone() -> None:
    q, k, v = tensors(1, ROWS, ROWS, 2)
    before = [t.clone() for t in (q, k, v)]
    attend(q, k, v)
    sync()
    assert all(torch.equal(a, b) for a, b in zip(before, (q, k, v), strict=True))


@pytest.mark.gpu
def test_memory_around_the_output_is_left_alone() -> None:
    """Guards before and behind the very block that the output will get from the allocator."""
    torch.use_deterministic_algorithms(False)
    q, k, v = tensors(1, 385, 300, 1)
    out = attend(q, k, v)
    span = out.untyped_storage().nbytes()
    blocks = [torch.full((span // 2,), 7.0, dtype=torch.bfloat16, device=MACHINE.device) for _ in range(9)]
    middle = blocks[4].data_ptr()
    del out
    blocks[4] = blocks[4].new_empty(0)
    out = attend(q, k, v)
    if out.data_ptr() != middle:
        out = attend(q, k, v)
    check(out, None, reference(q, k, v))
    assert all((block == 7).all() for block in blocks if block.numel())


@pytest.mark.gpu
def test_side_streams() -> None:
    """The inputs are still being made on the side stream when the call is made: another stream would read NaN."""
    made = tensors(1, 1000, 900, 4)
    expected = reference(*made)
    for _ in range(5):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            late = [torch.full_like(t, torch.nan) for t in made]
            torch.cuda._sleep(20_000_000)
            for target, source in zip(late, made, strict=True):
                target.copy_(source)
            out, lse = attend(*late, return_lse=True)
            copied = out.clone()
        stream.synchronize()
        check(copied, lse, expected)


@pytest.mark.gpu
def test_a_small_call_on_one_stream_beside_a_large_one_on_another() -> None:
    large, small = tensors(1, 8192, 8192, 12), tensors(1, 100, 5000, 1)
    expected = attend(*large), attend(*small)
    sync()
    streams = [torch.cuda.Stream() for _ in range(2)]
    results: list[list[Tensor]] = [[], []]
    for _ in range(5):
        for stream, call, kept in zip(streams, (large, small), results, strict=True):
            with torch.cuda.stream(stream):
                kept.append(attend(*call))
    sync()
    for kept, wanted in zip(results, expected, strict=True):
        assert all(torch.equal(out, wanted) for out in kept)


@pytest.mark.parametrize("threads", MACHINE.pick([4], [2]))
def test_threads(threads: int) -> None:
    """Each thread has its stream, its shape and its data."""
    calls = [tensors(1, ROWS + 50 * i, 300 + 7 * i if MACHINE.gpu else 60, 2) for i in range(threads)]
    wanted = [attend(*call) for call in calls]
    sync()
    failures: list[str] = []

    def work(index: int) -> None:
        try:
            with MACHINE.placed():
                stream = torch.cuda.Stream() if MACHINE.gpu else None
                for _ in range(MACHINE.pick(40, 2)):
                    with torch.cuda.stream(stream):  # type: ignore[arg-type]
                        out = attend(*calls[index])
                    if stream is not None:
                        stream.synchronize()
                    if not torch.equal(out, wanted[index]):
                        failures.append(f"thread {index}: other bits")
        except Exception as problem:
            failures.append(f"thread {index}: {problem}")

    workers = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures, failures[:3]


GRAPHS = {
    "dense": ((2, 700, 900, 4), {}),
    "causal": ((1, 500, 900, 4), {"causal": True}),
    "split": ((1, 5, 30_000, 1), {}),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", GRAPHS)
def test_cuda_graphs(name: str) -> None:
    """Capture once, replay with new data in the same memory."""
    shape, options = GRAPHS[name]
    static = tensors(*shape)
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        for _ in range(3):
            attend(*static, return_lse=True, **options)
    torch.cuda.current_stream().wait_stream(warm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = attend(*static, return_lse=True, **options)
    for _ in range(3):
        fresh = tensors(*shape)
        for target, source in zip(static, fresh, strict=True):
            target.copy_(source)
        out.fill_(torch.nan)
        lse.fill_(torch.nan)
        graph.replay()
        sync()
        eager, eager_lse = attend(*fresh, return_lse=True, **options)
        assert torch.equal(out, eager) and torch.equal(lse, eager_lse)
        check(out, lse, reference(*fresh, causal=bool(options)))


@pytest.mark.gpu
def test_two_calls_of_one_kind_in_one_graph() -> None:
    """Arguments are captured by value: the second call must not change what the first will read."""
    one, two = tensors(1, 300, 400, 2), tensors(1, 300, 400, 2)
    attend(*one)
    sync()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first, second = attend(*one), attend(*two)
    graph.replay()
    sync()
    assert torch.equal(first, attend(*one)) and torch.equal(second, attend(*two))


@pytest.mark.gpu
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled(mode: str, dynamic: bool) -> None:
    def layer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = moon_diffusers.attention(q * 2, k, v + 1, strict=True) * 0.5
        return out

    torch.compiler.reset()
    torch.use_deterministic_algorithms(False)
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, mode=mode)
    for length in (300, 300, 417):
        q, k, v = tensors(1, length, length + 20, 2)
        with torch.no_grad():
            out = compiled(q, k, v).clone()
        expected, _ = reference(q * 2, k, v + 1)
        assert ((out.double() - expected * 0.5).norm() / expected.norm() * 2).item() < 4e-3
    assert "fell back" not in moon_diffusers.summary(), moon_diffusers.summary()


def test_every_call_is_counted_as_served() -> None:
    q, k, v = tensors(1, 40, 50, 2)
    attend(q, k, v)
    attend(q, k, v, causal=True)
    assert moon_diffusers.summary().startswith("moon_diffusers: 2 of 2 attention calls ran on the kernel")


@pytest.mark.gpu
def test_after_an_out_of_memory_error() -> None:
    """A call after a failed allocation works as before."""
    q, k, v = tensors(1, 300, 300, 2)
    before = attend(q, k, v)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        torch.empty(2**44, device=MACHINE.device)
    assert torch.equal(attend(q, k, v), before)


def test_many_shapes_one_after_another() -> None:
    """No plan of one shape is used for another."""
    for length in MACHINE.pick(range(1, 600, 37), (1, 40, 90)):
        check_call(*tensors(1, length, 601 - length if MACHINE.gpu else 50, 2), length)
        check_call(*tensors(1, length, 64, 2), length)
