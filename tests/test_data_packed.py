"""Packs: full, complete, and one sequence to a model only by their instances."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_dip.data import collate
from ds_dip.data.packed import Packed
from ds_dip.models.packing import attention
from tests.order_cases import Sized, sized

SIZES = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 20)), min_size=1, max_size=40)


@settings(deadline=None)
@given(SIZES, st.integers(0, 3))
def test_every_sample_is_in_one_pack_that_is_not_too_long(sizes: list[tuple[int, int]], seed: int) -> None:
    dataset = Packed(sized(sizes), 20, seed=seed)
    found = []
    for index in range(len(dataset)):
        metadata = dataset.metadata(index)
        assert sum(metadata.modules["language"]) == metadata.loss_tokens <= 20
        assert metadata.merged["vision"] == (1,) * len(metadata.modules["vision"])
        tokens = collate(dataset, [metadata], "language", ["tokens"], 0, len(metadata.modules["language"]))["tokens"]
        if metadata.modules["vision"]:
            collate(dataset, [metadata], "vision", ["pixels"], 0, len(metadata.modules["vision"]))
        members = list(dict.fromkeys(tokens.tolist()))
        assert metadata.modules["language"] == tuple(sizes[member][1] for member in members)
        found += members
    assert sorted(found) == list(range(len(sizes)))
    # Best fit: no two packs would fit into one.
    loads = sorted(sum(dataset.metadata(index).modules["language"]) for index in range(len(dataset)))
    assert len(loads) < 2 or loads[0] + loads[1] > 20


def test_packs_are_nearly_full() -> None:
    sizes = [(0, 1 + (17 * n) % 97) for n in range(3000)]
    dataset = Packed(sized(sizes), 256)
    assert dataset.fill > 0.99
    assert Packed(sized(sizes), 256).metadata(5) == dataset.metadata(5) != Packed(sized(sizes), 256, seed=1).metadata(5)


def test_a_member_attends_to_itself_alone() -> None:
    dataset = Packed(sized([(0, 5), (0, 7), (0, 4)]), 16)
    (sizes,) = [dataset.metadata(index).modules["language"] for index in range(len(dataset))]
    x = torch.randn(16, 2, 4, dtype=torch.float64)
    packed = attention(x, x, x, sizes, causal=True)
    alone = [attention(own, own, own, (len(own),), causal=True) for own in x.split(list(sizes))]
    assert torch.allclose(packed, torch.cat(alone))


def test_long_samples() -> None:
    sizes = [(0, 5), (0, 50), (0, 3)]
    with pytest.raises(ValueError, match=r"1 samples are longer than 20 tokens, 's1' has 50"):
        Packed(sized(sizes), 20)
    dataset = Packed(sized(sizes), 20, longer="skip")
    assert (len(dataset), dataset.skipped) == (1, 1)


@pytest.mark.parametrize(
    ("options", "words"), [({"length": 0}, "length is 0"), ({"length": 9, "longer": "cut"}, "'cut'")]
)
def test_refusals(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Packed(sized([(0, 1)]), **options)
    dataset = Packed(sized([(0, 1)]), 9)
    assert isinstance(dataset._dataset, Sized)
    for id in ("pack-1", "s-0", "pack"):
        with pytest.raises(ValueError, match="expected pack-0 to pack-0"):
            dataset.load(id, ["tokens"])
    with pytest.raises(IndexError):
        dataset.metadata(1)
