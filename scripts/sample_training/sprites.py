"""The animated pictures: fetched with npm, cut to a small loop of frames each, kept as lossless WebP strips.

Source: ``@lobehub/fluent-emoji-anim-1`` to ``-4`` (MIT, Fluent Emoji by Microsoft), captions by ``emoji-datasource``
(MIT). Nothing of it is committed; ``prepare`` needs ``npm`` and the network once.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw

from .vocabulary import SUBJECT_NAMES, SUBJECTS

ANIMATION_PACKAGES = tuple(f"@lobehub/fluent-emoji-anim-{n}@1.0.0" for n in (1, 2, 3, 4))
NAMES_PACKAGE = "emoji-datasource@16.0.0"
SPRITE_SIZE = 96  # pixels
FRAME_STRIDE = 4  # the sources have 24 frames a second: the loops kept have 6


@dataclass
class Sprites:
    """All loops on one device.

    ``pixels``: uint8 ``(frames, 4, SPRITE_SIZE, SPRITE_SIZE)``, RGB premultiplied by alpha, then alpha.
    ``start`` and ``length``: int64 ``(subjects,)``, each subject's slice of ``pixels``.
    """

    pixels: torch.Tensor
    start: torch.Tensor
    length: torch.Tensor

    @property
    def subjects(self) -> int:
        """Number of subjects."""
        return int(self.start.numel())

    def to(self, device: torch.device | str) -> Sprites:
        """The same sprites on another device."""
        return Sprites(self.pixels.to(device), self.start.to(device), self.length.to(device))


def npm_pack(package: str, directory: Path) -> Path:
    """Fetch ``package`` as a tarball into ``directory`` with npm and return its path."""
    if shutil.which("npm") is None:
        raise SystemExit("npm is not on PATH: install Node.js to fetch the training data")
    done = subprocess.run(
        ["npm", "pack", "--silent", package], cwd=directory, check=True, stdout=subprocess.PIPE, text=True
    )
    return directory / done.stdout.strip().splitlines()[-1]


def prepare(output: Path, frame_stride: int = FRAME_STRIDE, tarballs: Path | None = None) -> None:
    """Write one lossless WebP strip for each subject, and ``index.json``, into ``output``.

    ``tarballs``: a directory that already holds the packages' ``.tgz`` files; otherwise they are fetched.
    """
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        room = tarballs or Path(temporary)

        def tarball(package: str) -> Path:
            name = package.rsplit("@", 1)[0].replace("@", "").replace("/", "-")
            found = sorted(room.glob(f"{name}-*.tgz"))
            return found[0] if found else npm_pack(package, room)

        with tarfile.open(tarball(NAMES_PACKAGE)) as archive:
            member = archive.extractfile("package/emoji.json")
            assert member is not None
            codes = {entry["short_name"]: entry["unified"].lower() for entry in json.load(member)}
        wanted = {f"package/assets/{codes[short]}.webp": phrase for phrase, short in SUBJECTS.items()}
        index: dict[str, dict[str, object]] = {}
        for package in ANIMATION_PACKAGES:
            with tarfile.open(tarball(package)) as archive:
                for entry in archive:
                    phrase = wanted.get(entry.name)
                    if phrase is None or phrase in index:
                        continue
                    stream = archive.extractfile(entry)
                    assert stream is not None
                    with Image.open(stream) as clip:
                        count = getattr(clip, "n_frames", 1)
                        if count == 1:
                            continue  # the packages also hold stills
                        frames = []
                        for position in range(0, count - frame_stride // 2, frame_stride):
                            clip.seek(position)
                            frames.append(shrink(clip.convert("RGBA")))
                    strip = np.concatenate(frames, axis=0)
                    name = f"{phrase.replace(' ', '-')}.webp"
                    Image.fromarray(strip, "RGBA").save(output / name, lossless=True, exact=True)
                    index[phrase] = {"file": name, "frames": len(frames), "package": package}
        missing = [phrase for phrase in SUBJECTS if phrase not in index]
        if missing:
            raise SystemExit(f"no animation found for: {', '.join(missing)}")
        (output / "index.json").write_text(json.dumps(index, indent=1) + "\n")


def shrink(frame: Image.Image) -> np.ndarray:
    """A 256x256 RGBA frame as premultiplied uint8 ``(SPRITE_SIZE, SPRITE_SIZE, 4)``."""
    pixels = np.asarray(frame, dtype=np.float32)
    alpha = pixels[..., 3:] / 255.0
    premultiplied = np.concatenate([pixels[..., :3] * alpha, pixels[..., 3:]], axis=-1)
    channels = [
        np.asarray(Image.fromarray(premultiplied[..., c], "F").resize((SPRITE_SIZE, SPRITE_SIZE), Image.Resampling.BOX))
        for c in range(4)
    ]
    return np.stack(channels, axis=-1).round().clip(0, 255).astype(np.uint8)


def load(directory: Path) -> Sprites:
    """Read what :func:`prepare` wrote, in the order of the vocabulary."""
    index = json.loads((directory / "index.json").read_text())
    parts, lengths = [], []
    for phrase in SUBJECT_NAMES:
        with Image.open(directory / index[phrase]["file"]) as strip:
            pixels = np.asarray(strip.convert("RGBA"))
        parts.append(pixels.reshape(-1, SPRITE_SIZE, SPRITE_SIZE, 4))
        lengths.append(parts[-1].shape[0])
    return pack(parts, lengths)


def drawn(subjects: int = 4, frames: int = 6) -> Sprites:
    """Stand-ins for the dry run: ``subjects`` drawn shapes that wobble, no download."""
    parts = []
    for subject in range(subjects):
        loop = []
        for frame in range(frames):
            image = Image.new("RGBA", (SPRITE_SIZE, SPRITE_SIZE), (0, 0, 0, 0))
            draw = ImageDraw.Draw(image)
            edge = 12 + 8 * (frame % 3)
            box = (edge, edge, SPRITE_SIZE - edge, SPRITE_SIZE - edge)
            colour = ((60 + 97 * subject) % 256, (200 - 61 * subject) % 256, (40 + 151 * subject) % 256, 255)
            if subject % 2:
                draw.rectangle(box, fill=colour)
            else:
                draw.ellipse(box, fill=colour)
            loop.append(np.asarray(image))
        parts.append(np.stack(loop))
    return pack(parts, [frames] * subjects)


def pack(parts: list[np.ndarray], lengths: list[int]) -> Sprites:
    """Join per-subject ``(frames, H, W, 4)`` arrays into one :class:`Sprites`."""
    length = torch.tensor(lengths)
    pixels = torch.from_numpy(np.concatenate(parts)).permute(0, 3, 1, 2).contiguous()
    return Sprites(pixels, length.cumsum(0) - length, length)
