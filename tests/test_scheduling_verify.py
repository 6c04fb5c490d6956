from __future__ import annotations

from dataclasses import replace

import pytest

from ds_dip.scheduling import Plan, Schedule, solve, verify
from ds_dip.scheduling.instances import uniform

PROBLEM = uniform(2, 1, 3, cap=2)
PLAN = solve(PROBLEM, evaluations=500).plan()


def moved(task: int, start: float, end: float) -> Plan:
    tasks = tuple((own, start, end) if own == task else (own, *times) for own, *times in PLAN.tasks)
    return replace(PLAN, tasks=tasks)  # type: ignore[arg-type]


def test_a_plan_of_the_solver_holds() -> None:
    assert verify(PROBLEM, PLAN) == []


@pytest.mark.parametrize(
    ("plan", "violation"),
    [
        (moved(0, 0.0, 0.5), "task 0: runs 0.5, its duration is 1"),
        (moved(3, 0.0, 1.0), "task 3: starts at 0, before task 0's end 1"),
        (replace(PLAN, tasks=PLAN.tasks[1:]), f"task {PLAN.tasks[0][0]}: has no times"),
        (replace(PLAN, tasks=(*PLAN.tasks, (99, 0.0, 1.0))), "task 99: has times but is not in the problem"),
        (replace(PLAN, order=(PLAN.order[0][1:], PLAN.order[1])), "task 0: is never run"),
        (replace(PLAN, order=PLAN.order[::-1]), "runs on rank 0 but lives on rank 1"),
        (replace(PLAN, makespan=PLAN.makespan - 1), "makespan is"),
        (replace(PLAN, lower_bound=PLAN.makespan + 1), "is above the makespan"),
        (replace(PLAN, gap=0.5), "gap is 0.5"),
        (replace(PLAN, status="feasible"), "status is feasible with a gap of 0"),
        (replace(PLAN, choices=(0,)), "1 choices for 0 pairs"),
        (moved(0, float("nan"), 1.0), "task 0: runs from nan"),
    ],
)
def test_a_wrong_plan_is_caught_by_task(plan: Plan, violation: str) -> None:
    assert any(violation in found for found in verify(PROBLEM, plan))


def test_an_order_above_capacity_is_caught() -> None:
    assert any(
        "needs 3 on rank 0, whose capacity is 2" in found
        for found in verify(PROBLEM, Schedule(((0, 1, 2, 6, 7, 8), (3, 9, 4, 10, 5, 11))))
    )


def test_an_order_that_contradicts_the_edges_is_caught() -> None:
    found = verify(PROBLEM, Schedule(((6, 0, 1, 7, 2, 8), (3, 9, 4, 10, 5, 11))))
    assert "task 6: can never start, the orders and edges form a cycle" in found


def test_an_infeasible_plan_has_a_reason_and_no_tasks() -> None:
    plan = solve(uniform(2, 2, 3, cap=1), evaluations=10).plan()
    assert verify(PROBLEM, plan) == []
    assert verify(PROBLEM, replace(plan, reason=None)) == ["an infeasible plan has a reason and no tasks"]
