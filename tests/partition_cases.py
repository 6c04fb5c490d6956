"""Small models, workloads and scorers for the tests of partitions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ds_dip.costs.roofline import Rates, Roofline
from ds_dip.data import SampleMetadata
from ds_dip.data.digits import Digits
from ds_dip.models import load_model
from ds_dip.models.spec import Layer, Model, Module, TensorSpec
from ds_dip.partition.scoring import Scorer
from ds_dip.partition.workload import Workload, draw
from ds_dip.planner.ordering import fastest
from ds_dip.scheduling import Problem

CONFIGS = Path(__file__).resolve().parent.parent / "model_configs"
QUICKSTART = load_model(CONFIGS / "quickstart.json")
#: An operator's start on a processor costs hundreds of microseconds.
PROCESSOR = Rates(layer_overhead=3e-4)


def schedule(problem: Problem) -> Any:
    return fastest(problem, "dip")


def model_of(**modules: Sequence[int]) -> Model:
    """Modules whose layers take as many operations a token; all before the last feed it."""
    output = (TensorSpec(("tokens", 4)),)
    built = tuple(
        Module(name, tuple(Layer("mine", output, options={"flops_per_token": cost, "weights": 16}) for cost in costs))
        for name, costs in modules.items()
    )
    return Model("m", built, tuple((name, built[-1].name) for name in list(modules)[:-1]))


def digits(batches: int = 2, samples: int = 400, batch_size: int = 16, microbatches: int = 4) -> Workload:
    """Batches of the quickstart's data."""
    dataset = Digits(samples)
    return Workload(draw(len(dataset), dataset.metadata, batch_size, batches), microbatches)


def random_workload(model: Model, seed: int, *, batches: int = 2, samples: int = 4, replicas: int = 1) -> Workload:
    """Samples with 0 to 3 instances in every encoder and one in the last module."""
    rng = random.Random(seed)

    def sample(number: int) -> SampleMetadata:
        sizes = {m.name: tuple(rng.choices(range(1, 9), k=rng.randint(0, 3))) for m in model.modules[:-1]}
        return SampleMetadata(str(number), sizes | {model.loss_module: (rng.randint(1, 40),)}, 1)

    return Workload(
        tuple(tuple(sample(batch * samples + own) for own in range(samples)) for batch in range(batches)), 2, replicas
    )


def scorer(
    workload: Workload | None = None, rates: Rates = PROCESSOR, model: Model = QUICKSTART, **more: Any
) -> Scorer:
    return Scorer(model, workload or digits(), Roofline(model, rates), schedule, **more)
