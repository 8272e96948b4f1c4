"""The microbenchmarks of csrc/kernels/measure on a device: launched, their results checked, their cycles read.

Works on the real HIP library and on the emulator. The emulator executes and checks them; what its cycle counter says is
no time (it counts instructions).
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moon_diffusers.errors import MoonError
from moon_diffusers.evidence.device import RawDevice, loaded, uploaded
from moon_diffusers.runtime.code_objects import Manifest

WAVES = 8
PREFIX = "moon_measure_"
_WALK_WORDS, _LINE_WORDS = 32768, 32
_RECORD = np.dtype([("time", "<u8", (3,)), ("hardware_id", "<u4"), ("die", "<u4"), ("value", "<f4", (64,))])
_LANES = np.arange(64, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One kernel.

    Attributes:
        waves: those whose time is the result.
        few, many: how often the stream's body runs in either piece; items: instructions of it that are counted.
        what: of one item, for people.
        partners: waves that must outlast the measured ones on the same SIMD.
    """

    name: str
    waves: tuple[int, ...]
    few: int
    many: int
    items: int
    what: str
    partners: tuple[int, ...] = ()

    def expected(self, wave: int, depth: int) -> NDArray[np.float64]:
        """What the lanes of a wave must report; `depth`: of the matrix instruction."""
        if wave not in self.waves + self.partners:
            return np.zeros(64)
        if wave in self.partners:
            return np.full(64, _PARTNER_VALUES[self.name])
        return np.broadcast_to(np.asarray(_values(self.name, wave, depth), np.float64), (64,))


_ALL = tuple(range(WAVES))
_PARTNER_VALUES = {"mfma_beside_valu": 1600.0, "mfma_beside_exp": 2.0, "mfma_beside_packed": 4.0}


def _values(name: str, wave: int, depth: int) -> Any:
    if name.startswith("mfma_read_"):
        return 4 * depth * 40 * 41 / 2
    return {
        "valu": 320,
        "valu_chain": 320,
        "exp": 4 * 0.5,
        "packed": 4,
        "branch": 80,
        "mfma_chain": 80 * depth,
        "lds_b128": 16 * _LANES + 4,
        "lds_b64": 8 * _LANES + 4,
        "lds_b128_conflicts": 32 * _LANES + 4,
        "lds_chain": 4 * (_LANES + 80),
        "l1_stream": 16 * _LANES + 128,
        "l1_chain": 80 * 4 % 128,
        "l2_chain": 80 * 128,
        "scalar_chain": 80 * 4 % 128,
        "barriers": wave,
    }.get(name, 160 * depth)


def _alone(name: str, few: int, many: int, items: int, what: str) -> Benchmark:
    return Benchmark(name, (0,), few, many, items, what)


def _beside(name: str, what: str) -> Benchmark:
    return Benchmark(name, (0, 1, 2, 3), 8, 32, 4, what, partners=(4, 5, 6, 7))


BENCHMARKS = {
    item.name: item
    for item in (
        _alone("valu", 16, 64, 4, "v_add_f32, independent"),
        _alone("valu_chain", 64, 256, 1, "v_add_f32, each waits for the one before"),
        _alone("exp", 8, 32, 4, "v_exp_f32"),
        _alone("packed", 16, 64, 2, "v_pk_mul_f32"),
        _alone("branch", 16, 64, 1, "taken branch and one v_add_f32"),
        _alone("mfma", 8, 32, 4, "matrix instruction, independent"),
        _alone("mfma_chain", 16, 64, 1, "matrix instruction on one accumulator"),
        _alone("mfma_valu", 8, 32, 4, "matrix instruction and four v_add_f32 of the same wave"),
        _alone("mfma_packed", 8, 32, 4, "matrix instruction and one v_pk_mul_f32 of the same wave"),
        *(
            _alone(f"mfma_read_{states}", 8, 32, 4, f"matrix instruction, {states} wait states, a reader of its result")
            for states in range(9)
        ),
        _beside("mfma_beside_valu", "matrix instruction at priority 3, the partner runs v_add_f32"),
        _beside("mfma_beside_exp", "matrix instruction at priority 3, the partner runs v_exp_f32"),
        _beside("mfma_beside_packed", "matrix instruction at priority 3, the partner runs v_pk_mul_f32"),
        Benchmark("lds_b128", _ALL, 8, 32, 4, "ds_read_b128, eight waves, a wave's"),
        Benchmark("lds_b64", _ALL, 8, 32, 4, "ds_read_b64, eight waves, a wave's"),
        Benchmark("lds_b128_conflicts", _ALL, 8, 32, 4, "ds_read_b128 on half of the banks, eight waves, a wave's"),
        _alone("lds_chain", 16, 64, 1, "ds_read_b32 of the address for the next"),
        Benchmark("l1_stream", _ALL, 8, 32, 4, "global_load_dwordx4 from the L1, eight waves, a wave's"),
        _alone("l1_chain", 16, 64, 1, "global_load_dword of the address for the next, from the L1"),
        _alone("l2_chain", 16, 64, 1, "global_load_dword of the address for the next, from the L2"),
        _alone("scalar_chain", 16, 64, 1, "s_load_dword of the address for the next"),
        Benchmark("barriers", _ALL, 8, 32, 1, "s_barrier of eight waves"),
    )
}


