"""Cutting: uniform sub-microbatches, whole merging modules, and a loss count over the global batch."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_dip.data.metadata import SampleMetadata
from ds_dip.models.partition import Chunk, Partition
from ds_dip.models.spec import Layer, Model, Module, TensorSpec
from ds_dip.planning import PlanningError, cut
from ds_dip.planning.cut import uniform

LAYER = Layer("mine", (TensorSpec(("tokens", 4)),))
MODEL = Model("vlm", (Module("vision", (LAYER,)), Module("language", (LAYER,))), (("vision", "language"),))


def partition(vision: int | None, language: int | None = None) -> Partition:
    chunks = (Chunk("vision", 0, 0, 0, 0, 1), Chunk("language", 0, 0, 0, 0, 1))
    return Partition(1, chunks, (("vision", vision), ("language", language)))


def sample(number: int, images: tuple[int, ...], text: int = 9, loss: int = 3) -> SampleMetadata:
    merged = tuple(size // 4 for size in images)
    return SampleMetadata(str(number), {"vision": images, "language": (text,)}, loss, {"vision": merged})


@settings(deadline=None)
@given(st.integers(0, 200), st.integers(1, 50))
def test_pieces_are_uniform_and_as_few_as_the_size_allows(instances: int, size: int) -> None:
    pieces = uniform(instances, size)
    lengths = [stop - start for start, stop in pieces]
    assert len(pieces) == -(-instances // size)
    assert sum(lengths) == instances
    assert max(lengths, default=0) - min(lengths, default=0) <= 1
    assert max(lengths, default=0) <= size
    assert all(before[1] == after[0] for before, after in pairwise(pieces))


def test_instances_lie_in_sample_order_with_their_merged_sizes() -> None:
    samples = [sample(0, (16, 4)), sample(1, ()), sample(2, (8,))]
    batch = cut(5, samples, [[0, 2], [1]], MODEL, partition(2))
    first, second = batch.microbatches
    assert (batch.step, batch.loss_count) == (5, 9)
    assert first.sizes["vision"].tokens == (16, 4, 8)
    assert first.sizes["vision"].merged == (4, 1, 2)
    assert first.subs == {"vision": ((0, 1), (1, 3)), "language": ((0, 2),)}
    assert first.sub_sizes("vision", 1).tokens == (4, 8)
    assert second.subs == {"vision": (), "language": ((0, 1),)}


def test_a_module_that_takes_anothers_outputs_is_never_cut() -> None:
    batch = cut(0, [sample(i, (4,)) for i in range(5)], [range(5)], MODEL, partition(1, 1))
    assert batch.microbatches[0].subs["language"] == ((0, 5),)
    assert len(batch.microbatches[0].subs["vision"]) == 5


def test_a_module_without_a_size_stays_whole() -> None:
    batch = cut(0, [sample(i, (4, 4)) for i in range(5)], [range(5)], MODEL, partition(None))
    assert batch.microbatches[0].subs["vision"] == ((0, 10),)


def test_the_loss_count_is_that_of_all_replicas() -> None:
    samples = [sample(i, (), loss=i) for i in range(4)]
    one = cut(0, samples, [[0], [1]], MODEL, partition(1))
    other = cut(0, samples, [[2, 3]], MODEL, partition(1))
    assert one.loss_count == other.loss_count == 6
    assert cut(0, samples, [[2]], MODEL, partition(1), loss="samples").loss_count == 4


def test_a_batch_without_a_supervised_token_is_refused() -> None:
    with pytest.raises(PlanningError, match="none of the global batch's 2 samples has a supervised token"):
        cut(0, [sample(0, (), loss=0), sample(1, (), loss=0)], [[0, 1]], MODEL, partition(1))
    assert cut(0, [sample(0, (), loss=0)], [[0]], MODEL, partition(1), loss="samples").loss_count == 1


def test_an_unknown_loss_rule_is_refused() -> None:
    with pytest.raises(PlanningError, match="loss rule 'mean'"):
        cut(0, [sample(0, ())], [[0]], MODEL, partition(1), loss="mean")


def test_metadata_that_does_not_fit_the_model_is_refused_with_its_sample() -> None:
    audio = SampleMetadata("a7", {"audio": (3,), "language": (3,)}, 1)
    with pytest.raises(PlanningError, match="sample 'a7' has sizes for audio"):
        cut(0, [audio], [[0]], MODEL, partition(1))
    short = SampleMetadata("a8", {"vision": (4, 4), "language": (3,)}, 1, {"vision": (1,)})
    with pytest.raises(PlanningError, match="'a8' has 2 instances for vision but 1 merged"):
        cut(0, [short], [[0]], MODEL, partition(1))


def test_images_without_a_sequence_to_go_into_are_refused() -> None:
    with pytest.raises(PlanningError, match="language takes the outputs of vision but has no instance"):
        cut(0, [SampleMetadata("a", {"vision": (4,)}, 1)], [[0]], MODEL, partition(1))
    with pytest.raises(PlanningError, match="language ends in the loss but has no instance"):
        cut(0, [SampleMetadata("a", {}, 1)], [[0]], MODEL, partition(1))
