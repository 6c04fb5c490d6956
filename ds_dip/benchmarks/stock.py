"""DeepSpeed's own pipeline engine on our layers and batches, at its best: as few and as small messages as can be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import deepspeed
import torch
from deepspeed.runtime.pipe.module import PipelineModule
from torch import Tensor, nn

from ds_dip.data import Dataset, SampleMetadata, collate
from ds_dip.models import Context, Model, Sizes, layer_factories, token_cross_entropy
from ds_dip.planning.cut import sizes_of

#: Fields of every kind that a stage gets, beside the sizes that the header holds.
State = tuple[Tensor, ...]


def header(samples: Sequence[SampleMetadata], model: Model, tokens: Tensor) -> Tensor:
    """What travels with the activations, int64 in one tensor: per module its number of instances, sizes, merged sizes.

    The tokens follow, since only the language model's first layer, wherever it is, reads them.
    """
    numbers: list[int] = []
    for sizes in sizes_of(samples, model).values():
        numbers += [len(sizes), *sizes.tokens, *sizes.merged]
    return torch.cat([torch.tensor([len(numbers), *numbers]), tokens])


def unpack(given: Tensor) -> tuple[list[Sizes], Tensor]:
    """The sizes of every module and the tokens of a header."""
    count = int(given[0])
    return list(_sizes(tuple(given[1 : 1 + count].tolist()))), given[1 + count :]


@lru_cache(maxsize=64)
def _sizes(numbers: tuple[int, ...]) -> tuple[Sizes, ...]:
    found, place = [], 0
    while place < len(numbers):
        count = numbers[place]
        tokens, merged = numbers[place + 1 : place + 1 + count], numbers[place + 1 + count : place + 1 + 2 * count]
        found.append(Sizes(tokens, merged))
        place += 1 + 2 * count
    return tuple(found)


class StockLayer(nn.Module):
    """One of our layers in DeepSpeed's convention: a tuple (activations, header) in and out.

    The model's last layer gives the logits alone.
    """

    def __init__(self, layer: nn.Module, model: Model, module: int, index: int) -> None:
        super().__init__()
        self.layer, self.model = layer, model
        self.place, self.name, self.first = module, model.modules[module].name, index == 0
        self.field = next(iter(model.modules[module].layers[index].fields), None)
        self.last = module == len(model.modules) - 1 and index == len(model.modules[module].layers) - 1

    def forward(self, state: State) -> State | Tensor:
        """Run the layer on a microbatch."""
        x, given = state
        sizes, tokens = unpack(given)
        fields = {} if self.field is None else {self.field: tokens if self.field == "tokens" else x}
        upstream = dict.fromkeys(self.model.upstream(self.name), x)
        output: Tensor = self.layer(upstream if self.first else x, Context(sizes[self.place], fields))
        return output if self.last else (output, given)


class TextLayer(nn.Module):
    """A layer of a model of text alone whose microbatches are all of one size: a tensor in, a tensor out."""

    def __init__(self, layer: nn.Module, sizes: Sizes, first: bool) -> None:
        super().__init__()
        self.layer, self.first, self.context = layer, first, Context(sizes, {})

    def forward(self, x: Tensor) -> Tensor:
        """Run the layer on a microbatch; the first one takes the tokens."""
        context = Context(self.context.sizes, {"tokens": x}) if self.first else self.context
        output: Tensor = self.layer({} if self.first else x, context)
        return output


class StaticModule(PipelineModule):  # type: ignore[misc]  # DeepSpeed is untyped
    """A PipelineModule cut at given layers: ``bounds`` are 0, the first layer of every further stage, and the end."""

    def __init__(self, bounds: Sequence[int], **kwargs: Any) -> None:
        self.__dict__["bounds"] = list(bounds)  # nn.Module takes no attributes before its own __init__
        super().__init__(**kwargs)

    def _partition_layers(self, method: str = "uniform") -> None:
        self.parts = self.bounds
        self._set_bounds(start=self.parts[self.stage_id], stop=self.parts[self.stage_id + 1])


def chain(model: Model, seed: int = 0) -> list[nn.Module]:
    """All layers, those of the encoders first, in DeepSpeed's convention."""
    factories = layer_factories(model, seed)
    return [
        StockLayer(factory(), model, place, index)
        for place, module in enumerate(model.modules)
        for index, factory in enumerate(factories[module.name])
    ]


def loss(logits: Tensor, labels: State) -> Tensor:
    """The microbatch's summed loss times a scale, so that DeepSpeed's mean over microbatches is the batch's loss."""
    targets, scale = labels
    return token_cross_entropy(logits, Context(Sizes((), ()), {"labels": targets})) * scale


def stock_engine(module: PipelineModule, config: Mapping[str, Any]) -> Any:
    """DeepSpeed's engine of a module, by ``deepspeed.initialize()``."""
    document = {key: value for key, value in config.items() if key != "dip"}
    return deepspeed.initialize(model=module, config=document)[0]


class Feed:
    """Microbatches for ``train_batch``: each stage loads the fields that it needs, and no others.

    ``batches`` gives every step's microbatches.
    """

    def __init__(self, dataset: Dataset, model: Model, batches: Iterator[Sequence[Sequence[SampleMetadata]]]) -> None:
        self._dataset, self._model, self._batches = dataset, model, batches

    def step(self, first: bool, last: bool, plain: bool) -> Iterator[tuple[Any, Any]]:
        """The next step's microbatches as (inputs, labels); inputs are the tokens alone where ``plain``."""
        microbatches = next(self._batches)
        count = sum(sample.loss_tokens for microbatch in microbatches for sample in microbatch)
        scale = torch.tensor(len(microbatches) / count)
        for samples in microbatches:
            inputs = self._inputs(samples, plain) if first else None
            yield inputs, (self.labels(samples), scale) if last else None

    def _inputs(self, samples: Sequence[SampleMetadata], plain: bool) -> Any:
        tokens = self.tokens(samples)
        return tokens if plain else (self.pixels(samples), header(samples, self._model, tokens))

    def tokens(self, samples: Sequence[SampleMetadata]) -> Tensor:
        """The language model's tokens, int64 [tokens]."""
        return self._field(samples, self._model.loss_module, "tokens")

    def labels(self, samples: Sequence[SampleMetadata]) -> Tensor:
        """What they are trained on, int64 [tokens]."""
        return self._field(samples, self._model.loss_module, "labels")

    def pixels(self, samples: Sequence[SampleMetadata]) -> Tensor:
        """The encoder's patches [patches, patch² x channels], none where there is no image."""
        encoder = self._model.modules[0]
        (field,), options = encoder.layers[0].fields, encoder.layers[0].options
        if any(sample.modules[encoder.name] for sample in samples):
            return self._field(samples, encoder.name, field)
        return torch.zeros(0, options["patch"] ** 2 * options["channels"])

    def _field(self, samples: Sequence[SampleMetadata], module: str, field: str) -> Tensor:
        instances = sum(len(sample.modules[module]) for sample in samples)
        return torch.from_numpy(collate(self._dataset, samples, module, (field,), 0, instances)[field])
