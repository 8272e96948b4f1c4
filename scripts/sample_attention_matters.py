#!/usr/bin/env python3
"""Does attention matter in the sample model? Break it in known ways and see how far the clip moves.

Usage::

    python scripts/sample_attention_matters.py [--model samples/wan-emoji] [--prompt TEXT] [--update-card]

Every row is one run from the same latents as the baseline: the final latents' relative L2 error and the PSNR of the
decoded clip. A row that moved no further than the noise floor (attention computed in fp32) would mean that no quality
figure taken on this model can notice that mistake. ``--update-card`` writes the table into the model card.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

ROOT = Path(__file__).resolve().parents[1]
TILE = 64  # keys in one tile of the kernel's loop
BEGIN, END = "<!-- attention-matters -->", "<!-- /attention-matters -->"
Change = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def zero(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """No attention at all."""
    return torch.zeros_like(q)


def swap_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Head 0's result where head 1's belongs, and the reverse."""
    out = scaled_dot_product_attention(q, k, v)
    return out[:, [1, 0, *range(2, out.shape[1])]]


def drop_last_tile(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The loop over key tiles ends one tile early."""
    kept = (k.shape[2] - 1) // TILE * TILE
    return scaled_dot_product_attention(q, k[:, :, :kept], v[:, :, :kept])


def in_fp32(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The same attention in fp32: what rounding alone does."""
    return scaled_dot_product_attention(q.float(), k.float(), v.float()).to(q.dtype)


class Altered(TorchFunctionMode):
    """Within the block, attention calls of the modules whose name ends in one of ``suffixes`` go through ``change``."""

    def __init__(self, model: torch.nn.Module, change: Change, suffixes: tuple[str, ...]) -> None:
        super().__init__()
        self.change, self.active, self.served, self.handles = change, False, 0, []
        for name, module in model.named_modules():
            if hasattr(module, "processor") and name.endswith(suffixes):
                self.handles.append(module.register_forward_pre_hook(lambda *_: self.switch(True)))
                self.handles.append(module.register_forward_hook(lambda *_: self.switch(False)))

    def switch(self, active: bool) -> None:
        """An altered module begins or ends."""
        self.active = active

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is scaled_dot_product_attention and self.active:
            self.served += 1
            given = dict(zip(("query", "key", "value"), args, strict=False)) | (kwargs or {})
            return self.change(given["query"], given["key"], given["value"])
        return func(*args, **(kwargs or {}))

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for handle in self.handles:
            handle.remove()


@dataclass
class Row:
    """One line of the table."""

    what: str
    latent_error: float
    psnr: float | None

    def markdown(self) -> str:
        """As a table row."""
        return f"| {self.what} | {self.latent_error:.3f} | {'identical' if self.psnr is None else f'{self.psnr:.1f}'} |"


def variations(layers: int) -> list[tuple[str, Change, tuple[str, ...]]]:
    """``(label, change, modules)`` of every row that alters attention."""
    rows: list[tuple[str, Change, tuple[str, ...]]] = [
        ("noise floor: all attention in fp32", in_fp32, ("attn1", "attn2"))
    ]
    for layer in range(layers):
        rows.append((f"self-attention of layer {layer} zeroed", zero, (f"blocks.{layer}.attn1",)))
    for layer in range(layers):
        rows.append((f"cross-attention of layer {layer} zeroed", zero, (f"blocks.{layer}.attn2",)))
    for label, suffix in (("self-attention", "attn1"), ("cross-attention", "attn2")):
        rows.append((f"heads 0 and 1 swapped, all {label}", swap_heads, (suffix,)))
        rows.append((f"last key tile dropped, all {label}", drop_last_tile, (suffix,)))
    middle = layers // 2
    rows.append((f"heads 0 and 1 swapped, self-attention of layer {middle}", swap_heads, (f"blocks.{middle}.attn1",)))
    rows.append(
        (f"last key tile dropped, self-attention of layer {middle}", drop_last_tile, (f"blocks.{middle}.attn1",))
    )
    return rows


def measure(
    model: Path,
    prompt: str | None,
    other: str,
    seed: int,
    steps: int | None,
    guidances: tuple[float, ...] = (1.0, 2.0, 8.0),
) -> tuple[str, list[Row]]:
    """Run every row; returns the prompt and the rows."""
    from diffusers import WanPipeline

    settings = json.loads((model / "moon_sample.json").read_text())
    chosen = prompt or settings["prompts"][0]
    pipeline = WanPipeline.from_pretrained(model, torch_dtype=torch.bfloat16)
    pipeline.vae.to(torch.float32)
    pipeline.set_progress_bar_config(disable=True)

    def run(text: str = chosen, guidance: float = settings["guidance_scale"]) -> tuple[torch.Tensor, np.ndarray]:
        seen: list[torch.Tensor] = []

        def keep(_pipe: Any, _step: int, _timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
            seen.append(values["latents"].double())
            return {}

        frames = pipeline(
            prompt=text,
            height=settings["height"],
            width=settings["width"],
            num_frames=settings["num_frames"],
            num_inference_steps=steps or settings["num_inference_steps"],
            guidance_scale=guidance,
            generator=torch.Generator().manual_seed(seed),
            callback_on_step_end=keep,
            output_type="np",
        ).frames[0]
        return seen[-1], frames

    base_latents, base_frames = run()
    rows: list[Row] = []

    def add(what: str, result: tuple[torch.Tensor, np.ndarray]) -> None:
        error = float((result[0] - base_latents).norm() / base_latents.norm())
        mse = float(np.square(result[1].astype(np.float64) - base_frames).mean())
        rows.append(Row(what, error, None if mse == 0 else -10 * float(np.log10(mse))))
        print(rows[-1].markdown(), flush=True)

    add("the baseline again", run())
    for what, change, suffixes in variations(len(pipeline.transformer.blocks)):
        with Altered(pipeline.transformer, change, suffixes) as altered:
            result = run()
        if altered.served == 0:
            raise SystemExit(f"{what}: no attention call was altered")
        add(what, result)
    add(f'another prompt, same latents: "{other}"', run(text=other))
    for guidance in guidances:
        add(f"guidance scale {guidance:g} instead of {settings['guidance_scale']:g}", run(guidance=guidance))
    return chosen, rows


def table(prompt: str, rows: list[Row]) -> str:
    """The Markdown for the model card."""
    head = f'Prompt "{prompt}", bf16 on a CPU.\n\n| what is changed | latent relative L2 | clip PSNR, dB |\n|---|---|---|\n'
    return head + "\n".join(row.markdown() for row in rows) + "\n"


def update_card(card: Path, text: str) -> None:
    """Replace what stands between the markers of the model card."""
    content = card.read_text()
    if BEGIN not in content or END not in content:
        raise SystemExit(f"{card}: has no {BEGIN} ... {END}")
    before, rest = content.split(BEGIN, 1)
    card.write_text(f"{before}{BEGIN}\n{text}{END}{rest.split(END, 1)[1]}")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=ROOT / "samples" / "wan-emoji")
    parser.add_argument("--prompt", help="default: the model's first")
    parser.add_argument("--other", default="a cat on a yellow background", help="the prompt to compare with")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="default: the model's own")
    parser.add_argument("--update-card", action="store_true", help="write the table into the model's README.md")
    options = parser.parse_args()
    if not (options.model / "moon_sample.json").is_file():
        parser.error(f"--model: {str(options.model)!r} is not accepted; accepted: the folder of a sample pipeline")
    if options.steps is not None and options.steps < 1:
        parser.error(f"--steps: {options.steps} is not accepted; accepted: 1 or more")
    prompt, rows = measure(options.model, options.prompt, options.other, options.seed, options.steps)
    floor = next(row for row in rows if row.what.startswith("noise floor"))
    dull = [row.what for row in rows[2:] if row.latent_error < 2 * floor.latent_error]
    if options.update_card:
        update_card(options.model / "README.md", table(prompt, rows))
    if dull:
        sys.exit(f"within twice the noise floor, so invisible on this model: {'; '.join(dull)}")


if __name__ == "__main__":
    main()
