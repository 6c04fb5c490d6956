"""The digits task: conversations with 0 to 12 real handwritten digits, whose answers name them.

Images are scikit-learn's 1 797 handwritten digits of 8 x 8 pixels; a fifth of each class is held out and never seen
in training. Text is one token a character. Samples follow from their index and the seed alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from random import Random

import numpy as np

from ds_dip.data.metadata import SampleMetadata
from ds_dip.data.prompts import LETTERS, SLOT, Turns, image_turns, text_turns
from ds_dip.data.tiles import image_count
from ds_dip.models.kinds import IGNORED
from ds_dip.models.spec import Model

SPLITS = ("train", "held_out")
FIELDS = ("tokens", "labels", "pixels")
#: Tokens beside the characters: start of the prompt, start of the answer, its end, and a row of an image.
BEGIN, ANSWER, END, IMAGE = 1, 2, 3, 4
VOCABULARY = 128
SIDE = 8
_HELD_OUT_SHARE = 0.2
#: Standard deviation of the pixels around the mean image.
_DEVIATION = 0.27


def sizes_for(model: Model) -> dict[str, int]:
    """Options of ``Digits`` by which images are cut and merged as the model's encoder does it.

    Raises ValueError for a model that cannot read the digits.
    """
    wanted = (
        f"the digits need an encoder named vision for 1 channel and a vocabulary of at least {VOCABULARY} in language"
    )
    try:
        encoder, language = model.module("vision").layers, model.module("language").layers
        if encoder[0].options["channels"] != 1 or language[0].options["vocabulary"] < VOCABULARY:
            raise ValueError(f"model {model.name!r} does not fit: {wanted}")
        return {"patch": encoder[0].options["patch"], "merge": encoder[-1].options["merge"]}
    except KeyError as error:
        raise ValueError(f"model {model.name!r} does not fit ({error.args[0]}): {wanted}") from error


class Digits:
    """A dataset of ``samples`` samples of one split.

    ``patch`` is the side of a patch in pixels and ``merge`` the patches that become one token, as in the model.
    ``images`` is the most images a sample holds, ``text_only`` whether there are samples without any, ``typed`` the
    most digits typed in the prompt beside images, and ``turns`` whether a sample may ask in several turns rather than
    for everything at once. By default training samples have all of that (two typed digits) and held-out samples
    none, so that every digit of a held-out answer is one of several images'. Training images are shifted, turned,
    scaled and given noise, by the sample's id.
    """

    def __init__(
        self,
        samples: int,
        split: str = "train",
        seed: int = 0,
        patch: int = 2,
        merge: int = 16,
        images: int = 12,
        text_only: bool | None = None,
        typed: int | None = None,
        turns: bool | None = None,
    ) -> None:
        if split not in SPLITS:
            raise ValueError(f"split is {split!r}, expected one of {', '.join(SPLITS)}")
        training = split == "train"
        text_only = training if text_only is None else text_only
        turns = training if turns is None else turns
        typed = 2 * training if typed is None else typed
        if samples < 1:
            raise ValueError(f"samples is {samples}, expected at least 1")
        if images < 1 or typed < 0 or images + typed > len(LETTERS):
            raise ValueError(
                f"images is {images} and typed {typed}, expected at least 1 image and {len(LETTERS)} of both at most"
            )
        if patch < 1 or SIDE % patch or (SIDE // patch) ** 2 % merge:
            raise ValueError(
                f"patch is {patch} and merge {merge}, expected a patch that divides {SIDE} pixels and a merge "
                "that divides the patches"
            )
        self.samples, self.split, self.seed = samples, split, seed
        self.patch, self.patches, self.merged = patch, (SIDE // patch) ** 2, (SIDE // patch) ** 2 // merge
        self.images, self.text_only, self.typed, self.turns = images, text_only, typed, turns

    def __len__(self) -> int:
        return self.samples

    def metadata(self, index: int) -> SampleMetadata:
        """Sizes of the sample at ``index``, from its text alone: no image is touched."""
        if not 0 <= index < self.samples:
            raise IndexError(f"sample {index} was asked for, and the dataset holds 0 to {self.samples - 1}")
        turns, _ = self._turns(index)
        images = sum(prompt.count(SLOT) for prompt, _ in turns)
        answered = sum(len(answer) + 1 for _, answer in turns)
        length = 1 + sum(len(prompt) + 1 for prompt, _ in turns) + images * (self.merged - 1) + answered
        return SampleMetadata(
            id=f"{self.split}-{index}",
            modules={"vision": (self.patches,) * images, "language": (length,)},
            loss_tokens=answered,
            merged={"vision": (self.merged,) * images, "language": (length,)},
        )

    def load(self, sample: str, fields: Sequence[str]) -> Mapping[str, list[np.ndarray]]:
        """``tokens`` and ``labels`` int64 [tokens], once a sample; ``pixels`` float32 [patches, patch²], once an image.

        Labels are the next token where it belongs to the answer, else -100. Raises ValueError for a sample of
        another dataset or an unknown field.
        """
        split, _, number = sample.rpartition("-")
        if split != self.split or not number.isdecimal() or int(number) >= self.samples:
            raise ValueError(
                f"sample {sample!r} is not of this dataset: expected {self.split}-0 to {self.split}-{self.samples - 1}"
            )
        for name in fields:
            if name not in FIELDS:
                raise ValueError(f"field {name!r} was asked for, and the digits have {', '.join(FIELDS)}")
        turns, random = self._turns(int(number))
        images, classes = _digits()[self.split]
        picks = [random.randrange(len(classes)) for prompt, _ in turns for _ in range(prompt.count(SLOT))]
        loaded: dict[str, list[np.ndarray]] = {}
        if "pixels" in fields:
            loaded["pixels"] = self._pixels(images[picks], int(number))
        if "tokens" in fields or "labels" in fields:
            tokens, labels = self._tokens(turns, [str(classes[pick]) for pick in picks])
            loaded |= {"tokens": [tokens], "labels": [labels]}
        return {name: loaded[name] for name in fields}

    def _turns(self, index: int) -> tuple[Turns, Random]:
        """The sample's text, and the random state its images are drawn from."""
        random = Random(f"{self.seed}/{self.split}/{index}")
        images = image_count(random, self.images)
        if images == 0 and self.text_only:
            return text_turns(random, random.randint(1, 6), not self.turns), random
        return image_turns(random, max(1, images), random.randint(0, self.typed), not self.turns), random

    def _tokens(self, turns: Turns, digits: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        left = iter(digits)
        characters, supervised = chr(BEGIN), [False]
        for prompt, answer in turns:
            question = prompt.replace(SLOT, SLOT * self.merged) + chr(ANSWER)
            named = "".join(next(left) if character == SLOT else character for character in answer) + chr(END)
            characters += question + named
            supervised += [False] * len(question) + [True] * len(named)
        tokens = np.frombuffer(characters.encode("ascii"), dtype=np.uint8).astype(np.int64)
        labels = np.full_like(tokens, IGNORED)
        labels[:-1] = np.where(supervised[1:], tokens[1:], IGNORED)
        return tokens, labels

    def _pixels(self, images: np.ndarray, index: int) -> list[np.ndarray]:
        if self.split == "train" and len(images):
            images = _augment(images, np.random.default_rng([self.seed, index]))
        # Around the mean image: what all images share would drown what tells them apart in a young encoder.
        images = (images - _mean_image()) / _DEVIATION
        side = SIDE // self.patch
        cut = images.reshape(-1, side, self.patch, side, self.patch).transpose(0, 1, 3, 2, 4)
        return list(cut.reshape(-1, self.patches, self.patch**2))


def digit_hits(predicted: np.ndarray, labels: np.ndarray) -> tuple[int, int]:
    """How many digits of the answers are predicted exactly, of how many: both arrays are tokens [N].

    For samples with images, whose answers hold no other digits.
    """
    digit = (labels >= ord("0")) & (labels <= ord("9"))
    return int((predicted[digit] == labels[digit]).sum()), int(digit.sum())


@cache
def _digits() -> Mapping[str, tuple[np.ndarray, np.ndarray]]:
    """Images float32 [n, 8, 8], from 0 to 1, and classes [n] of both splits."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ValueError("the digits task needs scikit-learn; install it with pip install scikit-learn") from error
    pixels, classes = load_digits(return_X_y=True)
    images = (pixels.reshape(-1, SIDE, SIDE) / 16.0).astype(np.float32)
    random = np.random.default_rng(0)
    held_out = np.zeros(len(classes), dtype=bool)
    for digit in range(10):
        members = random.permutation(np.flatnonzero(classes == digit))
        held_out[members[: round(len(members) * _HELD_OUT_SHARE)]] = True
    return {
        "train": (images[~held_out], classes[~held_out]),
        "held_out": (images[held_out], classes[held_out]),
    }


@cache
def _mean_image() -> np.ndarray:
    mean: np.ndarray = _digits()["train"][0].mean(axis=0)
    return mean


def _augment(images: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Shift by up to a pixel, turn by up to 12 degrees, scale by up to a tenth, change contrast and add noise."""
    n = len(images)
    angle, zoom = random.uniform(-0.2, 0.2, (n, 1, 1)), random.uniform(0.9, 1.1, (n, 1, 1))
    shift = random.uniform(-1.0, 1.0, (2, n, 1, 1))
    rows, columns = np.mgrid[0:SIDE, 0:SIDE] - (SIDE - 1) / 2
    sine, cosine = np.sin(angle) * zoom, np.cos(angle) * zoom
    centre = (SIDE - 1) / 2 + 1
    source = np.stack([cosine * rows - sine * columns, sine * rows + cosine * columns]) + shift + centre
    source = np.clip(source, 0, SIDE + 0.999)
    whole = source.astype(np.int64)
    (low_row, low_column), (row, column) = whole, source - whole
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    which = np.arange(n)[:, None, None]
    mixed = (
        padded[which, low_row, low_column] * (1 - row) * (1 - column)
        + padded[which, low_row, low_column + 1] * (1 - row) * column
        + padded[which, low_row + 1, low_column] * row * (1 - column)
        + padded[which, low_row + 1, low_column + 1] * row * column
    )
    contrast, noise = random.uniform(0.85, 1.15, (n, 1, 1)), random.normal(0.0, 0.04, images.shape)
    augmented: np.ndarray = (mixed * contrast + noise).astype(np.float32)
    return augmented
