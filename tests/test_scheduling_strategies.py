from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_dip.scheduling import Choice, Problem, Schedule, interleave, one_f_one_b, retime, solve, verify
from ds_dip.scheduling.arrays import arrays_of
from ds_dip.scheduling.instances import multimodal, strategic, uniform
from ds_dip.scheduling.strategies import SHARES, choose, priced, stage_candidates
from ds_dip.scheduling.timing import leanest, positions
from tests.scheduling_cases import problems

LAYER = (Choice(1.0, 2.0, 4.0), Choice(1.0, 2.5, 2.0, 2.0), Choice(1.0, 3.0, 1.0, 3.0))


def test_candidates_hold_the_fastest_the_leanest_and_few_between() -> None:
    candidates = stage_candidates([LAYER] * 6, count=5)
    assert len(candidates) <= 5
    assert candidates[0] == Choice(6.0, 12.0, 24.0, 0.0)
    assert min(choice.memory for choice in candidates) == 6.0
    ordered = [(choice.backward_duration, -choice.memory) for choice in candidates]
    assert ordered == sorted(ordered)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([LAYER, LAYER[:2], LAYER[::2]]), min_size=1, max_size=4))
def test_no_combination_of_layers_beats_a_candidate(layers: list[tuple[Choice, ...]]) -> None:
    front = stage_candidates(layers, count=1000)
    for combination in itertools.product(*layers):
        memory = sum(choice.memory for choice in combination)
        time = sum(choice.backward_duration for choice in combination)
        assert any(choice.memory <= memory and choice.backward_duration <= time for choice in front)


def test_a_layer_without_choices_is_refused() -> None:
    with pytest.raises(ValueError, match="layer 1 has no memory choices"):
        stage_candidates([LAYER, ()])


@pytest.mark.parametrize("seconds", [0.0, 0.2, None])
def test_a_given_order_gets_choices_that_fit_and_only_as_lean_as_needed(seconds: float | None) -> None:
    problem = strategic(uniform(4, 1, 8, cap=2.5))
    order = one_f_one_b(problem).order
    arrays = arrays_of(problem)
    chosen = choose(arrays, positions(arrays, Schedule(order)), seconds)
    assert chosen is not None
    assert verify(problem, Schedule(order, chosen)) == []
    free = [chosen[number] for number, pair in enumerate(problem.pairs) if problem.tasks[pair.forward].rank >= 2]
    assert free == [0] * 16


def test_an_order_that_no_choice_fits_gets_none() -> None:
    problem = strategic(uniform(2, 1, 4, cap=0.2))
    arrays = arrays_of(problem)
    forwards = [sorted(range(arrays.n), key=lambda task: (arrays.kind[task], task))]
    orders = [[task for task in forwards[0] if arrays.rank[task] == rank] for rank in range(2)]
    assert choose(arrays, orders, 0.0) is None


@pytest.mark.parametrize("cap", [1.2, 2.0])
def test_choices_win_back_what_tight_memory_costs(cap: float) -> None:
    plain = multimodal(4, 6, 5, laps=2, cap=cap)
    fixed, free = (solve(problem, evaluations=20_000) for problem in (plain, strategic(plain)))
    assert free.schedule is not None
    assert verify(strategic(plain), free.schedule) == []
    assert free.makespan < fixed.makespan
    assert retime(strategic(plain), free.schedule).makespan == free.makespan


def test_interleaving_uses_the_memory_that_lean_choices_leave() -> None:
    problem = strategic(multimodal(3, 5, 4, laps=2, cap=0.8))
    schedule = interleave(problem)
    lean = Schedule(schedule.order, leanest(problem))
    assert verify(problem, schedule) == []
    assert retime(problem, schedule).makespan < retime(problem, lean).makespan


def test_the_integer_program_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    problem = strategic(uniform(4, 1, 8, cap=2.5))
    arrays = arrays_of(problem)
    assert choose(arrays, positions(arrays, one_f_one_b(problem)), None) is not None
    assert capfd.readouterr() == ("", "")


@settings(max_examples=25, deadline=None)
@given(problems(choices=True))
def test_the_dearer_memory_the_less_is_held_and_the_longer_it_takes(problem: Problem) -> None:
    found = priced(arrays_of(problem))
    assert len(found) == len(SHARES)
    tasks = {task.id: task for task in problem.tasks}
    held, spent = [], []
    for choices in found:
        own = [pair.choices[number] for pair, number in zip(problem.pairs, choices, strict=True)]
        spent.append(sum(choice.forward_duration + choice.backward_duration for choice in own))
        # A microbatch's stages of no length are held for no time, and cost nothing to keep.
        timed = [tasks[pair.backward].duration > 0 for pair in problem.pairs]
        held.append(sum(choice.memory for choice, is_held in zip(own, timed, strict=True) if is_held))
    assert spent == sorted(spent)
    assert held == sorted(held, reverse=True)


def test_what_is_held_longest_is_computed_again_first() -> None:
    # Rank 0 holds a microbatch for the whole pipeline, rank 3 for one forward and backward.
    problem = strategic(uniform(4, 1, 2))
    rank = [problem.tasks[pair.forward].rank for pair in problem.pairs]
    for choices in priced(arrays_of(problem)):
        lean = [max(number for own, number in zip(rank, choices, strict=True) if own == at) for at in range(4)]
        assert lean == sorted(lean, reverse=True)
    assert priced(arrays_of(uniform(4, 1, 2))) == []
