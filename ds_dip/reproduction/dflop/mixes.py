"""The data of the evaluation by its sizes: single images, several images, videos, a mix of them, and audio.

Tiles of single images are counted ones (``data.questions``); of the others the published shape (frames at one a second,
32 at most, 210 tokens a frame; audio in windows of 30 s) with spreads that are assumptions, said here.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from random import Random

from ds_dip.data import SampleMetadata
from ds_dip.data.questions import ImageQuestions

MIXES = ("single image", "multi image", "video", "mixed")
AUDIO = "audio"
#: Thousands of samples: LLaVA-Wild, AI2D and InfographicVQA; M4-Instruct; LLaVA-Video.
_SHARES = {"single image": 65, "multi image": 60, "video": 60}
#: (patches, tokens) of a tile and tokens of a video's frame, by the encoder's patches a tile.
TILES: Mapping[int, tuple[int, int]] = {729: (729, 210), 1024: (256, 256)}
#: Assumptions: images of a sample that has several, at most; medians and spreads (log) of lengths in seconds, and of
#: a text in tokens.
_IMAGES = 8
_VIDEO, _SOUND, _TEXT = (30.0, 0.9), (8.0, 0.8), (90.0, 0.8)
_FRAMES, _WINDOW, _PATCHES, _A_SECOND = 32, 30.0, 1500, 25


def draw_mix(mix: str, count: int, patches: int, seed: int = 0) -> tuple[SampleMetadata, ...]:
    """``count`` samples of a mix for an encoder of ``patches`` patches a tile; ValueError for an unknown mix."""
    if mix not in (*MIXES, AUDIO):
        raise ValueError(f"mix is {mix!r}: use one of {', '.join((*MIXES, AUDIO))}")
    questions = ImageQuestions(count, seed=seed)
    return tuple(_sample(mix, index, patches, Random(f"{seed} {mix} {index}"), questions) for index in range(count))


def _sample(mix: str, index: int, patches: int, random: Random, questions: ImageQuestions) -> SampleMetadata:
    if mix == AUDIO:
        sounds = random.choices((1, 2, 3), (8, 1, 1))[0]
        seconds = [min(_WINDOW, random.lognormvariate(log(_SOUND[0]), _SOUND[1])) for _ in range(sounds)]
        return _made(index, "audio", [_PATCHES] * sounds, [max(1, round(_A_SECOND * own)) for own in seconds], random)
    if mix == "mixed":
        mix = random.choices(tuple(_SHARES), tuple(_SHARES.values()))[0]
    tile, frame = TILES[patches]
    if mix == "video":
        frames = max(1, min(_FRAMES, round(random.lognormvariate(log(_VIDEO[0]), _VIDEO[1]))))
        return _made(index, "vision", [patches] * frames, [frame] * frames, random)
    tiles = random.randint(2, _IMAGES) if mix == "multi image" else len(questions.metadata(index).modules["vision"])
    return _made(index, "vision", [patches] * tiles, [tile] * tiles, random)


def _made(index: int, module: str, sizes: list[int], merged: list[int], random: Random) -> SampleMetadata:
    text = max(4, round(random.lognormvariate(log(_TEXT[0]), _TEXT[1])))
    whole = (sum(merged) + text,)
    return SampleMetadata(
        f"{module}-{index}", {module: tuple(sizes), "language": whole}, text, {module: tuple(merged), "language": whole}
    )
