"""Packed documents: full sequences, sizes that metadata and content agree on, spread as published."""

from __future__ import annotations

import numpy as np
import pytest

from ds_dip.data import DatasetReference
from ds_dip.data.documents import PackedDocuments
from ds_dip.models.kinds import IGNORED

SMALL = PackedDocuments(60, context=64, images=5, patches=6, merged=3, pixels=4, placeholder=9)


def test_metadata_is_that_of_what_is_loaded() -> None:
    for index in range(len(SMALL)):
        metadata = SMALL.metadata(index)
        loaded = SMALL.load(metadata.id, ["tokens", "labels", "pixels"])
        (tokens,), (labels,) = loaded["tokens"], loaded["labels"]
        assert (len(tokens),) == (len(labels),) == metadata.modules["language"] == (64,)
        assert [len(image) for image in loaded["pixels"]] == list(metadata.modules["vision"])
        assert int((tokens == 9).sum()) == sum(metadata.merged["vision"])
        supervised = int((labels != IGNORED).sum())
        # The first token is never predicted: one less where it is text.
        assert supervised == 64 - int((tokens == 9).sum()) - int(tokens[0] != 9)
        assert metadata.loss_tokens == supervised


def test_the_same_index_gives_the_same_sample() -> None:
    first, again = (SMALL.load("packed-3", ["pixels", "tokens"]) for _ in range(2))
    assert np.array_equal(first["tokens"], again["tokens"])
    assert all(np.array_equal(a, b) for a, b in zip(first["pixels"], again["pixels"], strict=True))
    other = PackedDocuments(60, context=64, images=5, patches=6, merged=3, pixels=4, placeholder=9, seed=1)
    assert any(SMALL.metadata(index) != other.metadata(index) for index in range(60))


def test_sequences_hold_from_no_image_to_as_many_as_are_allowed() -> None:
    dataset = DatasetReference("ds_dip.data.documents:PackedDocuments", {"samples": 400}).open()
    counts = [len(dataset.metadata(index).modules["vision"]) for index in range(400)]
    assert min(counts) == 0
    assert 40 < max(counts) <= 48
    assert 15 < np.mean(counts) < 30
    assert {size for index in range(400) for size in dataset.metadata(index).modules["vision"]} == {2704}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "samples is 0"),
        ({"images": -1}, "images is -1"),
        ({"context": 100}, "more than the 169 tokens"),
    ],
)
def test_impossible_sizes_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PackedDocuments(**({"samples": 4} | options))


def test_other_samples_and_fields_are_refused() -> None:
    with pytest.raises(IndexError, match="holds 0 to 59"):
        SMALL.metadata(60)
    with pytest.raises(ValueError, match="expected packed-0 to packed-59"):
        SMALL.load("packed-60", ["tokens"])
    with pytest.raises(ValueError, match="field 'audio'"):
        SMALL.load("packed-1", ["audio"])
