"""The search from neighbour to neighbour: steps within the space, and no placement at another one's cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_dip.parallelism import PLACEMENTS, Simulator, closed, optimize
from ds_dip.parallelism.local import Local
from ds_dip.parallelism.optimizer import Effort, LayoutError
from ds_dip.parallelism.space import Options, columns, laps
from ds_dip.parallelism.trials import Trials
from ds_dip.planner.ordering import fastest
from ds_dip.scheduling import Problem
from tests.parallelism_cases import job, model_of

OPTIONS = Options(most_laps=2)


def schedule(problem: Problem) -> object:
    return fastest(problem, "dip")


def search(placement: str, effort: Effort) -> Local:
    own = job(8, 16, model=model_of(4, 6, heads=4))
    space, batches = columns(own, OPTIONS), [own.drawn(step, 0) for step in range(effort.batches)]
    rows = np.nonzero(space.of(placement))[0]
    seconds = closed.expected(own, closed.Means(own), space.take(rows))
    trials = Trials(Simulator(own, batches), Simulator(own, batches), lambda *_: None)
    return Local(own, OPTIONS, effort, trials, space, rows, seconds, ())


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 10**6), st.sampled_from([4, 6, 8]), st.sampled_from([None, 6e5, 1e6, 2e6]))
def test_all_placements_are_never_slower_than_one_of_them(seed: int, gpus: int, memory: float | None) -> None:
    own = job(gpus, 24, seed, memory=memory, per_node=gpus)
    effort = Effort(pool=4, batches=1, held_out=2, shown=2, exhaustive=4, seed=seed)

    def best(options: Options) -> float:
        try:
            return optimize(own, schedule, options, effort).best.mean  # type: ignore[arg-type]
        except LayoutError:
            return np.inf

    assert best(OPTIONS) <= min(best(replace(OPTIONS, placements=(placement,))) for placement in PLACEMENTS)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_neighbours_are_other_layouts_of_the_placement(placement: str) -> None:
    own = search(placement, Effort(pool=2, batches=1))
    space = {own.space.layout(int(row), (1, 1), "none") for row in own.rows}
    for row in own.rows.tolist():
        plain = own.space.layout(row, (1, 1), "none")
        for chosen in laps(own.job, plain, OPTIONS):
            start = replace(plain, laps=chosen, strategy="full")
            near = own.near(start)
            assert near
            assert replace(start, strategy="none") not in near
            assert len(set(near)) == len(near)
            assert {replace(one, laps=(1, 1)) for one in near} <= space
            assert all(one.laps in set(laps(own.job, one, OPTIONS)) for one in near)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_search_ends_where_no_neighbour_of_the_best_is_faster(placement: str) -> None:
    own = search(placement, Effort(pool=12, batches=1, shown=4))
    found = own.run()
    assert [one.mean for one in found] == sorted(one.mean for one in found)
    for layout in own.near(found[0].layout):
        assert all(one.mean >= found[0].mean for one in own.trials.strategies(layout))
