"""Putting the processor on models and taking it off: identity, idempotence, copies, pickles, other users of processors."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import subprocess
import sys

import diffusers
import pytest
import torch
from diffusers.models.attention_processor import AttnProcessor2_0, JointAttnProcessor2_0
from diffusers.models.transformers.transformer_wan import WanAttnProcessor
from torch import nn

import moon_diffusers
from moon_diffusers import MoonAttnProcessor, MoonError, counters, restore, set_attn_processor
from moon_diffusers.errors import ArgumentError, StrictError
from moon_diffusers.integrations.diffusers import routed_modules
from moon_diffusers.integrations.diffusers.backend import install_backend, is_ours
from moon_diffusers.integrations.diffusers.options import Options

from .zoo import CASES, CPU, run, to_bf16

# One model of each route: through diffusers' dispatch, and calling torch SDPA itself (with and without the mixin).
ROUTES = ["wan", "sd3", "unet", "mochi"]


def processors(model):
    return [module.processor for module in model.modules() if getattr(module, "processor", None) is not None]


@pytest.fixture(params=ROUTES)
def made(request):
    return CASES[request.param].make()


def test_restore_gives_back_the_very_objects_unchanged(made):
    model, inputs = made
    before = processors(model)
    states = [dict(processor.__dict__) for processor in before]
    set_attn_processor(model, MoonAttnProcessor())
    assert len(routed_modules(model)) == len(before)
    assert all(new is not old for new, old in zip(processors(model), before, strict=True))
    run(model, inputs)
    restore(model)
    assert routed_modules(model) == []
    assert all(new is old for new, old in zip(processors(model), before, strict=True))
    assert [dict(processor.__dict__) for processor in before] == states
    restore(model)
    assert all(new is old for new, old in zip(processors(model), before, strict=True))


def test_setting_twice_is_setting_once_and_options_can_change(made, kernel):
    model, inputs = made
    before = processors(model)
    set_attn_processor(model, MoonAttnProcessor())
    first = processors(model)
    set_attn_processor(model, MoonAttnProcessor())
    assert all(new is old for new, old in zip(processors(model), first, strict=True))
    set_attn_processor(model, MoonAttnProcessor("rtz"))
    run(model, inputs)
    assert set(counters.snapshot().served) == {"stand-in rtz"}
    restore(model)
    assert all(new is old for new, old in zip(processors(model), before, strict=True))


def test_the_processors_stay_what_they_were(made):
    model, _ = made
    before = processors(model)
    set_attn_processor(model, MoonAttnProcessor())
    for new, old in zip(processors(model), before, strict=True):
        assert isinstance(new, type(old))
        # diffusers filters keyword arguments by this signature.
        assert inspect.signature(new.__call__) == inspect.signature(old.__call__)
        assert isinstance(type(new)(), type(old))


@pytest.mark.parametrize("name", ["wan", "sd3", "unet"])
def test_the_models_own_method_takes_it(name, kernel):
    model, inputs = CASES[name].make()
    before = dict(model.attn_processors)
    model.set_attn_processor(MoonAttnProcessor())
    assert len(routed_modules(model)) == len(before)
    run(model, inputs)
    assert counters.snapshot().num_served == CASES[name].calls
    # The way back that diffusers users know.
    model.set_attn_processor(dict(before))
    assert routed_modules(model) == []
    counters.reset_summary()
    run(model, inputs)
    assert counters.snapshot().num_served == counters.snapshot().num_fallbacks == 0


def test_a_dict_of_processors_may_route_some_modules_only(kernel):
    model, inputs = CASES["wan"].make()
    chosen = {
        name: MoonAttnProcessor() if "attn1" in name else processor for name, processor in model.attn_processors.items()
    }
    model.set_attn_processor(chosen)
    assert routed_modules(model) == ["blocks.0.attn1", "blocks.1.attn1"]
    run(model, inputs)
    assert counters.snapshot().num_served == 2


def test_one_module(kernel):
    model, inputs = CASES["wan"].make()
    model.blocks[0].attn2.set_processor(MoonAttnProcessor())
    run(model, inputs)
    assert counters.snapshot().num_served == 1


def test_another_processor_takes_over():
    model, inputs = CASES["unet"].make()
    plain = run(model, inputs)
    set_attn_processor(model, MoonAttnProcessor())
    model.set_attn_processor(AttnProcessor2_0())
    assert routed_modules(model) == []
    assert torch.equal(run(model, inputs), plain)
    assert counters.snapshot().num_fallbacks == 0


def test_another_backend_takes_over_and_ours_again(kernel):
    from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry

    active = _AttentionBackendRegistry._active_backend
    model, inputs = CASES["wan"].make()
    try:
        model.set_attention_backend("_native_math")
        set_attn_processor(model, MoonAttnProcessor())
        run(model, inputs)
        assert counters.snapshot().num_served == 4
        model.set_attention_backend("native")
        assert routed_modules(model) == []
        run(model, inputs)
        assert counters.snapshot().num_served == 4
        set_attn_processor(model, MoonAttnProcessor())
        run(model, inputs)
        assert counters.snapshot().num_served == 8
        restore(model)
        # What the user had chosen before is still chosen.
        assert all(p._attention_backend is AttentionBackendName._NATIVE_MATH for p in processors(model))
        model.set_attention_backend("moon")
        run(model, inputs)
        assert counters.snapshot().num_served == 12
    finally:
        _AttentionBackendRegistry._active_backend = active


def test_the_global_backend_is_left_alone():
    from diffusers.models.attention_dispatch import _AttentionBackendRegistry

    before = _AttentionBackendRegistry._active_backend
    model, _ = CASES["wan"].make()
    set_attn_processor(model, MoonAttnProcessor())
    assert _AttentionBackendRegistry._active_backend is before


def test_models_in_one_process_keep_their_own_options(kernel):
    first, inputs = CASES["wan"].make()
    second, _ = CASES["wan"].make()
    third, more = CASES["sd3"].make()
    set_attn_processor(first, MoonAttnProcessor("rtz", scope="first"))
    set_attn_processor(second, MoonAttnProcessor("rtna", scope="second"))
    set_attn_processor(third, MoonAttnProcessor(scope="third"))
    run(first, inputs)
    run(third, more)
    run(second, inputs)
    run(first, inputs)
    assert counters.snapshot("first").served == {"stand-in rtz": 8}
    assert counters.snapshot("second").served == {"stand-in rtna": 4}
    assert counters.snapshot("third").served == {"stand-in rtne": 3}


def test_a_processor_shared_by_two_models_routes_only_one(kernel):
    first, inputs = CASES["wan"].make()
    second, _ = CASES["wan"].make()
    shared = WanAttnProcessor()
    first.set_attn_processor(shared)
    second.set_attn_processor(shared)
    set_attn_processor(first, MoonAttnProcessor())
    run(second, inputs)
    assert counters.snapshot().num_served == 0
    run(first, inputs)
    assert counters.snapshot().num_served == 4


def test_deepcopy_is_independent(made, kernel):
    model, inputs = made
    set_attn_processor(model, MoonAttnProcessor("rtz"))
    twin = copy.deepcopy(model)
    assert routed_modules(twin) == routed_modules(model)
    routed = run(twin, inputs)
    assert set(counters.snapshot().served) == {"stand-in rtz"}
    restore(model)
    assert routed_modules(twin)
    assert torch.equal(run(twin, inputs), routed)
    restore(twin)
    assert routed_modules(twin) == []
    assert torch.equal(run(twin, inputs), run(model, inputs))


def test_pickle(made, kernel):
    model, inputs = made
    set_attn_processor(model, MoonAttnProcessor("rtz", scope="pickled"))
    loaded = pickle.loads(pickle.dumps(model))
    assert torch.equal(run(loaded, inputs), run(model, inputs))
    assert set(counters.snapshot("pickled").served) == {"stand-in rtz"}
    restore(loaded)
    assert routed_modules(loaded) == []


def test_pickle_loads_in_a_process_that_never_imported_the_package(tmp_path):
    model, _ = CASES["wan"].make()
    set_attn_processor(model, MoonAttnProcessor("rtz"))
    torch.save(model, tmp_path / "model.pt")
    code = (
        "import sys, torch; model = torch.load(sys.argv[1], weights_only=False)\n"
        "print(model.blocks[0].attn1.processor._attention_backend.value)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "model.pt")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "moon:rounding=rtz"


def test_saved_weights_do_not_know(made, tmp_path):
    model, _ = made
    names = set(model.state_dict())
    set_attn_processor(model, MoonAttnProcessor())
    assert set(model.state_dict()) == names
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert routed_modules(again) == []


class Weighted(nn.Module):
    """A processor with weights, as IP-Adapter's are."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.strength = 1.0

    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, temb=None):
        out = AttnProcessor2_0()(attn, hidden_states, encoder_hidden_states, attention_mask, temb)
        return out * self.scale * self.strength


