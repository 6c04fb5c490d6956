"""A rank of ``ds-dip bench data``: the same run on samples at hand, and loaded by conversations with 0 to n threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import deepspeed
import numpy as np
import torch
from deepspeed import comm as dist

import ds_dip
from ds_dip.benchmarks.blocks import interleave, machine, ratios, spread
from ds_dip.data import Dataset, DatasetReference, SampleMetadata
from ds_dip.models.spec import fields_of
from ds_dip.ranks import settings, tell

#: The contender whose samples are loaded before the run.
AT_HAND = "at hand"


class Held:
    """A dataset whose samples were all loaded once, as many as memory holds: what loading costs is over it."""

    def __init__(self, inner: Dataset, fields: Sequence[str]) -> None:
        self._inner = inner
        ids = [inner.metadata(index).id for index in range(len(inner))]
        self._held = {sample: inner.load(sample, fields) for sample in ids}

    def __len__(self) -> int:
        return len(self._inner)

    def metadata(self, index: int) -> SampleMetadata:
        """See Dataset."""
        return self._inner.metadata(index)

    def load(self, sample: str, fields: Sequence[str]) -> Mapping[str, list[np.ndarray]]:
        """See Dataset."""
        held = self._held[sample]
        return {name: held[name] for name in fields}


def _stepping(engine: Any, dataset: Dataset, waited: list[float]) -> Callable[[], None]:
    """A training step on this dataset, which has the samples of the engine's own; notes what it waited for data."""

    def step() -> None:
        engine.dataset = dataset
        engine.train_batch()
        waited.append(engine.loading_seconds)

    return step


def _slowest(waited: Sequence[float]) -> list[float]:
    """Step by step what the rank waited that waited longest; all ranks call it."""
    own = torch.tensor(waited, dtype=torch.float64)
    every = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(every, own)
    found: list[float] = torch.stack(every).max(dim=0).values.tolist()
    return found


def measure(s: Mapping[str, Any]) -> None:
    """Train on the same samples, each contender in turn; rank 0 tells what steps took and waited."""
    config, model = ds_dip.load_config(s["config"]), ds_dip.load_model(s["model"])
    module = ds_dip.DIPModule(
        model, ds_dip.partition_for(model, config, dist.get_world_size()), ds_dip.layer_factories(model),
        ds_dip.token_cross_entropy,
    )  # fmt: skip

    def conversations(workers: int) -> DatasetReference:
        return DatasetReference("ds_dip.data.conversations:Conversations", {**s["dataset"], "workers": workers})

    engine, *_ = ds_dip.initialize(model=module, config=config, training_data=conversations(0))
    fields = fields_of([layer for own in model.modules for layer in own.layers])
    datasets: dict[str, Dataset] = {AT_HAND: Held(engine.dataset, fields)}
    datasets |= {f"{workers} workers": conversations(workers).open() for workers in s["workers"]}
    waited: dict[str, list[float]] = {name: [] for name in datasets}
    contenders = {name: _stepping(engine, dataset, waited[name]) for name, dataset in datasets.items()}
    for run in contenders.values():
        run()
    for own in waited.values():
        own.clear()
    blocks = interleave(contenders, s["blocks"], s["iterations"])
    # The first step of each block is not counted.
    slowest = {
        name: [value for number, value in enumerate(_slowest(own)) if number % (s["iterations"] + 1)]
        for name, own in waited.items()
    }
    document = {
        "machine": machine(),
        "ranks": dist.get_world_size(),
        "batch_size": engine.train_batch_size(),
        "contenders": {
            name: {
                "seconds": spread(blocks.seconds[name]),
                "over_at_hand": ratios(blocks.seconds[name], blocks.seconds[AT_HAND]),
                "cpu_seconds": spread(blocks.cpu[name]),
                "waited_seconds": spread(slowest[name]),
                "waited_share": sum(slowest[name]) / len(slowest[name]) / float(np.mean(blocks.seconds[name])),
            }
            for name in contenders
        },
    }
    if dist.get_rank() == 0:
        tell(document)
    for dataset in datasets.values():
        if (close := getattr(dataset, "close", None)) is not None:
            close()
    ds_dip.shutdown(engine)


def main() -> None:
    """Run as one rank."""
    deepspeed.init_distributed()
    measure(settings())


if __name__ == "__main__":
    main()
