"""Reads a model's description (``ds-dip/model`` 1) into a ``Model``; needs no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ds_dip.files import FileError, read_json
from ds_dip.models import kinds
from ds_dip.models.checks import problem
from ds_dip.models.schema import KINDS, AnyModule, ImageEncoder, LanguageModel, ModelConfig, Setup, TextEncoder
from ds_dip.models.spec import Layer, Model, Module

FORMAT = "ds-dip/model"


def load_model(path: str | Path, frozen: Sequence[str] = ()) -> Model:
    """Read a model's description from a file, or from a folder of transformers, of which only config.json is read.

    ``frozen`` names modules of a folder's model that are not trained; a file says it itself. Raises FileError, one
    sentence with the field, the value found and what was expected; for a folder whose model cannot be split a
    ValueError that names what is in the way.
    """
    if Path(path).is_dir():
        return _of_folder(Path(path), frozen)
    if frozen:
        raise FileError(f"{path}: its modules say themselves whether they are frozen; leave --frozen out")
    return parse_model(read_json(path, FORMAT), str(path))


def _of_folder(folder: Path, frozen: Sequence[str]) -> Model:
    try:
        from ds_dip.models.hf.split import describe
    except ImportError as error:
        raise FileError(
            f"{folder} is a model of transformers, which needs pip install 'ds_dip[hf]' ({error})"
        ) from error
    return describe(folder, frozen)


def parse_model(document: Mapping[str, Any], where: str = "model") -> Model:
    """Check a ``ds-dip/model`` 1 document and make the ``Model``; ``where`` starts the error's sentence."""
    config = _checked(document, where)
    modules = (Module(module.name, _layers(module, config), module.frozen) for module in config.modules)
    return Model(config.name, tuple(modules), tuple(config.edges))


def load_setups(path: str | Path) -> tuple[Setup, ...]:
    """The setups that a model's description lists, often none.

    Raises FileError as ``load_model`` does.
    """
    return tuple(_checked(read_json(path, FORMAT), str(path)).setups)


def _checked(document: Mapping[str, Any], where: str) -> ModelConfig:
    try:
        # JSON mode: strict about numbers and flags, while a list may be a tuple.
        config = ModelConfig.model_validate_json(json.dumps(dict(document)))
    except ValidationError as error:
        raise FileError(f"{where}: {_sentence(error)}") from error
    if (found := problem(config)) is not None:
        raise FileError(f"{where}: {found}")
    return config


def _layers(module: AnyModule, config: ModelConfig) -> tuple[Layer, ...]:
    """The first layer, the blocks, the last layer."""
    width, depth, hidden = module.width(), module.layers, module.hidden
    if isinstance(module, ImageEncoder):
        side = module.image // module.patch
        first = kinds.patch_embedding(hidden, module.patch, module.channels, side, module.field)
        block, last = kinds.encoder_block(width, depth), kinds.merger(hidden, module.merge, config.modules[-1].hidden)
    elif isinstance(module, TextEncoder):
        first = kinds.token_embedding(hidden, module.vocabulary, {})
        block, last = kinds.decoder_block(width, depth, module.rope_theta), kinds.text_output(hidden)
    elif isinstance(module, LanguageModel):
        placeholders = {source: module.placeholders[source] for source, _ in config.edges}
        first = kinds.token_embedding(hidden, module.vocabulary, placeholders)
        block, last = kinds.decoder_block(width, depth, module.rope_theta), kinds.head(hidden, module.vocabulary)
    else:
        latent = kinds.Latent(module.patch, module.channels, module.side, module.frames, module.field)
        first = kinds.video_embedding(hidden, config.modules[0].hidden, latent)
        block, last = kinds.diffusion_block(width, depth), kinds.video_output(hidden, latent)
    return (first, *(block,) * depth, last)


def _sentence(error: ValidationError) -> str:
    """The first thing wrong, with its place in the document, the value found and what was expected."""
    first = error.errors()[0]
    place = ""
    for part in first["loc"]:
        if part not in KINDS:
            place += f"[{part}]" if isinstance(part, int) else f".{part}" if place else part
    place = place or "the document"
    match first["type"]:
        case "extra_forbidden":
            return f"{place} is {first['input']!r}, but there is no such field; remove it or correct its name"
        case "missing":
            return f"{place} is missing; add it"
        case "union_tag_not_found" | "union_tag_invalid":
            found = first["input"].get("kind") if isinstance(first["input"], Mapping) else first["input"]
            return f"{place}.kind is {found!r}, expected one of {', '.join(KINDS)}"
        case _:
            message = first["msg"]
            return f"{place} is {first['input']!r}, expected: {message[0].lower()}{message[1:]}"
