"""Build `tiny-wan`: a complete Wan text-to-video pipeline of a few MB, with random weights.

    python samples/build_tiny_wan.py [FOLDER]

It is a real `WanPipeline.from_pretrained` folder: UMT5 text encoder with a byte-level tokenizer, a Wan transformer with
head dim 128, a Wan VAE and the flow-matching scheduler, all at toy size. Its videos are noise; it is for tests and for
trying things where the trained sample is too large. The same seed writes the same weights.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel
from transformers import ByT5Tokenizer, UMT5Config, UMT5EncoderModel

SETTINGS = {
    "title": "tiny-wan: random weights, for tests",
    "height": 64,
    "width": 64,
    "num_frames": 9,
    "num_inference_steps": 4,
    "guidance_scale": 5.0,
    "fps": 8,
    "prompts": ["a red ball bouncing", "a blue square turning"],
}


def build_pipeline(seed: int = 0, num_layers: int = 2) -> WanPipeline:
    """Return the pipeline, in fp32 on the CPU."""
    torch.manual_seed(seed)
    vae = AutoencoderKLWan(
        base_dim=3, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
    )
    text_encoder = UMT5EncoderModel(
        UMT5Config(vocab_size=384, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0)
    )
    transformer = WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=128,
        in_channels=16,
        out_channels=16,
        text_dim=32,
        freq_dim=256,
        ffn_dim=256,
        num_layers=num_layers,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        rope_max_seq_len=32,
    )
    for module in (vae, text_encoder, transformer):
        module.eval().requires_grad_(False)
    return WanPipeline(
        tokenizer=ByT5Tokenizer(),
        text_encoder=text_encoder,
        transformer=transformer,
        vae=vae,
        scheduler=UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0),
    )


def build(folder: Path, seed: int = 0) -> None:
    """Write the pipeline and its recommended settings to `folder`, replacing a former build."""
    temporary = folder.with_name(f".{folder.name}.partial-{os.getpid()}")
    try:
        build_pipeline(seed).save_pretrained(temporary, safe_serialization=True)
        (temporary / "moon_sample.json").write_text(json.dumps(SETTINGS, indent=2) + "\n")
        if folder.exists():
            if not (folder / "model_index.json").exists():
                raise SystemExit(f"{folder} exists and holds no pipeline; not replacing it")
            shutil.rmtree(folder)
        os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "tiny-wan"
    build(target)
    size = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
    print(f"{target}: {size / 1e6:.1f} MB")
