"""What is built: the one table of code objects, their kernels and the emulator's variants."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from pathlib import Path

CSRC = Path(__file__).resolve().parents[1]
KERNELS = CSRC / "kernels"
EMULATOR = CSRC / "emulator"
TIMING = CSRC / "timing"

ROUNDINGS = ("rtne", "rtna", "rtz")
RESCALES = ("lazy", "exact")  # the first is what "auto" takes on gfx942


@dataclass(frozen=True)
class Kernel:
    """One kernel symbol of a code object and what Python needs to know to route to it."""

    name: str
    role: str  # "forward": attention; other roles are helpers of a forward kernel
    kernarg_layout: str
    variant: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class CodeObject:
    """One source compiled for one architecture."""

    file: str
    arch: str
    source: Path
    kernels: tuple[Kernel, ...]
    flags: tuple[str, ...] = ()

    @property
    def is_cuda(self) -> bool:
        """Whether it is for NVIDIA's hardware: then PTX is kept beside the machine code."""
        return self.arch.startswith("sm_")

    @property
    def fallback(self) -> str:
        """The PTX beside a cubin, for drivers that refuse the cubin; empty for AMD's."""
        return self.file.removesuffix(".cubin") + ".ptx" if self.is_cuda else ""

    @property
    def folders(self) -> tuple[Path, ...]:
        """All that a change of which asks for a new build."""
        own = (KERNELS / "sm90a",) if self.is_cuda else (KERNELS / "gfx942", KERNELS / "gfx950")
        return (KERNELS / "common", *own)


def general(arch: str) -> CodeObject:
    """The every-mode kernel of `arch`; one source serves both architectures."""
    kernels = tuple(
        Kernel(
            f"moon_attention_general_{rounding}",
            "forward",
            "forward",
            {
                "family": "general",
                "rounding": rounding,
                "rescale": "exact",
                "rows_per_workgroup": 128,
                "grid": "linear",
                "features": ["lse", "gqa", "causal", "seqlens_k", "cu_seqlens"],
            },
        )
        for rounding in ROUNDINGS
    )
    return CodeObject(f"general-{arch}.co", arch, KERNELS / "gfx942" / "general.hip", kernels)


def cdna3() -> tuple[CodeObject, ...]:
    """The tuned gfx942 kernels, best first; the V pre-pass before them and the merge of split query blocks."""
    values = "moon_attention_cdna3_values"
    folder = KERNELS / "gfx942"
    forward = tuple(
        Kernel(
            f"moon_attention_cdna3_{rounding}_{rescale}",
            "forward",
            "cdna3",
            {
                "family": "cdna3",
                "rounding": rounding,
                "rescale": rescale,
                "rows_per_workgroup": 384,
                "alignment": 4,
                "row_strides": [0, 2**25 - 1],
                "scales": [1e-18, 1e18],
                "grid": "linear",
                "features": ["lse", "gqa", "causal", "seqlens_k", "cu_seqlens"],
                "value_prepass": values,
                "merge": f"moon_attention_cdna3_merge_{rounding}",
            },
        )
        for rescale in RESCALES
        for rounding in ROUNDINGS
    )
    merge = tuple(
        Kernel(f"moon_attention_cdna3_merge_{rounding}", "merge", "cdna3_merge", {"rounding": rounding})
        for rounding in ROUNDINGS
    )
    return (
        CodeObject("cdna3-gfx942.co", "gfx942", folder / "attention.hip", forward),
        CodeObject(
            "cdna3-values-gfx942.co",
            "gfx942",
            folder / "values.hip",
            (Kernel(values, "value_prepass", "cdna3_values"),),
        ),
        CodeObject("cdna3-merge-gfx942.co", "gfx942", folder / "merge.hip", merge),
    )


def cdna4() -> tuple[CodeObject, ...]:
    """The tuned gfx950 kernels: K and V in tensors, or in the pages of a cache; and the merge of split row blocks."""
    merge = "moon_attention_cdna4_merge"
    features = ["lse", "gqa", "causal", "seqlens_k", "cu_seqlens"]
    tuned = {
        "family": "cdna4",
        "rounding": "rtne",
        "rescale": "lazy",
        "rows_per_workgroup": 384,
        "alignment": 16,
        # A tile's offsets are 32 bits, and ranges count whole rows.
        "row_strides": [128, 2**24 - 1],
        "grid": "linear",
        "merge": merge,
    }
    forward = (
        Kernel("moon_attention_cdna4", "forward", "cdna4", {**tuned, "features": features}),
        Kernel(
            "moon_attention_cdna4_paged",
            "forward",
            "cdna4",
            {**tuned, "features": [*features, "paged"], "requires": ["paged"]},
        ),
    )
    folder = KERNELS / "gfx950"
    return (
        CodeObject("cdna4-gfx950.co", "gfx950", folder / "attention.hip", forward),
        CodeObject("cdna4-merge-gfx950.co", "gfx950", folder / "merge.hip", (Kernel(merge, "merge", "cdna4"),)),
    )


