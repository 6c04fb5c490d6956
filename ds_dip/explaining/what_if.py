"""What another problem would bring: the problem changed in one respect and searched again, beside itself.

Every problem, the unchanged one too, is searched with several seeds from the order that there is. Their spread is what
the search's budget leaves open: a change whose spread overlaps with the unchanged one's brings nothing that is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from ds_dip.scheduling import Choice, Problem, Schedule, lower_bound, solve
from ds_dip.scheduling.arrays import arrays_of
from ds_dip.scheduling.problem import Task
from ds_dip.scheduling.static import stages

#: Names of the changes of ``balance``.
RANKS, MICROBATCHES = "balanced ranks", "even microbatches"


@dataclass(frozen=True, slots=True)
class Change:
    """A problem changed in one respect, in words."""

    name: str
    what: str
    problem: Problem


@dataclass(frozen=True, slots=True)
class Outcome:
    """What searches found: makespans by seed, and the lower bound that none can be below; seconds.

    Where no schedule fits, ``reason`` says why and there are no makespans.
    """

    name: str
    what: str
    makespans: tuple[float, ...]
    bound: float
    reason: str = ""

    @property
    def makespan(self) -> float:
        """The median over the seeds."""
        return median(self.makespans)

    def gain(self, base: Outcome) -> tuple[float, float, float]:
        """The share of the unchanged makespan that is saved: the median's, the least and the most by seeds."""
        if not min(base.makespans):
            return 0.0, 0.0, 0.0
        return (
            1 - self.makespan / base.makespan,
            1 - max(self.makespans) / min(base.makespans),
            1 - min(self.makespans) / max(base.makespans),
        )

    def is_known(self, base: Outcome) -> bool:
        """Whether the change does more than another seed."""
        _, least, most = self.gain(base)
        return least > 0 or most < 0


@dataclass(frozen=True, slots=True)
class Effort:
    """Of each search: schedules scored and seconds at most, and how many seeds."""

    evaluations: int = 1000
    budget: float | None = None
    seeds: int = 3


def what_if(
    problem: Problem,
    schedule: Schedule,
    names: Sequence[str] = (),
    effort: Effort | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Outcome]:
    """The unchanged problem first, then the named changes that apply to it (see ``CHANGES``; all without a name)."""
    effort = effort or Effort()
    found = []
    base = Change("as it is", "the same problem, searched again", problem)
    wanted = [own for name in (names or CHANGES) for own in CHANGES[name](problem)]
    for change in [base, *wanted]:
        progress(change.name)
        start = schedule if len(change.problem.tasks) == len(problem.tasks) else None
        found.append(searched(change, start, effort))
    return found


def searched(change: Change, start: Schedule | None, effort: Effort) -> Outcome:
    """A problem searched with every seed."""
    makespans = []
    for seed in range(effort.seeds):
        result = solve(
            change.problem, evaluations=effort.evaluations, budget=effort.budget, seed=seed, warm_start=start
        )
        if result.schedule is None:
            return Outcome(change.name, change.what, (), result.lower_bound, str(result.reason))
        makespans.append(result.makespan)
    return Outcome(change.name, change.what, tuple(makespans), lower_bound(change.problem)[0])


def _memory(problem: Problem) -> Iterator[Change]:
    if all(own is None for own in problem.memory_capacity):
        return
    more = tuple(None if own is None else 1.25 * own for own in problem.memory_capacity)
    yield Change("memory x1.25", "a quarter more memory on every rank", replace(problem, memory_capacity=more))
    free = replace(problem, memory_capacity=(None,) * problem.ranks)
    yield Change("no memory limit", "as much memory as it takes", free)


def _links(problem: Problem) -> Iterator[Change]:
    if not any(delay for _, _, delay in problem.edges):
        return
    for name, what, factor in (
        ("links x2", "every transfer in half the time", 0.5),
        ("no transfers", "messages that take no time", 0.0),
    ):
        edges = tuple((before, after, factor * delay) for before, after, delay in problem.edges)
        yield Change(name, what, replace(problem, edges=edges))


