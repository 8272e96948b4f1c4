"""AITER's own code objects run to the right answer: the emulator's best outside witness."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from moon_diffusers.evidence import aiter, bf16, reference
from moon_diffusers.evidence.aiter import Shape
from moon_diffusers.evidence.code_object import CodeObject
from moon_diffusers.evidence.device import RawDevice, loaded, uploaded

from .conftest import peer_code_object

# Ragged tails, GQA and batches; each kernel runs the first two by default.
SHAPES = (
    Shape(1, 256, 128, 1, 1),
    Shape(2, 77, 97, 2, 1),
    Shape(1, 300, 200, 1, 1),
    Shape(1, 257, 1025, 1, 1),
    Shape(2, 130, 1, 4, 2),
    Shape(1, 1, 33, 1, 1),
    Shape(1, 512, 512, 3, 3),
    Shape(3, 65, 320, 6, 2),
)
# What the checks say of AITER's kernels short of an error; docs/emulator.md tells where and why.
KNOWN_WARNINGS = {
    "wait-states",  # a direct-to-LDS load right after M0, a select soon after its compare, a permlane swap
    "mfma-wait-states",  # selects that read an MFMA's result on the masked tail of gfx942
    "uninitialised-lds",  # rows past the end of Q
}
RELATIVE = {"rtne": 2.6e-3, "rtna": 2.6e-3, "rtz": 6.6e-3}
FULL = [(k, s) for k in aiter.KERNELS for s in SHAPES[2:]]


@dataclass
class Result:
    o: np.ndarray
    lse: np.ndarray
    report: dict


def launch(device: RawDevice, kernel: aiter.Kernel, shape: Shape, q, k, v, scale=None) -> Result:
    image = peer_code_object(kernel)
    o = np.full(q.shape, 0x4142, np.uint16)
    lse = np.full((shape.batch, shape.num_heads, shape.seqlen_q), 77.0, np.float32)
    arrays = {"q": q, "k": k, "v": v, "o": o, "lse": lse}
    with uploaded(device, arrays) as addresses, loaded(device, image) as module:
        kernarg = aiter.pack_kernarg(shape, **addresses, causal=kernel.causal, softmax_scale=scale)
        function = device.function(module, CodeObject(image).kernels[0].name)
        device.launch(function, shape.grid(kernel.causal), aiter.BLOCK, kernarg)
        report = device.report()
        return Result(device.download(addresses["o"], o), device.download(addresses["lse"], lse), report)


def inputs(shape: Shape, kind="normal", seed=0):
    return reference.inputs(shape.batch, shape.seqlen_q, shape.seqlen_k, shape.num_heads, shape.num_heads_kv, kind=kind,
                            seed=seed)  # fmt: skip


def assert_right(device, kernel, shape, kind="normal") -> reference.Errors:
    q, k, v = inputs(shape, kind)
    result = launch(device, kernel, shape, q, k, v)
    out, lse = reference.attention(*(bf16.to_float(x) for x in (q, k, v)), causal=kernel.causal)
    errors = reference.compare(result.o, out)
    # Few elements have a wide spread.
    assert errors.relative_l2 < RELATIVE[kernel.rounding] * (1.3 if out.size < 1000 else 1), errors
    assert errors.max_row_relative < 0.03, errors
    assert errors.nonfinite_equal
    finite = np.isfinite(lse)
    np.testing.assert_allclose(result.lse[finite], lse[finite], rtol=2e-6, atol=2e-6)
    found = [f for f in result.report["findings"] if f["severity"] == "error"]
    if has_a_race(kernel, shape):
        found = [f for f in found if f["kind"] != "lds-race"]
    assert not found, found[:3]
    assert {f["kind"] for f in result.report["findings"] if f["severity"] == "warning"} <= KNOWN_WARNINGS
    return errors


def has_a_race(kernel: aiter.Kernel, shape: Shape) -> bool:
    """AITER's gfx950 causal kernel lets a wavefront load the Q rows of its workgroup's second query tile into LDS that
    slower wavefronts still read V from: there is no barrier between. See `test_race_between_query_tiles`.
    """
    return kernel.arch == "gfx950" and kernel.causal and shape.seqlen_q > aiter.ROWS_PER_WORKGROUP


@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
@pytest.mark.parametrize("kernel", aiter.KERNELS, ids=str)
def test_right_answer(emulator, kernel, shape):
    assert_right(emulator(kernel.arch), kernel, shape)


@pytest.mark.slow
@pytest.mark.parametrize("kind", reference.KINDS)
@pytest.mark.parametrize(("kernel", "shape"), FULL, ids=[f"{k}-{s}" for k, s in FULL])
def test_right_answer_on_many_shapes(emulator, kernel, shape, kind):
    # The slower wavefronts first: then the race does no harm, and only the check sees it.
    order = "reverse" if has_a_race(kernel, shape) else "forward"
    assert_right(emulator(kernel.arch, order=order), kernel, shape, kind)


@pytest.mark.parametrize(
    "kernel", [k for k in aiter.KERNELS if k.rounding in ("rtne", "rtna") and not k.causal], ids=str
)
def test_nan_becomes_the_canonical_nan(emulator, kernel):
    if kernel.arch == "gfx950":
        pytest.skip("gfx950 passes NaN payloads through")
    shape = Shape(1, 64, 64, 1, 1)
    q, k, v = inputs(shape)
    for index, value in enumerate(("quiet NaN", "negative NaN", "signalling NaN")):
        q = reference.plant(q, (0, 5 + index, 0, 3), value)
    v = reference.plant(v, (0, 9, 0, 100), "negative NaN")
    result = launch(emulator(kernel.arch), kernel, shape, q, k, v)
    assert (result.o[0, 5:8, 0] == 0x7FFF).all() and (result.o[0, :, 0, 100] == 0x7FFF).all()
    rest = np.delete(np.delete(result.o, [5, 6, 7], axis=1), 100, axis=3)
    assert np.isfinite(bf16.to_float(rest)).all()


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_infinite_values(emulator, arch):
    shape = Shape(1, 64, 64, 1, 1)
    q, k, v = inputs(shape)
    v = reference.plant(v, (0, 9, 0, 100), "+Inf")
    result = launch(emulator(arch), aiter.Kernel(arch, "rtne", False), shape, q, k, v)
    out, _ = reference.attention(*(bf16.to_float(x) for x in (q, k, v)))
    assert reference.compare(result.o, out).nonfinite_equal


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_race_between_query_tiles(emulator, order):
    """A fault of AITER's that the emulator found: it is reported whether or not the bits come out right, and for that
    kernel alone (`assert_right` wants no error from the others).
    """
    kernel, shape = aiter.Kernel("gfx950", "rtne", True), Shape(1, 300, 97, 1, 1)
    result = launch(emulator("gfx950", order=order), kernel, shape, *inputs(shape))
    errors = [f for f in result.report["findings"] if f["severity"] == "error"]
    assert {f["kind"] for f in errors} == {"lds-race"}
    # One side of the race is always the load of the next Q rows to LDS, the other the transposed read of V.
    assert {f["mnemonic"] for f in errors} <= {"buffer_load_dwordx4", "ds_read_b64_tr_b16"}


@pytest.mark.parametrize("kernel", [aiter.KERNELS[0], aiter.KERNELS[-1]], ids=str)
def test_wavefront_order_does_not_matter(emulator, kernel):
    # One query tile a workgroup: see the race below.
    shape = Shape(1, 250, 97, 2, 1)
    tensors = inputs(shape)
    results = [
        launch(emulator(kernel.arch, order=o), kernel, shape, *tensors) for o in ("forward", "reverse", "random:7")
    ]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0].o, other.o)
        np.testing.assert_array_equal(results[0].lse, other.lse)


def test_exact_accumulation_stays_close(emulator):
    """The published accumulation changes bits, not the answer."""
    kernel, shape = aiter.KERNELS[0], Shape(1, 64, 64, 1, 1)
    tensors = inputs(shape)
    fast, exact = (launch(emulator(kernel.arch, mma=m), kernel, shape, *tensors) for m in ("fast", "exact"))
    errors = reference.compare(exact.o, fast.o)
    assert errors.identical > 0.97 and errors.max_row_relative < 0.01
