"""The shapes that are measured, named and grouped."""

from __future__ import annotations

from dataclasses import dataclass, replace

HEAD_DIM = 128


@dataclass(frozen=True, slots=True)
class Case:
    """One attention problem, bf16, head dim 128, BSHD.

    `seqlens` makes it a packed batch: the lengths of its sequences (queries and keys alike); `batch`, `seqlen_q` and
    `seqlen_k` then say the packed totals with batch 1.
    """

    group: str
    batch: int
    num_heads: int
    num_heads_kv: int
    seqlen_q: int
    seqlen_k: int
    causal: bool = False
    seqlens: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Short and unique: `dense-2x24x8192`, `cross-1x12x32760x512`, `gqa-1x64/8x8192`."""
        heads = f"{self.num_heads}" if self.num_heads == self.num_heads_kv else f"{self.num_heads}/{self.num_heads_kv}"
        lengths = f"{self.seqlen_q}" if self.seqlen_q == self.seqlen_k else f"{self.seqlen_q}x{self.seqlen_k}"
        return f"{self.group}-{self.batch}x{heads}x{lengths}"

    @property
    def flops(self) -> float:
        """Multiply-adds of both products times two; masked scores are not counted (bottom-right causal)."""
        if self.seqlens:
            pairs = float(sum(n * (n + 1) // 2 if self.causal else n * n for n in self.seqlens))
        elif self.causal:
            pairs = float(sum(visible(self.seqlen_q, self.seqlen_k)))
        else:
            pairs = float(self.seqlen_q) * self.seqlen_k
        return 4.0 * self.batch * self.num_heads * pairs * HEAD_DIM

    def shrunk(self, rows: int) -> Case:
        """The same kind of problem, no length above `rows`, few heads: for emulation."""
        ratio = self.num_heads // self.num_heads_kv
        heads_kv = min(self.num_heads_kv, max(1, 2 // ratio))
        return replace(
            self,
            batch=min(self.batch, 2),
            num_heads=heads_kv * ratio,
            num_heads_kv=heads_kv,
            seqlen_q=min(self.seqlen_q, rows),
            seqlen_k=min(self.seqlen_k, rows + 13),
            seqlens=tuple(min(n, rows // 2) for n in self.seqlens),
        )


def visible(seqlen_q: int, seqlen_k: int) -> list[int]:
    """Keys that each query row sees under a bottom-right aligned causal mask."""
    return [min(max(row + seqlen_k - seqlen_q + 1, 0), seqlen_k) for row in range(seqlen_q)]


def dense(group: str, batch: int, heads: int, seqlen: int) -> Case:
    """Self-attention."""
    return Case(group, batch, heads, heads, seqlen, seqlen)


def packed(heads: int, *seqlens: int) -> Case:
    """Sequences of different lengths in one call."""
    total = sum(seqlens)
    return Case("varlen", 1, heads, heads, total, total, seqlens=seqlens)


GROUPS: dict[str, tuple[Case, ...]] = {
    # The published shapes of the CDNA3 kernel.
    "dense": (
        dense("dense", 2, 24, 8192),
        dense("dense", 2, 24, 16384),
        dense("dense", 2, 24, 32768),
        dense("dense", 4, 16, 16384),
        dense("dense", 1, 16, 131072),
    ),
    # Wan2.1 at 480p and 720p (12 heads: 1.3B, 40: 14B), HunyuanVideo, Flux.
    "model": (
        dense("wan", 1, 12, 32760),
        dense("wan", 1, 40, 32760),
        dense("wan", 1, 12, 75600),
        dense("wan", 1, 40, 75600),
        dense("hunyuan", 1, 24, 119056),
        dense("flux", 1, 24, 4608),
    ),
    # Prompts of 77 (CLIP) and 512 (UMT5) tokens, 257 image tokens.
    "cross": tuple(Case("cross", 1, heads, heads, 32760, keys) for heads in (12, 40) for keys in (77, 257, 512)),
    # Between a prompt and a video: where tiles of keys do not come out even.
    "keys": tuple(Case("keys", 1, 12, 12, 32760, keys) for keys in (128, 320, 400, 640, 800, 1024, 2048)),
    "causal": (
        Case("causal", 1, 16, 16, 16384, 16384, causal=True),
        Case("causal", 2, 24, 24, 8192, 8192, causal=True),
    ),
    "gqa": (Case("gqa", 1, 64, 8, 8192, 8192), Case("gqa", 2, 24, 8, 8192, 8192)),
    "varlen": (packed(24, 8192, 4096, 2048, 1024, 333, 77), packed(16, *([1024] * 16))),
    # Too few workgroups to fill the GPU: where splitting the keys pays.
    "small": (dense("small", 1, 2, 4096), dense("small", 1, 4, 2048), dense("small", 1, 24, 1024)),
    # Where a kernel's start and end weigh most: from which length on is ours the faster one?
    "short": tuple(
        dense("short", 1, heads, length) for heads in (12, 40) for length in (256, 512, 1024, 2048, 3072, 4096)
    ),
}


def select(groups: tuple[str, ...]) -> list[Case]:
    """The cases of the named groups, in order; all groups when none is named. Raises KeyError on an unknown name."""
    return [case for group in (groups or tuple(GROUPS)) for case in GROUPS[group]]
