"""AITER's bf16, head dim 128 forward kernels as a peer: fetch the code objects, pack arguments, plan a launch.

The wheel is unpacked, never imported; nothing of it is stored in this project. Argument layout and grid were found by
running the code objects (gfx942 and gfx950, v3).
"""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from moon_diffusers.errors import MoonError
from moon_diffusers.evidence.bf16 import Rounding

WHEEL = "amd-aiter==0.1.7.post2.dev18"
WHEEL_FILE = "amd_aiter-0.1.7.post2.dev18-py3-none-any.whl"
WHEEL_SHA256 = "fe139d74438217c35e87e3b961166bac8db2d381eadccb371da2e63615f05a31"
KERNARG_SIZE = 512
ROWS_PER_WORKGROUP = 256
BLOCK = (512, 1, 1)


class AiterUnavailableError(MoonError, RuntimeError):
    """AITER's code objects cannot be had here; the message says why in one line."""


@dataclass(frozen=True)
class Kernel:
    """One of AITER's kernels: ``rounding`` chooses the file on gfx942; gfx950 always rounds to nearest even."""

    arch: str
    rounding: Rounding
    causal: bool

    @property
    def member(self) -> str:
        """The code object's path in the wheel."""
        causal = "_causal" if self.causal else ""
        if self.arch == "gfx942":
            return f"aiter_meta/hsa/gfx942/fmha_v3_fwd/MI300/fwd_hd128_bf16{causal}_{self.rounding}.co"
        return f"aiter_meta/hsa/gfx950/fmha_v3_fwd/fwd_hd128_bf16{causal}.co"

    def __str__(self) -> str:
        return f"{self.arch}-{self.rounding}-{'causal' if self.causal else 'dense'}"


KERNELS: tuple[Kernel, ...] = (
    *(Kernel("gfx942", r, c) for r in ("rtne", "rtna", "rtz") for c in (False, True)),
    *(Kernel("gfx950", "rtne", c) for c in (False, True)),
)


def cache_dir() -> Path:
    """Where fetched peers are kept: ``$XDG_CACHE_HOME/moon_diffusers``, by default under ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "moon_diffusers"


def wheel(fetch: bool = True) -> Path:
    """The verified wheel in the cache, downloaded by pip when it is not there and ``fetch`` is true.

    Raises AiterUnavailableError when it cannot be had, or is not the file that was studied.
    """
    path = cache_dir() / WHEEL_FILE
    if not path.exists():
        if not fetch:
            raise AiterUnavailableError(f"{WHEEL} is not in {cache_dir()}")
        _download(path)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest() if sys.version_info >= (3, 11) else _sha256(path)
    if digest != WHEEL_SHA256:
        raise AiterUnavailableError(f"{path} has sha256 {digest}, expected {WHEEL_SHA256}: delete it and fetch again")
    return path


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _download(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, WHEEL]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise AiterUnavailableError(f"cannot fetch {WHEEL}: {error}") from error
        fetched = Path(folder) / WHEEL_FILE
        if done.returncode or not fetched.exists():
            reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
            raise AiterUnavailableError(f"cannot fetch {WHEEL}: {reason}")
        # Atomic: two test processes may fetch at once.
        fetched.replace(path)


def code_object(kernel: Kernel, fetch: bool = True) -> bytes:
    """The bytes of a kernel's code object. Raises AiterUnavailableError when the wheel cannot be had."""
    with zipfile.ZipFile(wheel(fetch)) as archive:
        return archive.read(kernel.member)


@dataclass(frozen=True)
class Shape:
    """Sizes of a call; tensors are BSHD bfloat16, contiguous, head dim 128."""

    batch: int
    seqlen_q: int
    seqlen_k: int
    num_heads: int
    num_heads_kv: int
    head_dim: int = 128

    def __post_init__(self) -> None:
        if min(self.batch, self.seqlen_q, self.seqlen_k, self.num_heads, self.num_heads_kv) < 1:
            raise ValueError(f"{self}: every size must be at least 1")
        if self.num_heads % self.num_heads_kv:
            raise ValueError(f"num_heads={self.num_heads}: expected a multiple of num_heads_kv={self.num_heads_kv}")

    def grid(self, causal: bool) -> tuple[int, int, int]:
        """Workgroups of a launch. A causal workgroup takes two query tiles, a long and a short one."""
        tiles = -(-self.seqlen_q // ROWS_PER_WORKGROUP)
        return (tiles + 1) // 2 if causal else tiles, self.num_heads, self.batch


def pack_kernarg(
    shape: Shape, *, q: int, k: int, v: int, o: int, lse: int, causal: bool, softmax_scale: float | None = None
) -> bytes:
    """The 512 bytes of arguments from the device addresses of q, k, v, o and the fp32 (B, Hq, Sq) ``lse`` (0: none)."""
    # Option 5 deals causal workgroups out by head, which is right for multiples of eight heads only; 3 does not.
    option = 3 if causal and shape.num_heads % 8 else 5
    scale = shape.head_dim**-0.5 if softmax_scale is None else softmax_scale
    buffer = bytearray(KERNARG_SIZE)
    for offset, address in {0: o, 16: q, 32: k, 48: v, 64: lse}.items():
        struct.pack_into("<Q", buffer, offset, address)
    struct.pack_into("<f", buffer, 80, scale)
    # Bytes; in BSHD a row holds all heads.
    head = 2 * shape.head_dim
    q_row, k_row = head * shape.num_heads, head * shape.num_heads_kv
    q_batch, k_batch = q_row * shape.seqlen_q, k_row * shape.seqlen_k
    words = {
        96: shape.seqlen_q,
        112: q_row,
        128: ROWS_PER_WORKGROUP * q_row,
        144: head,
        160: q_batch,
        176: shape.num_heads // shape.num_heads_kv,
        192: k_row,
        208: head,
        224: k_batch,
        240: option,
        256: int(lse != 0),
        272: shape.seqlen_k,
        288: shape.head_dim,
        304: shape.head_dim,
        320: shape.num_heads,
        336: k_row,
        352: head,
        368: k_batch,
        384: q_row,
        400: head,
        416: q_batch,
        464: 4 * shape.seqlen_q,
    }
    for offset, word in words.items():
        struct.pack_into("<I", buffer, offset, word)
    return bytes(buffer)
