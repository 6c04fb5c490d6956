"""Samples dealt to replicas."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ds_dip.data import SampleMetadata
from ds_dip.reproduction.scale import dealt


@given(st.integers(1, 8), st.integers(1, 8), st.data())
def test_every_replica_gets_as_many_samples_and_about_as_much(replicas: int, each: int, data: st.DataObject) -> None:
    count = replicas * each
    loads = data.draw(st.lists(st.floats(0.1, 10.0), min_size=count, max_size=count))
    samples = [SampleMetadata(str(number), {}, 1) for number in range(count)]
    hands = dealt(samples, loads, replicas)
    assert [len(own) for own in hands] == [each] * replicas
    assert sorted(int(own.id) for hand in hands for own in hand) == list(range(count))
    sums = [sum(loads[int(own.id)] for own in hand) for hand in hands]
    # To and fro: what one turn gives more to one replica than to another, the next takes back in part.
    assert max(sums) - min(sums) <= max(loads) - min(loads) + 1e-9
