"""Mixtures: shares by weight in every step, each part in its own epochs, ids that name their part."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_dip.data import order_of
from ds_dip.data.mixture import Mixture
from tests.order_cases import sized


def mixture(parts: list[tuple[int, float]]) -> Mixture:
    named = {f"p{number}": (size, weight) for number, (size, weight) in enumerate(parts)}
    return Mixture({name: sized([(0, 1)] * size, f"{name[1:]}-") | {"weight": w} for name, (size, w) in named.items()})


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(8, 40), st.floats(0.01, 10)), min_size=1, max_size=4),
    st.integers(1, 8),
    st.integers(0, 600),
)
def test_shares_and_epochs(parts: list[tuple[int, float]], batch: int, far: int) -> None:
    order = order_of(mixture(parts), batch, 5)
    ends = [sum(size for size, _ in parts[: n + 1]) for n in range(len(parts))]
    taken: Counter[int] = Counter()
    whole = sum(weight for _, weight in parts)
    for step in range(40):
        own = order.indices(step)
        assert len(set(own)) == len(own) == batch
        taken.update(next(n for n, end in enumerate(ends) if index < end) for index in own)
        for part, (_, weight) in enumerate(parts):
            assert abs(taken[part] - (step + 1) * batch * weight / whole) <= len(parts)
    assert order_of(mixture(parts), batch, 5).indices(far) == order.indices(far)


def test_a_part_comes_once_an_epoch() -> None:
    order = order_of(mixture([(12, 1), (600, 3)]), 4, 0)
    for epoch in range(5):
        own = [index for step in range(12 * epoch, 12 * epoch + 12) for index in order.indices(step) if index < 12]
        assert sorted(own) == list(range(12))


def test_samples_are_their_parts() -> None:
    dataset = mixture([(3, 1), (4, 1)])
    ids = [dataset.metadata(index).id for index in range(len(dataset))]
    assert ids == [f"p0/0-{n}" for n in range(3)] + [f"p1/1-{n}" for n in range(4)]
    assert dataset.load("p1/1-2", ["tokens"])["tokens"][0].tolist() == [2]
    with pytest.raises(IndexError):
        dataset.metadata(7)
    with pytest.raises(ValueError, match="is of no part"):
        dataset.load("p2/1-2", ["tokens"])


@pytest.mark.parametrize(
    ("parts", "batch", "sentence"),
    [
        ({}, 1, "has no parts"),
        ({"a/b": sized([(0, 1)])}, 1, "cannot stand in an id"),
        ({"a": sized([(0, 1)]) | {"weight": 0}}, 1, "expected a number above 0"),
        ({"a": sized([])}, 1, "has no samples"),
        ({"a": sized([(0, 1)])}, 2, "a step takes 2.0 samples of a part that has 1"),
        ({"a": sized([(0, 1)])}, 0, "expected at least 1"),
    ],
)
def test_refusals(parts: dict[str, Any], batch: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Mixture(parts).order(batch)
    with pytest.raises(ValueError, match="step is -1"):
        mixture([(3, 1)]).order(1).indices(-1)
