"""What every contender trains on: a step's samples in microbatches, as the planner or a plain loader cuts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ds_dip.costs.model import CostModel
from ds_dip.costs.roofline import Rates, Roofline
from ds_dip.data import Dataset, SampleMetadata, Sampler
from ds_dip.models import Model
from ds_dip.planning import assign, loads_of


def microbatches_of(
    model: Model,
    dataset: Dataset,
    step: int,
    config: Mapping[str, Any],
    *,
    balanced: bool,
    costs: CostModel | None = None,
) -> list[list[SampleMetadata]]:
    """The samples of one step's microbatches: those of DIPEngine's plans where ``balanced``, else in loader's order.

    ``costs`` are what its planner balances by (default: a roofline).
    """
    batch, count = config["train_batch_size"], config["gradient_accumulation_steps"]
    seed = config.get("dip", {}).get("planner", {}).get("seed", 0)
    samples: Sequence[SampleMetadata] = [
        dataset.metadata(index) for index in Sampler(len(dataset), batch, seed).indices(step)
    ]
    if not balanced:
        size = config["train_micro_batch_size_per_gpu"]
        return [list(samples[start : start + size]) for start in range(0, batch, size)]
    known = costs or Roofline(model, Rates())
    (shares,) = assign(samples, 1, count, loads_of(model, known, batch / count))
    return [[samples[place] for place in share] for share in shares]
