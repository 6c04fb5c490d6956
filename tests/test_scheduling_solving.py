from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings

from ds_dip.scheduling import Problem, Task, carry_over, interleave, retime, solve, verify
from ds_dip.scheduling.instances import flow_shop, multimodal, unequal, uniform
from tests.scheduling_cases import problems, renumbered

UNIFORM = [
    (4, 2, 8, None, 57),
    (4, 2, 5, None, 39),
    (4, 2, 6, None, 45),
    (4, 2, 6, 8, 45),
    (4, 2, 10, None, 69),
    (8, 2, 12, None, 93),
]
UNEQUAL = [
    (2, 6, 2, 873654221, 1233),
    (2, 6, 1, 873654221, 2124),
    (3, 6, 3, 379008056, 1150),
    (4, 6, 4, 1866992158, 1243),
    (4, 8, 4, 216771124, 1999),
    (4, 8, 2, 216771124, 2969),
]


@pytest.mark.parametrize(("ranks", "laps", "microbatches", "cap", "optimum"), UNIFORM)
def test_uniform_pipelines_reach_the_proven_optimum(
    ranks: int, laps: int, microbatches: int, cap: float | None, optimum: float
) -> None:
    problem = uniform(ranks, laps, microbatches, cap=cap)
    result = solve(problem, evaluations=300_000)
    assert (result.makespan, result.status) == (optimum, "optimal")
    assert result.schedule is not None
    assert verify(problem, result.schedule) == []


@pytest.mark.parametrize(("ranks", "microbatches", "cap", "seed", "optimum"), UNEQUAL)
def test_unequal_pipelines_reach_the_proven_optimum(
    ranks: int, microbatches: int, cap: float, seed: int, optimum: float
) -> None:
    problem = unequal(ranks, 1, microbatches, seed, cap)
    result = solve(problem, evaluations=2_500_000)
    assert result.makespan == optimum
    assert result.schedule is not None
    assert verify(problem, result.schedule) == []


@pytest.mark.parametrize(("seed", "optimum"), [(873654221, 1278), (379008056, 1359), (1866992158, 1081)])
def test_permutation_flow_shops_reach_the_published_optimum(seed: int, optimum: float) -> None:
    result = solve(flow_shop(20, 5, seed), evaluations=400_000, same_order=True)
    assert result.makespan == optimum
    assert result.schedule is not None
    assert len({tuple(task % 20 for task in order) for order in result.schedule.order}) == 1


def test_the_same_seed_and_evaluations_give_the_same_answer_with_two_workers_too() -> None:
    problem = multimodal(3, 5, 2, laps=2, cap=1.5)
    for workers in (1, 2):
        first, second = (solve(problem, evaluations=4000, seed=3, workers=workers) for _ in range(2))
        assert first.schedule == second.schedule
        assert first.evaluations == second.evaluations


@settings(max_examples=25, deadline=None)
@given(problems(choices=True))
def test_an_answer_holds_and_beats_every_baseline_and_its_bound_holds(problem: Problem) -> None:
    result = solve(problem, evaluations=300)
    assert result.schedule is not None
    assert verify(problem, result.plan()) == []
    assert result.lower_bound <= result.makespan * (1 + 1e-9)
    for value in result.baselines.values():
        assert isinstance(value, str) or result.makespan <= value * (1 + 1e-9)
    assert result.makespan <= retime(problem, interleave(problem)).makespan * (1 + 1e-9)


@settings(max_examples=15, deadline=None)
@given(problems())
def test_renumbering_ids_changes_nothing_in_a_search(problem: Problem) -> None:
    other, new = renumbered(problem, 7)
    result, moved = solve(problem, evaluations=200), solve(other, evaluations=200)
    assert result.schedule is not None
    assert moved.schedule is not None
    assert moved.schedule.order == tuple(tuple(new[task] for task in order) for order in result.schedule.order)


def test_a_warm_start_is_never_lost() -> None:
    problem = unequal(4, 1, 8, 216771124, 2)
    good = solve(problem, evaluations=300_000)
    again = solve(problem, evaluations=20, warm_start=good.schedule)
    assert again.makespan <= good.makespan


def test_an_infeasible_problem_gets_a_reason_and_a_sufficient_capacity() -> None:
    problem = uniform(3, 2, 4, cap=1)
    result = solve(problem, evaluations=100)
    assert (result.status, result.schedule) == ("infeasible", None)
    assert "microbatch 0 alone needs 2 on rank 0" in str(result.reason)
    assert result.sufficient_capacity is not None
    assert solve(replace(problem, memory_capacity=result.sufficient_capacity), evaluations=10).status != "infeasible"


@pytest.mark.parametrize("method", ["mcts", "dfs", "random"])
def test_other_methods_search_segment_orders_within_the_budget(method: str) -> None:
    problem = multimodal(3, 4, 2, laps=2, cap=1.5)
    result = solve(problem, evaluations=400, method=method, workers=2)
    assert result.schedule is not None
    assert verify(problem, result.schedule) == []
    assert result.makespan <= retime(problem, interleave(problem)).makespan
    assert result.evaluations <= 430


def test_tree_search_learns_more_than_first_come() -> None:
    problem = unequal(4, 1, 8, 216771124, 4)
    assert solve(problem, evaluations=3000, method="mcts").makespan < retime(problem, interleave(problem)).makespan


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(ValueError, match="expected portfolio, mcts, dfs, random"):
        solve(uniform(2, 1, 2), method="magic")


def test_tasks_that_take_no_time_are_solved_at_once() -> None:
    problem = uniform(2, 1, 3, 0.0, 0.0)
    for same_order in (False, True):
        assert solve(problem, evaluations=10, same_order=same_order).makespan == 0.0


def test_nothing_and_one_task_are_solved_at_once() -> None:
    empty = solve(Problem(2, (None, None), (), ()), evaluations=10)
    assert (empty.makespan, empty.status) == (0.0, "optimal")
    single = solve(Problem(1, (2.0,), (Task(5, 0, "F", "backbone", 0, 0, 0, 0, 3.0, 2.0, 2.0),), ()), evaluations=10)
    assert (single.makespan, single.status) == (3.0, "optimal")


def test_progress_tells_best_bound_evaluations_and_seconds() -> None:
    seen: list[tuple[float, float, int, float]] = []
    result = solve(unequal(3, 1, 5, 5, 3), evaluations=20_000, progress=lambda *state: seen.append(state))
    assert seen[-1][0] == result.makespan
    assert seen[-1][1] == result.lower_bound
    assert all(one[2] <= other[2] for one, other in itertools.pairwise(seen))


def test_importing_the_room_imports_neither_numba_nor_torch() -> None:
    code = "import sys, ds_dip.scheduling; print(*{'numba', 'torch', 'ortools', 'highspy'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""


def test_the_last_batchs_order_is_a_start_for_the_next() -> None:
    last, following = (multimodal(3, 6, seed, laps=2, cap=1.5) for seed in (2, 9))
    found = solve(last, evaluations=3000).schedule
    assert found is not None
    carried = carry_over(last, found, following)
    assert verify(following, carried) == []
    again = carry_over(last, found, last)
    assert retime(last, again).makespan <= retime(last, found).makespan * (1 + 1e-9)
    warm = solve(following, evaluations=50, warm_start=carried)
    assert warm.makespan <= retime(following, carried).makespan