def test_processors_with_weights(kernel):
    model, inputs = CASES["unet"].make()
    model.set_attn_processor({name: Weighted() for name in model.attn_processors})
    model.bfloat16()
    before = processors(model)
    names = set(model.state_dict())
    plain = run(model, inputs)
    set_attn_processor(model, MoonAttnProcessor())
    assert set(model.state_dict()) == names
    assert (run(model, inputs) - plain).abs().max() < 0.05
    assert counters.snapshot().num_served == 8
    model.float()
    for processor in processors(model):
        processor.strength = 0.0
    model.half().bfloat16()
    restore(model)
    assert all(new is old for new, old in zip(processors(model), before, strict=True))
    assert all(p.scale.dtype == torch.bfloat16 and p.strength == 0.0 for p in processors(model))
    assert set(model.state_dict()) == names


def test_ip_adapter(kernel):
    """As load_ip_adapter leaves a UNet: processors with weights on the cross-attention, called with image tokens."""
    from diffusers.models.attention_processor import IPAdapterAttnProcessor2_0

    model, _ = CASES["unet"].make()
    set_attn_processor(model, MoonAttnProcessor())
    torch.manual_seed(0)
    model.set_attn_processor(
        {
            name: IPAdapterAttnProcessor2_0(128, 16, num_tokens=(4,), scale=0.7).bfloat16()
            if "attn2" in name
            else processor.__class__()
            for name, processor in model.attn_processors.items()
        }
    )
    assert all("attn1" in name for name in routed_modules(model)), "loading replaces processors: apply again"
    names = [name for name in model.attn_processors if "attn2" in name]
    module = model.get_submodule(names[0].removesuffix(".processor"))
    states = torch.randn(2, 9, 128).bfloat16()
    context = (torch.randn(2, 6, 16).bfloat16(), [torch.randn(2, 1, 4, 16).bfloat16()])
    with torch.no_grad():
        plain = module(states, encoder_hidden_states=context, ip_adapter_masks=None)
        set_attn_processor(model, MoonAttnProcessor())
        assert len(routed_modules(model)) == len(model.attn_processors)
        routed = module(states, encoder_hidden_states=context, ip_adapter_masks=None)
        assert counters.snapshot().num_served == 2, "text and image"
        assert (routed - plain).abs().max() < 0.05
        # set_ip_adapter_scale finds the processors by class and sets this.
        assert isinstance(module.processor, IPAdapterAttnProcessor2_0)
        module.processor.scale = [0.0]
        restore(model)
        assert type(module.processor) is IPAdapterAttnProcessor2_0 and module.processor.scale == [0.0]
        assert not torch.equal(module(states, encoder_hidden_states=context), plain)


