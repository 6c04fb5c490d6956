"""A conversation as tokens, and which of them are learned: by a tokenizer's chat template, or as plain bytes."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ds_dip.data.conversations.conversation import Conversation, Kind, Media, RecordError, Turn
from ds_dip.files import first_line

_CONTROL = bytes(byte for byte in range(32) if byte not in b"\t\n")
#: A learned answer and where it lies in the text, as characters.
Span = tuple[int, int]


class Chat(Protocol):
    """Writes conversations as tokens."""

    def write(self, conversation: Conversation, replaced: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """(tokens int64 [n], which are learned bool [n]); the i-th medium's place is ``replaced[i]``."""
        ...


@dataclass(frozen=True)
class ByteChat:
    """Text as UTF-8 bytes, with a byte below 32 where a sequence begins, an answer begins and an answer ends.

    Such bytes do not stand in text, so a medium's place can be one of them, ``placeholder``.
    """

    vocabulary: int
    begin: int = 1
    answer: int = 2
    end: int = 3

    def write(self, conversation: Conversation, replaced: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """See Chat; RecordError for text that is not within the vocabulary."""
        places, tokens, learned = iter(replaced), bytearray([self.begin]), [False]
        for turn in conversation.turns:
            text = b"".join(
                _plain(part) if isinstance(part, str) else next(places).encode("latin-1") for part in turn.parts
            )
            if turn.role == "assistant":
                tokens += bytes([self.answer]) + text + bytes([self.end])
                learned += [False] + [turn.supervised] * (len(text) + 1)
            else:
                tokens += text
                learned += [False] * len(text)
        found = np.frombuffer(bytes(tokens), dtype=np.uint8).astype(np.int64)
        if found.max() >= self.vocabulary:
            raise RecordError(
                f"has text beyond the model's {self.vocabulary} tokens; use a vocabulary of 256, or a tokenizer"
            )
        return found, np.array(learned)


def _plain(text: str) -> bytes:
    return text.encode().translate(None, delete=_CONTROL)


class TemplateChat:
    """By a fast tokenizer of transformers and its chat template; ``marks`` stand for media in what it writes.

    What is learned is what stands within ``{% generation %}`` of the template. Of a template without it, what it writes
    for an answer beyond what it writes to ask for one; it must write earlier turns alike whatever follows, and is
    refused otherwise. The token that ends an answer is learned in any case.
    """

    def __init__(self, tokenizer: Any, marks: Mapping[Kind, str], *, structured: bool) -> None:
        self._tokenizer, self._marks, self._structured = tokenizer, dict(marks), structured
        self._generation = re.search(r"\{%-?\s*generation", tokenizer.chat_template) is not None
        self._any = re.compile("|".join(map(re.escape, sorted(set(marks.values())))) or r"(?!)")
        # The library sets a tokenizer's truncation at every call, which two threads may not do at once.
        self._lock = threading.Lock()

    def write(self, conversation: Conversation, replaced: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """See Chat; RecordError where the text holds a medium's mark of its own or the template refuses it."""
        text, learned = self._text(conversation)
        text, learned = self._expanded(text, learned, conversation.media, replaced)
        start = self._tokenizer.bos_token
        with self._lock:
            encoded = self._tokenizer(
                text,
                add_special_tokens=not (start and text.startswith(start)),
                return_offsets_mapping=True,
                return_attention_mask=False,
            )
        tokens = np.asarray(encoded["input_ids"], dtype=np.int64)
        offsets = np.asarray(encoded["offset_mapping"], dtype=np.int64).reshape(-1, 2)
        mask = np.zeros(len(tokens), dtype=bool)
        for first, last in learned:
            mask |= (offsets[:, 0] >= first) & (offsets[:, 0] < last) & (offsets[:, 1] > offsets[:, 0])
        return tokens, mask

    def order(self, conversation: Conversation) -> list[int]:
        """The media's numbers in the order in which the template writes them: some write images before videos."""
        media = conversation.media
        if len({medium.kind for medium in media}) < 2:
            return list(range(len(media)))
        queues = {
            mark: iter([n for n, medium in enumerate(media) if self._marks[medium.kind] == mark])
            for mark in self._marks.values()
        }
        whole = self._rendered([self._message(turn) for turn in conversation.turns], ask=False)
        found = [next(queues[mark.group()], None) for mark in self._any.finditer(whole)]
        if None in found or len(found) != len(media):
            raise RecordError(f"has {len(found)} places for media in the template's text and {len(media)} media")
        return [number for number in found if number is not None]

    def _text(self, conversation: Conversation) -> tuple[str, list[Span]]:
        messages = [self._message(turn) for turn in conversation.turns]
        whole, spans = self._generated(messages) if self._generation else self._compared(conversation, messages)
        end = self._tokenizer.eos_token
        if end:
            spans = [(first, last + len(end) * whole.startswith(end, last)) for first, last in spans]
        return whole, [span for turn, span in zip(_answers(conversation), spans, strict=True) if turn.supervised]

    def _generated(self, messages: Sequence[dict[str, Any]]) -> tuple[str, list[Span]]:
        """The text, and what lies within ``{% generation %}``, a span an answer."""
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            texts, indices = render_jinja_template(
                conversations=[list(messages)],
                chat_template=self._tokenizer.chat_template,
                return_assistant_tokens_mask=True,
                **self._tokenizer.special_tokens_map,
            )
        except Exception as error:
            raise RecordError(f"the chat template refuses it ({first_line(error)})") from error
        answers = sum(message["role"] == "assistant" for message in messages)
        if len(indices[0]) != answers:
            raise RecordError(f"the chat template marks {len(indices[0])} answers, and there are {answers}")
        return texts[0], [(first, last) for first, last in indices[0]]

    def _compared(self, conversation: Conversation, messages: Sequence[dict[str, Any]]) -> tuple[str, list[Span]]:
        whole, spans = self._rendered(messages, ask=False), []
        for number, turn in enumerate(conversation.turns):
            if turn.role != "assistant":
                continue
            asked = self._rendered(messages[:number], ask=True)
            told = self._rendered(messages[: number + 1], ask=False)
            if not (told.startswith(asked) and whole.startswith(told)):
                raise RecordError(
                    f"turn {number + 1}: the chat template writes earlier turns otherwise once others follow, so it "
                    "cannot be told what is learned; mark answers with {% generation %} in the template"
                )
            # White space after the token that ends an answer is the template's, not the model's.
            spans.append((len(asked), len(asked) + len(told[len(asked) :].rstrip())))
        return whole, spans

    def _message(self, turn: Turn) -> dict[str, Any]:
        if not self._structured:
            content: Any = "".join(part if isinstance(part, str) else self._marks[part.kind] for part in turn.parts)
        else:
            content = [
                {"type": "text", "text": part} if isinstance(part, str) else {"type": part.kind} for part in turn.parts
            ]
        return {"role": turn.role, "content": content}

    def _rendered(self, messages: Sequence[dict[str, Any]], *, ask: bool) -> str:
        try:
            text = self._tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=ask)
        except Exception as error:
            # A template is a program of the model's makers: it refuses in whatever way it likes.
            raise RecordError(f"the chat template refuses it ({first_line(error)})") from error
        assert isinstance(text, str)
        return text

    def _expanded(
        self, text: str, spans: Sequence[Span], media: Sequence[Media], replaced: Sequence[str]
    ) -> tuple[str, list[Span]]:
        """The text with every medium's place written out, and where the spans are then."""
        queues: dict[str, list[str]] = {mark: [] for mark in self._marks.values()}
        for medium, instead in zip(media, replaced, strict=True):
            queues[self._marks[medium.kind]].append(instead)
        at, pieces, growth = 0, [], [(0, 0)]
        for mark in self._any.finditer(text):
            if not queues[mark.group()]:
                raise RecordError(f"has {mark.group()!r} in its text, which stands for a medium; leave it out")
            instead = queues[mark.group()].pop(0)
            pieces += [text[at : mark.start()], instead]
            at = mark.end()
            growth.append((at, growth[-1][1] + len(instead) - len(mark.group())))
        if left := [mark for mark, queue in queues.items() if queue]:
            raise RecordError(f"the chat template leaves out a medium, {left[0]!r}; use a template that takes it")
        moved = [(first + _growth(growth, first), last + _growth(growth, last)) for first, last in spans]
        return "".join([*pieces, text[at:]]), moved


def _answers(conversation: Conversation) -> list[Turn]:
    return [turn for turn in conversation.turns if turn.role == "assistant"]


def _growth(growth: Sequence[tuple[int, int]], at: int) -> int:
    """By how much what stands before a character has grown."""
    for (_, grown), (following, _) in pairwise(growth):
        if at < following:
            return grown
    return growth[-1][1]


def tokenizer_of(folder: str) -> Any:
    """The fast tokenizer of a folder; ValueError where there is none, or transformers is not installed."""
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ValueError("a tokenizer's folder needs transformers; install it with pip install 'ds_dip[hf]'") from error
    if not Path(folder).is_dir():
        raise ValueError(f"{folder}: is no folder of a tokenizer; give one with tokenizer.json")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        # The library raises whatever it stumbles over in a file.
        raise ValueError(f"{folder}: its tokenizer cannot be read ({first_line(error)})") from error
    if not tokenizer.is_fast:
        raise ValueError(f"{folder}: its tokenizer tells no offsets; give one with tokenizer.json")
    return tokenizer
