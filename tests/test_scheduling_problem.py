from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest

from ds_dip.scheduling import Choice, Pair, Problem, ProblemError, Task
from ds_dip.scheduling.arrays import arrays_of
from ds_dip.scheduling.instances import uniform

GOOD = uniform(2, 1, 2)
PAIR = Pair(0, 4, (Choice(1.0, 2.0, 1.0),))


def with_task(**changes: Any) -> Problem:
    return replace(GOOD, tasks=(replace(GOOD.tasks[0], **changes), *GOOD.tasks[1:]))


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (replace(GOOD, ranks=0, memory_capacity=()), "ranks is 0"),
        (replace(GOOD, memory_capacity=(None,)), "memory_capacity has 1 values for 2 ranks"),
        (replace(GOOD, memory_capacity=(None, -1.0)), "memory_capacity of rank 1 is -1.0"),
        (replace(GOOD, memory_capacity=(None, math.inf)), "memory_capacity of rank 1 is inf"),
        (replace(GOOD, tasks=(*GOOD.tasks, GOOD.tasks[0])), "task id 0 is used twice"),
        (with_task(rank=2), "task 0 is on rank 2, expected 0 to 1"),
        (with_task(kind="X"), "task 0 is of kind 'X'"),
        (with_task(duration=-1.0), "task 0 has duration -1.0"),
        (with_task(duration=math.nan), "task 0 has duration nan"),
        (with_task(acquire=math.inf), "task 0 has acquire inf"),
        (with_task(tail=-0.5), "task 0 has tail -0.5"),
        (with_task(duration=10**400), "task 0 has duration 1000"),
        (with_task(microbatch=10**30), "task 0 has microbatch 1000"),
        (with_task(sub=-1), "task 0 has sub -1; give an integer from 0 to 2147483647"),
        (with_task(id=-4), "task -4 has id -4"),
        (with_task(duration=1e308), "the durations, delays and tails add up to 1e+308, the largest is 1e+308"),
        (
            replace(GOOD, tasks=tuple(replace(t, duration=1.7e308) for t in GOOD.tasks)),
            "tails add up to inf, the largest is 1.7e+308; give them in a larger unit, at most 1e+300 together",
        ),
        (replace(GOOD, edges=(*GOOD.edges, (0, 1, 1e308))), "the durations, delays and tails add up to 1e+308"),
        (with_task(acquire=1e308), "the acquires and releases add up to 1e+308"),
        (
            replace(GOOD, pairs=(replace(PAIR, choices=(Choice(1.0, 1e301, 1.0),)),)),
            "delays and tails add up to 1e+301",
        ),
        (replace(GOOD, pairs=(replace(PAIR, choices=(Choice(1.0, 1.0, 1e301),)),)), "releases add up to 1e+301"),
        (with_task(acquire=3.0), "microbatch 0 acquires 3 and releases 1 on rank 0"),
        (replace(GOOD, edges=(*GOOD.edges, (0, 99, 0.0))), "names task 99, which does not exist"),
        (replace(GOOD, edges=(*GOOD.edges, (0, 1, math.nan))), "has delay nan"),
        (replace(GOOD, edges=(*GOOD.edges, (4, 0, 0.0))), "the edges have a cycle among or before tasks 0"),
        (replace(GOOD, edges=(*GOOD.edges, (5, 5, 0.0))), "the edges have a cycle"),
        (replace(GOOD, pairs=(PAIR, PAIR)), "task 0 is in two pairs"),
        (replace(GOOD, pairs=(replace(PAIR, choices=()),)), "pair 0 has no choices"),
        (replace(GOOD, pairs=(replace(PAIR, backward=1),)), "uses task 1 as B, but its kind is F"),
        (replace(GOOD, pairs=(replace(PAIR, backward=5),)), "different ranks or microbatches"),
        (replace(GOOD, pairs=(replace(PAIR, forward=77),)), "names task 77"),
        (replace(GOOD, pairs=(replace(PAIR, choices=(Choice(-1.0, 1.0, 1.0),)),)), "forward_duration -1.0"),
        (
            replace(GOOD, pairs=(replace(PAIR, choices=(Choice(1.0, 1.0, 1.0, 0.0, 1.0),)),)),
            "weight_duration goes with",
        ),
    ],
)
def test_a_problem_that_means_nothing_is_refused_in_one_sentence(problem: Problem, reason: str) -> None:
    with pytest.raises(ProblemError, match=re.escape(reason)) as caught:
        arrays_of(problem)
    assert "\n" not in str(caught.value)


def test_edges_between_microbatches_make_one_group() -> None:
    joined = replace(GOOD, edges=(*GOOD.edges, (0, 1, 0.0)))
    assert arrays_of(GOOD).groups() == 2
    assert arrays_of(joined).groups() == 1


def test_a_choice_replaces_durations_and_memory_of_its_pair() -> None:
    task = Task(9, 0, "F", "backbone", 0, 0, 0, 0, 1.0, acquire=1.0)
    rest = (replace(task, id=8, kind="B", acquire=0.0), replace(task, id=7, kind="W", acquire=0.0, release=1.0))
    choice = Choice(2.0, 3.0, 0.5, backward_acquire=0.25, weight_duration=4.0)
    problem = Problem(1, (None,), (task, *rest), ((9, 8, 0.0), (8, 7, 0.0)), (Pair(9, 8, (choice,), 7),))
    base = arrays_of(problem)
    chosen = base.with_choices((0,))
    forward, backward, weight = (base.index[number] for number in (9, 8, 7))
    assert chosen.duration[[forward, backward, weight]].tolist() == [2.0, 3.0, 4.0]
    assert chosen.acquire[[forward, backward, weight]].tolist() == [0.5, 0.25, 0.0]
    assert chosen.release[[forward, backward, weight]].tolist() == [0.0, 0.25, 0.5]
    with pytest.raises(ProblemError, match="choice 1 of pair 0 does not exist"):
        base.with_choices((1,))
    with pytest.raises(ProblemError, match="0 choices for 1 pairs"):
        base.with_choices(())
