"""What can be wrong between fields of a model's description that are right alone."""

from __future__ import annotations

from math import isqrt

from ds_dip.models.schema import (
    DiffusionTransformer,
    ImageEncoder,
    LanguageModel,
    ModelConfig,
    TextEncoder,
    Transformer,
)


def problem(config: ModelConfig) -> str | None:
    """The first thing that is wrong, as a sentence; None where nothing is."""
    names = [module.name for module in config.modules]
    for name in names:
        if names.count(name) > 1:
            return f"modules name {name!r} more than once; give every module a name of its own"
    if found := _kinds_problem(config):
        return found
    for place, module in enumerate(config.modules):
        found = _block_problem(module) or _own_problem(module)
        if found:
            return f"modules[{place}].{found}"
    wanted = [(name, names[-1]) for name in names[:-1]]
    if config.edges != wanted:
        return f"edges are {[list(edge) for edge in config.edges]}, expected {[list(edge) for edge in wanted]}"
    last = config.modules[-1]
    return _placeholders_problem(last, len(names) - 1, names[:-1]) if isinstance(last, LanguageModel) else None


def _kinds_problem(config: ModelConfig) -> str | None:
    """Image encoders go before a language model, and one text encoder before a diffusion transformer."""
    last = config.modules[-1]
    for place, module in enumerate(config.modules):
        if isinstance(module, LanguageModel | DiffusionTransformer) != (module is last):
            return (
                f"modules[{place}].kind is {module.kind!r}, expected the language model or diffusion transformer, "
                "which ends in the loss, last and encoders before it"
            )
    before, words = (
        (ImageEncoder, "image encoders before a language model")
        if isinstance(last, LanguageModel)
        else (TextEncoder, "one text encoder before a diffusion transformer")
    )
    for place, module in enumerate(config.modules[:-1]):
        if not isinstance(module, before):
            return f"modules[{place}].kind is {module.kind!r}, expected {words}"
    if isinstance(last, DiffusionTransformer) and len(config.modules) != 2:
        return f"modules are {len(config.modules)}, expected 2: {words}"
    return None


def _block_problem(module: Transformer) -> str | None:
    if module.head_dim is None and module.hidden % module.heads:
        return f"hidden is {module.hidden}, expected a multiple of heads = {module.heads}, or give head_dim"
    if module.heads % module.kv_heads:
        return f"heads is {module.heads}, expected a multiple of kv_heads = {module.kv_heads}"
    return None


def _own_problem(module: Transformer) -> str | None:
    if isinstance(module, ImageEncoder):
        root = isqrt(module.merge)
        if root * root != module.merge:
            return f"merge is {module.merge}, expected a square number (1, 4, 9, 16, …): squares of patches are merged"
        if module.image % (module.patch * root):
            return f"image is {module.image}, expected a multiple of patch x sqrt(merge) = {module.patch * root}"
    if isinstance(module, LanguageModel | TextEncoder) and module.width().head_dim % 2:
        return f"head_dim is {module.width().head_dim}, expected an even number: rotary positions turn pairs"
    if isinstance(module, LanguageModel) and module.tied_embeddings:
        return "tied_embeddings is true, expected false: the embedding and the head train apart here"
    return None


def _placeholders_problem(module: LanguageModel, place: int, upstream: list[str]) -> str | None:
    where = f"modules[{place}]"
    if list(module.placeholders) != upstream:
        return f"{where}.placeholders name {list(module.placeholders)}, expected the upstream modules {upstream}"
    for name, token in module.placeholders.items():
        if token >= module.vocabulary:
            return f"{where}.placeholders.{name} is {token}, expected a token below vocabulary = {module.vocabulary}"
    if len(set(module.placeholders.values())) < len(upstream):
        return f"{where}.placeholders are {module.placeholders}, expected a token of its own for every module"
    return None
