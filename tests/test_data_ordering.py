"""Orders by modality and within a budget: the same everywhere, from a step alone, and nothing twice."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_dip.data import Sampler, order_of
from ds_dip.data.mixture import Mixture
from ds_dip.data.ordering import Ordered
from ds_dip.data.packed import Packed
from tests.order_cases import Sized, sized

SIZES = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 30)), min_size=4, max_size=40)


@settings(deadline=None)
@given(SIZES, st.integers(1, 4), st.sampled_from([None, "even", "alike"]), st.sampled_from([None, 20, 60]))
def test_every_order(sizes: list[tuple[int, int]], batch: int, group: str | None, tokens: int | None) -> None:
    dataset = Ordered(sized(sizes), group=group, tokens=tokens)
    try:
        order = order_of(dataset, batch, 3)
    except ValueError:  # a budget that leaves no full batch
        return
    steps = [order.indices(step) for step in range(30)]
    for own in steps:
        assert 1 <= len(set(own)) == len(own) <= batch
        if tokens is None:
            assert len(own) == batch
        else:
            assert len(own) == 1 or sum(sizes[index][1] for index in own) <= tokens
    for step in (0, 7, 29):
        assert order_of(dataset, batch, 3).indices(step) == steps[step]
    (first,) = order._starts[1:2]
    assert max(Counter(index for own in steps[:first] for index in own).values()) == 1


def test_even_batches_have_the_datasets_share() -> None:
    order = order_of(Ordered(sized([(1, 5)] * 30 + [(0, 5)] * 90), group="even"), 8)
    for step in range(60):
        assert 1 <= sum(index < 30 for index in order.indices(step)) <= 3


def test_alike_batches_have_one_kind() -> None:
    order = order_of(Ordered(sized([(1, 5)] * 33 + [(0, 5)] * 90), group="alike"), 8)
    mixed = 0
    for step in range(order._starts[1]):
        images = sum(index < 33 for index in order.indices(step))
        mixed += images not in (0, 8)
    assert mixed <= 1


def test_long_samples_make_small_batches() -> None:
    order = order_of(Ordered(sized([(0, 10)] * 20 + [(0, 100)] * 20), tokens=100), 10)
    for step in range(40):
        own = order.indices(step)
        assert sum(100 if index >= 20 else 10 for index in own) <= 100
    least = order_of(Ordered(sized([(0, 100)] * 20), tokens=100, least=2), 10)
    assert {len(least.indices(step)) for step in range(20)} == {2}


PARTS = st.lists(st.tuples(st.integers(0, 2), st.integers(8, 40), st.floats(0.1, 5)), min_size=1, max_size=4)


def mixed(parts: list[tuple[int, int, float]], **options: Any) -> Ordered:
    """An order around a mixture of parts: (images a sample, samples, weight)."""
    named = {
        f"p{number}": sized([(images, 1 + n % 9) for n in range(size)], f"{number}-") | {"weight": weight}
        for number, (images, size, weight) in enumerate(parts)
    }
    return Ordered({"factory": "ds_dip.data.mixture:Mixture", "options": {"parts": named}}, **options)


@given(PARTS, st.integers(1, 8), st.sampled_from([None, "even", "alike"]), st.sampled_from([None, 30]))
@settings(max_examples=40)
def test_an_order_around_a_mixture_keeps_its_weights(
    parts: list[tuple[int, int, float]], batch: int, group: str | None, tokens: int | None
) -> None:
    dataset = mixed(parts, group=group, tokens=tokens)
    order = order_of(dataset, batch, 3)
    ends = [sum(size for _, size, _ in parts[: n + 1]) for n in range(len(parts))]
    steps = [order.indices(step) for step in range(300)]
    taken = Counter(next(n for n, end in enumerate(ends) if index < end) for own in steps for index in own)
    for own in steps:
        assert 1 <= len(set(own)) == len(own) <= batch
        assert tokens is None or len(own) == 1 or sum(dataset.metadata(i).modules["language"][0] for i in own) <= tokens
    whole, total = sum(weight for *_, weight in parts), sum(taken.values())
    # What is put off to a later window: of each kind less than a batch, and this window's rest.
    slack = (len(parts) + 1) * batch + 64 * batch
    for part, (*_, weight) in enumerate(parts):
        assert abs(taken[part] - total * weight / whole) <= slack
    for step in (0, 7, 150):
        assert order_of(dataset, batch, 3).indices(step) == steps[step]


def test_kinds_are_spread_and_told_apart_in_a_mixture_too() -> None:
    parts = [(0, 300, 3.0), (1, 40, 1.0)]
    even = order_of(mixed(parts, group="even"), 8)
    assert all(1 <= sum(index >= 300 for index in even.indices(step)) <= 3 for step in range(200))
    alike = order_of(mixed(parts, group="alike"), 8)
    images = [sum(index >= 300 for index in alike.indices(step)) for step in range(200)]
    assert set(images) == {0, 8}
    assert 45 <= images.count(8) <= 55


def test_what_would_lose_an_order_is_refused() -> None:
    inner = {"factory": "ds_dip.data.ordering:Ordered", "options": {"dataset": sized([(0, 1)] * 4)}}
    for around in (lambda: Mixture({"a": inner}), lambda: Packed(inner, 10)):
        with pytest.raises(ValueError, match="has an order of its own, which is not kept here; "):
            around()


def test_other_datasets_have_the_plain_sampler() -> None:
    assert order_of(Sized([(0, 1)] * 9), 3, 7) == Sampler(9, 3, 7)


def test_it_is_the_dataset() -> None:
    dataset = Ordered(sized([(1, 2), (0, 3)]), group="even")
    assert len(dataset) == 2
    assert dataset.metadata(1).id == "s1"
    assert dataset.load("s1", ["tokens"])["tokens"][0].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("options", "batch", "sentence"),
    [
        ({"group": "odd"}, 1, "group is 'odd'"),
        ({"tokens": 0}, 1, "tokens is 0"),
        ({"least": 3}, 2, "least is 3, more than"),
        ({}, 9, "the global batch is 9 samples"),
    ],
)
def test_refusals(options: dict[str, Any], batch: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        order_of(Ordered(sized([(0, 1)] * 4), **options), batch)
    with pytest.raises(ValueError, match="step is -1"):
        order_of(Ordered(sized([(0, 1)] * 4)), 1).indices(-1)