# Calls that torch's own kernel (cuDNN 9.19 in torch 2.11) does sooner on an H200; docs/sm90a-kernel.md has the figures.
HOPPER_SLOWER: list[dict[str, object]] = [
    # Less than 65 to 100 us of work: what counts is the host's time for a call, and torch's is half of ours. Few keys make
    # the same scores more work.
    {"keys_from": 257, "scores_below": 75_000_000},
    {"scores_below": 40_000_000},
    # One of cuDNN's tiles, two of ours.
    {"keys_from": 81, "keys_below": 129, "causal": False},
]


def sm90a() -> tuple[CodeObject, ...]:
    """The Hopper kernels, by blocks of a cluster, keys of a tile and mask; for each the merge of its split row blocks."""
    forward, merge = [], []
    for suffix, cluster, keys, causal in (
        ("", 2, 80, False),
        ("_solo", 1, 80, False),
        ("_short", 1, 64, False),
        ("_causal", 2, 80, True),
        ("_solo_causal", 1, 80, True),
    ):
        name = f"moon_attention_sm90a{suffix}"
        variant: dict[str, object] = {
            "family": "sm90a",
            "rounding": "rtne",
            "rescale": "lazy",
            "rows_per_workgroup": 192 * cluster,
            "cluster": cluster,
            "keys_per_tile": keys,
            # Smaller tiles waste less where a short key axis ends within one, and cost more else. Measured on an H200.
            "key_cost": 1.0 if keys == 80 else 1.05,
            # Two blocks that share K and V win where these outgrow the L2 (6 % at 75,600 keys), are as good or 1 %
            # better on other large grids, and lose up to 30 % where too few of their large row blocks leave units
            # idle; under a causal mask they wait for each other. Measured on an H200.
            "least_row_blocks": 256 if cluster == 2 else 0,
            "least_keys": 40_000 if cluster == 2 and causal else 0,
            "alignment": 16,
            # A tensor map's strides are below 2^40 bytes.
            "strides": [0, 2**39 - 8],
            "scales": [1e-18, 1e18],
            "dynamic_lds": 225_808,
            "grid": "linear",
            "features": ["lse", "gqa", "seqlens_k", "cu_seqlens", *(["causal"] if causal else [])],
            "requires": ["causal"] if causal else [],
            "merge": f"{name}_merge",
            "slower": HOPPER_SLOWER,
        }
        forward.append(Kernel(name, "forward", "sm90a", variant))
        merge.append(Kernel(f"{name}_merge", "merge", "sm90a"))
    folder = KERNELS / "sm90a"
    return (
        CodeObject("attention-sm_90a.cubin", "sm_90a", folder / "attention.cu", tuple(forward)),
        CodeObject("merge-sm_90a.cubin", "sm_90a", folder / "merge.cu", tuple(merge)),
    )


#: Microbenchmarks, each a kernel `moon_measure_<name>`; csrc/kernels/measure says what each does.
MEASUREMENTS = (
    "valu", "valu_chain", "exp", "packed", "branch", "mfma", "mfma_chain", "mfma_valu", "mfma_packed",
    *(f"mfma_read_{states}" for states in range(9)),
    "mfma_beside_valu", "mfma_beside_exp", "mfma_beside_packed", "lds_b128", "lds_b64", "lds_b128_conflicts", "lds_chain",
    "l1_stream", "l1_chain", "l2_chain", "scalar_chain", "barriers",
)  # fmt: skip


def measurements(arch: str) -> CodeObject:
    """The microbenchmarks of `arch`, for the timing model's constants; no call is ever routed to them."""
    kernels = tuple(Kernel(f"moon_measure_{name}", "measurement", "measure") for name in MEASUREMENTS)
    return CodeObject(f"measure-{arch}.co", arch, KERNELS / "measure" / "measure.hip", kernels)


CODE_OBJECTS: tuple[CodeObject, ...] = (
    *cdna3(),
    general("gfx942"),
    measurements("gfx942"),
    *cdna4(),
    general("gfx950"),
    measurements("gfx950"),
    *sm90a(),
)

# -fno-slp-vectorize: packed fp32 gets no issue slot beside an MFMA.
HIP_FLAGS = ("-std=c++17", "-O3", "-fno-slp-vectorize", "-mcode-object-version=5", "-Wall", "-Wextra")

# Everything is inlined, as nvcc does: ptxas serialises the wgmma of a function that it has to call.
CUDA_FLAGS = ("-std=c++17", "-O3", "-mllvm", "-inline-threshold=100000", "-Wall", "-Wextra")

# The oldest glibc that the emulator's library asks for, as torch's own wheels.
GLIBC = "2.28"

# -ffp-contract=off: the emulator says itself where an instruction fuses.
HOST_FLAGS = (
    "-std=c++17",
    "-O3",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fPIC",
    "-fno-sanitize=all",
    "-Wall",
    "-Wextra",
)


def emulator_isas() -> dict[str, str]:
    """Instruction sets to build the emulator for on this machine: name to clang's `-mcpu`."""
    if platform.machine() in ("x86_64", "AMD64"):
        return {"x86-64": "x86_64", "x86-64-v3": "x86_64_v3", "x86-64-v4": "x86_64_v4"}
    return {"generic": "generic"}
