"""Re-checks a schedule or plan from the problem alone, sharing no code with the solver."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import replace

from ds_dip.scheduling.plan import Plan
from ds_dip.scheduling.problem import Problem, Task
from ds_dip.scheduling.schedule import Schedule

TOLERANCE = 1e-9
"""Relative tolerance of times and memory."""


def verify(problem: Problem, answer: Schedule | Plan) -> list[str]:
    """Violations as sentences, by task where there is one; empty means that the answer holds.

    A Schedule is timed here with earliest starts; a Plan is checked by the times it claims.
    """
    if isinstance(answer, Plan) and answer.status == "infeasible":
        return [] if not answer.tasks and answer.reason else ["an infeasible plan has a reason and no tasks"]
    tasks, found = _chosen(problem, answer.choices)
    if found:
        return found
    found = _orders(tasks, problem.ranks, answer.order)
    if found:
        return found
    if isinstance(answer, Plan):
        start, end, found = _claimed(tasks, answer)
    else:
        start, end, found = _timed(problem, tasks, answer.order)
    if found:
        return found
    scale = max([1e-300, *end.values()])
    found = _times(problem, tasks, answer.order, start, end, TOLERANCE * scale)
    found += _memory(problem, tasks, answer.order)
    if isinstance(answer, Plan):
        makespan = max((end[task.id] + task.tail for task in tasks.values()), default=0.0)
        found += _claims(answer, makespan)
    return found


def _chosen(problem: Problem, choices: tuple[int, ...]) -> tuple[dict[int, Task], list[str]]:
    """Tasks with the durations and memory of their chosen strategies."""
    tasks = {task.id: task for task in problem.tasks}
    if len(choices) != len(problem.pairs):
        return tasks, [f"{len(choices)} choices for {len(problem.pairs)} pairs"]
    for position, (pair, number) in enumerate(zip(problem.pairs, choices, strict=True)):
        if not 0 <= number < len(pair.choices):
            return tasks, [f"pair {position} has no choice {number}"]
        choice = pair.choices[number]
        tasks[pair.forward] = replace(
            tasks[pair.forward], duration=choice.forward_duration, acquire=choice.memory, release=0.0
        )
        kept = choice.memory if pair.weight is None else 0.0
        tasks[pair.backward] = replace(
            tasks[pair.backward],
            duration=choice.backward_duration,
            acquire=choice.backward_acquire,
            release=choice.backward_acquire + kept,
        )
        if pair.weight is not None:
            weight = tasks[pair.weight]
            tasks[pair.weight] = replace(
                weight, duration=choice.weight_duration or 0.0, release=choice.memory + weight.acquire
            )
    return tasks, []


def _orders(tasks: dict[int, Task], ranks: int, order: tuple[tuple[int, ...], ...]) -> list[str]:
    if len(order) != ranks:
        return [f"the order has {len(order)} ranks, the problem {ranks}"]
    found, seen = [], set()
    for rank, ids in enumerate(order):
        for task in ids:
            if task not in tasks:
                found.append(f"task {task}: runs on rank {rank} but is not in the problem")
            elif tasks[task].rank != rank:
                found.append(f"task {task}: runs on rank {rank} but lives on rank {tasks[task].rank}")
            if task in seen:
                found.append(f"task {task}: runs twice")
            seen.add(task)
    return found + [f"task {task}: is never run" for task in tasks if task not in seen]


def _claimed(tasks: dict[int, Task], plan: Plan) -> tuple[dict[int, float], dict[int, float], list[str]]:
    start = {task: begin for task, begin, _ in plan.tasks}
    end = {task: finish for task, _, finish in plan.tasks}
    found = [f"task {task}: has no times" for task in tasks if task not in start]
    found += [f"task {task}: has times but is not in the problem" for task in start if task not in tasks]
    if len(plan.tasks) != len(start):
        found.append("a task has times twice")
    for task, begin in start.items():
        if not (math.isfinite(begin) and math.isfinite(end[task]) and begin >= 0):
            found.append(f"task {task}: runs from {begin} to {end[task]}, which are no times")
    return start, end, found


def _timed(
    problem: Problem, tasks: dict[int, Task], order: tuple[tuple[int, ...], ...]
) -> tuple[dict[int, float], dict[int, float], list[str]]:
    """Earliest times by passing over the ranks until none can go on."""
    before: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for source, target, delay in problem.edges:
        before[target].append((source, delay))
    start: dict[int, float] = {}
    end: dict[int, float] = {}
    place, free = [0] * problem.ranks, [0.0] * problem.ranks
    moved = True
    while moved:
        moved = False
        for rank, ids in enumerate(order):
            while place[rank] < len(ids):
                task = ids[place[rank]]
                if any(source not in end for source, _ in before[task]):
                    break
                start[task] = max([free[rank], *(end[source] + delay for source, delay in before[task])])
                end[task] = free[rank] = start[task] + tasks[task].duration
                place[rank] += 1
                moved = True
    stuck = [ids[place[rank]] for rank, ids in enumerate(order) if place[rank] < len(ids)]
    return start, end, [f"task {task}: can never start, the orders and edges form a cycle" for task in stuck]


def _times(
    problem: Problem,
    tasks: dict[int, Task],
    order: tuple[tuple[int, ...], ...],
    start: dict[int, float],
    end: dict[int, float],
    slack: float,
) -> list[str]:
    found = []
    for task in tasks.values():
        if abs(end[task.id] - start[task.id] - task.duration) > slack:
            found.append(f"task {task.id}: runs {end[task.id] - start[task.id]:g}, its duration is {task.duration:g}")
    for before, after, delay in problem.edges:
        if start[after] < end[before] + delay - slack:
            found.append(
                f"task {after}: starts at {start[after]:g}, before task {before}'s end {end[before]:g} + {delay:g}"
            )
    for rank, ids in enumerate(order):
        for one, other in itertools.pairwise(ids):
            if start[other] < end[one] - slack:
                found.append(f"task {other}: starts at {start[other]:g} on rank {rank}, where task {one} still runs")
    return found


def _memory(problem: Problem, tasks: dict[int, Task], order: tuple[tuple[int, ...], ...]) -> list[str]:
    """Use along every rank's order: its tasks never overlap, so releases come before the next acquire."""
    found = []
    for rank, capacity in enumerate(problem.memory_capacity):
        if capacity is None:
            continue
        held: list[float] = []
        for task in order[rank]:
            held.append(tasks[task].acquire)
            use = math.fsum(held)
            if use > capacity * (1 + TOLERANCE):
                found.append(f"task {task}: needs {use:g} on rank {rank}, whose capacity is {capacity:g}")
            held.append(-tasks[task].release)
            if len(held) > 64:
                held = [math.fsum(held)]
    return found


def _claims(plan: Plan, makespan: float) -> list[str]:
    found = []
    if abs(plan.makespan - makespan) > TOLERANCE * max(makespan, 1e-300):
        found.append(f"makespan is {plan.makespan:g}, the times give {makespan:g}")
    gap = plan.makespan / plan.lower_bound - 1 if plan.lower_bound > 0 else 0.0
    if plan.lower_bound > makespan * (1 + TOLERANCE):
        found.append(f"lower bound {plan.lower_bound:g} is above the makespan {makespan:g}")
    elif abs(plan.gap - gap) > TOLERANCE * (1 + gap):
        found.append(f"gap is {plan.gap:g}, makespan and lower bound give {gap:g}")
    if (plan.status == "optimal") != (plan.gap <= TOLERANCE):
        found.append(f"status is {plan.status} with a gap of {plan.gap:g}")
    return found