def test_processors_that_diffusers_makes_anew_can_be_restored(kernel):
    """unload_ip_adapter sets `processor.__class__()` on every module."""
    model, inputs = CASES["sd3"].make()
    set_attn_processor(model, MoonAttnProcessor("rtz"))
    model.set_attn_processor({name: value.__class__() for name, value in model.attn_processors.items()})
    run(model, inputs)
    assert set(counters.snapshot().served) == {"stand-in rtz"}
    set_attn_processor(model, MoonAttnProcessor("rtna"))
    counters.reset_summary()
    run(model, inputs)
    assert set(counters.snapshot().served) == {"stand-in rtna"}
    restore(model)
    assert all(type(processor) is JointAttnProcessor2_0 for processor in processors(model))


def test_the_default_processors_of_a_unet():
    """Refused by diffusers unless it knows the very class of every processor: restore first."""
    model, inputs = CASES["unet"].make()
    plain = run(model, inputs)
    set_attn_processor(model, MoonAttnProcessor())
    with pytest.raises(ValueError, match="MoonAttnProcessor2_0"):
        model.set_default_attn_processor()
    restore(model)
    model.set_default_attn_processor()
    assert (run(model, inputs) - plain).abs().max() < 0.05


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_a_processor_bound_to_another_backend_is_left_alone(kernel, caplog):
    """AnyFlow's causal processor raises on any backend but flex."""
    model = getattr(diffusers, "AnyFlowFARTransformer3DModel", None)
    if model is None:
        pytest.skip("this diffusers is older")
    model = model(
        num_attention_heads=2, attention_head_dim=128, in_channels=4, out_channels=4, text_dim=32, freq_dim=32,
        ffn_dim=64, num_layers=2, rope_max_seq_len=32,
    ).bfloat16().eval()  # fmt: skip
    inputs = to_bf16(
        {
            "hidden_states": torch.randn(1, 4, 4, 8, 8),
            "timestep": torch.full((1, 4), 500.0),
            "r_timestep": torch.full((1, 4), 400.0),
            "encoder_hidden_states": torch.randn(1, 7, 32),
            "chunk_partition": [1, 1, 2],
            "return_dict": False,
        }
    )
    plain = run(model, inputs)
    set_attn_processor(model, MoonAttnProcessor())
    assert routed_modules(model) == ["blocks.0.attn2", "blocks.1.attn2"]
    assert caplog.text.count("takes no backend but flex") <= 1
    torch.testing.assert_close(run(model, inputs), plain, atol=2e-2, rtol=2e-2)
    assert counters.snapshot().num_served == 2


