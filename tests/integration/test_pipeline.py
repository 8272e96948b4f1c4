"""Whole pipelines: the method that diffusers lacks, which components it reaches, offloading, and how imports find it."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import diffusers
import numpy as np
import pytest
import torch
from diffusers import (
    AutoencoderKL,
    AutoencoderKLWan,
    DDIMScheduler,
    DiffusionPipeline,
    FlowMatchEulerDiscreteScheduler,
    StableDiffusionPipeline,
    WanPipeline,
)
from diffusers.models.attention_processor import AttnProcessor2_0
from torch import nn

import moon_diffusers
from moon_diffusers import MoonAttnProcessor, MoonError, counters, restore, set_attn_processor
from moon_diffusers.integrations.diffusers import routed_modules

from . import zoo

PROMPT = {"prompt_embeds": 7, "negative_prompt_embeds": 5}


def wan_pipeline(two: bool = True) -> WanPipeline:
    torch.manual_seed(0)
    vae = AutoencoderKLWan(
        base_dim=3, z_dim=4, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True],
        latents_mean=[0.0] * 4, latents_std=[1.0] * 4,
    )  # fmt: skip
    pipe = WanPipeline(
        tokenizer=None,
        text_encoder=None,
        transformer=zoo.wan(),
        transformer_2=zoo.wan() if two else None,
        vae=vae,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        boundary_ratio=0.5 if two else None,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe.to(torch.bfloat16)


def generate(pipe: WanPipeline, steps: int = 4) -> np.ndarray:
    generator = torch.Generator().manual_seed(1)
    embeds = {name: torch.randn(1, length, 32, generator=generator).to(pipe.dtype) for name, length in PROMPT.items()}
    return pipe(
        **embeds, height=32, width=32, num_frames=5, num_inference_steps=steps, guidance_scale=1.5, generator=generator,
        output_type="np",
    ).frames  # fmt: skip


def test_both_transformers_of_a_wan_pipeline_and_not_the_vae(kernel):
    pipe = wan_pipeline()
    plain = generate(pipe)
    pipe.set_attn_processor(MoonAttnProcessor())
    names = routed_modules(pipe)
    assert {name.split(".")[0] for name in names} == {"transformer", "transformer_2"}
    assert len(names) == 8
    routed = generate(pipe)
    counts = counters.snapshot()
    # 4 steps x (prompt and negative prompt) x 2 blocks x (self and cross attention); the VAE's D = 3 is not asked.
    assert counts.num_served == 4 * 2 * 2 * 2 and not counts.fallbacks, counts.line()
    restore(pipe)
    assert routed_modules(pipe) == []
    assert np.array_equal(generate(pipe), plain)
    exact = generate(pipe.to(torch.float32))
    assert difference(routed, exact) <= 1.5 * difference(plain, exact)
    assert not np.array_equal(routed, plain)


def test_without_a_kernel_the_video_is_bit_identical():
    pipe = wan_pipeline(two=False)
    plain = generate(pipe, steps=2)
    pipe.set_attn_processor(MoonAttnProcessor())
    assert np.array_equal(generate(pipe, steps=2), plain)
    assert counters.snapshot().fallbacks == {zoo.CPU: 16}


def test_chosen_components():
    pipe = wan_pipeline()
    pipe.set_attn_processor(MoonAttnProcessor(), components="transformer_2")
    assert {name.split(".")[0] for name in routed_modules(pipe)} == {"transformer_2"}
    pipe.set_attn_processor(MoonAttnProcessor(), components=["transformer"])
    assert len(routed_modules(pipe)) == 8
    with pytest.raises(MoonError, match=r"components: 'unet' is not accepted; accepted: .*transformer"):
        pipe.set_attn_processor(MoonAttnProcessor(), components=["unet"])


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """Relative to how much the frames vary: random weights amplify the noise of bf16."""
    return float(np.linalg.norm(one - other) / np.linalg.norm(other - other.mean()))


def stable_diffusion() -> StableDiffusionPipeline:
    torch.manual_seed(0)
    vae = AutoencoderKL(
        block_out_channels=(8, 8), down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4, norm_num_groups=4,
    )  # fmt: skip
    pipe = StableDiffusionPipeline(
        vae=vae, text_encoder=None, tokenizer=None, unet=zoo.unet(), scheduler=DDIMScheduler(), safety_checker=None,
        feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip
    pipe.set_progress_bar_config(disable=True)
    return pipe.to(torch.bfloat16)


def paint(pipe: StableDiffusionPipeline) -> np.ndarray:
    generator = torch.Generator().manual_seed(1)
    embeds = {name: torch.randn(1, 6, 16, generator=generator).bfloat16() for name in PROMPT}
    return pipe(**embeds, num_inference_steps=2, generator=generator, output_type="np").images


def test_a_unet_pipeline(kernel):
    pipe = stable_diffusion()
    plain = paint(pipe)
    vae = pipe.vae.attn_processors
    pipe.set_attn_processor(MoonAttnProcessor())
    assert all(name.startswith("unet.") for name in routed_modules(pipe))
    assert pipe.vae.attn_processors == vae
    assert difference(paint(pipe), plain) < 0.1
    assert counters.snapshot().num_served == 16 and not counters.snapshot().fallbacks
    restore(pipe)
    assert np.array_equal(paint(pipe), plain)


def test_other_processors_are_passed_on():
    pipe = stable_diffusion()
    pipe.set_attn_processor(MoonAttnProcessor())
    pipe.set_attn_processor(AttnProcessor2_0())
    assert routed_modules(pipe) == []
    chosen = dict.fromkeys(pipe.unet.attn_processors, AttnProcessor2_0())
    pipe.set_attn_processor(chosen)
    assert chosen, "the caller's dict stays whole"


def test_compiled_wrappers(kernel):
    pipe = wan_pipeline(two=False)
    plain = generate(pipe, steps=2)
    pipe.set_attn_processor(MoonAttnProcessor())
    routed = generate(pipe, steps=2)
    pipe.transformer = torch.compile(pipe.transformer, backend="eager")
    assert len(routed_modules(pipe)) == 4
    assert np.array_equal(generate(pipe, steps=2), routed)
    assert counters.snapshot().num_served == 32
    # Changing and undoing reach through the compiled wrapper.
    pipe.set_attn_processor(MoonAttnProcessor("rtz", scope="again"))
    generate(pipe, steps=2)
    assert set(counters.snapshot("again").served) == {"stand-in rtz"}
    restore(pipe)
    assert np.array_equal(generate(pipe, steps=2), plain)


@pytest.mark.parametrize("first", [True, False])
def test_group_offload(first, kernel):
    from diffusers.hooks import apply_group_offloading

    if diffusers.__version__ < "0.37":
        pytest.skip("this diffusers offloads from accelerators only")
    model, inputs = zoo.CASES["sd3"].make()
    plain = zoo.run(model, inputs)
    cpu = torch.device("cpu")
    offload = {"onload_device": cpu, "offload_device": cpu, "offload_type": "block_level", "num_blocks_per_group": 1}
    if first:
        set_attn_processor(model, MoonAttnProcessor())
    apply_group_offloading(model, **offload)
    if not first:
        set_attn_processor(model, MoonAttnProcessor())
    assert (zoo.run(model, inputs) - plain).abs().max() < 0.05
    assert counters.snapshot().num_served == 3
    restore(model)
    assert torch.equal(zoo.run(model, inputs), plain)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("how", ["model", "sequential"])
def test_accelerate_offload(how, first, kernel):
    """What enable_model_cpu_offload and enable_sequential_cpu_offload put on the models, here with the CPU for both."""
    import accelerate

    model, inputs = zoo.CASES["unet"].make()
    plain = zoo.run(model, inputs)
    if first:
        set_attn_processor(model, MoonAttnProcessor())
    if how == "model":
        model, _ = accelerate.cpu_offload_with_hook(model, "cpu")
    else:
        accelerate.cpu_offload(model, "cpu", offload_buffers=True)
    if not first:
        set_attn_processor(model, MoonAttnProcessor())
    assert (zoo.run(model, inputs) - plain).abs().max() < 0.05
    assert counters.snapshot().num_served == 8
    restore(model)
    assert torch.equal(zoo.run(model, inputs), plain)


def test_copies_and_pickles_of_pipelines(kernel):
    pipe = wan_pipeline(two=False)
    pipe.set_attn_processor(MoonAttnProcessor("rtz"))
    video = generate(pipe, steps=1)
    for twin in (copy.deepcopy(pipe), pickle.loads(pickle.dumps(pipe))):
        assert len(routed_modules(twin)) == 4
        assert np.array_equal(generate(twin, steps=1), video)
        restore(twin)
    assert len(routed_modules(pipe)) == 4


def test_saved_pipelines_do_not_know(tmp_path):
    pipe = stable_diffusion()
    pipe.set_attn_processor(MoonAttnProcessor())
    pipe.unet.save_pretrained(tmp_path / "unet")
    assert "moon" not in (tmp_path / "unet" / "config.json").read_text().lower()


def test_two_pipelines_over_one_model_and_one_over_another(kernel):
    first, other = wan_pipeline(two=False), wan_pipeline(two=False)
    shared = WanPipeline.from_pipe(first, torch_dtype=torch.bfloat16)
    first.set_attn_processor(MoonAttnProcessor("rtz"))
    other.set_attn_processor(MoonAttnProcessor("rtna"))
    generate(shared, steps=1)
    assert set(counters.snapshot().served) == {"stand-in rtz"}
    generate(other, steps=1)
    assert set(counters.snapshot().served) == {"stand-in rtz", "stand-in rtna"}


class NoAttention(nn.Module):
    pass


def test_pipelines_without_attention():
    class Empty:
        def __init__(self):
            self.components = {"transformer": NoAttention(), "vae": zoo.CASES["unet"].build()}

    text = r"Empty with transformer, vae is not accepted; accepted: a pipeline with attention modules in transformer\*"
    with pytest.raises(MoonError, match=text):
        set_attn_processor(Empty(), MoonAttnProcessor())
    # Named explicitly, any component will do.
    pipe = Empty()
    set_attn_processor(pipe, MoonAttnProcessor(), components=["vae"])
    assert routed_modules(pipe)
    restore(pipe)
    assert routed_modules(pipe) == []
    with pytest.raises(MoonError):
        moon_diffusers.set_attn_processor(object(), MoonAttnProcessor())


CLASSES = "from diffusers import WanPipeline as P, ModularPipeline as Q"
IMPORTS = {
    "package first": f"import moon_diffusers; {CLASSES}",
    "diffusers first": f"{CLASSES}; import moon_diffusers",
}


@pytest.mark.parametrize("order", IMPORTS)
def test_importing_the_package_adds_the_method(order):
    code = f"{IMPORTS[order]}; assert P.set_attn_processor.__moon__ and Q.set_attn_processor.__moon__"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_the_package_imports_neither_diffusers_nor_torch():
    code = "import sys, moon_diffusers; assert not {'diffusers', 'torch'} & set(sys.modules), sorted(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_method_of_diffusers_own_would_keep_working(monkeypatch):
    """Should diffusers gain the method, other processors reach it."""
    from moon_diffusers import integrations

    seen = []

    class Pipeline:
        def __init__(self):
            self.components = {"transformer": zoo.CASES["wan"].build()}

        def set_attn_processor(self, processor):
            seen.append(processor)

    module = type(sys)("diffusers.pipelines.pipeline_utils")
    module.DiffusionPipeline = Pipeline
    integrations._add_method(module)
    method = Pipeline.set_attn_processor
    integrations._add_method(module)
    assert Pipeline.set_attn_processor is method
    pipe = Pipeline()
    pipe.set_attn_processor("theirs")
    assert seen == ["theirs"]
    pipe.set_attn_processor(MoonAttnProcessor())
    assert seen == ["theirs"] and len(routed_modules(pipe)) == 4
    assert DiffusionPipeline.set_attn_processor.__moon__
