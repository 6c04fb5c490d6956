"""Records of the forms that are in use, made into conversations.

Three forms, told by their key: ``conversations`` (LLaVA, ShareGPT, Qwen-VL's fine-tuning form), ``messages`` (OpenAI,
LLaMA-Factory, ms-swift) and ``query``/``response`` (ms-swift). Media stand where the text has ``<image>``, ``<video>``
or ``<audio>``, in any turn, and are listed beside it; or they stand in the text as ``<img>PATH</img>``; or a message's
content is a list of parts.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ds_dip.data.conversations.conversation import (
    KINDS,
    Conversation,
    Kind,
    Media,
    Part,
    RecordError,
    Role,
    Turn,
    check,
    joined,
    plural,
    shown,
    text_of,
)

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "tool": "tool",
    "observation": "tool",
    "tool_response": "tool",
    "function": "tool",
}
#: What a record may hold beside its form's keys: names and remarks that say nothing of the sample's content.
REMARKS = frozenset({"id", "uid", "source", "dataset", "data_source", "task", "category", "type", "lang", "language"})
_LISTS = {key: kind for kind in KINDS for key in (kind, plural(kind))}
_SIZES = frozenset({"width", "height", "width_list", "height_list"})
_BESIDE = frozenset(_LISTS) | {"system"}
_TURN_KEYS = frozenset({"role", "from", "content", "value", "loss", "name"})
_TAGS: Mapping[str, Kind] = {"img": "image", "video": "video", "audio": "audio"}
#: A path in the text, or a place for what is listed.
_MARKS = re.compile(r"<(img|video|audio)>((?:(?!<)[^\n]){1,4096})</\1>|<(image|video|audio)>")
#: Where a part of a message's content keeps its value, by the part's type.
_PARTS: Mapping[str, Kind] = {
    "image": "image",
    "image_url": "image",
    "video": "video",
    "video_url": "video",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
}
_DATA_URL = re.compile(r"data:[\w.+/-]*;base64,", re.ASCII)


@dataclass(frozen=True, slots=True)
class Reading:
    """How records are read: ``ignored`` are keys that are let pass, beside ``REMARKS``."""

    ignored: frozenset[str] = field(default_factory=frozenset)


def conversation_of(record: object, reading: Reading | None = None) -> Conversation:
    """The conversation of a record of any form; its media have sources and no places yet.

    Raises RecordError, one sentence that says what is wrong.
    """
    reading = Reading() if reading is None else reading
    if not isinstance(record, Mapping):
        raise RecordError(f"is {shown(record)}, expected an object")
    found = [key for key in ("messages", "conversations", "response") if record.get(key) is not None]
    if len(found) != 1:
        raise RecordError(
            f"has {' and '.join(found) or 'the keys ' + shown(sorted(map(str, record)))}, expected one of messages, "
            "conversations, or query with response"
        )
    form = found[0]
    own = {"response": {"query", "response", "history"}}.get(form, {form})
    if unknown := [k for k in record if k not in own | _BESIDE | _SIZES | REMARKS | reading.ignored]:
        raise RecordError(f"key {unknown[0]!r} is unknown; leave it out, or list it in ignored_keys")
    listed = _Listed(record)
    turns = list(_asked(record, listed) if form == "response" else _spoken(record[form], form, listed))
    if record.get("system") and not (turns and turns[0].role == "system"):
        turns.insert(0, Turn("system", listed.parts(text_of(record, "system"))))
    listed.check_used()
    return check(Conversation(tuple(turns)))


class _Listed:
    """The media that a record lists beside its text, handed out in the order of their places."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self._media: dict[Kind, list[Media]] = {kind: [] for kind in KINDS}
        self._places = dict.fromkeys(KINDS, 0)
        for key, kind in _LISTS.items():
            value = record.get(key)
            if value is None:
                continue
            if self._media[kind]:
                raise RecordError(f"has both {kind} and {plural(kind)}; leave one of them out")
            items = value if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else [value]
            self._media[kind] = [media_of(kind, item) for item in items]

    def parts(self, text: str) -> tuple[Part, ...]:
        """The text with its media in place."""
        found: list[Part] = []
        last = 0
        for mark in _MARKS.finditer(text):
            found.append(text[last : mark.start()])
            last = mark.end()
            tag, path, name = mark.groups()
            if tag is not None:
                found.append(media_of(_TAGS[tag], path.strip()))
            else:
                kind = _LISTS[name]
                self._places[kind] += 1
                number = self._places[kind]
                # A place too many is told in check_used(), with both counts.
                found.append(self._media[kind][number - 1] if number <= len(self._media[kind]) else "")
        return joined([*found, text[last:]])

    def check_used(self) -> None:
        """RecordError where the text has more or fewer places than there are media."""
        for kind, media in self._media.items():
            if self._places[kind] != len(media):
                raise RecordError(
                    f"has {self._places[kind]} <{kind}> in its text and lists {len(media)} {plural(kind)}; give each "
                    "its place"
                )