def test_functions_as_processors_are_left_alone(caplog):
    model, _ = CASES["wan"].make()

    def mine(attn, hidden_states, *args):
        return hidden_states

    model.blocks[0].attn1.set_processor(mine)
    set_attn_processor(model, MoonAttnProcessor())
    assert model.blocks[0].attn1.processor is mine
    assert "attention stays as it is" in caplog.text
    assert len(routed_modules(model)) == 3


def test_fused_projections(kernel):
    model, inputs = CASES["wan"].make()
    plain = run(model, inputs)
    set_attn_processor(model, MoonAttnProcessor())
    model.fuse_qkv_projections()
    fused = run(model, inputs)
    assert counters.snapshot().num_served == 4
    assert (fused - plain).abs().max() < 0.05
    model.unfuse_qkv_projections()
    restore(model)
    assert torch.equal(run(model, inputs), plain)


def test_unfusing_a_restored_model_does_not_route_it_again():
    """UNets lay their processors aside to fuse, and get them back."""
    model, inputs = CASES["unet"].make()
    before, plain = processors(model), run(model, inputs)
    set_attn_processor(model, MoonAttnProcessor())
    model.fuse_qkv_projections()
    set_attn_processor(model, MoonAttnProcessor())
    restore(model)
    model.unfuse_qkv_projections()
    assert routed_modules(model) == []
    assert all(now is then for now, then in zip(processors(model), before, strict=True))
    assert torch.equal(run(model, inputs), plain)


