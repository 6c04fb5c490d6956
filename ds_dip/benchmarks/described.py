"""Models of a description at another size, so that a core spends its time in their layers, not in starting them."""

from __future__ import annotations

from ds_dip.files import read_json
from ds_dip.models import Model, parse_model


def widened(path: str, factor: int, patch: int | None = None) -> Model:
    """The model of a description, its hidden and feed-forward sizes so many times as large.

    With ``patch`` encoders cut images into patches of so many pixels a side.
    """
    document = read_json(path, "ds-dip/model")
    # What is missing or no number is for the description's own check to say.
    modules = [
        own | {name: own[name] * factor for name in ("hidden", "ffn") if isinstance(own.get(name), int)}
        for own in document["modules"]
    ]
    if patch is not None:
        modules = [own | {"patch": patch} if "patch" in own else own for own in modules]
    return parse_model(document | {"modules": modules}, path)
