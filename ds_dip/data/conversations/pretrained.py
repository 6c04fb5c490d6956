"""Conversations for models of transformers, by the tokenizer, chat template and image processor of their folder.

The processor class of a vision-language model cannot be made where torchvision is missing, since it holds a video
processor. So its parts are used one by one, and what a family does with them is in ``families``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from ds_dip.data.conversations.chat import TemplateChat, tokenizer_of
from ds_dip.data.conversations.conversation import Conversation, Media, RecordError
from ds_dip.data.conversations.families import Makers, Place, family_of
from ds_dip.data.conversations.headers import Facts
from ds_dip.data.conversations.processor import Frames, Measured, labels_of, picked
from ds_dip.files import first_line, read_object

_MOST = 1 << 26


class PretrainedProcessor:
    """Fields ``tokens`` and ``labels`` (int64, [tokens]) and those of the family (see ``families``).

    ``encoders`` are the modules that see the media's instances: a frozen tower and its projector are two.
    Raises ValueError or FileError, one sentence, for a folder that is none of a model known here.
    """

    def __init__(self, folder: str, frames: Frames | None = None, encoders: Sequence[str] | None = None) -> None:
        config = read_object(Path(folder, "config.json"), "a model's configuration", _MOST)
        self._tokenizer = tokenizer_of(folder)
        self._family = family_of(folder, config, self._tokenizer, Frames() if frames is None else frames)
        self._encoders = self._family.encoders if encoders is None else tuple(encoders)
        if self._tokenizer.chat_template is None:
            raise ValueError(f"{folder}: has no chat template; give one as chat_template.jinja")
        self._chat = TemplateChat(self._tokenizer, self._family.marks, structured=bool(self._family.marks))
        self.fields = ("tokens", "labels", *self._family.fields)

    def measure(self, conversation: Conversation, facts: Sequence[Facts]) -> Measured:
        """See Processor."""
        places = self._places(conversation.media, facts)
        tokens, learned = self._chat.write(conversation, [place.text for place in places])
        places = [places[number] for number in self._chat.order(conversation)]
        sizes = {name: tuple(size for place in places for size in place.patches) for name in self._encoders}
        merged = {name: tuple(size for place in places for size in place.merged) for name in self._encoders}
        if not self._family.marks:
            sizes, merged = {}, {}
        own = {"language": (len(tokens),)}
        return Measured(sizes | own, merged | own, int(learned[1:].sum()))

    def make(
        self, conversation: Conversation, facts: Sequence[Facts], fields: Sequence[str]
    ) -> Mapping[str, list[np.ndarray]]:
        """See Processor."""
        places = lru_cache(maxsize=1)(lambda: self._places(conversation.media, facts))
        written = lru_cache(maxsize=1)(lambda: self._chat.write(conversation, [place.text for place in places()]))
        makers: Makers = {"tokens": lambda: [written()[0]], "labels": lambda: [labels_of(*written())]}
        order = self._chat.order(conversation)
        own = self._family.makers(
            [conversation.media[number] for number in order],
            [facts[number] for number in order],
            lambda: [places()[number] for number in order],
            lambda: written()[0],
        )
        return picked(makers | own, fields)

    def _places(self, media: Sequence[Media], facts: Sequence[Facts]) -> list[Place]:
        several = sum(medium.kind == "image" for medium in media) > 1
        for medium in media:
            if medium.kind not in self._family.marks:
                raise RecordError(f"has a medium of kind {medium.kind}, which the model does not take; leave it out")
        try:
            return [self._family.place(own, several=several) for own in facts]
        except ValueError as error:
            raise RecordError(f"the model's processor refuses its media ({first_line(error)})") from error