def test_lora_layers(kernel):
    peft = pytest.importorskip("peft")
    model, inputs = CASES["wan"].make()
    set_attn_processor(model, MoonAttnProcessor())
    model.add_adapter(peft.LoraConfig(r=2, target_modules=["to_q", "to_v"], init_lora_weights=False))
    model.bfloat16()
    with_lora = run(model, inputs)
    assert counters.snapshot().num_served == 4
    model.disable_adapters()
    without = run(model, inputs)
    assert not torch.equal(with_lora, without)
    model.enable_adapters()
    restore(model)
    assert (run(model, inputs) - with_lora).abs().max() < 0.05


@pytest.mark.parametrize("name", ["wan", "sd3"])
def test_training_goes_through_torch(name, kernel):
    model, inputs = CASES[name].make()
    model(**inputs)[0].sum().backward()
    wanted = {key: value.grad.clone() for key, value in model.named_parameters() if value.grad is not None}
    assert wanted
    model.zero_grad()
    set_attn_processor(model, MoonAttnProcessor())
    model(**inputs)[0].sum().backward()
    assert counters.snapshot().fallbacks == {"requires grad": CASES[name].calls}
    for key, value in model.named_parameters():
        if value.grad is not None:
            assert torch.equal(value.grad, wanted[key]), key


@pytest.mark.parametrize("name", ["wan", "sd3"])
def test_strict_raises_instead_of_falling_back(name):
    model, inputs = CASES[name].make()
    set_attn_processor(model, MoonAttnProcessor(strict=True))
    with pytest.raises(StrictError, match=CPU.replace("(", r"\(").replace(")", r"\)")):
        run(model, inputs)
    with counters.strict():
        set_attn_processor(model, MoonAttnProcessor())
        with pytest.raises(StrictError):
            run(model, inputs)
        set_attn_processor(model, MoonAttnProcessor(strict=False))
        run(model, inputs)


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (nn.Linear(2, 2), "Linear is not accepted; accepted: a model with diffusers attention modules"),
        ("a string", "str is not accepted; accepted: a diffusers pipeline or a model"),
        (None, "NoneType is not accepted"),
    ],
)
def test_wrong_targets(target, text):
    for action in (lambda: set_attn_processor(target, MoonAttnProcessor()), lambda: restore(target)):
        with pytest.raises(MoonError, match=text) as caught:
            action()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"rounding": "up"}, "rounding"),
        ({"rescale": "sometimes"}, "rescale"),
        ({"strict": "yes"}, "strict"),
        ({"min_head_dim": 0}, "min_head_dim"),
        ({"min_head_dim": 129}, "min_head_dim"),
        ({"scope": 3}, "scope"),
        ({"batch_invariant": "yes"}, "batch_invariant"),
    ],
)
def test_wrong_options(options, argument):
    with pytest.raises(ArgumentError, match=f"^{argument}: "):
        MoonAttnProcessor(**options)


def test_a_bare_assignment_says_what_to_do():
    model, inputs = CASES["wan"].make()
    model.blocks[0].attn1.processor = MoonAttnProcessor()
    with pytest.raises(MoonError, match=r"use moon_diffusers\.set_attn_processor"):
        run(model, inputs)


def test_backend_names():
    assert install_backend() is install_backend(Options())
    assert install_backend().value == "moon" and install_backend().name == "MOON"
    other = install_backend(Options(rounding="rtz", scope="a b"))
    assert other.value == "moon:rounding=rtz,scope=a b"
    assert type(other)(other.value) is other and is_ours(other) and not is_ours("moonlight") and not is_ours(None)
    looks_alike = install_backend(Options(scope="a,batch_invariant=True"))
    assert looks_alike is not install_backend(Options(scope="a", batch_invariant=True))
    assert copy.deepcopy(other) is other and copy.copy(other) is other
    stream = io.BytesIO()
    pickle.dump(other, stream)
    assert pickle.loads(stream.getvalue()) is other


def test_summary_names_the_scope(kernel):
    model, inputs = CASES["wan"].make()
    set_attn_processor(model, MoonAttnProcessor(scope="mine"))
    run(model, inputs)
    assert "4 of 4" in moon_diffusers.summary("mine")
    assert "no attention calls" in moon_diffusers.summary("other")
