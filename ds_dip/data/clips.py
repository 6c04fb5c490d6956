"""Packed video clips at the sizes large models train on, with made-up content: for planning and measuring speed.

Every sample is up to ``clips`` clips of one source with their captions, at 16 frames a second and at most 16 seconds
(DIP, evaluation). Lengths are log-normal by published figures: WebVid, a median of 17 s and 47 s at 95 % (a sample of
100); InternVid, 85 % under 10 s, captions of 17.5 words; Panda-70M, a mean of 8.5 s. Assumptions are: the spread of
InternVid and Panda-70M, captions of the other two, how often each source comes, frames of 256 pixels, an autoencoder
that makes sides 8 times and frames 4 times fewer, patches of 2 x 2, and 1.35 tokens a word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from random import Random

import numpy as np

from ds_dip.data.metadata import SampleMetadata

FIELDS = ("tokens", "latents")
#: Share of samples, median seconds of a clip and their spread (log), mean words of a caption.
SOURCES: Mapping[str, tuple[float, float, float, float]] = {
    "webvid": (0.34, 17.0, 0.62, 14.0),
    "internvid": (0.33, 4.4, 0.80, 17.5),
    "panda": (0.33, 7.1, 0.60, 13.0),
}
RATE, SECONDS, TOKENS_A_WORD = 16, 16.0, 1.35
#: Frames that become one latent frame.
FRAMES = 4
#: Spread (log) of a caption's words.
_CAPTION = 0.35


class PackedClips:
    """A dataset of ``samples`` samples of 1 to ``clips`` clips, together at most ``context`` patches.

    A latent frame is ``frame`` patches of ``numbers`` numbers. Clips come one after another from the sample's source,
    cut at 16 seconds, until there are ``clips`` or the next would not fit. Captions have tokens below ``vocabulary``.
    All follows from the index and the seed.
    Raises ValueError where the longest clip does not fit into the context, or a count is below 1.
    """

    def __init__(
        self,
        samples: int,
        clips: int = 8,
        context: int = 65536,
        frame: int = 256,
        numbers: int = 64,
        vocabulary: int = 128256,
        seed: int = 0,
    ) -> None:
        counts = {"samples": samples, "clips": clips, "frame": frame, "numbers": numbers, "vocabulary": vocabulary}
        for name, value in counts.items():
            if value < 1:
                raise ValueError(f"{name} is {value}, expected at least 1")
        longest = round(SECONDS * RATE) // FRAMES * frame
        if context < longest:
            raise ValueError(f"context is {context}, expected at least the {longest} patches of the longest clip")
        self.samples, self.clips, self.context, self.frame = samples, clips, context, frame
        self.numbers, self.vocabulary, self.seed = numbers, vocabulary, seed

    def __len__(self) -> int:
        return self.samples

    def metadata(self, index: int) -> SampleMetadata:
        """Patches of every clip and tokens of every caption of the sample at ``index``.

        ``merged`` of a clip are the tokens of its caption.
        """
        if not 0 <= index < self.samples:
            raise IndexError(f"sample {index} was asked for, and the dataset holds 0 to {self.samples - 1}")
        clips = self._clips(index)
        patches, captions = tuple(frames * self.frame for frames, _ in clips), tuple(text for _, text in clips)
        return SampleMetadata(
            id=f"clips-{index}",
            modules={"text": captions, "video": patches},
            loss_tokens=sum(patches),
            merged={"text": captions, "video": captions},
        )

    def load(self, sample: str, fields: Sequence[str]) -> Mapping[str, list[np.ndarray]]:
        """``tokens`` int64 [tokens] of every caption; ``latents`` float32 [patches, numbers] of every clip.

        Raises ValueError for a sample of another dataset or an unknown field.
        """
        prefix, _, number = sample.rpartition("-")
        if prefix != "clips" or not number.isdecimal() or int(number) >= self.samples:
            raise ValueError(f"sample {sample!r} is not of this dataset: expected clips-0 to clips-{self.samples - 1}")
        for name in fields:
            if name not in FIELDS:
                raise ValueError(f"field {name!r} was asked for, and packed clips have {', '.join(FIELDS)}")
        loaded: dict[str, list[np.ndarray]] = {}
        clips = self._clips(int(number))
        noise = np.random.default_rng([self.seed, int(number)])
        loaded["tokens"] = [noise.integers(0, self.vocabulary, text) for _, text in clips]
        if "latents" in fields:
            loaded["latents"] = [
                noise.standard_normal((frames * self.frame, self.numbers), np.float32) for frames, _ in clips
            ]
        return {name: loaded[name] for name in fields}

    def _clips(self, index: int) -> list[tuple[int, int]]:
        """(latent frames, tokens of the caption) of every clip of a sample."""
        random = Random(f"{self.seed}/clips/{index}")
        (source,) = random.choices(tuple(SOURCES), weights=[share for share, *_ in SOURCES.values()])
        _, median, spread, words = SOURCES[source]
        left = self.context // self.frame
        clips: list[tuple[int, int]] = []
        while len(clips) < self.clips:
            seconds = min(SECONDS, random.lognormvariate(log(median), spread))
            frames = max(1, round(seconds * RATE) // FRAMES)
            # The mean of a log-normal is above its median.
            caption = random.lognormvariate(log(words) - _CAPTION**2 / 2, _CAPTION)
            if frames > left:
                break
            clips.append((frames, max(1, round(caption * TOKENS_A_WORD))))
            left -= frames
        return clips
