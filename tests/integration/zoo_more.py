"""More of diffusers' models, tiny and random; see `zoo`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

Inputs = dict[str, Any]
rand = torch.randn


def flux2() -> nn.Module:
    from diffusers import Flux2Transformer2DModel

    return Flux2Transformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=128, num_attention_heads=2,
        joint_attention_dim=16, timestep_guidance_channels=16,
    )  # fmt: skip


def flux2_inputs() -> Inputs:
    return {
        "hidden_states": rand(1, 16, 4),
        "encoder_hidden_states": rand(1, 5, 16),
        "timestep": torch.tensor([0.5]),
        "img_ids": torch.randint(0, 4, (16, 4)).float(),
        "txt_ids": torch.zeros(5, 4),
        "guidance": torch.tensor([3.5]),
        "return_dict": False,
    }


def z_image() -> nn.Module:
    from diffusers import ZImageTransformer2DModel

    return ZImageTransformer2DModel(
        in_channels=4, dim=256, n_layers=1, n_refiner_layers=1, n_heads=2, n_kv_heads=2, cap_feat_dim=16,
        axes_dims=[32, 48, 48], axes_lens=[256, 32, 32],
    )  # fmt: skip


def z_image_inputs() -> Inputs:
    # Captions of different lengths: one of them is padded, and masked.
    return {
        "x": [rand(4, 1, 8, 8), rand(4, 1, 8, 8)],
        "t": torch.tensor([0.5, 0.5]),
        "cap_feats": [rand(6, 16), rand(40, 16)],
        "return_dict": False,
    }


def hidream() -> nn.Module:
    from diffusers import HiDreamImageTransformer2DModel

    return HiDreamImageTransformer2DModel(
        patch_size=2, in_channels=4, out_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=128,
        num_attention_heads=2, caption_channels=[16, 12], text_emb_dim=8, num_routed_experts=2, num_activated_experts=1,
        axes_dims_rope=(64, 32, 32), max_resolution=(16, 16), llama_layers=[0, 1],
    )  # fmt: skip


def hidream_inputs() -> Inputs:
    return {
        "hidden_states": rand(1, 4, 8, 8),
        "encoder_hidden_states_t5": rand(1, 6, 16),
        "encoder_hidden_states_llama3": rand(2, 1, 6, 12),
        "pooled_embeds": rand(1, 8),
        "timesteps": torch.tensor([500]),
        "return_dict": False,
    }


def hunyuan_image() -> nn.Module:
    from diffusers import HunyuanImageTransformer2DModel

    return HunyuanImageTransformer2DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=128, num_layers=1, num_single_layers=1,
        num_refiner_layers=1, text_embed_dim=16, rope_axes_dim=(64, 64),
    )  # fmt: skip


def hunyuan_image_inputs() -> Inputs:
    return {
        "hidden_states": rand(1, 4, 4, 4),
        "timestep": torch.tensor([500.0]),
        "encoder_hidden_states": rand(1, 8, 16),
        "encoder_attention_mask": torch.tensor([[1.0] * 5 + [0.0] * 3]),
        "return_dict": False,
    }


def ltx2() -> nn.Module:
    from diffusers import LTX2VideoTransformer3DModel

    return LTX2VideoTransformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=128, cross_attention_dim=256,
        audio_in_channels=4, audio_out_channels=4, audio_num_attention_heads=2, audio_attention_head_dim=64,
        audio_cross_attention_dim=128, num_layers=1, caption_channels=16, rope_double_precision=False,
    )  # fmt: skip


def ltx2_inputs() -> Inputs:
    return {
        "hidden_states": rand(1, 16, 4),
        "audio_hidden_states": rand(1, 5, 4),
        "encoder_hidden_states": rand(1, 6, 16),
        "audio_encoder_hidden_states": rand(1, 6, 16),
        "encoder_attention_mask": torch.ones(1, 6).bool(),
        "audio_encoder_attention_mask": torch.ones(1, 6).bool(),
        "timestep": torch.full((1, 16), 500.0),
        "audio_timestep": torch.full((1, 5), 500.0),
        "num_frames": 1,
        "height": 4,
        "width": 4,
        "audio_num_frames": 5,
        "return_dict": False,
    }


def pixart() -> nn.Module:
    from diffusers import PixArtTransformer2DModel

    return PixArtTransformer2DModel(
        num_attention_heads=2, attention_head_dim=72, in_channels=4, out_channels=8, num_layers=1, norm_num_groups=2,
        cross_attention_dim=144, sample_size=8, caption_channels=16, use_additional_conditions=False,
    )  # fmt: skip


def pixart_inputs() -> Inputs:
    return {
        "hidden_states": rand(1, 4, 8, 8),
        "encoder_hidden_states": rand(1, 6, 16),
        "encoder_attention_mask": torch.tensor([[1, 1, 1, 1, 0, 0]]).bool(),
        "timestep": torch.tensor([500]),
        "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
        "return_dict": False,
    }


def wan_animate() -> nn.Module:
    from diffusers import WanAnimateTransformer3DModel

    return WanAnimateTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=128, in_channels=12, latent_channels=4,
        out_channels=4, text_dim=32, freq_dim=32, ffn_dim=64, num_layers=2, cross_attn_norm=True, image_dim=16,
        added_kv_proj_dim=256, rope_max_seq_len=32, motion_encoder_channel_sizes={"4": 16, "8": 16, "16": 16},
        motion_encoder_size=16, motion_style_dim=8, motion_dim=4, motion_encoder_dim=16, face_encoder_hidden_dim=16,
        face_encoder_num_heads=2, inject_face_latents_blocks=2,
    )  # fmt: skip


def wan_animate_inputs() -> Inputs:
    return {
        "hidden_states": rand(1, 12, 3, 8, 8),
        "timestep": torch.tensor([500]),
        "encoder_hidden_states": rand(1, 512, 32),
        "encoder_hidden_states_image": rand(1, 5, 16),
        "pose_hidden_states": rand(1, 4, 2, 8, 8),
        "face_pixel_values": rand(1, 3, 5, 16, 16),
        "return_dict": False,
    }
