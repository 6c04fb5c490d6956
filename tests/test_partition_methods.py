"""DeepSpeed's partition methods, module by module."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ds_dip.models import load_model
from ds_dip.models.parameters import parameters
from ds_dip.models.partition import Partition, PartitionError
from ds_dip.partition.methods import METHODS, partition_by
from tests.partition_cases import CONFIGS, QUICKSTART

VLM_S = load_model(CONFIGS / "vlm_s.json")


def parts(partition: Partition, module: str) -> list[int]:
    return [chunk.stop - chunk.start for chunk in partition.of(module)]


def test_uniform_gives_equal_numbers_of_layers() -> None:
    partition = partition_by("uniform", VLM_S, 4)
    assert parts(partition, "vision") == [16, 16, 16, 17]
    assert parts(partition, "language") == [8, 9, 8, 9]


def test_parameters_gives_the_least_largest_number_of_parameters() -> None:
    from deepspeed.runtime.utils import partition_balanced

    for name in ("vision", "language"):
        weights = [parameters(layer) for layer in VLM_S.module(name).layers]
        ours = max(sum(weights[own.start : own.stop]) for own in partition_by("PARAMETERS", VLM_S, 4).of(name))
        theirs = partition_balanced(weights, 4)
        assert ours <= max(sum(weights[start:stop]) for start, stop in pairwise(theirs))
    # The embedding and the head of a language model weigh as much as layers.
    assert parts(partition_by("parameters", VLM_S, 4), "language") != parts(
        partition_by("uniform", VLM_S, 4), "language"
    )


def test_type_counts_the_layers_whose_kind_matches() -> None:
    partition = partition_by("type:Decoder", VLM_S, 4, {"language": 2}, {"vision": 12})
    blocks = [
        sum(layer.kind == "decoder_block" for layer in VLM_S.module("language").layers[own.start : own.stop])
        for own in partition.of("language")
    ]
    assert blocks == [4] * 8
    # No layer of the encoder matches: as many layers each.
    assert parts(partition, "vision") == [16, 16, 16, 17]
    assert dict(partition.sub_microbatch) == {"vision": 12, "language": None}


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("best", f"partition_method is 'best': use one of {', '.join(METHODS)}"),
        ("profile", "partition_method is 'profile': use one of"),
        ("type:conv", r"'type:conv', and the model has only patch_embedding, encoder_block, .*: name one"),
        ("type:(", r"'type:\(', whose expression is wrong"),
    ],
)
def test_other_methods_are_refused(method: str, message: str) -> None:
    with pytest.raises(PartitionError, match=message):
        partition_by(method, QUICKSTART, 2)


def test_fewer_layers_than_chunks_are_refused() -> None:
    with pytest.raises(PartitionError, match="6 layers, but 2 ranks x 4 laps need 8 chunks"):
        partition_by("uniform", QUICKSTART, 2, {"vision": 4})
