"""Reads a model's description (``ds-dip/model`` 1) into a ``Model``; needs no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isqrt
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from ds_dip.files import FileError, read_json
from ds_dip.models import kinds
from ds_dip.models.spec import Layer, Model, Module

FORMAT = "ds-dip/model"
NonNegativeInt = Annotated[int, Field(ge=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Transformer(_Strict):
    """The sizes every module has; ``head_dim`` defaults to hidden / heads."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
    layers: PositiveInt
    hidden: PositiveInt
    heads: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt | None = None
    ffn: PositiveInt
    gated: bool
    frozen: bool = False

    def width(self) -> kinds.Width:
        """The blocks' sizes."""
        head_dim = self.head_dim or self.hidden // self.heads
        return kinds.Width(self.hidden, self.heads, self.kv_heads, head_dim, self.ffn, self.gated)


class ImageEncoder(_Transformer):
    """A ViT with the adapter: patch embedding, ``layers`` blocks, and a merger of ``merge`` patches to one token.

    ``image`` is the side of the largest image and ``patch`` that of a patch, in pixels. ``field`` is the dataset
    field with the patches.
    """

    kind: Literal["image_encoder"]
    patch: PositiveInt
    channels: PositiveInt
    image: PositiveInt
    merge: PositiveInt
    field: str = "pixels"


class LanguageModel(_Transformer):
    """A decoder: token embedding, ``layers`` causal blocks with rotary positions, and the head.

    ``placeholders`` give the token that stands for one row of each upstream module's output.
    """

    kind: Literal["language_model"]
    vocabulary: PositiveInt
    placeholders: dict[str, NonNegativeInt] = {}
    rope_theta: PositiveInt = 10000
    tied_embeddings: bool = False


class ModelConfig(_Strict):
    """A whole ``ds-dip/model`` 1 document."""

    format: Literal["ds-dip/model"]
    version: Literal[1]
    name: str
    modules: Annotated[list[Annotated[ImageEncoder | LanguageModel, Field(discriminator="kind")]], Field(min_length=1)]
    edges: list[tuple[str, str]] = []


def load_model(path: str | Path) -> Model:
    """Read a model's description from a file.

    Raises FileError, one sentence with the field, the value found and what was expected.
    """
    return parse_model(read_json(path, FORMAT), str(path))


def parse_model(document: Mapping[str, Any], where: str = "model") -> Model:
    """Check a ``ds-dip/model`` 1 document and make the ``Model``; ``where`` starts the error's sentence."""
    try:
        # JSON mode: strict about numbers and flags, while a list may be a tuple.
        config = ModelConfig.model_validate_json(json.dumps(dict(document)))
    except ValidationError as error:
        raise FileError(f"{where}: {_sentence(error)}") from error
    problem = _problem(config)
    if problem:
        raise FileError(f"{where}: {problem}")
    language = config.modules[-1]
    assert isinstance(language, LanguageModel)
    modules = []
    for module in config.modules:
        layers = _encoder(module, language.hidden) if isinstance(module, ImageEncoder) else _language(module, config)
        modules.append(Module(module.name, layers, module.frozen))
    return Model(config.name, tuple(modules), tuple(config.edges))


def _encoder(config: ImageEncoder, output: int) -> tuple[Layer, ...]:
    first = kinds.patch_embedding(
        config.hidden, config.patch, config.channels, config.image // config.patch, config.field
    )
    blocks = (kinds.encoder_block(config.width(), config.layers),) * config.layers
    return (first, *blocks, kinds.merger(config.hidden, config.merge, output))


def _language(config: LanguageModel, model: ModelConfig) -> tuple[Layer, ...]:
    placeholders = {source: config.placeholders[source] for source, _ in model.edges}
    blocks = (kinds.decoder_block(config.width(), config.layers, config.rope_theta),) * config.layers
    first = kinds.token_embedding(config.hidden, config.vocabulary, placeholders)
    return (first, *blocks, kinds.head(config.hidden, config.vocabulary))


def _sentence(error: ValidationError) -> str:
    """The first thing wrong, with its place in the document, the value found and what was expected."""
    first = error.errors()[0]
    tags = ("image_encoder", "language_model")
    place = ""
    for part in first["loc"]:
        if part not in tags:
            place += f"[{part}]" if isinstance(part, int) else f".{part}" if place else part
    place = place or "the document"
    match first["type"]:
        case "extra_forbidden":
            return f"{place} is {first['input']!r}, but there is no such field; remove it or correct its name"
        case "missing":
            return f"{place} is missing; add it"
        case "union_tag_not_found" | "union_tag_invalid":
            found = first["input"].get("kind") if isinstance(first["input"], Mapping) else first["input"]
            return f"{place}.kind is {found!r}, expected one of {', '.join(tags)}"
        case _:
            message = first["msg"]
            return f"{place} is {first['input']!r}, expected: {message[0].lower()}{message[1:]}"


def _problem(config: ModelConfig) -> str | None:
    """What is wrong between fields that are right alone, as a sentence; None where nothing is."""
    names = [module.name for module in config.modules]
    for name in names:
        if names.count(name) > 1:
            return f"modules name {name!r} more than once; give every module a name of its own"
    for place, module in enumerate(config.modules):
        last = place == len(names) - 1
        if isinstance(module, LanguageModel) != last:
            return (
                f"modules[{place}].kind is {module.kind!r}, expected the language model, which ends in the loss, "
                f"last and image encoders before it"
            )
        found = _block_problem(module) or (_image_problem(module) if isinstance(module, ImageEncoder) else None)
        if found:
            return f"modules[{place}].{found}"
    wanted = [(name, names[-1]) for name in names[:-1]]
    if config.edges != wanted:
        return f"edges are {[list(edge) for edge in config.edges]}, expected {[list(edge) for edge in wanted]}"
    language = config.modules[-1]
    assert isinstance(language, LanguageModel)
    return _language_problem(language, len(names) - 1, names[:-1])


def _block_problem(module: _Transformer) -> str | None:
    if module.head_dim is None and module.hidden % module.heads:
        return f"hidden is {module.hidden}, expected a multiple of heads = {module.heads}, or give head_dim"
    if module.heads % module.kv_heads:
        return f"heads is {module.heads}, expected a multiple of kv_heads = {module.kv_heads}"
    return None


def _image_problem(module: ImageEncoder) -> str | None:
    root = isqrt(module.merge)
    if root * root != module.merge:
        return f"merge is {module.merge}, expected a square number (1, 4, 9, 16, …): squares of patches are merged"
    if module.image % (module.patch * root):
        return f"image is {module.image}, expected a multiple of patch x sqrt(merge) = {module.patch * root}"
    return None


def _language_problem(module: LanguageModel, place: int, upstream: list[str]) -> str | None:
    where = f"modules[{place}]"
    if module.width().head_dim % 2:
        return f"{where}.head_dim is {module.width().head_dim}, expected an even number: rotary positions turn pairs"
    if module.tied_embeddings:
        return f"{where}.tied_embeddings is true, expected false: the embedding and the head train apart here"
    if list(module.placeholders) != upstream:
        return f"{where}.placeholders name {list(module.placeholders)}, expected the upstream modules {upstream}"
    for name, token in module.placeholders.items():
        if token >= module.vocabulary:
            return f"{where}.placeholders.{name} is {token}, expected a token below vocabulary = {module.vocabulary}"
    if len(set(module.placeholders.values())) < len(upstream):
        return f"{where}.placeholders are {module.placeholders}, expected a token of its own for every module"
    return None
