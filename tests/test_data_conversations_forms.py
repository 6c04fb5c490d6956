"""Records of every form become the same conversation; what is wrong with one is said in a sentence."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_dip.data.conversations.conversation import Conversation, Media, RecordError, Turn
from ds_dip.data.conversations.forms import Reading, conversation_of

IMAGE = Media("image", "a.png")
SAME = Conversation(
    (
        Turn("system", ("be brief",)),
        Turn("user", ("look: ", IMAGE, " what?")),
        Turn("assistant", ("this",), True),
        Turn("user", ("and ", Media("image", "b.png"), Media("video", "c.mp4"), "?")),
        Turn("assistant", ("that",), True),
    )
)
TEXTS = ("look: <image> what?", "this", "and <image><video>?", "that")


def turns(*texts: str, names: tuple[str, str], keys: tuple[str, str]) -> list[dict[str, str]]:
    return [{keys[0]: names[number % 2], keys[1]: text} for number, text in enumerate(texts)]


FORMS = {
    "messages": {
        "messages": [
            {"role": "system", "content": "be brief"},
            *turns(*TEXTS, names=("user", "assistant"), keys=("role", "content")),
        ],
        "images": ["a.png", "b.png"],
        "videos": ["c.mp4"],
    },
    "sharegpt": {
        "conversations": turns(*TEXTS, names=("human", "gpt"), keys=("from", "value")),
        "system": "be brief",
        "images": ["a.png", "b.png"],
        "videos": ["c.mp4"],
    },
    "llava": {
        "id": "7",
        "conversations": turns(*TEXTS, names=("human", "gpt"), keys=("from", "value")),
        "system": "be brief",
        "image": ["a.png", "b.png"],
        "video": "c.mp4",
    },
    "qwen-vl": {
        "system": "be brief",
        "conversations": turns(
            "look: <img>a.png</img> what?",
            "this",
            "and <img>b.png</img><video>c.mp4</video>?",
            "that",
            names=("user", "assistant"),
            keys=("from", "value"),
        ),
    },
    "query": {
        "system": "be brief",
        "history": [[TEXTS[0], TEXTS[1]]],
        "query": TEXTS[2],
        "response": TEXTS[3],
        "images": [{"path": "a.png"}, {"url": "b.png"}],
        "videos": ["c.mp4"],
    },
    "parts": {
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "be brief"}]},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "look: "},
                    {"type": "image_url", "image_url": {"url": "a.png"}},
                    {"type": "text", "value": " what?"},
                ],
            },
            {"role": "assistant", "content": "this"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "and "},
                    {"type": "image"},
                    {"type": "video", "video": "c.mp4"},
                    {"type": "text", "text": "?"},
                ],
            },
            {"role": "assistant", "content": "that"},
        ],
        "images": ["b.png"],
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_says_the_same(form: str) -> None:
    assert conversation_of(FORMS[form]) == SAME


PIECES = st.lists(st.sampled_from(["<image>", "<video>", "<audio>", "a", " b", "é"]), min_size=1)


@settings(deadline=None)
@given(st.lists(st.tuples(PIECES, st.text("xyz", min_size=1)), min_size=1, max_size=4))
def test_media_are_where_their_places_are(asked: list[tuple[list[str], str]]) -> None:
    record: dict[str, Any] = {"messages": [], "images": [], "videos": [], "audios": []}
    for pieces, answer in asked:
        for piece in pieces:
            if piece.startswith("<"):
                own = record[piece.strip("<>") + "s"]
                own.append(f"{piece.strip('<>')}{len(own)}")
        record["messages"] += [{"role": "user", "content": "".join(pieces)}, {"role": "assistant", "content": answer}]
    conversation = conversation_of(record)
    again = ["".join(p if isinstance(p, str) else f"<{p.kind}>" for p in turn.parts) for turn in conversation.turns]
    assert again == [text for pieces, answer in asked for text in ("".join(pieces), answer)]
    for kind in ("image", "video", "audio"):
        found = [media.source for media in conversation.media if media.kind == kind]
        assert found == record[kind + "s"]


def test_bytes_may_be_in_the_record_itself() -> None:
    url = "data:image/png;base64," + base64.b64encode(b"picture").decode()
    for image in (url, {"bytes": b"picture", "path": None}):
        record = {"query": "<image>", "response": "r", "images": [image]}
        (media,) = conversation_of(record).media
        assert media.content == b"picture"


def test_an_answer_may_be_left_unlearned() -> None:
    record = {"messages": [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "loss": False},
        {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"},
    ]}  # fmt: skip
    assert [turn.supervised for turn in conversation_of(record).turns] == [False, False, False, True]


OK = {"query": "q", "response": "r"}


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        ([], "is [], expected an object"),
        ({"text": "a"}, "expected one of messages, conversations, or query with response"),
        (OK | {"messages": []}, "has messages and response"),
        (OK | {"extra": 1}, "key 'extra' is unknown"),
        (OK | {"query": "<image>"}, "has 1 <image> in its text and lists 0 images"),
        (OK | {"images": ["a"]}, "has 0 <image> in its text and lists 1 images"),
        (OK | {"query": "<image><image>", "image": "a"}, "has 2 <image> in its text and lists 1 images"),
        (OK | {"image": "a", "images": ["a"]}, "has both image and images"),
        (OK | {"query": "<image>", "images": [3]}, "gives 3 for a medium"),
        (OK | {"query": "<image>", "images": ["https://a/b.png"]}, "download it first"),
        (OK | {"query": "<image>", "images": ["data:image/png;base64,!"]}, "is not base64"),
        (OK | {"response": " \n"}, "turn 2 is an empty answer"),
        (OK | {"response": 3}, "field 'response' is 3, expected text"),
        (OK | {"history": ["a"]}, "expected pairs of a query and its response"),
        (OK | {"response": "<image>", "images": ["a"]}, "has media in an answer"),
        ({"messages": []}, "has no turns"),
        ({"messages": "hello"}, "expected a list of turns"),
        ({"messages": [{"role": "user", "content": "a"}]}, "ends with the user's turn"),
        ({"messages": [{"role": "boss", "content": "a"}]}, "is of role 'boss'"),
        ({"messages": [{"role": "user", "content": "a", "mood": 1}]}, "unknown key 'mood'"),
        ({"messages": [{"role": "user", "content": None}]}, "has the content None"),
        ({"messages": [{"role": "user", "content": [{"type": "smell"}]}]}, "expected type text, image"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]}, "expected it first"),
        ({"messages": [{"role": "assistant", "content": "a", "loss": False}]}, "no answer that is learned"),
    ],
)
def test_what_is_no_sample_is_refused(record: Any, sentence: str) -> None:
    with pytest.raises(RecordError) as refused:
        conversation_of(record)
    assert sentence in str(refused.value)


def test_a_key_may_be_let_pass() -> None:
    assert conversation_of(OK | {"extra": 1}, Reading(frozenset({"extra"}))).turns[1].text == "r"
