from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ds_dip.scheduling import Problem
from ds_dip.scheduling.arrays import arrays_of
from ds_dip.scheduling.instances import multimodal, strategic
from ds_dip.scheduling.jobs import evaluate, reorder
from ds_dip.scheduling.timing import by_rank, first_come, fits, fitting, flat
from tests.scheduling_cases import problems


@settings(max_examples=100, deadline=None)
@given(problems(choices=True), st.integers(0, 1000), st.sampled_from([0, 100, 1000]), st.sampled_from([0.3, 0.01]))
def test_annealing_knows_makespan_and_memory_of_what_it_returns(
    problem: Problem, seed: int, swaps: int, heat: float
) -> None:
    chosen, choices = fitting(problem)
    sequence = flat(first_come(chosen))[0]
    before = evaluate(chosen, sequence)
    assume(before > 0)
    found = reorder(arrays_of(problem), sequence, choices, 300, heat * before, heat * before / 20, 0.0, swaps, seed)
    after = arrays_of(problem).with_choices(found.choices)
    assert sorted(found.sequence.tolist()) == list(range(after.n))
    assert evaluate(after, found.sequence) == pytest.approx(found.makespan, rel=1e-9)
    assert found.makespan <= before * (1 + 1e-9)
    assert fits(after, by_rank(after, found.sequence))


@pytest.mark.parametrize("cap", [None, 1.5])
def test_long_annealing_does_not_drift_from_the_times_of_its_orders(cap: float | None) -> None:
    problem = multimodal(4, 8, 3, laps=2, cap=cap)
    for given_problem in (problem, strategic(problem)):
        arrays = arrays_of(given_problem)
        chosen, choices = fitting(given_problem)
        sequence = flat(first_come(chosen))[0]
        before = evaluate(chosen, sequence)
        found = reorder(arrays, sequence, choices, 20_000, 0.02 * before, 0.001 * before, 0.0, 100, 5)
        assert found.makespan < before
        assert evaluate(arrays.with_choices(found.choices), found.sequence) == pytest.approx(found.makespan, rel=1e-9)
