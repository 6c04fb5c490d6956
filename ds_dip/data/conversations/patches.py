"""Conversations for models of our own (docs/data.md): images as square patches, videos as their frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import isqrt, sqrt

import numpy as np

from ds_dip.data.conversations import decode
from ds_dip.data.conversations.chat import ByteChat, Chat, TemplateChat, tokenizer_of
from ds_dip.data.conversations.conversation import Conversation, Media, RecordError
from ds_dip.data.conversations.headers import Facts
from ds_dip.data.conversations.processor import Frames, Measured, labels_of, picked
from ds_dip.models import load_model
from ds_dip.models.kinds import PLACEHOLDER

_LAST_CONTROL = 31


class PatchProcessor:
    """Fields ``tokens``, ``labels`` (int64, [tokens]) and ``pixels`` (float32, [patches, patch² channels]).

    An image is made square, of the area that it has, its side a multiple of the patches that merge and at most the
    encoder's; pixels are from -1 to 1. A video is its frames, an image each. Sounds are refused.
    """

    fields = ("tokens", "labels", "pixels")

    def __init__(self, model: str, tokenizer: str | None = None, frames: Frames | None = None) -> None:
        spec = load_model(model)
        try:
            encoder, language = spec.module("vision").layers, spec.module("language").layers
            first, merger = encoder[0].options, encoder[-1].options
            self._patch, self._channels, self._side = first["patch"], first["channels"], first["side"]
            self._merge, self._vocabulary = merger["merge"], language[0].options["vocabulary"]
            self._placeholder = language[0].options[PLACEHOLDER + "vision"]
        except KeyError as error:
            raise ValueError(
                f"{model}: cannot take conversations ({error.args[0]}); they need an image encoder named vision and a "
                "language model named language that takes its output"
            ) from error
        if self._channels not in (1, 3):
            raise ValueError(f"{model}: the encoder is for {self._channels} channels, expected 1 (grey) or 3 (RGB)")
        self._frames = Frames() if frames is None else frames
        self._chat, self._mark = self._make_chat(tokenizer)

    def _make_chat(self, folder: str | None) -> tuple[Chat, str]:
        if folder is None:
            if not 4 <= self._placeholder <= _LAST_CONTROL:
                raise ValueError(
                    f"the model's placeholder is {self._placeholder}, and text as bytes leaves 4 to {_LAST_CONTROL} "
                    "for it; give a tokenizer"
                )
            return ByteChat(self._vocabulary), chr(self._placeholder)
        tokenizer = tokenizer_of(folder)
        if len(tokenizer) > self._vocabulary:
            raise ValueError(f"{folder}: has {len(tokenizer)} tokens, and the model {self._vocabulary}")
        mark = tokenizer.convert_ids_to_tokens(self._placeholder)
        if mark is None or mark not in tokenizer.all_special_tokens:
            raise ValueError(
                f"{folder}: the model's placeholder {self._placeholder} is {mark!r} there, expected a special token"
            )
        if tokenizer.chat_template is None:
            raise ValueError(f"{folder}: has no chat template; give one as chat_template.jinja")
        return TemplateChat(tokenizer, {"image": mark, "video": mark}, structured=False), mark

    def measure(self, conversation: Conversation, facts: Sequence[Facts]) -> Measured:
        """See Processor."""
        images = self._images(conversation.media, facts)
        tokens, learned = self._written(conversation, facts)
        merged = tuple(patches // self._merge for patches in images)
        return Measured(
            {"vision": images, "language": (len(tokens),)},
            {"vision": merged, "language": (len(tokens),)},
            int(learned[1:].sum()),
        )

    def make(
        self, conversation: Conversation, facts: Sequence[Facts], fields: Sequence[str]
    ) -> Mapping[str, list[np.ndarray]]:
        """See Processor."""
        written = lru_cache(maxsize=1)(lambda: self._written(conversation, facts))
        return picked(
            {
                "tokens": lambda: [written()[0]],
                "labels": lambda: [labels_of(*written())],
                "pixels": lambda: self._pixels(conversation.media, facts),
            },
            fields,
        )

    def _images(self, media: Sequence[Media], facts: Sequence[Facts]) -> tuple[int, ...]:
        """Patches of every image and frame."""
        sizes: list[int] = []
        for medium, own in zip(media, facts, strict=True):
            if medium.kind == "audio":
                raise RecordError("has a sound, and the model has no encoder for it; leave the record out")
            count = len(self._frames.of(own)) if medium.kind == "video" else 1
            sizes += [self._sides(own) ** 2] * count
        return tuple(sizes)

    def _sides(self, facts: Facts) -> int:
        """Patches on a side of a medium's pictures."""
        step = isqrt(self._merge)
        area = sqrt(facts.width * facts.height) / self._patch
        return min(self._side // step * step, max(step, round(area / step) * step))

    def _written(self, conversation: Conversation, facts: Sequence[Facts]) -> tuple[np.ndarray, np.ndarray]:
        sizes = [
            sum(self._images([medium], [own])) // self._merge
            for medium, own in zip(conversation.media, facts, strict=True)
        ]
        return self._chat.write(conversation, [self._mark * size for size in sizes])

    def _pixels(self, media: Sequence[Media], facts: Sequence[Facts]) -> list[np.ndarray]:
        found: list[np.ndarray] = []
        for medium, own in zip(media, facts, strict=True):
            if medium.kind == "video":
                pictures = decode.video(medium, self._frames.of(own), own)
            else:
                pictures = decode.image(medium, own)[None]
            side = self._sides(own)
            found += [self._cut(picture, side) for picture in pictures]
        return found

    def _cut(self, picture: np.ndarray, side: int) -> np.ndarray:
        """A picture [height, width, 3] as ``side`` x ``side`` patches, row by row."""
        from PIL import Image

        image = Image.fromarray(picture).convert("L" if self._channels == 1 else "RGB")
        pixels = side * self._patch
        values = np.asarray(image.resize((pixels, pixels), Image.Resampling.BICUBIC), dtype=np.float32)
        scaled = (values.reshape(side, self._patch, side, self._patch, self._channels) / 127.5) - 1.0
        return scaled.transpose(0, 2, 1, 3, 4).reshape(side * side, -1)
