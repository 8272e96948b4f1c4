"""Stage 2: WanTransformer3DModel and the text encoder together, flow matching on the latents of composed clips."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

from .models import Networks, encode_text, token_ids, use_training_attention
from .schedule import Schedule
from .vocabulary import BACKGROUND_NAMES, MOTIONS, SIZES, SUBJECT_NAMES, Scene, caption

PROMPT_DROP = 0.12  # share of captions replaced by the empty prompt, for classifier-free guidance
EMA_DECAY = 0.9995
HINT_WEIGHT = 0.1


class CaptionHints(nn.Module):
    """Linear heads that read a scene's attributes back from the mean prompt embedding. Training only.

    They teach the text encoder the words long before the pictures would; they are not part of the pipeline.
    """

    def __init__(self, text_dim: int) -> None:
        super().__init__()
        sizes = (len(SUBJECT_NAMES), len(SUBJECT_NAMES) + 1, len(BACKGROUND_NAMES), len(MOTIONS), len(SIZES))
        self.heads = nn.ModuleList(nn.Linear(text_dim, n) for n in sizes)

    def forward(self, embeddings: torch.Tensor, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy. ``labels``: int64 ``(batch, 5)``."""
        count = (ids != 0).sum(1, keepdim=True).to(embeddings.dtype)
        pooled = embeddings.sum(1) / count
        losses = [F.cross_entropy(head(pooled).float(), labels[:, i]) for i, head in enumerate(self.heads)]
        return torch.stack(losses).mean()


def scene_labels(scenes: list[Scene]) -> torch.Tensor:
    """Targets of :class:`CaptionHints`: int64 ``(scenes, 5)``."""
    return torch.tensor([[s.subject, s.second + 1, s.background, s.motion, s.size] for s in scenes])


class Average:
    """Exponential moving average of the trained weights, kept in fp32."""

    def __init__(self, modules: list[nn.Module]) -> None:
        self.live = [p for m in modules for p in m.parameters()]
        self.kept = [p.detach().clone().float() for p in self.live]
        self.updates = 0

    @torch.no_grad()
    def update(self) -> None:
        """Take in the current weights."""
        self.updates += 1
        decay = min(EMA_DECAY, (1 + self.updates) / (10 + self.updates))
        torch._foreach_lerp_(self.kept, self.live, 1 - decay)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the averaged weights and the live ones."""
        for kept, live in zip(self.kept, self.live, strict=True):
            held = live.detach().clone()
            live.copy_(kept)
            kept.copy_(held)


def draw_sigmas(count: int, generator: torch.Generator, device: torch.device) -> torch.Tensor:
    """Noise levels in (0, 1): logit-normal, leaning to the noisy side where few-step sampling spends its steps."""
    return torch.sigmoid(torch.randn(count, generator=generator, device=device) * 1.1 + 0.5)


class Stage:
    """Everything that stage 2 needs to go on after a cut: networks, optimizer, average, step."""

    def __init__(self, networks: Networks, seed: int, rate: float) -> None:
        self.networks, self.seed, self.step = networks, seed, 0
        device = networks.device
        torch.manual_seed(seed + 1)
        self.hints = CaptionHints(networks.shape.text_dim).to(device)
        self.average = Average([networks.transformer, networks.text_encoder])
        modules: list[nn.Module] = [networks.transformer, networks.text_encoder, self.hints]
        matrices = [p for m in modules for p in m.parameters() if p.ndim >= 2]
        vectors = [p for m in modules for p in m.parameters() if p.ndim < 2]
        groups = [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
        self.parameters = matrices + vectors
        self.optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), fused=device.type == "cuda")

    def state(self) -> dict[str, Any]:
        """A checkpoint of this stage."""
        return {
            "transformer": self.networks.transformer.state_dict(),
            "text_encoder": self.networks.text_encoder.state_dict(),
            "hints": self.hints.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average.kept,
            "updates": self.average.updates,
            "step": self.step,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Take up a checkpoint made by :meth:`state`."""
        self.networks.transformer.load_state_dict(state["transformer"])
        self.networks.text_encoder.load_state_dict(state["text_encoder"])
        self.hints.load_state_dict(state["hints"])
        self.optimizer.load_state_dict(state["optimizer"])
        for kept, saved in zip(self.average.kept, state["average"], strict=True):
            kept.copy_(saved)
        self.average.updates, self.step = state["updates"], state["step"]

    def restart_from(self, weights: dict[str, dict[str, torch.Tensor]]) -> None:
        """Begin from averaged weights alone (``{"transformer": ..., "text_encoder": ..., "hints": ...}``)."""
        self.networks.transformer.load_state_dict(weights["transformer"])
        self.networks.text_encoder.load_state_dict(weights["text_encoder"])
        if "hints" in weights:
            self.hints.load_state_dict(weights["hints"])
        for kept, live in zip(self.average.kept, self.average.live, strict=True):
            kept.copy_(live.detach().float())
        self.average.updates = 0


