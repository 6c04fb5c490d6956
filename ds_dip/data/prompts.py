"""The text of the digits task: prompts with places for images, and small text tasks."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

#: Stands for an image in a prompt and for the image's digit in an answer.
SLOT = "\x04"

DIGITS = "0123456789"
LETTERS = "abcdefghijklmnopqrstuvwxyz"
_BEFORE = ("read ", "what is ", "name ", "digits: ", "")
_AGAIN = ("", "", "and ", "then ")
_AFTER = ("", "?", " please")
_BETWEEN = ("", " ", ", ", " and ")

#: A conversation: turns of a prompt and its answer. Every ``SLOT`` of a prompt is an image, named in the answer.
Turns = tuple[tuple[str, str], ...]


def image_turns(random: Random, images: int, typed: int, single: bool) -> Turns:
    """Ask for the digits on ``images`` images and ``typed`` digits among them, in one turn where ``single``."""
    digits = [SLOT] * images + random.choices(DIGITS, k=typed)
    random.shuffle(digits)
    return _reading(random, digits, single)


def text_turns(random: Random, digits: int, single: bool) -> Turns:
    """A small task without images: read ``digits`` typed digits, repeat letters, or write them backwards."""
    if random.random() < 0.6:
        return _reading(random, random.choices(DIGITS, k=digits), single)
    letters = "".join(random.choices(LETTERS, k=random.randint(2, 6)))
    if random.random() < 0.5:
        return ((f"repeat {letters}", letters),)
    return ((f"reverse {letters}", letters[::-1]),)


def _reading(random: Random, digits: Sequence[str], single: bool) -> Turns:
    """A letter before each digit, which the answer repeats: ``read a7, b3`` gives ``a7b3``."""
    marked = [letter + digit for letter, digit in zip(LETTERS, digits, strict=False)]
    # How readily a conversation starts another turn: from one turn for all digits to one turn a digit.
    eagerness = 0.0 if single else random.choice((0.0, 0.5, 1.0, 1.0))
    cuts = [place for place in range(1, len(marked)) if random.random() < eagerness]
    turns: list[tuple[str, str]] = []
    for start, stop in zip((0, *cuts), (*cuts, len(marked)), strict=True):
        part = marked[start:stop]
        listed = part[0] + "".join(random.choice(_BETWEEN) + mark for mark in part[1:])
        before = random.choice(_AGAIN if turns else _BEFORE)
        turns.append((before + listed + random.choice(_AFTER), "".join(part)))
    return tuple(turns)
