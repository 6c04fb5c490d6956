"""Questions about images at the sizes of real ones, for planning: tiles and text as counted in published records.

Shares of tile counts and quantiles of text tokens are those of the AI2D (12 413) and DocVQA (10 211) records of
ModelTC/OmniBal (``data/vision``, Apache-2.0) under InternVL tiling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import NoReturn

from ds_dip.data.metadata import SampleMetadata
from ds_dip.data.omnibal import MERGED, PATCHES

#: Per source the share of each tile count, and tokens of text at ``_SHARES`` of the samples.
SOURCES: Mapping[str, tuple[Mapping[int, float], tuple[float, ...]]] = {
    "ai2d": ({1: 0.4667, 3: 0.2989, 4: 0.0486, 5: 0.1858}, (37, 41, 43, 47, 52, 58, 67, 75, 99, 347)),
    "docvqa": ({1: 0.0015, 3: 0.1856, 4: 0.0034, 5: 0.8095}, (53, 66, 73, 135, 231, 378, 577, 697, 866, 1258)),
}
_SHARES = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)


class ImageQuestions:
    """``samples`` questions, each of one of ``sources`` at random, of tiles of ``patches`` patches.

    All follows from the index and the seed; there are no images in it. Raises ValueError for a source that is not
    known, and for fewer than one sample.
    """

    def __init__(self, samples: int, sources: Sequence[str] = ("ai2d", "docvqa"), seed: int = 0) -> None:
        if samples < 1:
            raise ValueError(f"samples is {samples}, expected at least 1")
        if not sources or not set(sources) <= set(SOURCES):
            raise ValueError(f"sources is {list(sources)}, expected some of {', '.join(SOURCES)}")
        self.samples, self.sources, self.seed = samples, tuple(sources), seed

    def __len__(self) -> int:
        return self.samples

    def metadata(self, index: int) -> SampleMetadata:
        """Tiles and tokens of the question at ``index``."""
        random = Random(f"{self.seed} {index}")
        source = random.choice(self.sources)
        shares, texts = SOURCES[source]
        (tiles,) = random.choices(list(shares), list(shares.values()))
        at = random.random()
        place = next(place for place, share in enumerate(_SHARES) if share >= at or share == 1.0) or 1
        low, high = _SHARES[place - 1], _SHARES[place]
        text = round(texts[place - 1] + (texts[place] - texts[place - 1]) * (at - low) / (high - low))
        tokens = tiles * MERGED + text
        return SampleMetadata(
            id=f"{source}-{index}",
            modules={"vision": (PATCHES,) * tiles, "language": (tokens,)},
            loss_tokens=text,
            merged={"vision": (MERGED,) * tiles, "language": (tokens,)},
        )

    def load(self, sample: str, fields: Sequence[str]) -> NoReturn:
        """Refuse: there are sizes alone."""
        raise ValueError("image questions have sizes and no images: plan with them, and train on a dataset that has")
