"""The words of the sample model: subjects, backgrounds, sizes, movements, and the captions made of them.

A clip is described by a :class:`Scene`; its caption is a pure function of the scene. Some pairs of attributes are never
trained on (the ``held_out`` functions below), so that a prompt can ask for a combination the model has not seen.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

#: phrase used in captions -> ``short_name`` in the package emoji-datasource.
SUBJECTS: dict[str, str] = {
    "heart": "heart",
    "rocket": "rocket",
    "cat": "cat",
    "dog": "dog",
    "fox": "fox_face",
    "panda": "panda_face",
    "frog": "frog",
    "lion": "lion_face",
    "pig": "pig",
    "penguin": "penguin",
    "fish": "tropical_fish",
    "whale": "whale",
    "octopus": "octopus",
    "turtle": "turtle",
    "bee": "bee",
    "butterfly": "butterfly",
    "unicorn": "unicorn_face",
    "dinosaur": "t-rex",
    "ghost": "ghost",
    "alien": "alien",
    "robot": "robot_face",
    "skull": "skull",
    "fire": "fire",
    "sun": "sun_with_face",
    "rainbow": "rainbow",
    "star": "star",
    "snowman": "snowman",
    "rain cloud": "rain_cloud",
    "crab": "crab",
    "car": "car",
    "bus": "bus",
    "train": "steam_locomotive",
    "helicopter": "helicopter",
    "airplane": "airplane",
    "flying saucer": "flying_saucer",
    "sailboat": "boat",
    "bomb": "bomb",
    "birthday cake": "birthday",
    "beer": "beer",
    "christmas tree": "christmas_tree",
    "pumpkin": "jack_o_lantern",
    "alarm clock": "alarm_clock",
    "hourglass": "hourglass",
    "teddy bear": "teddy_bear",
    "smiley": "smiley",
    "owl": "owl",
    "monkey": "monkey_face",
    "rabbit": "rabbit",
}

#: Background names and their sRGB colours; the first is what an unmentioned background is.
BACKGROUNDS: dict[str, tuple[int, int, int]] = {
    "white": (250, 250, 250),
    "black": (24, 24, 28),
    "red": (222, 66, 66),
    "orange": (246, 158, 70),
    "yellow": (250, 222, 96),
    "green": (104, 190, 112),
    "blue": (84, 142, 228),
    "purple": (150, 104, 206),
    "pink": (248, 172, 202),
    "gray": (152, 156, 162),
}

MOTIONS = ("", "moving left", "moving right", "moving up", "moving down", "growing", "shrinking", "spinning")
SIZES = ("", "small")

SUBJECT_NAMES = tuple(SUBJECTS)
BACKGROUND_NAMES = tuple(BACKGROUNDS)


@dataclass(frozen=True)
class Scene:
    """What one clip shows. Indices point into the tuples above; ``second`` is -1 for a single subject."""

    subject: int
    second: int = -1
    background: int = 0
    size: int = 0
    motion: int = 0
    name_background: bool = True
    bare: bool = False


def held_out_background(subject: int, background: int) -> bool:
    """True for the about one in eight (subject, background) pairs that training never shows. White is never one."""
    return background != 0 and (subject * 7 + background * 3) % 8 == 0


def held_out_motion(subject: int, motion: int) -> bool:
    """True for the one in seven (subject, movement) pairs that training never shows."""
    return motion != 0 and (subject * 3 + motion) % 7 == 0


def held_out_pair(first: int, second: int) -> bool:
    """True for the third of ordered (left, right) pairs that training never shows."""
    return (first + 2 * second) % 3 == 0


def seen_in_training(scene: Scene) -> bool:
    """Whether the training distribution can produce this scene."""
    if held_out_background(scene.subject, scene.background):
        return False
    if scene.second >= 0:
        return not held_out_pair(scene.subject, scene.second) and not held_out_background(
            scene.second, scene.background
        )
    return not held_out_motion(scene.subject, scene.motion)


def with_article(noun: str) -> str:
    """``"owl"`` -> ``"an owl"``."""
    vowel = noun.startswith("hour") or (noun[0] in "aeiou" and not noun.startswith("uni"))
    return f"{'an' if vowel else 'a'} {noun}"


def caption(scene: Scene) -> str:
    """The English caption of a scene, lower case, such as ``a small fox on a blue background moving left``."""
    noun = SUBJECT_NAMES[scene.subject]
    size = SIZES[scene.size]
    words = f"{size} {noun}" if size else noun
    text = words if scene.bare else with_article(words)
    if scene.second >= 0:
        other = SUBJECT_NAMES[scene.second]
        text += f" and {other if scene.bare else with_article(other)}"
    if scene.background != 0 or scene.name_background:
        text += f" on {with_article(BACKGROUND_NAMES[scene.background])} background"
    if scene.second < 0 and scene.motion:
        text += f" {MOTIONS[scene.motion]}"
    return text


def scene(subject: str, background: str = "white", second: str = "", size: str = "", motion: str = "") -> Scene:
    """A scene by its words; the background is named in the caption unless it is white."""
    return Scene(
        subject=SUBJECT_NAMES.index(subject),
        second=SUBJECT_NAMES.index(second) if second else -1,
        background=BACKGROUND_NAMES.index(background),
        size=SIZES.index(size),
        motion=MOTIONS.index(motion),
        name_background=background != "white",
    )


def sample_scene(rng: random.Random, subjects: int, pair_share: float = 0.12) -> Scene:
    """Draw one scene of the training distribution over the first ``subjects`` subjects."""
    while True:
        pair = rng.random() < pair_share
        subject = rng.randrange(subjects)
        scene = Scene(
            subject=subject,
            second=rng.randrange(subjects) if pair else -1,
            background=0 if rng.random() < 0.2 else rng.randrange(len(BACKGROUND_NAMES)),
            size=0 if pair else int(rng.random() < 0.25),
            motion=0 if pair or rng.random() < 0.45 else rng.randrange(1, len(MOTIONS)),
            name_background=rng.random() < 0.4,
            bare=rng.random() < 0.1,
        )
        if scene.second != scene.subject and seen_in_training(scene):
            return scene
