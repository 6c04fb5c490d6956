"""Conversations as tokens: what is learned is what the assistant says, by templates of either kind and as bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_dip.data.conversations.chat import ByteChat, TemplateChat
from ds_dip.data.conversations.conversation import Conversation, Media, RecordError, Turn
from tests.pretrained_cases import LLAVA, QWEN, tokenizer

IMAGE, VIDEO = Media("image", "a"), Media("video", "b")
MARKS = {"image": "<|image_pad|>", "video": "<|video_pad|>"}
TALK = Conversation(
    (
        Turn("system", ("be brief",)),
        Turn("user", ("look ", IMAGE, " what?")),
        Turn("assistant", ("a caté",), True),
        Turn("user", (VIDEO, "and", IMAGE)),
        Turn("assistant", ("a dog",), True),
    )
)
REPLACED = ["<|image_pad|>" * 3, "<|video_pad|>" * 2, "<|image_pad|>"]
TOKENIZERS = {name: tokenizer(template) for name, template in (("qwen", QWEN), ("llava", LLAVA))}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6).filter(str.strip)


def chat(name: str) -> TemplateChat:
    return TemplateChat(TOKENIZERS[name], MARKS, structured=True)


def learned(name: str, tokens: np.ndarray, mask: np.ndarray) -> str:
    return str(TOKENIZERS[name].decode(tokens[mask]))


@pytest.mark.parametrize(
    ("name", "said"), [("qwen", "a caté<|im_end|>a dog<|im_end|>"), ("llava", "\na caté<|im_end|>\na dog<|im_end|>")]
)
def test_what_is_learned(name: str, said: str) -> None:
    tokens, mask = chat(name).write(TALK, REPLACED)
    assert learned(name, tokens, mask) == said
    counts = [int((tokens == TOKENIZERS[name].convert_tokens_to_ids(mark)).sum()) for mark in MARKS.values()]
    assert counts == [4, 2]


def test_the_text_is_what_the_template_writes() -> None:
    tokens, _ = chat("qwen").write(TALK, ["<|image_pad|>", "<|video_pad|>", "<|image_pad|>"])
    assert TOKENIZERS["qwen"].decode(tokens) == (
        "<|im_start|>system\nbe brief<|im_end|>\n"
        "<|im_start|>user\nlook <|vision_start|><|image_pad|><|vision_end|> what?<|im_end|>\n"
        "<|im_start|>assistant\na caté<|im_end|>\n"
        "<|im_start|>user\n<|vision_start|><|video_pad|><|vision_end|>and<|vision_start|><|image_pad|><|vision_end|>"
        "<|im_end|>\n<|im_start|>assistant\na dog<|im_end|>\n"
    )


def test_media_are_told_in_the_order_of_the_template() -> None:
    assert chat("qwen").order(TALK) == [0, 1, 2]
    assert chat("llava").order(TALK) == [0, 2, 1]
    assert chat("llava").order(Conversation(TALK.turns[:3])) == [0]


@settings(deadline=None)
@given(st.lists(st.tuples(TEXT, st.integers(0, 2), TEXT, st.booleans()), min_size=1, max_size=4), st.integers(0, 5))
def test_whatever_is_said_is_learned_and_nothing_else(talk: list[tuple[str, int, str, bool]], size: int) -> None:
    turns = []
    for question, images, answer, own in talk:
        turns += [Turn("user", (question, *(IMAGE,) * images)), Turn("assistant", (answer,), own)]
    conversation = Conversation(tuple(turns))
    mark = "<|image_pad|>" * size
    for name, before in (("qwen", ""), ("llava", "\n")):
        tokens, mask = chat(name).write(conversation, [mark] * len(conversation.media))
        expected = [f"{before}{answer}<|im_end|>" for _, _, answer, own in talk if own]
        if name == "qwen":  # white space at an answer's end is before the token that ends it
            assert learned(name, tokens, mask) == "".join(expected)
        assert (tokens == TOKENIZERS[name].convert_tokens_to_ids("<|image_pad|>")).sum() == size * len(
            conversation.media
        )
    silent = [turn for turn in turns if turn.role == "assistant" and not turn.supervised]
    assert mask.any() == (len(silent) < len(talk))


def test_a_mark_in_the_text_is_refused() -> None:
    turns = (Turn("user", ("<|image_pad|>", IMAGE)), Turn("assistant", ("a",), True))
    with pytest.raises(RecordError, match="which stands for a medium"):
        chat("qwen").write(Conversation(turns), ["<|image_pad|>"])


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("{% for m in messages %}{{ m['content'] }}{{ messages | length }}{% endfor %}", "mark answers with"),
        ("{{ raise_exception('no system here') }}", "the chat template refuses it .no system here"),
        ("{% for m in messages %}{{ m['role'] }}{{ 'x' if add_generation_prompt }}{% endfor %}", "mark answers with"),
    ],
)
def test_templates_that_cannot_be_used_are_refused(template: str, sentence: str) -> None:
    with pytest.raises(RecordError, match=sentence):
        TemplateChat(tokenizer(template), {}, structured=False).write(
            Conversation((Turn("user", ("a",)), Turn("assistant", ("b",), True), Turn("assistant", ("c",), True))), []
        )


def test_a_medium_that_the_template_leaves_out_is_refused() -> None:
    silent = "{% for m in messages %}{% generation %}{{ m['role'] }}{% endgeneration %}{% endfor %}"
    turns = (Turn("assistant", ("b",), True), Turn("assistant", ("c", IMAGE), True))
    with pytest.raises(RecordError, match="leaves out a medium"):
        TemplateChat(tokenizer(silent), MARKS, structured=True).write(Conversation(turns), ["x"])


def test_bytes() -> None:
    tokens, mask = ByteChat(256).write(TALK, ["\x04\x04", "\x04", ""])
    assert bytes(tokens.astype(np.uint8)) == (
        b"\x01be brieflook \x04\x04 what?\x02a cat\xc3\xa9\x03\x04and\x02a dog\x03"
    )
    assert bytes(tokens[mask].astype(np.uint8)) == b"a cat\xc3\xa9\x03a dog\x03"
    with pytest.raises(RecordError, match="beyond the model's 128 tokens"):
        ByteChat(128).write(TALK, ["", "", ""])
