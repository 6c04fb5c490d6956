"""A conversation in one normal form: turns of text with media in place, whatever form the record was in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

Kind = Literal["image", "video", "audio"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Role = Literal["system", "user", "assistant", "tool"]


class RecordError(ValueError):
    """A record that is no sample; the message says what is wrong with it, and whoever knows the file says where."""


@dataclass(frozen=True, slots=True)
class Media:
    """An image, a video or an audio, by where its bytes are.

    ``source`` is a path or, for what lies in an archive or in the record itself, a name. ``span`` are the bytes
    (offset, length) within the file at ``path``; without one they are the whole file. ``content`` are bytes that the
    record itself holds. One that is ``blank`` is not read: nothing of its size stands for it.
    """

    kind: Kind
    source: str
    path: str | None = None
    span: tuple[int, int] | None = None
    content: bytes | None = None
    blank: bool = False


Part = str | Media


@dataclass(frozen=True, slots=True)
class Turn:
    """What one side says; an assistant's turn is learned where ``supervised``."""

    role: Role
    parts: tuple[Part, ...]
    supervised: bool = False

    @property
    def text(self) -> str:
        """The turn's text, media left out."""
        return "".join(part for part in self.parts if isinstance(part, str))


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns in their order; the last one is an assistant's."""

    turns: tuple[Turn, ...]

    @property
    def media(self) -> tuple[Media, ...]:
        """All media, in the order in which they are spoken of."""
        return tuple(part for turn in self.turns for part in turn.parts if isinstance(part, Media))


def blanked(conversation: Conversation) -> Conversation:
    """The conversation with nothing in its media's places."""

    def blank(part: Part) -> Part:
        return replace(part, blank=True) if isinstance(part, Media) else part

    return Conversation(tuple(replace(turn, parts=tuple(map(blank, turn.parts))) for turn in conversation.turns))


def joined(parts: Sequence[Part]) -> tuple[Part, ...]:
    """The parts without empty text, neighbouring text as one."""
    found: list[Part] = []
    for part in parts:
        if isinstance(part, str) and found and isinstance(found[-1], str):
            found[-1] += part
        elif part != "":
            found.append(part)
    return tuple(found)


def check(conversation: Conversation) -> Conversation:
    """The conversation itself; RecordError where nothing can be learned from it."""
    turns = conversation.turns
    if not turns:
        raise RecordError("has no turns; expected at least a user's and an assistant's")
    for number, turn in enumerate(turns, start=1):
        for part in turn.parts:
            _check_text(f"turn {number}", part if isinstance(part, str) else part.source)
        if turn.role == "system" and number > 1:
            raise RecordError(f"turn {number} is the system's, expected it first")
        if turn.role == "assistant" and any(isinstance(part, Media) for part in turn.parts):
            raise RecordError(f"turn {number} has media in an answer, expected text, which is what can be learned")
        if turn.role == "assistant" and not turn.text.strip():
            raise RecordError(f"turn {number} is an empty answer; leave the record out")
    if turns[-1].role != "assistant":
        raise RecordError(f"ends with the {turns[-1].role}'s turn, expected an assistant's, which is what is learned")
    if not any(turn.supervised for turn in turns):
        raise RecordError("has no answer that is learned; leave the record out")
    return conversation


def _check_text(where: str, text: str) -> None:
    """RecordError for text that JSON can hold and nothing else: half of a character of two."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RecordError(f"{where} has {text[error.start]!a} in its text, which is half a character") from error


def plural(kind: str) -> str:
    """The key that lists media of a kind."""
    return f"{kind}s"


def text_of(record: Mapping[str, object], key: str) -> str:
    """The text under a key; RecordError for anything else."""
    value = record.get(key)
    if not isinstance(value, str):
        raise RecordError(f"field {key!r} is {shown(value)}, expected text")
    return value


def shown(value: object) -> str:
    """A value for a sentence, cut short."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def brief(source: str) -> str:
    """A medium's source for a sentence, of a long one its end."""
    return source if len(source) <= 200 else "…" + source[-199:]
