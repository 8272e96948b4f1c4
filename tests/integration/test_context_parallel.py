"""Two ranks on the CPU: the sequence split by diffusers, each rank's part computed by the routed backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from diffusers.models.attention_dispatch import dispatch_attention_fn
from torch.nn.functional import scaled_dot_product_attention

from moon_diffusers import MoonAttnProcessor, counters, dispatch, restore, set_attn_processor
from moon_diffusers.integrations.diffusers.backend import install_backend
from moon_diffusers.integrations.diffusers.options import Options

from .conftest import StandIn
from .test_models import error
from .zoo import CASES, run

diffusers = pytest.importorskip("diffusers", minversion="0.36")

# Gloo gathers equal parts only, so "any length" means the code paths, not the lengths.
MODES = {
    "ulysses": {"ulysses_degree": 2},
    "ring": {"ring_degree": 2},
    "ulysses, any length": {"ulysses_degree": 2, "ulysses_anything": True},
    "ring, any length": {"ring_degree": 2, "ring_anything": True},
}


def check(rank: int, folder: str) -> None:
    """All modes on one pair of processes: starting them is what takes time."""
    from diffusers import ContextParallelConfig

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    # diffusers asks for one accelerator a rank.
    torch.accelerator.device_count = lambda: 2
    stand_in = StandIn()
    results: dict[str, Any] = {}
    for served in (True, False):
        dispatch._session = (lambda device: stand_in) if served else SESSION
        for name, options in MODES.items():
            model, inputs = CASES["wan"].make()
            # Some versions of diffusers split the text as well.
            inputs["encoder_hidden_states"] = inputs["encoder_hidden_states"][:, :6]
            plain = run(model, inputs)
            if "any length" in name and torch.version.cuda and not torch.cuda.is_available():
                continue  # a torch for CUDA makes diffusers gather the lengths on a GPU, whatever the backend
            try:
                config = ContextParallelConfig(**options)
            except TypeError:
                continue
            # In either order: the configuration must reach the processors that run.
            if served:
                set_attn_processor(model, MoonAttnProcessor(scope=name))
                model.enable_parallelism(config=config)
            else:
                model.enable_parallelism(config=config)
                set_attn_processor(model, MoonAttnProcessor(scope=f"{name}, torch"))
            out = run(model, inputs)
            counts = counters.snapshot(name if served else f"{name}, torch")
            lengths = sorted(stand_in.calls) if served else []
            stand_in.calls.clear()
            one_call = split_call(model._parallel_config, rank, name)
            stand_in.calls.clear()
            after = None
            if "ulysses" in name:
                restore(model)
                after = error(run(model, inputs), plain)
            results[name if served else f"{name}, torch"] = {
                "error": error(out, plain),
                "served": counts.num_served,
                "fallbacks": counts.num_fallbacks,
                "calls": lengths,
                "restored": after,
                "one call": one_call,
            }
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def split_call(config: Any, rank: int, scope: str) -> float:
    """Error of one call whose keys weigh very unlike on the two ranks."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 16, 2, 128) for _ in range(3))
    k[:, 8:] *= 3
    q, k, v = q.bfloat16(), k.bfloat16(), v.bfloat16()
    mine = [x.chunk(2, dim=1)[rank].contiguous() for x in (q, k, v)]
    backend = install_backend(Options(scope=f"{scope}, one call"))
    out = dispatch_attention_fn(*mine, backend=backend, parallel_config=config)
    heads_first = [x.transpose(1, 2).float() for x in (q, k, v)]
    wanted = scaled_dot_product_attention(*heads_first).transpose(1, 2).chunk(2, dim=1)[rank]
    return error(out, wanted)


SESSION = dispatch._session


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(check, args=(str(folder),), nprocs=2)
    return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.parametrize("name", MODES)
def test_two_ranks_compute_what_one_does(name, results):
    for result in results:
        if name not in result:
            pytest.skip("unknown to this diffusers")
        # A log-sum-exp to the base 2 gives 0.1.
        assert result[name]["one call"] < 0.01 and result[f"{name}, torch"]["one call"] < 0.01
        assert result[name]["error"] < 0.02, result[name]
        assert result[f"{name}, torch"]["error"] < 0.02, result[f"{name}, torch"]
        steps = 2 if name.startswith("ring") else 1
        # Two blocks: self-attention once a ring step, cross-attention once, or (diffusers 0.36) as often.
        wanted = (2 * (steps + 1), 2 * (steps + steps))
        assert result[name]["served"] in wanted and result[name]["fallbacks"] == 0
        assert result[f"{name}, torch"]["fallbacks"] in wanted


def test_each_rank_has_its_part(results):
    for result in results:
        q, k = result["ulysses"]["calls"][-1]
        assert q == k == (1, 32, 1, 128), "all rows of half the heads"
        q, k = result["ring"]["calls"][-1]
        assert q == k == (1, 16, 2, 128), "half of the rows of all heads"


@pytest.mark.parametrize("name", [name for name in MODES if name.startswith("ulysses")])
def test_restored_models_stay_parallel(name, results):
    for result in results:
        if name in result:
            assert result[name]["restored"] < 0.02 and result[f"{name}, torch"]["restored"] < 0.02
