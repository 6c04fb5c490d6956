"""Conversations about images as samples for a model of transformers: its tokenizer, chat template and processor.

The file is a JSON list of ``{"messages": [{"role": …, "content": …}], "images": [paths]}``, an ``<image>`` in a
message for each image; paths are relative to the file. Only what the assistant says is supervised.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ds_dip.data.metadata import SampleMetadata
from ds_dip.files import FileError, read_text
from ds_dip.models.kinds import IGNORED

if TYPE_CHECKING:
    from ds_dip.models.hf.parts import Inputs

#: What stands for an image in a message.
IMAGE = "<image>"


class Chats:
    """The conversations in ``data`` as the model in the folder ``model`` reads them, ``repeat`` times over.

    ``modules`` are the names of the split model's modules. Sizes follow from an image's height and width alone: pixels
    are read on the rank that needs them. Raises FileError for a file that is not of the form above.
    """

    def __init__(self, model: str, data: str, modules: Sequence[str], repeat: int = 1) -> None:
        from transformers import AutoConfig, AutoTokenizer

        from ds_dip.models.hf.split import inputs_of

        self._folder, self._modules, self._repeat = Path(data).parent, tuple(modules), repeat
        self._samples = _read(data)
        config = AutoConfig.from_pretrained(model, local_files_only=True)
        self._tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
        self._inputs: Inputs | None = inputs_of(config, model)
        if self._tokenizer.chat_template is None:
            raise FileError(f"{model} has no chat template; add chat_template.jinja, as its publisher wrote it")
        self._encoded = lru_cache(maxsize=4096)(self._encode)
        self._sizes = lru_cache(maxsize=4096)(self._measure)

    def __len__(self) -> int:
        return len(self._samples) * self._repeat

    def metadata(self, index: int) -> SampleMetadata:
        """Sizes of the sample at ``index``, from its text and its images' heads."""
        number = index % len(self._samples)
        tokens, labels = self._encoded(number)
        sizes = [] if self._inputs is None else self._inputs.sizes(self._sizes(number))
        modules, merged = {}, {}
        for name in self._modules:
            own = name == "language"
            modules[name] = (len(tokens),) if own else tuple(size for size, _ in sizes)
            merged[name] = (len(tokens),) if own else tuple(rows for _, rows in sizes)
        return SampleMetadata(str(index), modules, int((labels != IGNORED).sum()), merged)

    def load(self, sample: str, fields: Sequence[str]) -> Mapping[str, list[np.ndarray]]:
        """``tokens``, ``labels`` (the next token where the assistant says it), ``positions``, the encoder's fields."""
        number = int(sample) % len(self._samples)
        tokens, labels = self._encoded(number)
        found = {"tokens": [tokens], "labels": [labels]}
        if self._inputs is not None and self._inputs.positions and "positions" in fields:
            found["positions"] = [self._inputs.places(tokens, self._sizes(number))]
        if self._inputs is not None and set(fields) & set(self._inputs.fields):
            found |= self._inputs.load(self._images(number, lambda image: image.convert("RGB")))
        return {name: found[name] for name in fields}

    def answers(self, index: int) -> list[tuple[list[dict[str, str]], str]]:
        """Of each thing that the assistant says: the messages before it, and what it is."""
        messages = self._samples[index % len(self._samples)]["messages"]
        return [(messages[:n], m["content"]) for n, m in enumerate(messages) if m["role"] == "assistant"]

    def _images(self, number: int, take: Callable[[Any], Any]) -> list[Any]:
        """What ``take`` makes of every image of a sample while its file is open."""
        from PIL import Image

        found = []
        for name in self._samples[number].get("images", ()):
            try:
                with Image.open(self._folder / name) as image:
                    found.append(take(image))
            except OSError as error:
                raise FileError(
                    f"{self._folder / name} cannot be read as an image ({error}); correct the data"
                ) from error
        return found

    def _measure(self, number: int) -> tuple[tuple[int, int], ...]:
        return tuple(self._images(number, lambda image: (image.height, image.width)))

    def _encode(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        messages, tokens, said = self._samples[number]["messages"], list[int](), list[bool]()
        whole, done = [_listed(message) for message in messages], ""
        for place, message in enumerate(messages):
            assistant = message["role"] == "assistant"
            ends = [(place, True), (place + 1, False)] if assistant else []
            for own, (stop, prompt) in enumerate(ends):
                text = self._tokenizer.apply_chat_template(whole[:stop], tokenize=False, add_generation_prompt=prompt)
                if not text.startswith(done):
                    raise FileError(
                        f"sample {number}: the chat template writes earlier messages otherwise once the assistant "
                        "has answered, so what it says cannot be told from what it was asked; use another template"
                    )
                piece = self._tokenizer(text[len(done) :], add_special_tokens=False)["input_ids"]
                tokens, said, done = tokens + piece, said + [bool(own)] * len(piece), text
        return self._expanded(number, np.array(tokens, dtype=np.int64), np.array(said, dtype=bool))

    def _expanded(self, number: int, tokens: np.ndarray, said: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Every image's one token as many as it has rows; labels."""
        if self._inputs is not None:
            places = np.flatnonzero(tokens == self._inputs.placeholder)
            rows = [own for _, own in self._inputs.sizes(self._sizes(number))]
            if len(places) != len(rows):
                raise FileError(
                    f"sample {number} has {len(rows)} images and {len(places)} places for them; write {IMAGE} once for "
                    "each image"
                )
            times = np.ones(len(tokens), dtype=np.int64)
            times[places] = rows
            tokens, said = np.repeat(tokens, times), np.repeat(said, times)
        labels = np.full_like(tokens, IGNORED)
        labels[:-1] = np.where(said[1:], tokens[1:], IGNORED)
        return tokens, labels


def _listed(message: Mapping[str, str]) -> dict[str, Any]:
    """A message as chat templates take it: pieces of text and images in a list where there are images."""
    text = message["content"]
    if IMAGE not in text:
        return {"role": message["role"], "content": text}
    content: list[dict[str, str]] = []
    for place, piece in enumerate(text.split(IMAGE)):
        content += [{"type": "image"}] if place else []
        content += [{"type": "text", "text": piece}] if piece else []
    return {"role": message["role"], "content": content}


def _read(path: str) -> list[Any]:
    try:
        samples = json.loads(read_text(path, "conversations"))
    except ValueError as error:
        raise FileError(f"{path} cannot be read as conversations ({error})") from error
    if not isinstance(samples, list) or not samples:
        raise FileError(f"{path} holds no list of conversations")
    for number, sample in enumerate(samples):
        messages = sample.get("messages") if isinstance(sample, dict) else None
        if not isinstance(messages, list) or not all(
            isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
            for m in messages
        ):
            raise FileError(f"{path}: sample {number} has no list of messages with a role and content each")
        if other := sorted(set(sample) & {"videos", "audios"}):
            raise FileError(f"{path}: sample {number} has {other[0]}, and only images are read; leave it out")
        if not isinstance(sample.get("images", []), list):
            raise FileError(f"{path}: sample {number} has images that are no list of paths")
    return samples
