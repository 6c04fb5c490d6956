"""Settings and datasets for the planner's tests; importable, so that a planner's process opens them too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import hypothesis
import numpy as np

from ds_dip.data import DatasetReference, SampleMetadata, Sampler
from ds_dip.models.spec import Layer, Model, Module, TensorSpec
from ds_dip.partition import make_partition
from ds_dip.planner import PlannerSettings

#: Property tests that make plans: each example takes tens of milliseconds.
FEW = hypothesis.settings(deadline=None, max_examples=30)
LAYER = Layer("mine", (TensorSpec(("tokens", 4)),), options={"flops_per_token": 10**6})
FIRST = Layer("mine", LAYER.output, options=LAYER.options, fields=("tokens",))
MODEL = Model(
    "small",
    (Module("vision", (LAYER,) * 4), Module("language", (FIRST, *(LAYER,) * 7))),
    (("vision", "language"),),
)


class Samples:
    """Samples with 0 to 4 images; the one at ``broken`` has metadata that cannot be read."""

    def __init__(self, length: int = 40, broken: int = -1) -> None:
        self.length, self.broken = length, broken

    def __len__(self) -> int:
        return self.length

    def metadata(self, index: int) -> SampleMetadata:
        if index == self.broken:
            raise OSError(f"sample {index} cannot be read")
        images = (16, 8, 32, 4)[: index * 7 % 5]
        merged = tuple(size // 4 for size in images)
        text = 5 + index % 11 + sum(merged)
        return SampleMetadata(f"s{index}", {"vision": images, "language": (text,)}, 1 + index % 3, {"vision": merged})

    def load(self, sample: str, fields: Sequence[str]) -> Mapping[str, list[np.ndarray]]:
        raise AssertionError("planning needs metadata alone")


def settings(dataset: Mapping[str, Any] | None = None, **changes: Any) -> PlannerSettings:
    """Two ranks, two laps of the language model, eight samples in four microbatches."""
    given: dict[str, Any] = {
        "model": MODEL,
        "partition": make_partition(MODEL, 2, {"language": 2}, {"vision": 3}),
        "dataset": DatasetReference("tests.planner_cases:Samples", dict(dataset or {})),
        "batch_size": 8,
        "microbatches": 4,
        "paced": False,  # plans are compared: none may depend on the clock
    }
    return PlannerSettings(**(given | changes))


def drawn(step: int) -> list[int]:
    """The samples that these settings' sampler draws for a step."""
    own = settings()
    return [int(index) for index in Sampler(len(Samples()), own.batch_size, own.seed).indices(step)]
