"""A model of text alone and sequences of one length: the uniform work that static schedules are best at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ds_dip.data import SampleMetadata
from ds_dip.models import Model, parse_model

if TYPE_CHECKING:
    from torch import nn

VOCABULARY = 128


class Text:
    """``samples`` sequences of ``length`` random tokens, drawn from the sample's number; every token is supervised."""

    def __init__(self, samples: int, length: int) -> None:
        self.samples, self.length = samples, length

    def __len__(self) -> int:
        return self.samples

    def metadata(self, index: int) -> SampleMetadata:
        """Sizes of the sample at ``index``."""
        return SampleMetadata(str(index), {"language": (self.length,)}, self.length)

    def load(self, sample: str, fields: Sequence[str]) -> Mapping[str, list[np.ndarray]]:
        """``tokens`` and ``labels``, int64 [length]."""
        drawn = np.random.default_rng(int(sample)).integers(0, VOCABULARY, self.length + 1)
        both = {"tokens": [drawn[:-1]], "labels": [drawn[1:]]}
        return {name: both[name] for name in fields}


def text_model(layers: int, hidden: int) -> Model:
    """A decoder of ``layers`` blocks."""
    language: dict[str, Any] = {
        "name": "language", "kind": "language_model", "layers": layers, "hidden": hidden, "heads": 4, "kv_heads": 4,
        "ffn": 4 * hidden, "gated": False, "vocabulary": VOCABULARY,
    }  # fmt: skip
    return parse_model({"format": "ds-dip/model", "version": 1, "name": "text", "modules": [language]})


def near_empty_factories(model: Model) -> Mapping[str, Sequence[Callable[[], nn.Module]]]:
    """Layers of the model's shapes that do next to nothing: what is left of an iteration is the engine's."""
    import torch
    from torch import Tensor, nn
    from torch.nn import functional

    from ds_dip.models import Context

    hidden = model.modules[0].layers[0].options["hidden"]

    class Embedding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.linspace(-1, 1, VOCABULARY * hidden).view(VOCABULARY, hidden))

        def forward(self, x: object, context: Context) -> Tensor:
            return functional.embedding(context.fields["tokens"], self.weight)

    class Shift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(hidden))

        def forward(self, x: Tensor, context: Context) -> Tensor:
            return x + self.bias

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.linspace(-1, 1, VOCABULARY * hidden).view(VOCABULARY, hidden))

        def forward(self, x: Tensor, context: Context) -> Tensor:
            return functional.linear(x, self.weight)

    layers = len(model.modules[0].layers)
    return {model.modules[0].name: (Embedding, *(Shift,) * (layers - 2), Head)}
