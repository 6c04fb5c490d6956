"""Backwards split in two where that makes a schedule shorter: gradients of inputs (B), and of weights later (W).

Others wait for a B only; the W fills time in which its rank would wait (Qi et al., Zero Bubble Pipeline Parallelism,
ICLR 2024, section 2). A split has a price, so a problem is split as a whole, late in its schedule only, or not at all,
whichever its search finds shortest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ds_dip.scheduling import Pair, Problem, Result, Schedule, Task, retime, solve

#: A split schedule must be shorter by this share: predictions are not exact, and neither is what a split costs.
LEAST_GAIN = 0.01
#: Backwards that end in this last part of a schedule are split when not all are: there nothing else fills the ranks.
LATE = 0.25


def split(
    problem: Problem, shares: Mapping[int, float], overhead: float, chosen: Callable[[Task], bool] = lambda _: True
) -> tuple[Problem, dict[int, int]]:
    """The problem with the chosen backwards as B and W, and the W of each by the backward's id.

    ``shares`` is the part of a backward, 0 to 1, that can come later, by its id; ``overhead`` by which share of itself
    it becomes longer. What a backward released is released by its W: a linear layer keeps its input, and the gradient
    of its output comes in the place of what else was kept. Ids of Ws follow those that are there.
    """
    number = max((task.id for task in problem.tasks), default=-1) + 1
    tasks: list[Task] = []
    weight: dict[int, int] = {}
    for task in problem.tasks:
        share = shares.get(task.id, 0.0) if task.kind == "B" else 0.0
        if share <= 0 or not chosen(task):
            tasks.append(task)
            continue
        seconds = task.duration * (1 + overhead)
        weight[task.id] = number
        tasks.append(replace(task, duration=seconds * (1 - share), release=task.acquire))
        tasks.append(
            replace(
                task, id=number, kind="W", duration=seconds * share, acquire=0.0, release=task.release - task.acquire
            )
        )
        number += 1
    edges = problem.edges + tuple((before, after, 0.0) for before, after in weight.items())
    pairs = tuple(_pair(pair, shares, overhead, weight) for pair in problem.pairs)
    return replace(problem, tasks=tuple(tasks), edges=edges, pairs=pairs), weight


def _pair(pair: Pair, shares: Mapping[int, float], overhead: float, weight: Mapping[int, int]) -> Pair:
    if pair.backward not in weight:
        return pair
    # What a strategy computes again it needs for the gradients of inputs; those of weights take the same with all.
    later = shares[pair.backward] * min(choice.backward_duration for choice in pair.choices)
    choices = tuple(
        replace(
            choice,
            backward_duration=(choice.backward_duration - later) * (1 + overhead),
            weight_duration=later * (1 + overhead),
        )
        for choice in pair.choices
    )
    return replace(pair, choices=choices, weight=weight[pair.backward])


def split_search(
    problem: Problem,
    schedule: Schedule,
    shares: Mapping[int, float],
    overhead: float,
    evaluations: int,
    budget: float | None = None,
    seed: int = 0,
) -> tuple[Problem, Result] | None:
    """The best of all and of the late backwards split, each searched from ``schedule`` with half of the effort.

    A backward that no other one waits for stays whole: its gradients of inputs go nowhere.
    None where none is shorter than ``schedule`` by ``LEAST_GAIN``.
    """
    times = retime(problem, schedule)
    late = times.makespan * (1 - LATE)
    best: tuple[Problem, Result] | None = None
    limit = times.makespan * (1 - LEAST_GAIN)
    awaited = {before for before, _, _ in problem.edges}
    for chosen in (lambda task: task.id in awaited, lambda task: task.id in awaited and times.end[task.id] > late):
        made, weight = split(problem, shares, overhead, chosen)
        if not weight:
            continue
        order = tuple(
            tuple(own for task in rank for own in ((task, weight[task]) if task in weight else (task,)))
            for rank in schedule.order
        )
        found = solve(
            made,
            evaluations=max(1, evaluations // 2),
            budget=None if budget is None else budget / 2,
            seed=seed,
            warm_start=Schedule(order, schedule.choices),
        )
        if found.schedule is not None and found.makespan < limit:
            best, limit = (made, found), found.makespan
    return best
