"""What the planner makes of a layout, beside its simulation."""

from __future__ import annotations

import pytest

from ds_dip.parallelism import SEPARATED, Layout, Mesh, Simulator
from ds_dip.parallelism.groups import tails_of
from ds_dip.parallelism.placing import problem_of
from ds_dip.parallelism.planned import planned_and_simulated
from ds_dip.planner.ordering import fastest
from ds_dip.scheduling import InfeasibleError, Problem, Schedule, Timeline, lower_bound
from tests.parallelism_cases import job


def schedule(problem: Problem) -> tuple[str, Schedule, Timeline]:
    return fastest(problem, "dip")


def layout(pipeline: int) -> Layout:
    return Layout(SEPARATED, Mesh(1, pipeline, 1), Mesh(1, pipeline, 1), 4, (1, 1), "none")


@pytest.mark.parametrize("pipeline", [1, 2, 3])
def test_both_are_of_the_same_work(pipeline: int) -> None:
    own, plain = job(pipeline, 8, seed=3), layout(pipeline)
    simulator = Simulator(own, [own.drawn(0, 0)])
    found = simulator.predict(plain)
    assert found is not None
    both = planned_and_simulated(own, found, own.drawn(0, 0), schedule)
    assert both is not None
    planned, simulated = both
    assert simulated == pytest.approx(found.makespans[0])
    batch, tails = simulator.cut(plain, 0)[0], tails_of(own, plain, found.partition)
    bound = lower_bound(problem_of(own, plain, found.partition, batch, (None,) * pipeline, tails))[0]
    assert bound * (1 - 1e-9) <= planned <= 1.3 * simulated
    if pipeline == 1:
        assert planned == pytest.approx(simulated, rel=1e-6)


def test_an_order_that_cannot_be_found_is_told_by_nothing() -> None:
    own = job(2, 8, seed=3)
    found = Simulator(own, [own.drawn(0, 0)]).predict(layout(2))
    assert found is not None

    def none(problem: Problem) -> tuple[str, Schedule, Timeline]:
        raise InfeasibleError("no order fits", (None, None))

    assert planned_and_simulated(own, found, own.drawn(0, 0), none) is None
