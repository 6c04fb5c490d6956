from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_dip.scheduling import Problem, Task
from ds_dip.scheduling.arrays import arrays_of
from ds_dip.scheduling.instances import multimodal
from ds_dip.scheduling.jobs import evaluate, rewind, together
from ds_dip.scheduling.timing import by_rank, first_come, fits, flat
from tests.scheduling_cases import problems


@settings(max_examples=60, deadline=None)
@given(problems(), st.integers(0, 1000), st.sampled_from([4, 12, 40]))
def test_an_annealed_window_keeps_the_schedule_within_memory_and_no_worse(
    problem: Problem, seed: int, tasks: int
) -> None:
    arrays = arrays_of(problem)
    sequence = flat(first_come(arrays))[0]
    before = evaluate(arrays, sequence)
    found = rewind(
        arrays, sequence, (), seed % arrays.n, tasks, 200, 0.1 * before + 1e-9, 1e-3 * before + 1e-9, 0.0, 100, seed
    )
    assert sorted(found.sequence.tolist()) == list(range(arrays.n))
    assert found.makespan <= before * (1 + 1e-9)
    assert fits(arrays, by_rank(arrays, found.sequence))


@settings(max_examples=60, deadline=None)
@given(problems(), st.lists(st.tuples(st.integers(0, 1000), st.sampled_from([4, 12, 40])), min_size=2, max_size=4))
def test_windows_of_one_sequence_go_together(problem: Problem, windows: list[tuple[int, int]]) -> None:
    arrays = arrays_of(problem)
    sequence = flat(first_come(arrays))[0]
    heat = 0.1 * evaluate(arrays, sequence) + 1e-9
    founds = [
        rewind(arrays, sequence, (), seed % arrays.n, tasks, 200, heat, heat / 100, 0.0, 100, seed)
        for seed, tasks in windows
    ]
    found = together(arrays, sequence, founds)
    assert sorted(found.sequence.tolist()) == list(range(arrays.n))
    assert found.makespan <= founds[0].makespan * (1 + 1e-9)
    assert fits(arrays, by_rank(arrays, found.sequence))


def test_a_window_knows_the_makespan_of_the_whole() -> None:
    problem = multimodal(4, 8, 3, laps=2, cap=2)
    arrays = arrays_of(problem)
    sequence = flat(first_come(arrays))[0]
    gains = []
    for seed in range(6):
        found = rewind(arrays, sequence, (), 30 * seed, 60, 3000, 1.0, 0.1, 0.0, 100, seed)
        assert evaluate(arrays, found.sequence) == pytest.approx(found.makespan)
        gains.append(evaluate(arrays, sequence) - found.makespan)
    assert np.max(gains) > 0


def test_a_window_of_tasks_that_start_together_is_whole() -> None:
    tasks = tuple(Task(number, 0, "F", "backbone", 0, 0, number, 0, 0.0) for number in range(12))
    arrays = arrays_of(Problem(1, (None,), tasks, ()))
    sequence = flat(first_come(arrays))[0]
    for seed in range(4):
        found = rewind(arrays, sequence, (), 4 * seed % 12, 3, 50, 1.0, 0.1, -1.0, 100, seed)
        assert sorted(found.sequence.tolist()) == list(range(12))