@dataclass(frozen=True, slots=True)
class Seen:
    """What a benchmark did.

    Attributes:
        cycles: of one item, the median over launches; spread: highest less lowest over launches.
        right: every lane reported what it must.
        overlapped: the partners were still running when the measured waves ended, in every launch.
        pairs: the waves w and w + 4 shared a SIMD, and no others did.
    """

    cycles: float
    spread: float
    right: bool
    overlapped: bool = True
    pairs: bool = True


def depth_of(arch: str) -> int:
    """Of the matrix instruction that is measured, in products."""
    return 32 if arch == "gfx950" else 16


def cycles(benchmark: Benchmark, times: NDArray[np.integer[Any]]) -> float:
    """Cycles of one item, from the counter's three values a wave, (waves, 3): the second piece less the first."""
    chosen = times[list(benchmark.waves)].astype(np.int64)
    pieces = np.diff(chosen, axis=1)
    return float(np.median(pieces[:, 1] - pieces[:, 0])) / (benchmark.many - benchmark.few) / benchmark.items


def overlapped(benchmark: Benchmark, times: NDArray[np.integer[Any]]) -> bool:
    """Whether each partner ended after the wave that it shared a SIMD with."""
    return all(times[wave, 2] >= times[wave % 4, 2] for wave in benchmark.partners)


def memory() -> dict[str, NDArray[Any]]:
    """The buffers that every benchmark is given: where it reports, and offsets to walk along."""
    walk = (np.arange(_WALK_WORDS) * 4 + 128) % (4 * _WALK_WORDS)
    line = (np.arange(_LINE_WORDS) * 4 + 4) % (4 * _LINE_WORDS)
    return {"out": np.zeros(WAVES, _RECORD), "data": np.concatenate([walk, line]).astype(np.uint32)}


def image_of(manifest: Manifest, arch: str) -> bytes:
    """The code object of the microbenchmarks. Raises MoonError if it was not built, CodeObjectError if damaged."""
    for item in manifest.code_objects:
        if item.arch == arch and any(name.startswith(PREFIX) for name in item.facts):
            return manifest.read(item)
    raise MoonError(f"no microbenchmarks for {arch}: build them by `python csrc/build/build.py`")


def run(device: RawDevice, image: bytes, benchmark: Benchmark, arch: str, launches: int = 1) -> Seen:
    """Launch a benchmark and read what it reports. Raises HipError where HIP refuses."""
    figures, right, outlasted, pairs = [], True, True, True
    arrays = memory()
    with loaded(device, image) as module, uploaded(device, arrays) as at:
        function = device.function(module, PREFIX + benchmark.name)
        for _ in range(launches):
            kernarg = at["out"].to_bytes(8, "little") + at["data"].to_bytes(8, "little")
            device.launch(function, (1, 1, 1), (64 * WAVES, 1, 1), kernarg)
            out = device.download(at["out"], arrays["out"])
            figures.append(cycles(benchmark, out["time"]))
            right &= all(
                np.array_equal(out["value"][wave], benchmark.expected(wave, depth_of(arch))) for wave in range(WAVES)
            )
            outlasted &= overlapped(benchmark, out["time"])
            simd = out["hardware_id"] >> 4 & 3
            pairs &= bool((simd[:4] == simd[4:]).all()) and len(set(simd[:4].tolist())) == 4
    return Seen(median(figures), max(figures) - min(figures), right, outlasted, pairs)
