"""What a dataset is told of samples that will be loaded: this step's, and the next one's once they are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from ds_dip.data import SampleMetadata
from ds_dip.models import load_model
from ds_dip.models.spec import Sizes
from ds_dip.planning.batch import Batch, Microbatch
from ds_dip.runtime.feed import Feed


class Told:
    """A dataset that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[list[str]] = []

    def __len__(self) -> int:
        return 100

    def metadata(self, index: int) -> SampleMetadata:
        return SampleMetadata(str(index), {"language": (3,)}, 2)

    def load(self, sample: str, fields: Sequence[str]) -> Mapping[str, list[np.ndarray]]:
        return {name: [np.full(3, int(sample))] for name in fields}

    def ahead(self, samples: Sequence[str], fields: Sequence[str]) -> None:
        assert fields == ("tokens",)
        self.told.append(list(samples))


def batch(step: int, *samples: int) -> Batch:
    metadata = tuple(SampleMetadata(str(index), {"language": (3,)}, 2) for index in samples)
    sizes = {"language": Sizes((3,) * len(samples), (3,) * len(samples))}
    return Batch(step, (Microbatch(metadata, sizes, {"language": ((0, len(samples)),)}),), 2 * len(samples))


def feed() -> Feed:
    model = load_model("model_configs/quickstart.json")
    return Feed(model, torch.device("cpu"), lambda name: torch.float32, ["tokens"])


def test_the_next_steps_samples_follow_this_steps() -> None:
    dataset, own = Told(), feed()
    own.begin(dataset, batch(0, 1, 2), ["7", "8"])
    assert dataset.told == [["1", "2", "7", "8"]]


def test_a_plan_that_comes_is_loaded_once_the_step_before_it_runs() -> None:
    dataset, own = Told(), feed()
    own.coming(batch(1, 3))  # before anything runs
    own.begin(dataset, batch(0, 1), [])
    own.coming(batch(1, 3))
    own.coming(batch(5, 9))  # of another run
    own.begin(dataset, batch(1, 3), [])
    own.coming(batch(2, 4))
    assert dataset.told == [["1", "3"], ["1", "3"], ["1"], ["3"], ["3", "4"]]


def test_an_evaluation_loads_what_it_needs_alone() -> None:
    dataset, own = Told(), feed()
    own.begin(dataset, batch(0, 1), [])
    own.coming(batch(1, 3))
    own.begin(dataset, batch(0, 6))
    own.coming(batch(1, 3))
    assert dataset.told[-2:] == [["6"], ["6"]]
    assert own.seconds == 0.0


def test_what_is_loaded_is_of_the_batch_under_way() -> None:
    dataset, own = Told(), feed()
    under_way = batch(0, 1, 2)
    own.begin(dataset, under_way)
    tokens = own.load(under_way.microbatches[0], "language", ("tokens",), 1, 2)["tokens"]
    assert tokens.tolist() == [2, 2, 2]
    assert own.seconds > 0.0
