"""A few small launches of every kind, to be run under a memory checker; each result is compared with fp64 on the host.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --error-exitcode 9 python scripts/sanitize_gpu.py
    compute-sanitizer --tool racecheck --error-exitcode 9 --kernel-regex kns=moon_ python scripts/sanitize_gpu.py --case dense
    python scripts/sanitize_gpu.py --emulate gfx942 --list

Without torch's caching every tensor is an allocation of its own, so an access beyond its end is one beyond an
allocation. Inputs come from the host and results go back there, so that hardly any kernel but ours runs.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

import moon_diffusers
from moon_diffusers.errors import MoonError

BOUND = 3.5e-3


def draw(batch: int, rows: int, heads: int) -> Tensor:
    """N(0, 1), BSHD, on the host."""
    return torch.randn(batch, rows, heads, 128).bfloat16()


def expected(q: Tensor, k: Tensor, v: Tensor, causal: bool, keys: int) -> Tensor:
    """fp64 on the host, of (S, H, D) and its first `keys` keys."""
    k, v = (t[:keys].double().repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * 128**-0.5
    if causal:
        last = torch.arange(q.shape[0])[:, None] + keys - q.shape[0]
        scores.masked_fill_(torch.arange(keys)[None] > last, -torch.inf)
    weights = torch.nan_to_num(scores.softmax(-1), nan=0.0)
    return torch.einsum("hqk,khd->qhd", weights, v)


def dense(device: torch.device, shape: tuple[int, int, int, int, int], **options: Any) -> float:
    """One call; the worst entry's relative L2."""
    batch, seqlen_q, seqlen_k, heads, heads_kv = shape
    q, k, v = draw(batch, seqlen_q, heads), draw(batch, seqlen_k, heads_kv), draw(batch, seqlen_k, heads_kv)
    lengths = options.pop("lengths", None)
    if lengths is not None:
        options["seqlens_k"] = torch.tensor(lengths, dtype=torch.int32).to(device)
    out, lse = moon_diffusers.attention(*(t.to(device) for t in (q, k, v)), return_lse=True, strict=True, **options)
    out, lse = out.cpu(), lse.cpu()
    assert not lse.isnan().any()
    wanted = torch.stack(
        [
            expected(q[i], k[i], v[i], options.get("causal", False), lengths[i] if lengths else seqlen_k)
            for i in range(batch)
        ]
    )
    return float((out.double() - wanted).norm() / wanted.norm())


def packed(device: torch.device, lengths: list[int], causal: bool) -> float:
    """Packed sequences, the last with nothing behind it in memory."""
    starts = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    q, k, v = draw(1, sum(lengths), 3)[0], draw(1, sum(lengths), 1)[0], draw(1, sum(lengths), 1)[0]
    offsets = torch.tensor(starts, dtype=torch.int32).to(device)
    out = moon_diffusers.attention_varlen(
        *(t.to(device) for t in (q, k, v)), offsets, offsets, max(lengths), max(lengths), causal=causal, strict=True
    ).cpu()
    wanted = torch.cat([expected(q[a:b], k[a:b], v[a:b], causal, b - a) for a, b in itertools.pairwise(starts)])
    return float((out.double() - wanted).norm() / wanted.norm())


CASES: dict[str, Callable[[torch.device], float]] = {
    "dense": lambda d: dense(d, (1, 390, 250, 2, 2)),
    "tiny": lambda d: dense(d, (1, 1, 1, 1, 1)),
    "rows": lambda d: dense(d, (3, 385, 79, 3, 1)),
    "keys": lambda d: dense(d, (1, 70, 81, 1, 1)),
    "long": lambda d: dense(d, (1, 400, 2000, 1, 1)),
    "split": lambda d: dense(d, (1, 3, 3000, 1, 1)),
    "causal": lambda d: dense(d, (1, 500, 450, 2, 1), causal=True),
    "causal-wide": lambda d: dense(d, (1, 100, 450, 2, 1), causal=True),
    "lengths": lambda d: dense(d, (4, 100, 333, 2, 2), lengths=[0, 1, 160, 333]),
    "packed": lambda d: packed(d, [5, 0, 384, 1, 100], False),
    "packed-causal": lambda d: packed(d, [70, 200], True),
}


def main() -> int:
    """Command line: 0 if all results are right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=CASES, help="only this; repeat for more")
    parser.add_argument("--emulate", choices=("gfx942", "gfx950"), help="on the CPU, to try the script itself")
    parser.add_argument("--list", action="store_true", help="print the cases and end")
    args = parser.parse_args()
    if args.list:
        print(*CASES, sep="\n")
        return 0
    if not args.emulate and not torch.cuda.is_available():
        print("sanitize_gpu: no GPU that torch can use; --emulate gfx942 tries the script", file=sys.stderr)
        return 2
    device = torch.device("cpu") if args.emulate else torch.device("cuda")
    torch.manual_seed(0)
    bad = 0
    with moon_diffusers.emulate(args.emulate, work_limit=0) if args.emulate else nullcontext():
        for name in args.case or CASES:
            begin = time.monotonic()
            try:
                error = CASES[name](device)
            except MoonError as problem:
                error, told = float("inf"), str(problem)
            else:
                told = f"relative L2 {error:.2e}"
            right = error < BOUND
            bad += not right
            print(f"{name:14} {'right' if right else 'WRONG'}: {told}, {time.monotonic() - begin:.1f} s", flush=True)
    print(moon_diffusers.summary())
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
