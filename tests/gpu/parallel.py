"""What each of two processes does in the test of context parallelism: NCCL on two GPUs, gloo on the CPU."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

import moon_diffusers
from moon_diffusers import counters
from moon_diffusers.end_to_end import rounds, wan

from .cases import error, reference
from .faults import chosen_fault
from .machine import MACHINE

MODES = {"ulysses": {"ulysses_degree": 2}, "ring": {"ring_degree": 2}}
SIZE = MACHINE.pick(wan.Size("small", num_heads=4, num_layers=4, ffn_dim=1024, text_dim=256), wan.SIZES["tiny"])
# 6 x 15 x 26 = 2340 tokens, 1170 a GPU: no multiple of any tile.
VIDEO = MACHINE.pick(wan.Resolution("small", 416, 240, frames=21), wan.RESOLUTIONS["tiny"])


def rank_main(rank: int, folder: str) -> None:
    """Compare one device's result with both devices', for each mode; what was seen goes to `folder`/RANK.pt."""
    os.environ["MOON_FORCE"] = "1"  # where torch is faster too
    if MACHINE.gpu:
        torch.cuda.set_device(rank)
        device = torch.device("cuda", rank)
    else:
        torch.set_num_threads(1)
        device = torch.device("cpu")
        torch.accelerator.device_count = lambda: 2  # type: ignore[method-assign]
    backend = "nccl" if MACHINE.gpu else "gloo"
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=2)
    try:
        with MACHINE.placed(), chosen_fault(), torch.no_grad():
            torch.save({name: one_mode(name, device) for name in MODES}, f"{folder}/{rank}.pt")
    finally:
        dist.destroy_process_group()


def one_mode(name: str, device: torch.device) -> dict[str, Any]:
    from diffusers import ContextParallelConfig

    # On the CPU first: the same weights on every device.
    model: Any = wan.build(SIZE, None, torch.device("cpu")).to(device)
    inputs = {
        key: value.to(device) if isinstance(value, torch.Tensor) else value
        for key, value in wan.inputs(model, VIDEO, torch.device("cpu")).items()
    }
    torch_alone = model(**inputs)[0]
    moon_diffusers.set_attn_processor(model, moon_diffusers.MoonAttnProcessor(scope=f"{name}, alone"))
    alone = model(**inputs)[0]
    moon_diffusers.set_attn_processor(model, moon_diffusers.MoonAttnProcessor(scope=name))
    model.enable_parallelism(config=ContextParallelConfig(**MODES[name]))
    together = model(**inputs)[0]
    counts = counters.snapshot(name)
    return {
        "rounding": rounds.difference(torch_alone, alone),
        "difference": rounds.difference(alone, together),
        "served": counts.num_served,
        "fallbacks": counts.num_fallbacks,
        "summary": moon_diffusers.summary(name),
        "output": together.float().cpu(),
        "one call": one_call(model._parallel_config, device),
    }


def one_call(config: Any, device: torch.device) -> float:
    """Error, against fp64, of this rank's part of one call whose keys weigh very unlike on the two ranks."""
    from diffusers.models.attention_dispatch import dispatch_attention_fn

    from moon_diffusers.integrations.diffusers.backend import install_backend
    from moon_diffusers.integrations.diffusers.options import Options

    rank = dist.get_rank()
    length = MACHINE.pick(3000, 60)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, length, 4, 128, generator=generator).bfloat16() for _ in range(3))
    k[:, length // 2 :] *= 2
    mine = [t.chunk(2, dim=1)[rank].contiguous().to(device) for t in (q, k, v)]
    out = dispatch_attention_fn(*mine, backend=install_backend(Options(strict=True)), parallel_config=config)
    expected = reference(*(t.to(device) for t in (q, k, v)))[0].chunk(2, dim=1)[rank]
    return error(out, expected)
