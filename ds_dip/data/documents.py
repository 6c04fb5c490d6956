"""Packed documents at the sizes large models train on, with made-up content: for planning and for measuring speed.

Every sample is one sequence of ``context`` tokens, packed from the documents of one source. Sources differ in
images and text a document by published figures: OBELICS 2.5 images and 816 tokens, MMC4 5.64 images and 425
tokens, LAION captions of one image with a median of 8 words. How often each source comes is an assumption.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from random import Random

import numpy as np

from ds_dip.data.metadata import SampleMetadata
from ds_dip.models.kinds import IGNORED

FIELDS = ("tokens", "labels", "pixels")
#: Share of sequences, mean images a document (captions: exactly one), median and spread (log) of its text in tokens.
SOURCES: Mapping[str, tuple[float, float, float, float]] = {
    "text": (0.15, 0.0, 700.0, 1.0),
    "obelics": (0.35, 2.5, 520.0, 0.95),
    "mmc4": (0.25, 5.64, 270.0, 0.95),
    "captions": (0.25, 1.0, 11.0, 0.55),
}


class PackedDocuments:
    """A dataset of ``samples`` sequences of ``context`` tokens with at most ``images`` images each.

    An image is ``patches`` patches, merged to ``merged`` tokens, each of which is ``placeholder`` in the text;
    a patch holds ``pixels`` numbers. All follows from the index and the seed.
    Raises ValueError where an image does not fit into the context, or a count is below 1.
    """

    def __init__(
        self,
        samples: int,
        context: int = 8192,
        images: int = 48,
        patches: int = 2704,
        merged: int = 169,
        pixels: int = 588,
        placeholder: int = 128255,
        seed: int = 0,
    ) -> None:
        for name, value in (("samples", samples), ("patches", patches), ("merged", merged), ("pixels", pixels)):
            if value < 1:
                raise ValueError(f"{name} is {value}, expected at least 1")
        if images < 0 or placeholder < 1:
            raise ValueError(f"images is {images} and placeholder {placeholder}, expected at least 0 and 1")
        if context <= merged:
            raise ValueError(f"context is {context}, expected more than the {merged} tokens of an image")
        self.samples, self.context, self.images = samples, context, images
        self.patches, self.merged, self.pixels, self.placeholder, self.seed = patches, merged, pixels, placeholder, seed

    def __len__(self) -> int:
        return self.samples

    def metadata(self, index: int) -> SampleMetadata:
        """Sizes of the sequence at ``index``."""
        if not 0 <= index < self.samples:
            raise IndexError(f"sample {index} was asked for, and the dataset holds 0 to {self.samples - 1}")
        documents = self._documents(index)
        count = sum(images for images, _ in documents)
        # Every token of text is predicted but one that is the sequence's first.
        text = self.context - count * self.merged
        return SampleMetadata(
            id=f"packed-{index}",
            modules={"vision": (self.patches,) * count, "language": (self.context,)},
            loss_tokens=text - (documents[0][0] == 0),
            merged={"vision": (self.merged,) * count, "language": (self.context,)},
        )

    def load(self, sample: str, fields: Sequence[str]) -> Mapping[str, list[np.ndarray]]:
        """``tokens`` and ``labels`` int64 [context], once; ``pixels`` float32 [patches, pixels], once an image.

        Labels are the next token where that is text, else -100. Raises ValueError for a sample of another
        dataset or an unknown field.
        """
        prefix, _, number = sample.rpartition("-")
        if prefix != "packed" or not number.isdecimal() or int(number) >= self.samples:
            raise ValueError(
                f"sample {sample!r} is not of this dataset: expected packed-0 to packed-{self.samples - 1}"
            )
        for name in fields:
            if name not in FIELDS:
                raise ValueError(f"field {name!r} was asked for, and packed documents have {', '.join(FIELDS)}")
        documents = self._documents(int(number))
        noise = np.random.default_rng([self.seed, int(number)])
        tokens = np.concatenate(
            [
                np.concatenate(
                    [np.full(images * self.merged, self.placeholder), noise.integers(0, self.placeholder, text)]
                )
                for images, text in documents
            ]
        ).astype(np.int64)
        labels = np.full_like(tokens, IGNORED)
        labels[:-1] = np.where(tokens[1:] == self.placeholder, IGNORED, tokens[1:])
        loaded: dict[str, list[np.ndarray]] = {"tokens": [tokens], "labels": [labels]}
        if "pixels" in fields:
            count = sum(images for images, _ in documents)
            loaded["pixels"] = [noise.standard_normal((self.patches, self.pixels), np.float32) for _ in range(count)]
        return {name: loaded[name] for name in fields}

    def _documents(self, index: int) -> list[tuple[int, int]]:
        """(images, tokens of text) of every document of a sequence, which they fill; the last one is cut."""
        random = Random(f"{self.seed}/packed/{index}")
        (source,) = random.choices(tuple(SOURCES), weights=[share for share, *_ in SOURCES.values()])
        _, mean, median, spread = SOURCES[source]
        left, images, documents = self.context, self.images, []
        while left:
            wanted = 0
            if mean:
                # One image and then more with the same chance again and again: the mean is as published.
                wanted = 1
                while random.random() < 1 - 1 / mean:
                    wanted += 1
            # An image that does not fit, or is one too many, leaves its place to text.
            own = min(wanted, images, (left - 1) // self.merged)
            text = min(max(1, round(random.lognormvariate(log(median), spread))), left - own * self.merged)
            if images == own:
                text = left - own * self.merged
            documents.append((own, text))
            left, images = left - own * self.merged - text, images - own
        return documents
