"""What makes a model's inputs of a conversation: counted from facts alone, and made from what is decoded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol

import numpy as np

from ds_dip.data.conversations.conversation import Conversation
from ds_dip.data.conversations.headers import Facts
from ds_dip.data.conversations.settings import FrameSettings, ProcessorSettings
from ds_dip.files import FileError
from ds_dip.models.kinds import IGNORED


@dataclass(frozen=True, slots=True)
class Measured:
    """A sample's sizes as ``SampleMetadata`` has them."""

    modules: Mapping[str, tuple[int, ...]]
    merged: Mapping[str, tuple[int, ...]]
    loss_tokens: int


class Processor(Protocol):
    """Makes fields of conversations. What it counts without decoding is what it makes."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that it can make."""
        ...

    def measure(self, conversation: Conversation, facts: Sequence[Facts]) -> Measured:
        """The sizes of a sample whose media have these facts; RecordError for one that cannot be made."""
        ...

    def make(
        self, conversation: Conversation, facts: Sequence[Facts], fields: Sequence[str]
    ) -> Mapping[str, list[np.ndarray]]:
        """These fields of a sample, an array an instance; media are decoded where a field needs them.

        Raises RecordError as ``measure`` does, and MediaError for a medium that cannot be decoded.
        """
        ...


@dataclass(frozen=True, slots=True)
class Frames:
    """Which frames of a video are looked at: ``rate`` a second, ``least`` to ``most`` of them.

    A video that has fewer frames than ``least`` gives some of them again. ``said`` names what was set.
    """

    rate: float = 2.0
    least: int = 1
    most: int = 64
    said: tuple[str, ...] = ()

    @classmethod
    def by(cls, settings: FrameSettings) -> Frames:
        """What the settings say, and defaults."""
        said = settings.model_dump(exclude_none=True)
        return cls(**said, said=tuple(said))

    def of(self, facts: Facts) -> tuple[int, ...]:
        """Indices of the frames, ascending, evenly over the video."""
        wanted = min(max(round(facts.seconds * self.rate), self.least), self.most)
        return tuple(min(facts.frames - 1, number * facts.frames // wanted) for number in range(wanted))


def labels_of(tokens: np.ndarray, learned: np.ndarray) -> np.ndarray:
    """The next token at every place where it is ``learned`` (bool [tokens]), else -100; int64 [tokens]."""
    labels = np.full(len(tokens), IGNORED, dtype=np.int64)
    labels[:-1] = np.where(learned[1:], tokens[1:], IGNORED)
    return labels


def without_content(made: Mapping[str, list[np.ndarray]]) -> Mapping[str, list[np.ndarray]]:
    """A sample of which nothing is learned."""
    if "labels" not in made:
        return made
    return {**made, "labels": [np.full_like(labels, IGNORED) for labels in made["labels"]]}


def picked(makers: Mapping[str, Callable[[], list[np.ndarray]]], fields: Sequence[str]) -> dict[str, list[np.ndarray]]:
    """What is asked for, made; ValueError for a field that is not there."""
    for name in fields:
        if name not in makers:
            raise ValueError(f"field {name!r} was asked for, and conversations have {', '.join(makers)}")
    return {name: makers[name]() for name in fields}


#: Files of a folder that counts may depend on.
_DECIDING = ("*.json", "*.jinja", "*.txt", "*.model")
#: Raised where what is counted changes with this code.
_COUNTING = 2


def fingerprint_of(settings: ProcessorSettings) -> str:
    """A hash of all that counts depend on: counts made under another one are made anew.

    Of files alone, without the processor: a process that finds a fresh index needs none to plan. Raises ValueError for
    settings that name none, FileError for files that cannot be read.
    """
    if (settings.pretrained is None) == (settings.model is None):
        raise ValueError("give a processor either pretrained, a folder of transformers, or model, a ds-dip/model file")
    # Folders and files count by what is in them, wherever they are.
    rest = settings.model_dump_json(exclude={"pretrained", "model", "tokenizer"})
    digest = hashlib.sha256(f"{_COUNTING} {settings.pretrained is None} {settings.tokenizer is None} {rest}".encode())
    paths = [Path(settings.model)] if settings.model is not None else []
    for folder in filter(None, (settings.pretrained, settings.tokenizer)):
        found = {path for pattern in _DECIDING for path in Path(folder).glob(pattern)}
        paths += sorted(path for path in found if not path.name.endswith(".index.json"))
    if settings.pretrained is not None or settings.tokenizer is not None:
        digest.update(_installed("transformers").encode())
    for path in paths:
        try:
            digest.update(path.name.encode() + path.read_bytes())
        except OSError as error:
            raise FileError(f"{path}: cannot be read ({error.strerror}); give a model's file or folder") from error
    return digest.hexdigest()


def _installed(name: str) -> str:
    """A package's version, without importing it."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def processor_of(settings: ProcessorSettings) -> Processor:
    """The processor of settings that ``fingerprint_of`` takes; ValueError, one sentence, where it cannot be made."""
    frames = Frames.by(settings.frames)
    if settings.pretrained is not None:
        from ds_dip.data.conversations.pretrained import PretrainedProcessor

        return PretrainedProcessor(settings.pretrained, frames, settings.encoders)
    from ds_dip.data.conversations.patches import PatchProcessor

    assert settings.model is not None
    return PatchProcessor(settings.model, settings.tokenizer, frames)
