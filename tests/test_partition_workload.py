"""Workloads: the batches that a run would draw, shared as the planner shares them."""

from __future__ import annotations

from typing import Any

import pytest

from ds_dip.data import SampleMetadata, Sampler
from ds_dip.data.digits import Digits
from ds_dip.data.ordering import Ordered
from ds_dip.models.spec import Sizes
from ds_dip.partition.workload import Workload, batch_shape, draw, drawn, typical
from tests.partition_cases import QUICKSTART, digits, model_of


def test_the_batches_are_the_first_that_the_sampler_gives() -> None:
    dataset = Digits(100)
    batches = draw(100, dataset.metadata, 8, 3, seed=5)
    expected = [Sampler(100, 8, 5).indices(step) for step in range(3)]
    assert [[sample.id for sample in batch] for batch in batches] == [
        [dataset.metadata(index).id for index in indices] for indices in expected
    ]


def test_a_dataset_with_an_order_is_drawn_by_it() -> None:
    reference = {"factory": "tests.order_cases:Sized", "options": {"sizes": [[0, 9]] * 8 + [[1, 9]] * 8}}
    dataset = Ordered(reference, group="alike")
    batches = drawn(dataset, 4, 9)
    assert len(batches) == 9
    assert all(len({len(sample.modules["vision"]) for sample in batch}) == 1 for batch in batches)
    assert drawn(Digits(100), 8, 3, seed=5) == draw(100, Digits(100).metadata, 8, 3, seed=5)
    with pytest.raises(ValueError, match="batches is 0"):
        drawn(dataset, 4, 0)


def test_no_more_than_an_epoch_is_drawn() -> None:
    assert len(draw(20, Digits(20).metadata, 8, 50)) == 2


def test_the_hash_is_that_of_everything_in_it() -> None:
    assert digits().sha256 == digits().sha256
    assert len({digits().sha256, digits(microbatches=2).sha256, digits(batches=1).sha256}) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batches": ()}, "holds no sample"),
        ({"batches": ((),)}, "holds no sample"),
        ({"microbatches": 0}, "microbatches is 0"),
        ({"replicas": 2}, "1 samples leaves some of 2 replicas without any"),
        ({"loss": "words"}, "loss is 'words'"),
    ],
)
def test_what_no_run_could_have_is_refused(change: dict[str, Any], message: str) -> None:
    sample = SampleMetadata("a", {"language": (3,)}, 3)
    with pytest.raises(ValueError, match=message):
        Workload(**({"batches": ((sample,),), "microbatches": 1} | change))
    with pytest.raises(ValueError, match="batches is 0"):
        draw(4, lambda _: sample, 2, 0)


def test_a_typical_instance_has_the_mean_size() -> None:
    model = model_of(vision=[1], language=[1])
    samples = tuple(
        SampleMetadata(str(size), {"vision": (size,), "language": (9,)}, 9, {"vision": (size // 2,), "language": (9,)})
        for size in (4, 8, 12)
    )
    workload = Workload((samples,), 1)
    assert typical(model, "vision", workload, 2) == Sizes((8, 8), (4, 4))
    assert typical(model_of(audio=[1], vision=[1], language=[1]), "audio", workload, 2) == Sizes((), ())
    assert typical(QUICKSTART, "vision", digits(), 3) == Sizes((16,) * 3, (1,) * 3)


@pytest.mark.parametrize(
    ("document", "replicas", "expected"),
    [
        ({"train_batch_size": 64, "gradient_accumulation_steps": 8}, 1, (64, 8)),
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8}, 2, (64, 4)),
        ({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}, 3, (24, 4)),
        ({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": "auto"}, 3, (6, 1)),
        ({"train_batch_size": 6}, 2, (6, 1)),
        ({"train_batch_size": 10, "gradient_accumulation_steps": 4}, 1, (10, 4)),
    ],
)
def test_a_batchs_shape_is_read_as_deepspeed_reads_it(
    document: dict[str, Any], replicas: int, expected: tuple[int, int]
) -> None:
    assert batch_shape(document, replicas) == expected


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "train_batch_size is missing"),
        ({"train_batch_size": 0}, "train_batch_size is 0, expected a whole number"),
        ({"train_batch_size": True}, "train_batch_size is True"),
        ({"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4}, "must be the product of the others"),
        (
            {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 4},
            "train_batch_size is 64, train_micro_batch_size_per_gpu 8 and gradient_accumulation_steps 4 for 1 replicas",
        ),
    ],
)
def test_shapes_that_disagree_are_refused(document: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        batch_shape(document)
