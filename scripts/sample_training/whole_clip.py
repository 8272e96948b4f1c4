"""AutoencoderKLWan on whole clips at once, for training.

The class itself runs a clip in pieces of four frames and carries the last frames of every layer along, which bounds
memory but takes four times the kernel launches. The functions here use the same modules and give the same numbers: a
causal convolution over all frames, with the two resampling steps' special first frame spelt out.
"""

from __future__ import annotations

import torch
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import WanResample, patchify, unpatchify


def resample_space(layer: WanResample, hidden: torch.Tensor) -> torch.Tensor:
    """The spatial half of a resampling layer: ``(B, C, T, H, W)`` to half or twice the height and width."""
    batch, _, frames = hidden.shape[:3]
    out = layer.resample(hidden.transpose(1, 2).flatten(0, 1))
    return out.unflatten(0, (batch, frames)).transpose(1, 2)


def downsample(layer: WanResample, hidden: torch.Tensor) -> torch.Tensor:
    """Space, then time: the first frame stays, every further pair becomes one frame."""
    hidden = resample_space(layer, hidden)
    if layer.mode == "downsample3d":
        hidden = torch.cat([hidden[:, :, :1], layer.time_conv(hidden)], dim=2)
    return hidden


def upsample(layer: WanResample, hidden: torch.Tensor) -> torch.Tensor:
    """Time, then space: the first frame stays, every further frame becomes two."""
    if layer.mode == "upsample3d" and hidden.shape[2] > 1:
        first, rest = hidden[:, :, :1], hidden[:, :, 1:]
        channels = rest.shape[1]
        pairs = layer.time_conv(rest).unflatten(1, (2, channels))
        hidden = torch.cat([first, torch.stack(pairs.unbind(1), dim=3).flatten(2, 3)], dim=2)
    return resample_space(layer, hidden)


def encode(autoencoder: AutoencoderKLWan, clips: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and log-variance of the posterior, as ``autoencoder.encode`` gives them. ``clips``: ``(B, 3, T, H, W)``."""
    encoder = autoencoder.encoder
    hidden = encoder.conv_in(patchify(clips, patch_size=autoencoder.config.patch_size))
    for layer in encoder.down_blocks:
        hidden = downsample(layer, hidden) if isinstance(layer, WanResample) else layer(hidden)
    hidden = encoder.mid_block(hidden)
    hidden = encoder.conv_out(encoder.nonlinearity(encoder.norm_out(hidden)))
    mean, log_variance = autoencoder.quant_conv(hidden).float().chunk(2, dim=1)
    return mean, log_variance.clamp(-30, 20)


def decode(autoencoder: AutoencoderKLWan, latents: torch.Tensor) -> torch.Tensor:
    """What ``autoencoder.decode`` computes before it clamps to [-1, 1]: the clamp would stop the gradient."""
    decoder = autoencoder.decoder
    hidden = decoder.mid_block(decoder.conv_in(autoencoder.post_quant_conv(latents)))
    for block in decoder.up_blocks:
        for resnet in block.resnets:
            hidden = resnet(hidden)
        if block.upsamplers is not None:
            hidden = upsample(block.upsamplers[0], hidden)
    hidden = decoder.conv_out(decoder.nonlinearity(decoder.norm_out(hidden)))
    return unpatchify(hidden, patch_size=autoencoder.config.patch_size)
