"""The options of a dataset of conversations, checked."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Policy = Literal["error", "skip", "replace"]
Verify = Literal["headers", "decode"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LimitSettings(_Strict):
    """What is refused by its header (see ``headers.Limits``)."""

    bytes: Annotated[int, Field(gt=0)] = 1 << 32
    pixels: Annotated[int, Field(gt=0)] = 1 << 27
    video_pixels: Annotated[int, Field(gt=0)] = 1 << 38
    seconds: Annotated[float, Field(gt=0)] = 4 * 3600.0


class FrameSettings(_Strict):
    """Which frames of a video are looked at (see ``processor.Frames``); what is not said is the model's own."""

    rate: Annotated[float, Field(gt=0)] | None = None
    least: Annotated[int, Field(ge=1)] | None = None
    most: Annotated[int, Field(ge=1)] | None = None


class ProcessorSettings(_Strict):
    """Which processor makes fields: of a folder of transformers, or for a model of our own.

    ``encoders`` are the modules that see media, of a folder of transformers: a frozen tower and its projector are two.
    """

    pretrained: str | None = None
    model: str | None = None
    tokenizer: str | None = None
    encoders: tuple[str, ...] | None = None
    frames: FrameSettings = FrameSettings()


class Settings(_Strict):
    """All options; docs/data.md has them."""

    files: Annotated[tuple[str, ...], Field(min_length=1)]
    processor: ProcessorSettings
    root: str | None = None
    prefixes: dict[str, str] = {}
    outside: bool = False
    ignored_keys: tuple[str, ...] = ()
    limits: LimitSettings = LimitSettings()
    verify: Verify = "headers"
    problems: Policy = "error"
    index: str | None = None
    check_media: bool = True
    workers: Annotated[int, Field(ge=0, le=64)] = 2
    ahead: Annotated[int, Field(ge=1)] = 256


def read_settings(options: dict[str, Any]) -> Settings:
    """The options, checked; ValueError, one sentence that names the option."""
    if isinstance(options.get("files"), str):
        options = options | {"files": [options["files"]]}
    try:
        return Settings.model_validate(options)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        raise ValueError(
            f"option {name!r} of the conversations: {first['msg']} (found {first['input']!r:.60})"
        ) from error
