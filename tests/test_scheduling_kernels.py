from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_dip.scheduling import Problem, reference, solve
from ds_dip.scheduling.admission import admission
from ds_dip.scheduling.arrays import arrays_of
from ds_dip.scheduling.instances import strategic, uniform
from ds_dip.scheduling.jobs import bundles_of, decode, evaluate, reorder
from ds_dip.scheduling.timing import by_rank, fits, fitting, flat, interleaving, starts
from tests.scheduling_cases import problems

quick = settings(max_examples=60, deadline=None)


@quick
@given(problems(), st.integers(0, 1000))
def test_interleaving_equals_its_twin_for_any_priorities(problem: Problem, seed: int) -> None:
    arrays = arrays_of(problem)
    priority = np.random.default_rng(seed).permutation(arrays.n)
    assert interleaving(arrays, priority) == reference.interleave(arrays, admission(arrays), priority.tolist())


@quick
@given(problems(), st.integers(0, 1000))
def test_re_timing_equals_its_twin_and_finds_cycles(problem: Problem, seed: int) -> None:
    arrays = arrays_of(problem)
    orders = interleaving(arrays, arrays.priority)
    draw = random.Random(seed)
    for _ in range(4):
        assert starts(arrays, orders).tolist() == reference.retime(arrays, orders)
        order = draw.choice(orders)
        if len(order) > 1:
            place = draw.randrange(len(order) - 1)
            order[place : place + 2] = order[place : place + 2][::-1]
        try:
            expected = max(
                start + length for start, length in zip(reference.retime(arrays, orders), arrays.duration, strict=True)
            )
        except ValueError:
            assert evaluate(arrays, flat(orders)[0]) == np.inf
            return
        assert evaluate(arrays, flat(orders)[0]) == expected


@quick
@given(problems(choices=True), st.integers(0, 1000), st.sampled_from([0, 100, 500]))
def test_annealed_orders_are_schedules_within_memory_and_no_worse(problem: Problem, seed: int, swaps: int) -> None:
    arrays, choices = fitting(problem)
    sequence = flat(interleaving(arrays, arrays.priority))[0]
    before = evaluate(arrays, sequence)
    found = reorder(
        arrays_of(problem), sequence, choices, 300, 0.1 * before + 1e-9, 1e-3 * before + 1e-9, 0.0, swaps, seed
    )
    chosen = arrays_of(problem).with_choices(found.choices)
    assert found.makespan <= before * (1 + 1e-12)
    assert evaluate(chosen, found.sequence) == pytest.approx(found.makespan)
    assert fits(chosen, by_rank(chosen, found.sequence))


@quick
@given(problems(), st.integers(0, 1000), st.booleans())
def test_decoded_priorities_are_schedules_within_memory(problem: Problem, seed: int, backwards: bool) -> None:
    arrays = arrays_of(problem)
    found = decode(arrays, (), backwards, bundles_of(arrays).first_come, 20, 1.0, 0.1, 0.0, seed)
    if backwards and not np.isfinite(found.makespan):
        return
    assert np.isfinite(found.makespan)
    assert sorted(found.sequence.tolist()) == list(range(arrays.n))
    assert fits(arrays, by_rank(arrays, found.sequence))


def test_choices_too_large_for_the_rule_of_admission_decode_to_nothing() -> None:
    problem = strategic(uniform(2, 2, 3, cap=1.5))
    fat = (0,) * len(problem.pairs)
    found = decode(arrays_of(problem), fat, False, bundles_of(arrays_of(problem)).first_come, 5, 1.0, 0.1, 0.0, 0)
    assert found.makespan == np.inf
    assert solve(problem, evaluations=2000).status != "infeasible"
