"""The text of the digits task: prompts with places for images, and small text tasks."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

#: Stands for an image in a prompt and for the image's digit in an answer.
SLOT = "\x04"

_BEFORE = ("read these digits: ", "what is written here? ", "name each digit: ", "digits please ", "transcribe: ")
_AFTER = (" : which digits are these?", " . read them in order", " - what do you see?", " spell the number")
_BETWEEN = ("", " ", ", ", " then ", " and ", "; ", " next ")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and its answer; every ``SLOT`` of the prompt is an image, named by the same one of the answer."""

    prompt: str
    answer: str


def image_text(random: Random, images: int) -> Text:
    """Ask for the digits on ``images`` images at places in the text; the answer names them in order."""
    style = random.randrange(3)
    if style == 0:
        separator = random.choice(_BETWEEN)
        return Text(random.choice(_BEFORE) + separator.join(SLOT * images), SLOT * images)
    if style == 1:
        separators = [random.choice(_BETWEEN) for _ in range(images - 1)] + [""]
        return Text("".join(SLOT + between for between in separators) + random.choice(_AFTER), SLOT * images)
    names = random.sample(_LETTERS, images)
    listed = " ".join(f"{name}={SLOT}" for name in names)
    return Text(random.choice(_BEFORE) + listed, SLOT * images)


def text_task(random: Random) -> Text:
    """A small task without images: reverse, sort or repeat letters, or add two numbers."""
    task = random.randrange(4)
    if task == 3:
        a, b = random.randrange(50), random.randrange(50)
        return Text(f"add {a}+{b}", str(a + b))
    letters = "".join(random.choices(_LETTERS, k=random.randint(2, 8)))
    if task == 0:
        return Text(f"reverse: {letters}", letters[::-1])
    if task == 1:
        return Text(f"sort: {letters}", "".join(sorted(letters)))
    return Text(f"repeat: {letters}", letters)
