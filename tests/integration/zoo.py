"""Tiny random models of diffusers' own classes, with the attention calls that one forward pass makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import diffusers
import pytest
import torch
from torch import Tensor, nn

from . import zoo_more

Inputs = dict[str, Any]


@dataclass
class Case:
    """A model, its inputs, and what its attention is like.

    Attributes:
        calls: attention calls of a forward pass.
        served: how many of them a bf16, D = 128 kernel can compute.
        reasons: why the others fall back.
    """

    build: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]
    calls: int
    served: int
    reasons: dict[str, int]

    def make(self) -> tuple[nn.Module, Inputs]:
        """The model in bf16 and eval mode, and its inputs."""
        torch.manual_seed(0)
        try:
            model = self.build().bfloat16().eval()
        except ImportError as missing:
            pytest.skip(f"this diffusers is older: {missing}")
        for parameter in model.parameters():
            # Zero-initialised gates and outputs would hide the attention from the result.
            if not parameter.any():
                nn.init.normal_(parameter, std=0.02)
        return model, to_bf16(self.inputs())


def to_bf16(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype == torch.float32:
        return value.bfloat16()
    if isinstance(value, dict):
        return {key: to_bf16(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(to_bf16(item) for item in value)
    return value


def run(model: nn.Module, inputs: Inputs) -> Tensor:
    torch.manual_seed(1)
    with torch.no_grad():
        out = model(**inputs)
    while not isinstance(out, Tensor):
        out = out[0]
    return out


def rand(*shape: int) -> Tensor:
    return torch.randn(*shape)


def wan(image: bool = False, dim: int = 128) -> nn.Module:
    from diffusers import WanTransformer3DModel

    extra = {"image_dim": 16, "added_kv_proj_dim": 2 * dim, "pos_embed_seq_len": None} if image else {}
    return WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=dim, in_channels=4, out_channels=4, text_dim=32,
        freq_dim=32, ffn_dim=64, num_layers=2, cross_attn_norm=True, qk_norm="rms_norm_across_heads",
        rope_max_seq_len=32, **extra,
    )  # fmt: skip


def wan_inputs(image: bool = False, batch: int = 1) -> Inputs:
    inputs = {
        "hidden_states": rand(batch, 4, 2, 8, 8),
        "timestep": torch.full((batch,), 500),
        "encoder_hidden_states": rand(batch, 7, 32),
        "return_dict": False,
    }
    if image:
        # The model takes the last 512 tokens for text, the ones before for the image.
        inputs["encoder_hidden_states"] = rand(batch, 512, 32)
        inputs["encoder_hidden_states_image"] = rand(batch, 5, 16)
    return inputs


def wan_vace() -> nn.Module:
    from diffusers import WanVACETransformer3DModel

    return WanVACETransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=128, in_channels=4, out_channels=4, text_dim=32,
        freq_dim=32, ffn_dim=64, num_layers=2, cross_attn_norm=True, qk_norm="rms_norm_across_heads",
        rope_max_seq_len=32, vace_layers=[0], vace_in_channels=8,
    )  # fmt: skip


def wan_vace_inputs() -> Inputs:
    return {**wan_inputs(), "control_hidden_states": rand(1, 8, 2, 8, 8), "control_hidden_states_scale": torch.ones(1)}


def skyreels(causal: bool = False) -> nn.Module:
    from diffusers import SkyReelsV2Transformer3DModel

    model = SkyReelsV2Transformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=128, in_channels=4, out_channels=4, text_dim=32,
        freq_dim=32, ffn_dim=64, num_layers=2, cross_attn_norm=True, qk_norm="rms_norm_across_heads",
        rope_max_seq_len=32,
    )  # fmt: skip
    if causal:
        model._set_ar_attention(2)
    return model


def hunyuan() -> nn.Module:
    from diffusers import HunyuanVideoTransformer3DModel

    return HunyuanVideoTransformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=128, num_layers=1,
        num_single_layers=1, num_refiner_layers=1, patch_size=2, patch_size_t=1, guidance_embeds=True, text_embed_dim=16,
        pooled_projection_dim=8, rope_axes_dim=(16, 56, 56),
    )  # fmt: skip


def hunyuan_inputs(text_tokens: int = 6) -> Inputs:
    mask = torch.zeros(1, 10, dtype=torch.long)
    mask[:, :text_tokens] = 1
    return {
        "hidden_states": rand(1, 4, 1, 8, 8),
        "timestep": torch.tensor([500]),
        "encoder_hidden_states": rand(1, 10, 16),
        "encoder_attention_mask": mask,
        "pooled_projections": rand(1, 8),
        "guidance": torch.tensor([5.0]),
        "return_dict": False,
    }


def hunyuan15() -> nn.Module:
    from diffusers import HunyuanVideo15Transformer3DModel

    return HunyuanVideo15Transformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=128, num_layers=1, num_refiner_layers=1,
        patch_size=1, patch_size_t=1, text_embed_dim=16, text_embed_2_dim=8, image_embed_dim=12,
        rope_axes_dim=(16, 56, 56), target_size=16, task_type="t2v",
    )  # fmt: skip


def hunyuan15_inputs() -> Inputs:
    mask = torch.tensor([[1, 1, 1, 1, 0, 0, 0]])
    return {
        "hidden_states": rand(1, 4, 1, 4, 4),
        "timestep": torch.tensor([500.0]),
        "encoder_hidden_states": rand(1, 7, 16),
        "encoder_attention_mask": mask,
        "encoder_hidden_states_2": rand(1, 5, 8),
        "encoder_attention_mask_2": torch.tensor([[1, 1, 0, 0, 0]]),
        "image_embeds": torch.zeros(1, 3, 12),
        "return_dict": False,
    }


def flux() -> nn.Module:
    from diffusers import FluxTransformer2DModel

    return FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=128, num_attention_heads=2,
        joint_attention_dim=16, pooled_projection_dim=8, axes_dims_rope=(16, 56, 56), guidance_embeds=True,
    )  # fmt: skip


def flux_inputs() -> Inputs:
    return {
        "hidden_states": rand(1, 16, 4),
        "encoder_hidden_states": rand(1, 5, 16),
        "pooled_projections": rand(1, 8),
        "timestep": torch.tensor([0.5]),
        "img_ids": torch.randint(0, 4, (16, 3)).float(),
        "txt_ids": torch.zeros(5, 3),
        "guidance": torch.tensor([3.5]),
        "return_dict": False,
    }


def qwen() -> nn.Module:
    from diffusers import QwenImageTransformer2DModel

    return QwenImageTransformer2DModel(
        patch_size=2, in_channels=16, out_channels=4, num_layers=2, attention_head_dim=128, num_attention_heads=2,
        joint_attention_dim=16, axes_dims_rope=(16, 56, 56),
    )  # fmt: skip


def qwen_inputs(mask: list[int] | None = None) -> Inputs:
    length = len(mask) if mask else 6
    # Required by older versions of diffusers, deprecated in newer ones.
    old = {"txt_seq_lens": [length]} if diffusers.__version__ < "0.37" else {}
    return {
        **old,
        "hidden_states": rand(1, 16, 16),
        "encoder_hidden_states": rand(1, length, 16),
        "encoder_hidden_states_mask": torch.tensor([mask or [1] * length]),
        "timestep": torch.tensor([0.5]),
        "img_shapes": [[(1, 4, 4)]],
        "return_dict": False,
    }


def chroma() -> nn.Module:
    from diffusers import ChromaTransformer2DModel

    return ChromaTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=128, num_attention_heads=2,
        joint_attention_dim=16, axes_dims_rope=(16, 56, 56), approximator_num_channels=8, approximator_hidden_dim=16,
        approximator_layers=1,
    )  # fmt: skip


def chroma_inputs() -> Inputs:
    inputs = flux_inputs()
    for name in ("pooled_projections", "guidance"):
        del inputs[name]
    # The pipeline hands zeros and ones in the model's dtype, which torch adds to the scores.
    return {**inputs, "attention_mask": torch.tensor([[1.0] * 3 + [0.0] * 2 + [1.0] * 16])}


def sd3() -> nn.Module:
    from diffusers import SD3Transformer2DModel

    return SD3Transformer2DModel(
        sample_size=8, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=128, num_attention_heads=2,
        joint_attention_dim=16, caption_projection_dim=256, pooled_projection_dim=8, out_channels=4, pos_embed_max_size=8,
        dual_attention_layers=(0,), qk_norm="rms_norm",
    )  # fmt: skip


def sd3_inputs() -> Inputs:
    return {
        "hidden_states": rand(2, 4, 8, 8),
        "encoder_hidden_states": rand(2, 5, 16),
        "pooled_projections": rand(2, 8),
        "timestep": torch.tensor([500, 500]),
        "return_dict": False,
    }


def unet() -> nn.Module:
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=8, in_channels=4, out_channels=4, block_out_channels=(32, 128), layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16, attention_head_dim=(1, 1), norm_num_groups=8, use_linear_projection=True,
    )  # fmt: skip


def unet_inputs(mask: bool = False) -> Inputs:
    inputs = {
        "sample": rand(2, 4, 8, 8),
        "timestep": torch.tensor(500),
        "encoder_hidden_states": rand(2, 6, 16),
        "return_dict": False,
    }
    if mask:
        inputs["encoder_attention_mask"] = torch.tensor([[1] * 6, [1, 1, 1, 0, 0, 0]]).bool()
    return inputs


def cogvideox() -> nn.Module:
    from diffusers import CogVideoXTransformer3DModel

    return CogVideoXTransformer3DModel(
        num_attention_heads=2, attention_head_dim=64, in_channels=4, out_channels=4, time_embed_dim=8, text_embed_dim=16,
        num_layers=1, sample_width=8, sample_height=8, sample_frames=5, patch_size=2, max_text_seq_length=6,
    )  # fmt: skip


def cogvideox_inputs() -> Inputs:
    return {
        "hidden_states": rand(1, 2, 4, 8, 8),
        "encoder_hidden_states": rand(1, 6, 16),
        "timestep": torch.tensor([500]),
        "return_dict": False,
    }


def ltx(dim: int = 64) -> nn.Module:
    from diffusers import LTXVideoTransformer3DModel

    return LTXVideoTransformer3DModel(
        in_channels=8, out_channels=8, num_attention_heads=2, attention_head_dim=dim, cross_attention_dim=2 * dim,
        num_layers=1, caption_channels=16,
    )  # fmt: skip


def ltx_inputs() -> Inputs:
    return {
        "hidden_states": rand(1, 16, 8),
        "encoder_hidden_states": rand(1, 6, 16),
        "timestep": torch.tensor([500]),
        "encoder_attention_mask": torch.tensor([[1, 1, 1, 1, 0, 0]]).bool(),
        "num_frames": 1,
        "height": 4,
        "width": 4,
        "return_dict": False,
    }


def mochi() -> nn.Module:
    from diffusers import MochiTransformer3DModel

    return MochiTransformer3DModel(
        patch_size=2, num_attention_heads=2, attention_head_dim=128, num_layers=2, pooled_projection_dim=8, in_channels=4,
        text_embed_dim=16, time_embed_dim=8, max_sequence_length=8,
    )  # fmt: skip


def mochi_inputs() -> Inputs:
    return {
        "hidden_states": rand(2, 4, 2, 8, 8),
        "encoder_hidden_states": rand(2, 8, 16),
        "timestep": torch.tensor([500, 500]),
        "encoder_attention_mask": torch.tensor([[1] * 8, [1] * 5 + [0] * 3]).bool(),
        "return_dict": False,
    }


def lumina2() -> nn.Module:
    from diffusers import Lumina2Transformer2DModel

    return Lumina2Transformer2DModel(
        sample_size=8, patch_size=2, in_channels=4, hidden_size=384, num_layers=1, num_refiner_layers=1,
        num_attention_heads=4, num_kv_heads=2, multiple_of=16, cap_feat_dim=16, axes_dim_rope=(32, 32, 32),
        axes_lens=(32, 32, 32),
    )  # fmt: skip


def lumina2_inputs() -> Inputs:
    return {
        "hidden_states": rand(2, 4, 8, 8),
        "timestep": torch.tensor([0.5, 0.5]),
        "encoder_hidden_states": rand(2, 6, 16),
        "encoder_attention_mask": torch.tensor([[1] * 6, [1] * 4 + [0] * 2]).bool(),
        "return_dict": False,
    }


def sana() -> nn.Module:
    from diffusers import SanaTransformer2DModel

    return SanaTransformer2DModel(
        patch_size=1, in_channels=4, out_channels=4, num_layers=1, num_attention_heads=14, attention_head_dim=16,
        num_cross_attention_heads=2, cross_attention_head_dim=112, cross_attention_dim=224, caption_channels=16,
        sample_size=8,
    )  # fmt: skip


def sana_inputs(text_tokens: int = 4) -> Inputs:
    return {
        "hidden_states": rand(1, 4, 8, 8),
        "encoder_hidden_states": rand(1, 6, 16),
        "timestep": torch.tensor([500]),
        "encoder_attention_mask": torch.arange(6)[None] < text_tokens,
        "return_dict": False,
    }


def cosmos() -> nn.Module:
    from diffusers import CosmosTransformer3DModel

    return CosmosTransformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=128, num_layers=1, mlp_ratio=1,
        text_embed_dim=16, adaln_lora_dim=4, max_size=(4, 16, 16), concat_padding_mask=False,
    )  # fmt: skip


def cosmos_inputs() -> Inputs:
    return {
        "hidden_states": rand(1, 4, 1, 8, 8),
        "timestep": torch.tensor([500.0]),
        "encoder_hidden_states": rand(1, 6, 16),
        "attention_mask": torch.tensor([[1, 1, 1, 1, 0, 0]]).bool(),
        "fps": 16,
        "return_dict": False,
    }


def cogview4() -> nn.Module:
    from diffusers import CogView4Transformer2DModel

    return CogView4Transformer2DModel(
        patch_size=2, in_channels=4, num_layers=2, attention_head_dim=128, num_attention_heads=2, out_channels=4,
        text_embed_dim=16, time_embed_dim=8, condition_dim=4, rope_axes_dim=(8, 8),
    )  # fmt: skip


def cogview4_inputs() -> Inputs:
    return {
        "hidden_states": rand(2, 4, 8, 8),
        "encoder_hidden_states": rand(2, 6, 16),
        "timestep": torch.tensor([500, 500]),
        "original_size": torch.tensor([[8, 8]] * 2),
        "target_size": torch.tensor([[8, 8]] * 2),
        "crop_coords": torch.tensor([[0, 0]] * 2),
        "return_dict": False,
    }


CPU = "CPU tensors outside emulate() and offload()"

CASES = {
    "wan": Case(wan, wan_inputs, 4, 4, {}),
    "wan i2v": Case(lambda: wan(image=True), lambda: wan_inputs(image=True), 6, 6, {}),
    "wan vace": Case(wan_vace, wan_vace_inputs, 6, 6, {}),
    "skyreels": Case(skyreels, wan_inputs, 4, 4, {}),
    "skyreels causal": Case(
        lambda: skyreels(True), lambda: {**wan_inputs(), "hidden_states": rand(1, 4, 4, 4, 4)}, 4, 2,
        {"mask differs by query": 2},
    ),
    "hunyuan video": Case(hunyuan, hunyuan_inputs, 3, 2, {"mask differs by query": 1}),
    "hunyuan video 1.5": Case(hunyuan15, hunyuan15_inputs, 2, 2, {}),
    "flux": Case(flux, flux_inputs, 2, 2, {}),
    "qwen image": Case(qwen, qwen_inputs, 2, 2, {}),
    "qwen image, mask with gaps": Case(qwen, lambda: qwen_inputs([1, 1, 1, 0, 0]), 2, 2, {}),
    "chroma": Case(chroma, chroma_inputs, 2, 0, {"additive mask": 2}),
    "sd3": Case(sd3, sd3_inputs, 3, 3, {}),
    "unet": Case(unet, unet_inputs, 8, 8, {}),
    "unet, text mask": Case(unet, lambda: unet_inputs(True), 8, 4, {"additive mask": 4}),
    "cogvideox": Case(cogvideox, cogvideox_inputs, 1, 0, {"head_dim 64 is not 128": 1}),
    "ltx": Case(ltx, ltx_inputs, 2, 0, {"head_dim 64 is not 128": 2}),
    "mochi": Case(mochi, mochi_inputs, 4, 4, {}),
    "lumina2": Case(lumina2, lumina2_inputs, 3, 3, {}),
    "sana": Case(sana, lambda: sana_inputs(6), 1, 1, {}),
    "sana, text mask": Case(sana, sana_inputs, 1, 0, {"additive mask": 1}),
    "flux 2": Case(zoo_more.flux2, zoo_more.flux2_inputs, 2, 2, {}),
    "z-image": Case(zoo_more.z_image, zoo_more.z_image_inputs, 3, 3, {}),
    "hidream": Case(zoo_more.hidream, zoo_more.hidream_inputs, 2, 2, {}),
    "hunyuan image": Case(zoo_more.hunyuan_image, zoo_more.hunyuan_image_inputs, 3, 2, {"mask differs by query": 1}),
    "ltx 2": Case(zoo_more.ltx2, zoo_more.ltx2_inputs, 6, 2, {"head_dim 64 is not 128": 4}),
    "pixart": Case(zoo_more.pixart, zoo_more.pixart_inputs, 2, 0, {"head_dim 72 is not 128": 2}),
    "wan animate": Case(zoo_more.wan_animate, zoo_more.wan_animate_inputs, 7, 7, {}),
    "cogview4": Case(cogview4, cogview4_inputs, 2, 2, {}),
    "cosmos": Case(cosmos, cosmos_inputs, 2, 2, {}),
}  # fmt: skip