def train(
    stage: Stage,
    bank: torch.Tensor,
    scenes: list[Scene],
    schedule: Schedule,
    batch: int,
    compile_blocks: bool = False,
    every: Callable[[Stage], None] | None = None,
) -> Iterator[tuple[int, dict[str, float]]]:
    """Train in place on ``bank`` (normalised latents), yielding ``(step, {"loss", ...})`` every so often.

    ``every``: called after each report, to write a checkpoint if it is time.
    """
    networks, device = stage.networks, stage.networks.device
    transformer, encoder, shape = networks.transformer, networks.text_encoder, networks.shape
    transformer.train().requires_grad_(True)
    encoder.train().requires_grad_(True)
    use_training_attention(transformer, shape.text_tokens)
    blocks = list(transformer.blocks)
    if compile_blocks:
        for block in blocks:
            block.compile(dynamic=False)
    ids = token_ids([caption(scene) for scene in scenes], shape.text_tokens).to(device)
    labels = scene_labels(scenes).to(device)
    empty = token_ids([""], shape.text_tokens).to(device)
    first, began = stage.step, time.monotonic()
    running = torch.zeros(2, device=device)
    since = 0
    while not schedule.done(stage.step - first):
        for group in stage.optimizer.param_groups:
            group["lr"] = schedule.learning_rate(stage.step - first)
        # One generator a step: a run that was cut sees the same batches as one that was not.
        generator = torch.Generator(device=device).manual_seed(stage.seed * 1_000_003 + stage.step)
        pick = torch.randint(bank.shape[0], (batch,), generator=generator, device=device)
        clean = bank[pick].float()
        noise = torch.randn(clean.shape, generator=generator, device=device)
        sigma = draw_sigmas(batch, generator, device)
        dropped = torch.rand(batch, generator=generator, device=device) < PROMPT_DROP
        noisy = torch.lerp(clean, noise, sigma.view(-1, 1, 1, 1, 1))
        with torch.autocast(device.type, dtype=torch.bfloat16):
            embeddings = encode_text(encoder, ids[pick])
            hint = stage.hints(embeddings, ids[pick], labels[pick])
            nothing = encode_text(encoder, empty)
            context = torch.where(dropped[:, None, None], nothing, embeddings)
            velocity = transformer(noisy, sigma * 1000, context, return_dict=False)[0]
        loss = F.mse_loss(velocity.float(), noise - clean)
        stage.optimizer.zero_grad(set_to_none=True)
        (loss + HINT_WEIGHT * hint).backward()
        torch.nn.utils.clip_grad_norm_(stage.parameters, 1.0)
        stage.optimizer.step()
        stage.average.update()
        running += torch.stack([loss.detach(), hint.detach()])
        since += 1
        stage.step += 1
        if stage.step % 100 == 0 or schedule.done(stage.step - first):
            mean = (running / since).tolist()
            running.zero_()
            since = 0
            yield stage.step, {"loss": mean[0], "hint": mean[1], "seconds": time.monotonic() - began}
            if every is not None:
                every(stage)
