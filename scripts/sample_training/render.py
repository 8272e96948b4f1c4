"""Clips composed on the device: sprites placed, moved, scaled and turned over a coloured background."""

from __future__ import annotations

import math
import random

import torch
import torch.nn.functional as F

from .sprites import Sprites
from .vocabulary import BACKGROUNDS, MOTIONS, Scene

SUPERSAMPLE = 2  # clips are drawn at twice the size and averaged, so that small subjects do not shimmer


def placements(scene: Scene, frames: int, rng: random.Random) -> list[list[tuple[float, float, float, float]]]:
    """``(x, y, scale, angle)`` for each subject of the scene and each frame.

    ``x``, ``y``: the centre, in half widths from the middle of the picture; ``scale``: width over the picture's width;
    ``angle``: radians, counter-clockwise.
    """
    jitter = [rng.uniform(-0.06, 0.06) for _ in range(4)]
    if scene.second >= 0:
        scale = rng.uniform(0.44, 0.48)
        return [
            [(-0.48 + jitter[0] / 2, jitter[1], scale, 0.0)] * frames,
            [(0.48 + jitter[2] / 2, jitter[3], scale, 0.0)] * frames,
        ]
    small = scene.size == 1
    scale = rng.uniform(0.40, 0.46) if small else rng.uniform(0.76, 0.84)
    reach = 0.5 if small else 0.34
    motion = MOTIONS[scene.motion]
    if small and not motion:
        jitter = [4 * value for value in jitter]
    path = []
    for frame in range(frames):
        phase = frame / max(frames - 1, 1)
        x, y, size, angle = jitter[0], jitter[1], scale, 0.0
        if motion == "moving left":
            x += reach * (1 - 2 * phase)
        elif motion == "moving right":
            x -= reach * (1 - 2 * phase)
        elif motion == "moving up":
            y += reach * (1 - 2 * phase)
        elif motion == "moving down":
            y -= reach * (1 - 2 * phase)
        elif motion == "growing":
            size *= 0.45 + 0.7 * phase
        elif motion == "shrinking":
            size *= 1.15 - 0.7 * phase
        elif motion == "spinning":
            angle = 2 * math.pi * frame / frames
        path.append((x, y, size, angle))
    return [path]


def render(sprites: Sprites, scenes: list[Scene], frames: int, height: int, width: int, seed: int) -> torch.Tensor:
    """Draw the scenes: float32 ``(batch, 3, frames, height, width)`` in [-1, 1] on the sprites' device.

    The same seed draws the same clips. Positions, colours and the loops' phases vary around what the scene says.
    """
    device = sprites.pixels.device
    rng = random.Random(seed)
    palette = list(BACKGROUNDS.values())
    backgrounds = [[min(max(c + rng.uniform(-10, 10), 0), 255) for c in palette[s.background]] for s in scenes]
    lengths = sprites.length.tolist()
    starts = sprites.start.tolist()
    layers: list[tuple[list[int], list[tuple[float, float, float, float]], list[bool]]] = [([], [], []), ([], [], [])]
    for scene in scenes:
        paths = placements(scene, frames, rng)
        for layer, subject in enumerate((scene.subject, scene.second)):
            phase = 2 * rng.randrange(64)
            shown = subject >= 0
            which = subject if shown else 0
            layers[layer][0].extend(starts[which] + (phase + f) % lengths[which] for f in range(frames))
            layers[layer][1].extend(paths[layer] if shown else [(0.0, 0.0, 1.0, 0.0)] * frames)
            layers[layer][2].append(shown)
    canvas = torch.tensor(backgrounds, device=device).view(-1, 1, 3, 1, 1) / 255.0
    canvas = canvas.expand(-1, frames, -1, height * SUPERSAMPLE, width * SUPERSAMPLE).contiguous()
    for indices, path, shown in layers:
        rows = torch.tensor([i for i, s in enumerate(shown) if s], device=device, dtype=torch.long)
        if rows.numel() == 0:
            continue
        pick = (rows[:, None] * frames + torch.arange(frames, device=device)).flatten()
        texture = sprites.pixels[torch.tensor(indices, device=device)[pick]].float() / 255.0
        x, y, scale, angle = torch.tensor(path, device=device)[pick].unbind(1)
        cos, sin = torch.cos(angle) / scale, torch.sin(angle) / scale
        # Output to input coordinates: turn and scale about the sprite's centre.
        matrix = torch.stack(
            [cos, -sin, -(cos * x - sin * y), sin, cos, -(sin * x + cos * y)],
            dim=1,
        ).view(-1, 2, 3)
        size = [texture.shape[0], 4, height * SUPERSAMPLE, width * SUPERSAMPLE]
        drawn = F.grid_sample(texture, F.affine_grid(matrix, size, align_corners=False), align_corners=False)
        drawn = drawn.view(rows.numel(), frames, 4, height * SUPERSAMPLE, width * SUPERSAMPLE)
        canvas[rows] = canvas[rows] * (1 - drawn[:, :, 3:]) + drawn[:, :, :3]
    clips = F.avg_pool2d(canvas.flatten(0, 1), SUPERSAMPLE).view(len(scenes), frames, 3, height, width)
    return clips.permute(0, 2, 1, 3, 4).mul(2).sub(1).clamp(-1, 1).contiguous()
