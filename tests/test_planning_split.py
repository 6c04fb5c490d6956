"""Backwards split in two: the same work and memory, gradients of inputs first, and only where that is shorter."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_dip.costs.roofline import Rates
from ds_dip.costs.weights import WeightShares
from ds_dip.models import load_model
from ds_dip.models.spec import Sizes
from ds_dip.planner import Planner
from ds_dip.planning.build import build_problem
from ds_dip.planning.split import LEAST_GAIN, split, split_search
from ds_dip.programs.program import stages_of
from ds_dip.scheduling import Choice, Pair, Problem, Schedule, interleave, retime, verify
from tests.cases import RandomCosts, random_case
from tests.planner_cases import settings

FEW = hypothesis.settings(deadline=None, max_examples=40)


class Costs(RandomCosts):
    """Stages that take time and hold memory."""

    def forward(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        return 0.5 + self.rng.random()

    backward = forward

    def activation_bytes(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        return 1.0 + self.rng.random()


def problem_of(seed: int, capacity: float | None = None) -> Problem:
    case = random_case(seed, ranks=2)
    return build_problem(
        case.batches[0], case.toy.model, case.partition, Costs(seed), compute="float64", memory_capacity=capacity
    )


def shares_of(problem: Problem, seed: int) -> dict[int, float]:
    rng = random.Random(seed)
    return {task.id: rng.choice((0.0, rng.random())) for task in problem.tasks if task.kind == "B"}


@FEW
@given(st.integers(0, 10**6), st.sampled_from((0.0, 0.05, 0.5)))
def test_work_memory_and_order_are_kept(seed: int, overhead: float) -> None:
    problem = problem_of(seed)
    shares = shares_of(problem, seed)
    made, weight = split(problem, shares, overhead)
    assert set(weight) == {task for task, share in shares.items() if share > 0}
    tasks = {task.id: task for task in made.tasks}
    for whole in problem.tasks:
        if whole.id not in weight:
            assert tasks[whole.id] == whole
            continue
        first, later = tasks[whole.id], tasks[weight[whole.id]]
        assert later.kind == "W"
        same = {"id": 0, "kind": "", "duration": 0, "acquire": 0, "release": 0}
        assert replace(later, **same) == replace(first, **same)
        assert first.duration + later.duration == pytest.approx(whole.duration * (1 + overhead))
        assert later.duration == pytest.approx((first.duration + later.duration) * shares[whole.id])
        assert (first.acquire, first.release) == (whole.acquire, whole.acquire), "what a backward needs is given back"
        assert later.acquire == 0.0
        assert later.release == whole.release - whole.acquire, "activations stay until the weights' gradients"
        assert (first.id, later.id, 0.0) in made.edges
    assert sorted(tasks) == list(range(len(tasks)))
    assert verify(made, interleave(made)) == []


@FEW
@given(st.integers(0, 10**6))
def test_what_comes_right_after_its_backward_takes_no_longer_where_splitting_is_free(seed: int) -> None:
    problem = problem_of(seed)
    schedule = interleave(problem)
    made, weight = split(problem, shares_of(problem, seed), 0.0)
    order = tuple(
        tuple(own for task in rank for own in ((task, weight[task]) if task in weight else (task,)))
        for rank in schedule.order
    )
    before, after = retime(problem, schedule), retime(made, Schedule(order, schedule.choices))
    assert after.makespan <= before.makespan * (1 + 1e-12)
    assert after.peak_memory == pytest.approx(before.peak_memory)


@FEW
@given(st.integers(0, 10**6), st.sampled_from((0.0, 0.05, 0.3)), st.booleans())
def test_a_search_gives_a_valid_schedule_that_is_shorter_by_more_than_chance(
    seed: int, overhead: float, tight: bool
) -> None:
    problem = problem_of(seed)
    schedule = interleave(problem)
    if tight:
        peak = max(retime(problem, schedule).peak_memory)
        problem = replace(problem, memory_capacity=(peak,) * problem.ranks)
    found = split_search(problem, schedule, shares_of(problem, seed), overhead, 60)
    if found is not None:
        made, result = found
        assert result.schedule is not None
        assert verify(made, result.schedule) == []
        assert result.makespan < retime(problem, schedule).makespan * (1 - LEAST_GAIN)
        awaited = {before for before, _, _ in problem.edges}
        put_off = {before for before, after, _ in made.edges if after >= len(problem.tasks)}
        assert put_off <= awaited, "nobody waits for the others' gradients of inputs"


def test_it_pays_where_a_rank_would_wait_and_not_where_splitting_costs_more() -> None:
    """Two ranks and one microbatch: rank 0 waits for rank 1's backward, and not for its weights."""
    case = random_case(3, ranks=2, encoders=0, laps=1)
    problem = build_problem(case.batches[0], case.toy.model, case.partition, Costs(3), compute="float64")
    first = {task.id for task in problem.tasks if task.microbatch == 0}
    problem = replace(
        problem,
        tasks=tuple(replace(task, duration=2.0) for task in problem.tasks if task.id in first),
        edges=tuple((a, b, 0.0) for a, b, _ in problem.edges if {a, b} <= first),
    )
    shares = {task.id: 0.5 for task in problem.tasks if task.kind == "B"}
    schedule = interleave(problem)
    assert retime(problem, schedule).makespan == 8.0
    found = split_search(problem, schedule, shares, 0.0, 50)
    assert found is not None
    assert found[1].makespan == 7.0
    assert split_search(problem, schedule, shares, 1.0, 50) is None


