"""The batches that candidates are scored on: the first ones a run would draw, the same for every candidate."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from ds_dip.costs.model import CostModel
from ds_dip.data import Dataset, SampleMetadata, Sampler, order_of
from ds_dip.models.spec import Model, Sizes
from ds_dip.planning import assign, loads_of
from ds_dip.planning.cut import LOSS_RULES, sizes_of


@dataclass(frozen=True, slots=True)
class Workload:
    """Global batches of samples, and how a run shares each among replicas and microbatches.

    Raises ValueError, naming the field, where there is no batch or a count is below 1.
    """

    batches: tuple[tuple[SampleMetadata, ...], ...]
    microbatches: int
    replicas: int = 1
    loss: str = "tokens"

    def __post_init__(self) -> None:
        if not self.batches or not all(self.batches):
            raise ValueError("the workload holds no sample: give at least one batch of at least one sample")
        for name in ("microbatches", "replicas"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: at least 1 is needed")
        if self.loss not in LOSS_RULES:
            raise ValueError(f"loss is {self.loss!r}: use one of {', '.join(LOSS_RULES)}")
        if (least := min(map(len, self.batches))) < self.replicas:
            raise ValueError(
                f"a global batch of {least} samples leaves some of {self.replicas} replicas without any: "
                "give at least one sample a replica"
            )

    @property
    def sha256(self) -> str:
        """A hash of everything in it."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def shares(self, model: Model, costs: CostModel) -> tuple[tuple[tuple[tuple[int, ...], ...], ...], ...]:
        """Positions in each batch per replica and microbatch, as the planner assigns them.

        They depend on costs per sample alone, so all candidates have the same.
        """
        counts = self.replicas, self.microbatches
        return tuple(assign(own, *counts, loads_of(model, costs, len(own) / prod(counts))) for own in self.batches)


def draw(
    size: int, metadata: Callable[[int], SampleMetadata], batch_size: int, batches: int, seed: int = 0
) -> tuple[tuple[SampleMetadata, ...], ...]:
    """The first ``batches`` global batches that the sampler draws from ``size`` samples with this seed.

    ``metadata`` gives a sample's by its index; at most one epoch is drawn. Raises ValueError where a
    batch is larger than the dataset or a count below 1.
    """
    if batches < 1:
        raise ValueError(f"batches is {batches}: at least 1 is needed")
    sampler = Sampler(size, batch_size, seed)
    steps = range(min(batches, sampler.steps_per_epoch))
    return tuple(tuple(metadata(index) for index in sampler.indices(step)) for step in steps)


def drawn(dataset: Dataset, batch_size: int, batches: int, seed: int = 0) -> tuple[tuple[SampleMetadata, ...], ...]:
    """The first global batches of a run on this dataset, by its own order where it has one; see ``draw``."""
    if getattr(dataset, "order", None) is None:
        return draw(len(dataset), dataset.metadata, batch_size, batches, seed)
    if batches < 1:
        raise ValueError(f"batches is {batches}: at least 1 is needed")
    order = order_of(dataset, batch_size, seed)
    return tuple(tuple(map(dataset.metadata, order.indices(step))) for step in range(batches))


def batch_shape(document: Mapping[str, Any], replicas: int = 1) -> tuple[int, int]:
    """(samples of a global batch, microbatches a replica) of a DeepSpeed configuration, by DeepSpeed's rule.

    ``train_batch_size`` is ``train_micro_batch_size_per_gpu`` x ``gradient_accumulation_steps`` x
    replicas: two of the three give the third, one alone an accumulation or a microbatch of 1.
    Raises ValueError, naming the key, for numbers that disagree or are none.
    """
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    batch, micro, steps = (_count(document, name) for name in names)
    if batch is None:
        if micro is None:
            raise ValueError(f"{names[0]} is missing: give it, or {names[1]} and {names[2]}")
        steps = steps or 1
        batch = micro * steps * replicas
    elif steps is None:
        steps = 1 if micro is None else batch // (micro * replicas)
    if micro is not None and batch != micro * steps * replicas:
        raise ValueError(
            f"{names[0]} is {batch}, {names[1]} {micro} and {names[2]} {steps} for {replicas} replicas: the first must "
            "be the product of the others"
        )
    return batch, steps


def _count(document: Mapping[str, Any], name: str) -> int | None:
    value = document.get(name)
    if value is None or value == "auto":
        return None
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} is {value!r}, expected a whole number of at least 1")
    return value


def compute_of(document: Mapping[str, Any]) -> str:
    """The data type that a DeepSpeed configuration trains in."""
    for block, name in (("bf16", "bfloat16"), ("bfloat16", "bfloat16"), ("fp16", "float16")):
        setting = document.get(block)
        if isinstance(setting, Mapping) and setting.get("enabled") is True:
            return name
    return "float32"


def typical(model: Model, module: str, workload: Workload, instances: int) -> Sizes:
    """``instances`` equal instances of a module, each as large as the workload's mean one, in tokens."""
    tokens = merged = count = 0
    for batch in workload.batches:
        sizes = sizes_of(batch, model)[module]
        tokens, merged, count = tokens + sum(sizes.tokens), merged + sum(sizes.merged), count + len(sizes)
    if not count:
        return Sizes((), ())
    return Sizes((max(1, round(tokens / count)),) * instances, (max(1, round(merged / count)),) * instances)
