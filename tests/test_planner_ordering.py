"""Orders of batch after batch: a start from the last one, and equal batches planned once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ds_dip.costs.corrections import Corrections, Measurement
from ds_dip.data import SampleMetadata
from ds_dip.planner import Planner
from ds_dip.planner.ordering import Orderer, Ordering, searched
from ds_dip.scheduling import retime
from tests.planner_cases import Samples, settings


class Equal(Samples):
    """Samples of one size."""

    def metadata(self, index: int) -> SampleMetadata:
        return replace(super().metadata(3), id=f"s{index}")


def problems(count: int) -> list:
    planner = Planner(settings())
    return [planner._problem(planner.batches.of(step)) for step in range(count)]


def test_a_paced_order_begins_with_the_last_one_and_is_never_worse_than_without_a_search() -> None:
    orderer, alone = Orderer("dip", 40, paced=True), Orderer("dip", 40)
    for problem in problems(6):
        found = orderer.order(problem)
        assert found.timeline.makespan <= searched(problem, "dip", 0).timeline.makespan * (1 + 1e-12)
        assert retime(problem, found.schedule).makespan == pytest.approx(found.timeline.makespan)
        assert alone.order(problem) == searched(problem, "dip", 40), "it depends on nothing else"


def test_a_search_that_time_cuts_short_is_not_whole() -> None:
    problem = problems(1)[0]
    assert searched(problem, "dip", 50).whole
    cut = searched(problem, "dip", 10**9, budget=0.02)
    assert cut.whole == (cut.timeline.makespan <= cut.bound * (1 + 1e-9))


def test_an_equal_batch_takes_over_the_plan_but_for_its_samples() -> None:
    planner = Planner(settings(), Equal())
    first, second = planner.plan(0), planner.plan(1)
    assert planner.reused
    assert (second.step, second.batch.step, second.programs) == (1, 1, first.programs)
    ids = [[s.id for m in plan.batch.microbatches for s in m.samples] for plan in (first, second)]
    assert ids[0] != ids[1]
    assert second == Planner(settings(), Equal()).plan(1), "what is taken over is what would be made"
    assert second.hash != first.hash


def test_other_sizes_and_other_corrections_are_planned_anew() -> None:
    planner = Planner(settings())
    planner.plan(0)
    planner.plan(1)
    assert not planner.reused
    equal = Planner(settings(), Equal())
    equal.plan(0)
    equal.corrections = Corrections().updated([Measurement("vision", "F", 1.0, 9.0)])
    equal.plan(1)
    assert not equal.reused


def test_a_search_that_was_cut_short_goes_on_with_an_equal_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    planner, starts = Planner(settings(), Equal()), []
    whole = planner._orderer.order

    def order(problem: object, budget: float | None, start: object) -> Ordering:
        starts.append(start)
        return replace(whole(problem), whole=len(starts) > 1)  # type: ignore[arg-type]

    monkeypatch.setattr(planner._orderer, "order", order)
    for step in range(3):
        planner.plan(step)
    assert len(starts) == 2
    assert starts[0] is None
    assert starts[1] is not None
    assert planner.reused