def test_memory_strategies_put_the_same_gradients_off() -> None:
    problem = problem_of(1)
    forward = next(task for task in problem.tasks if task.kind == "F")
    backward = next(
        task
        for task in problem.tasks
        if task.kind == "B"
        and (task.module, task.chunk, task.microbatch, task.sub)
        == (forward.module, forward.chunk, forward.microbatch, forward.sub)
    )
    pair = Pair(forward.id, backward.id, (Choice(1.0, 2.0, 5.0), Choice(1.0, 3.0, 1.0, 4.0)))
    made, weight = split(replace(problem, pairs=(pair,)), {backward.id: 0.5}, 0.1)
    keep, again = made.pairs[0].choices
    assert made.pairs[0].weight == weight[backward.id]
    assert (keep.backward_duration, keep.weight_duration) == pytest.approx((1.1, 1.1))
    assert (again.backward_duration, again.weight_duration) == pytest.approx((2.2, 1.1))
    assert verify(made, interleave(made)) == []


def test_shares_are_those_of_linear_layers() -> None:
    model = load_model("model_configs/quickstart.json")
    shares = WeightShares(model, Rates())
    sizes = Sizes((16,) * 4, (1,) * 4)
    blocks = shares.share("vision", 1, 4, sizes)
    assert 0.2 < blocks < 0.5, "half of the linear layers' part, nothing of attention, norms and activations"
    assert shares.share("language", 0, 1, sizes) == 0.0, "an embedding's gradients are not put off"
    wide = replace(
        model,
        modules=tuple(replace(module, frozen=module.name == "vision") for module in model.modules),
    )
    assert WeightShares(wide, Rates()).share("vision", 1, 4, sizes) == 0.0


def planner_of(**changes: Any) -> Planner:
    return Planner(settings(**changes))


def test_plans_are_split_where_they_are_shorter_and_whole_without_the_setting() -> None:
    whole, divided = planner_of(), planner_of(split=0.0)
    put_off = 0
    for step in range(4):
        a, b = whole.plan(step), divided.plan(step)
        assert not any(stage.kind == "W" for program in a.programs for stage in stages_of(program))
        put_off += sum(stage.kind == "W" for program in b.programs for stage in stages_of(program))
        assert b.makespan <= a.makespan * 1.01
        assert not any(s.kind == "W" for p in divided.fallback(step, "late").programs for s in stages_of(p))
    assert put_off
    assert planner_of(split=0.0).plan(2) == planner_of(split=0.0).plan(2), "deterministic"
    assert planner_of(split=10.0).plan(0).makespan <= whole.plan(0).makespan * 1.01, "what costs more is not split"
