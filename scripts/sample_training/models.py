"""The networks of the sample pipeline, all of them diffusers' and transformers' own classes, and their sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from diffusers import AutoencoderKLWan, WanTransformer3DModel
from transformers import ByT5Tokenizer, UMT5Config, UMT5EncoderModel

#: WanPipeline pads prompts to this many tokens, with zeros behind the prompt's end.
PIPELINE_TEXT_LENGTH = 512


@dataclass
class Shape:
    """Everything that decides the sizes of the networks and of the clips."""

    height: int = 96
    width: int = 96
    num_frames: int = 13
    latent_channels: int = 16
    encoder_width: int = 24
    decoder_width: int = 32
    num_heads: int = 3
    num_layers: int = 6
    ffn_dim: int = 768
    patch_size: tuple[int, int, int] = (1, 1, 2)
    text_dim: int = 128
    text_layers: int = 3
    text_tokens: int = 64  # longest caption in training, its end mark included

    @property
    def latent_shape(self) -> tuple[int, int, int, int]:
        """``(channels, frames, height, width)`` of one clip's latents: 4x in time, 8x in space."""
        return self.latent_channels, (self.num_frames - 1) // 4 + 1, self.height // 8, self.width // 8


#: For the dry run: every stage in seconds on a CPU.
TINY = Shape(
    height=32,
    width=32,
    num_frames=5,
    encoder_width=8,
    decoder_width=8,
    num_heads=1,
    num_layers=1,
    ffn_dim=64,
    text_dim=16,
    text_layers=1,
)


def build_autoencoder(shape: Shape) -> AutoencoderKLWan:
    """A small Wan autoencoder: 2x2 pixel blocks, then two halvings in space and time, 8x8x4 in all."""
    return AutoencoderKLWan(
        base_dim=shape.encoder_width,
        decoder_base_dim=shape.decoder_width,
        z_dim=shape.latent_channels,
        dim_mult=[1, 2, 2],
        num_res_blocks=1,
        temperal_downsample=[True, True],
        latents_mean=[0.0] * shape.latent_channels,
        latents_std=[1.0] * shape.latent_channels,
        patch_size=2,
        in_channels=12,
        out_channels=12,
        scale_factor_spatial=8,
        scale_factor_temporal=4,
    )


def build_transformer(shape: Shape) -> WanTransformer3DModel:
    """A small Wan denoiser with head dim 128, every block's branches nearly closed at first."""
    model = WanTransformer3DModel(
        patch_size=shape.patch_size,
        num_attention_heads=shape.num_heads,
        attention_head_dim=128,
        in_channels=shape.latent_channels,
        out_channels=shape.latent_channels,
        text_dim=shape.text_dim,
        freq_dim=256,
        ffn_dim=shape.ffn_dim,
        num_layers=shape.num_layers,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        rope_max_seq_len=32,
    )
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
    for quiet in [model.proj_out, model.condition_embedder.time_proj, *(b.attn2.to_out[0] for b in model.blocks)]:
        nn.init.zeros_(quiet.weight)
    return model


def build_text_encoder(shape: Shape) -> UMT5EncoderModel:
    """A small UMT5 encoder over bytes."""
    return UMT5EncoderModel(
        UMT5Config(
            vocab_size=384,
            d_model=shape.text_dim,
            d_kv=max(shape.text_dim // 4, 8),
            d_ff=2 * shape.text_dim,
            num_layers=shape.text_layers,
            num_heads=4,
            dropout_rate=0.0,
        )
    )


def build_tokenizer() -> ByT5Tokenizer:
    """Bytes as tokens: no vocabulary file, nothing to download."""
    return ByT5Tokenizer()


def token_ids(captions: list[str], length: int) -> torch.Tensor:
    """The tokenizer's ids, made quickly: int64 ``(captions, length)``, bytes + 3, end mark 1, padding 0."""
    out = torch.zeros(len(captions), length, dtype=torch.long)
    for row, text in enumerate(captions):
        ids = [*[byte + 3 for byte in text.encode()][: length - 1], 1]
        out[row, : len(ids)] = torch.tensor(ids)
    return out


def encode_text(encoder: UMT5EncoderModel, ids: torch.Tensor) -> torch.Tensor:
    """Prompt embeddings ``(batch, tokens, dim)`` with zeros behind each prompt's end, as WanPipeline makes them."""
    mask = (ids != 0).long()
    hidden = encoder(ids, mask).last_hidden_state
    return hidden * mask.unsqueeze(-1).to(hidden.dtype)


class TrainingAttention:
    """WanAttnProcessor's arithmetic, with the pipeline's hundreds of identical padding tokens folded into one.

    WanPipeline hands cross-attention 512 tokens of which all behind the prompt are zeros, so they share one key and one
    value. Softmax over n copies of a key equals one copy with log(n) added to its score; training uses that, and
    generation, through the unchanged processor, gives the same result.
    """

    def __init__(self, folded: int = 0) -> None:
        self.folded = folded  # padding tokens that the last context token stands for, beside itself

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        rotary_emb: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Shapes as in WanAttnProcessor: hidden states ``(batch, tokens, dim)``."""
        context = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        query = attn.norm_q(attn.to_q(hidden_states)).unflatten(2, (attn.heads, -1))
        key = attn.norm_k(attn.to_k(context)).unflatten(2, (attn.heads, -1))
        value = attn.to_v(context).unflatten(2, (attn.heads, -1))
        if rotary_emb is not None:
            query, key = rotate(query, *rotary_emb), rotate(key, *rotary_emb)
        bias = None
        if encoder_hidden_states is not None and self.folded:
            bias = torch.zeros(1, 1, 1, context.shape[1], device=query.device, dtype=value.dtype)
            bias[..., -1] = math.log(1.0 + self.folded)
        out = F.scaled_dot_product_attention(
            query.transpose(1, 2).to(value.dtype),
            key.transpose(1, 2).to(value.dtype),
            value.transpose(1, 2),
            attn_mask=bias,
        )
        return attn.to_out[0](out.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def rotate(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Wan's rotary embedding of ``(batch, tokens, heads, dim)``: neighbouring channels are a pair."""
    first, second = states.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos[..., 0::2], sin[..., 1::2]
    return torch.stack([first * cos - second * sin, first * sin + second * cos], dim=-1).flatten(-2).type_as(states)


def use_training_attention(transformer: WanTransformer3DModel, text_tokens: int) -> None:
    """Give every attention module of ``transformer`` its :class:`TrainingAttention`."""
    folded = max(PIPELINE_TEXT_LENGTH - text_tokens, 0)
    for block in transformer.blocks:
        block.attn1.set_processor(TrainingAttention())
        block.attn2.set_processor(TrainingAttention(folded))


@dataclass
class Networks:
    """The three networks that are trained, on one device."""

    shape: Shape
    autoencoder: AutoencoderKLWan
    transformer: WanTransformer3DModel
    text_encoder: UMT5EncoderModel
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @classmethod
    def build(cls, shape: Shape, device: torch.device, seed: int) -> Networks:
        """Fresh networks, the same for the same seed."""
        torch.manual_seed(seed)
        parts = build_autoencoder(shape), build_transformer(shape), build_text_encoder(shape)
        return cls(shape, *(part.to(device) for part in parts), device=device)
