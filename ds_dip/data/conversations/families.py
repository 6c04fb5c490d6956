"""What each family of transformers makes of media: places in the text, and fields for its encoder.

Fields are those that ``ds_dip.models.from_transformers`` reads.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ds_dip.data.conversations.conversation import Kind, Media
from ds_dip.data.conversations.headers import Facts
from ds_dip.data.conversations.processor import Frames
from ds_dip.files import first_line

Makers = dict[str, Callable[[], list[np.ndarray]]]


@dataclass(frozen=True, slots=True)
class Place:
    """A medium in the text and in the encoder: ``patches`` and ``merged`` of each of its instances.

    ``grid`` is the family's own.
    """

    text: str
    patches: tuple[int, ...]
    merged: tuple[int, ...]
    grid: tuple[int, ...] = ()


class Family(Protocol):
    """How a family sees media."""

    @property
    def marks(self) -> Mapping[Kind, str]:
        """What stands for a medium in the template's text, for the kinds that the model takes."""
        ...

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields beside ``tokens`` and ``labels``."""
        ...

    @property
    def encoders(self) -> tuple[str, ...]:
        """Modules that see media, unless it is said otherwise."""
        ...

    @property
    def frames(self) -> Frames:
        """Which frames of videos are looked at."""
        ...

    def place(self, facts: Facts, *, several: bool) -> Place:
        """A medium's place; ``several``: the sample has more than one image. ValueError where it is refused."""
        ...

    def makers(
        self,
        media: Sequence[Media],
        facts: Sequence[Facts],
        places: Callable[[], Sequence[Place]],
        tokens: Callable[[], np.ndarray],
    ) -> Makers:
        """What makes each of ``fields``."""
        ...


class TextFamily:
    """Models of text alone."""

    fields: tuple[str, ...] = ()
    encoders: tuple[str, ...] = ()

    def __init__(self, folder: str, config: Mapping[str, Any], tokenizer: Any, frames: Frames) -> None:
        self.marks: Mapping[Kind, str] = {}
        self.frames = frames

    def place(self, facts: Facts, *, several: bool) -> Place:
        """There are none."""
        raise ValueError(f"a {facts.kind} for a model of text")

    def makers(self, *_: object) -> Makers:
        """None."""
        return {}


#: By ``model_type`` of the folder's configuration: the module and class, imported when they are used.
FAMILIES: Mapping[str, tuple[str, str]] = {
    "qwen2_5_vl": ("ds_dip.data.conversations.qwen_vl", "QwenVL"),
    "llava_onevision": ("ds_dip.data.conversations.llava_onevision", "LlavaOnevision"),
    "internvl": ("ds_dip.data.conversations.internvl", "InternVL"),
    "qwen2_audio": ("ds_dip.data.conversations.qwen2_audio", "Qwen2Audio"),
}


def family_of(folder: str, config: Mapping[str, Any], tokenizer: Any, frames: Frames) -> Family:
    """The family of a folder's model; ValueError for one that sees or hears and is not known."""
    kind = str(config.get("model_type"))
    if kind in FAMILIES:
        module, name = FAMILIES[kind]
        whole = _whole(folder)
        found: Family = getattr(importlib.import_module(module), name)(folder, whole, tokenizer, frames)
        return found
    if any(key in config for key in ("vision_config", "audio_config")):
        raise ValueError(
            f"{folder}: conversations for models of type {kind!r} are not known; known are {', '.join(FAMILIES)}, "
            "and text alone"
        )
    return TextFamily(folder, config, tokenizer, frames)


def _whole(folder: str) -> Mapping[str, Any]:
    """The folder's configuration with what the file leaves to the library's defaults."""
    from transformers import AutoConfig

    try:
        found: Mapping[str, Any] = AutoConfig.from_pretrained(folder, local_files_only=True).to_dict()
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{folder}: its configuration cannot be read ({first_line(error)})") from error
    return found


def token_of(config: Mapping[str, Any], kind: Kind) -> int:
    """The token that stands for a medium of a kind, by either of the names that configurations have for it."""
    return int(config[f"{kind}_token_id"] if f"{kind}_token_id" in config else config[f"{kind}_token_index"])


def image_processor_of(folder: str) -> Any:
    """The folder's image processor, the one by Pillow; ValueError where it cannot be read."""
    from transformers import AutoImageProcessor

    try:
        return AutoImageProcessor.from_pretrained(folder, local_files_only=True, backend="pil")
    except (OSError, ValueError, ImportError) as error:
        raise ValueError(f"{folder}: its image processor cannot be read ({first_line(error)})") from error


def stored(folder: str, name: str) -> dict[str, Any]:
    """What a file of the folder says; nothing where it is not there."""
    path = Path(folder, name)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found