def media_of(kind: Kind, value: object) -> Media:
    """A medium by what a record gives for it: a path, a data URL, bytes, or an object with one of them."""
    if isinstance(value, Media):
        if value.kind != kind:
            raise RecordError(f"gives the {value.kind} {shown(value.source)} for a medium, expected one of kind {kind}")
        return value
    if isinstance(value, Mapping):
        content = value.get("bytes")
        if isinstance(content, bytes):
            return Media(kind, str(value.get("path") or "bytes in the record"), content=content)
        for key in ("url", "path", kind, f"{kind}_url", "data", "value"):
            if value.get(key) is not None:
                return media_of(kind, value[key])
    if isinstance(value, bytes):
        return Media(kind, "bytes in the record", content=value)
    if not isinstance(value, str) or not value.strip():
        raise RecordError(f"gives {shown(value)} for a medium, expected the path of its {kind}")
    if head := _DATA_URL.match(value):
        try:
            return Media(kind, value[: head.end()] + "…", content=base64.b64decode(value[head.end() :], validate=True))
        except binascii.Error as error:
            raise RecordError(f"has a {kind} as a data URL that is not base64 ({error})") from error
    if re.match(r"(?i)(https?|ftp|s3|gs|hdfs|oss)://", value):
        raise RecordError(f"names the {kind} {shown(value)}, expected a file: download it first, or give its prefix")
    if "\0" in value:
        raise RecordError(f"names the {kind} {shown(value)}, expected a path")
    return Media(kind, value.removeprefix("file://"))


def _spoken(messages: object, form: str, listed: _Listed) -> Iterable[Turn]:
    """The turns of a list of messages."""
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        raise RecordError(f"field {form!r} is {shown(messages)}, expected a list of turns")
    for number, message in enumerate(messages, start=1):
        where = f"turn {number}"
        if not isinstance(message, Mapping):
            raise RecordError(f"{where} is {shown(message)}, expected an object with role and content")
        if unknown := [key for key in message if key not in _TURN_KEYS and message[key] is not None]:
            raise RecordError(f"{where} has the unknown key {unknown[0]!r}; use role and content, or from and value")
        name = message.get("role", message.get("from"))
        role = _ROLES.get(name.lower()) if isinstance(name, str) else None
        if role is None:
            raise RecordError(f"{where} is of role {shown(name)}, expected one of {', '.join(_ROLES)}")
        content = message.get("content", message.get("value"))
        loss = message.get("loss")
        if loss is not None and not isinstance(loss, bool):
            raise RecordError(f"{where} has the loss {shown(loss)}, expected true or false")
        yield Turn(role, _content(where, content, listed), role == "assistant" and loss is not False)


def _content(where: str, content: object, listed: _Listed) -> tuple[Part, ...]:
    if isinstance(content, str):
        return listed.parts(content)
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise RecordError(f"{where} has the content {shown(content)}, expected text or a list of parts")
    found: list[Part] = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if isinstance(part, str):
            found += listed.parts(part)
        elif kind == "text":
            text = part.get("text", part.get("value"))
            if not isinstance(text, str):
                raise RecordError(f"{where} has a part of text with {shown(text)}, expected text")
            # Parts say themselves where media are; the text is only text.
            found.append(text)
        elif isinstance(kind, str) and kind in _PARTS:
            value = next((part[key] for key in (kind, _PARTS[kind], "value", "url", "path") if part.get(key)), None)
            # A part without a value stands for the next one that is listed.
            found += listed.parts(f"<{_PARTS[kind]}>") if value is None else (media_of(_PARTS[kind], value),)
        else:
            raise RecordError(f"{where} has the part {shown(part)}, expected type text, {', '.join(_PARTS)}")
    return joined(found)


def _asked(record: Mapping[str, Any], listed: _Listed) -> Iterable[Turn]:
    """The turns of query and response, the history before them."""
    history = record.get("history") or []
    if not isinstance(history, Sequence) or isinstance(history, (str, bytes)):
        raise RecordError(f"field 'history' is {shown(history)}, expected a list of pairs")
    pairs = []
    for pair in history:
        if not isinstance(pair, Sequence) or isinstance(pair, (str, bytes)) or len(pair) != 2:
            raise RecordError(f"field 'history' holds {shown(pair)}, expected pairs of a query and its response")
        pairs.append({"query": pair[0], "response": pair[1]})
    for own in (*pairs, record):
        yield Turn("user", listed.parts(text_of(own, "query")))
        yield Turn("assistant", listed.parts(text_of(own, "response")), True)