def balance(problem: Problem) -> Iterator[Change]:
    """All ranks with as much to do, and all microbatches alike; the whole of the work stays as it is."""
    arrays = arrays_of(problem)
    work = np.bincount(arrays.rank, arrays.duration, minlength=arrays.ranks)
    if work.min() > 0 and work.max() > work.min() * (1 + 1e-9):
        factor = work.mean() / work
        yield Change(
            RANKS,
            "stages of a rank longer or shorter by one factor, so that all ranks have as much to do",
            _scaled(problem, {task.id: float(factor[task.rank]) for task in problem.tasks}),
        )
    stage = stages(arrays)
    mean = np.bincount(stage, arrays.duration) / np.bincount(stage)
    factors = np.divide(mean[stage], arrays.duration, out=np.ones(arrays.n), where=arrays.duration > 0)
    if np.abs(factors - 1).max(initial=0.0) > 1e-9:
        yield Change(
            MICROBATCHES,
            "every stage takes as long as it does in the mean microbatch",
            _scaled(problem, dict(zip(arrays.id.tolist(), factors.tolist(), strict=True))),
        )


def _microbatch(problem: Problem) -> Iterator[Change]:
    """The same work in a microbatch more: all of them smaller, and the one of middle size once more."""
    microbatch = {task.id: task.microbatch for task in problem.tasks}
    work: dict[int, float] = {}
    for task in problem.tasks:
        work[task.microbatch] = work.get(task.microbatch, 0.0) + task.duration
    if any(microbatch[before] != microbatch[after] for before, after, _ in problem.edges) or not work:
        return
    count, total = len(work), sum(work.values())
    middle = sorted(work, key=lambda own: (work[own], own))[count // 2]
    if total + work[middle] <= 0:
        return
    factor, number = total / (total + work[middle]), 1 + max(microbatch)
    tasks = [_smaller(task, factor) for task in problem.tasks]
    copies = {task.id: number + place for place, task in enumerate(tasks) if task.microbatch == middle}
    tasks += [
        replace(task, id=copies[task.id], microbatch=1 + max(work)) for task in tasks if task.microbatch == middle
    ]
    edges = [
        *problem.edges,
        *((copies[one], copies[other], delay) for one, other, delay in problem.edges if one in copies),
    ]
    pairs = [
        replace(pair, choices=tuple(_smaller_choice(choice, factor) for choice in pair.choices))
        for pair in problem.pairs
    ]
    pairs += [
        replace(
            pair,
            forward=copies[pair.forward],
            backward=copies[pair.backward],
            weight=None if pair.weight is None else copies[pair.weight],
        )
        for pair in pairs
        if pair.forward in copies
    ]
    yield Change(
        "one more microbatch",
        f"the same work and bytes in {count + 1} microbatches; what a stage costs beside its size is left out",
        replace(problem, tasks=tuple(tasks), edges=tuple(edges), pairs=tuple(pairs)),
    )


def _smaller(task: Task, factor: float) -> Task:
    return replace(task, duration=factor * task.duration, acquire=factor * task.acquire, release=factor * task.release)


def _smaller_choice(choice: Choice, factor: float) -> Choice:
    return Choice(
        factor * choice.forward_duration,
        factor * choice.backward_duration,
        factor * choice.memory,
        factor * choice.backward_acquire,
        None if choice.weight_duration is None else factor * choice.weight_duration,
    )


def _scaled(problem: Problem, factor: Mapping[int, float]) -> Problem:
    """Durations multiplied by a factor a task, those of a pair's choices too."""
    pairs = tuple(
        replace(
            pair,
            choices=tuple(
                replace(
                    choice,
                    forward_duration=choice.forward_duration * factor[pair.forward],
                    backward_duration=choice.backward_duration * factor[pair.backward],
                    weight_duration=(
                        None
                        if choice.weight_duration is None or pair.weight is None
                        else choice.weight_duration * factor[pair.weight]
                    ),
                )
                for choice in pair.choices
            ),
        )
        for pair in problem.pairs
    )
    tasks = tuple(replace(task, duration=task.duration * factor[task.id]) for task in problem.tasks)
    return replace(problem, tasks=tasks, pairs=pairs)


#: What can be changed, and how: nothing where it does not apply.
CHANGES: Mapping[str, Callable[[Problem], Iterator[Change]]] = {
    "memory": _memory,
    "links": _links,
    "balance": balance,
    "microbatch": _microbatch,
}
