"""How far apart schedules are."""

from __future__ import annotations

from ds_dip.reproduction.cutting import spread
from ds_dip.scheduling.instances import multimodal, uniform


def test_orders_of_equal_microbatches_are_alike() -> None:
    assert spread(uniform(2, 1, 4), 20, 0, whole=True) == 0


def test_more_orders_are_never_less_apart() -> None:
    problem = multimodal(4, 8, 1)
    few, more = spread(problem, 10, 0), spread(problem, 60, 0)
    assert 0 < few <= more
