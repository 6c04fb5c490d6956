"""Reports for tests: plans of a multimodal batch and of 20 000 stages, a run whose stages were slower than planned."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from pathlib import Path

from ds_dip.planner import StageTime
from ds_dip.planner.recording import RecordedStep
from ds_dip.planning import build_problem
from ds_dip.reporting.timeline import StepTimeline, step_timeline, write_timeline
from ds_dip.scheduling import Plan, Problem, Schedule, interleave, lower_bound, retime
from ds_dip.scheduling.instances import multimodal
from ds_dip.scheduling.plan import OPTIMAL_GAP
from tests.planner_cases import MODEL
from tests.recording_cases import PLANNER


def in_seconds(problem: Problem) -> Problem:
    """The problem with a time of 1 as 10 ms and a memory of 1 as a gigabyte."""
    tasks = [
        replace(task, duration=0.01 * task.duration, acquire=1e9 * task.acquire, release=1e9 * task.release)
        for task in problem.tasks
    ]
    capacity = tuple(None if own is None else 1e9 * own for own in problem.memory_capacity)
    edges = tuple((before, after, 0.01 * delay) for before, after, delay in problem.edges)
    return replace(problem, tasks=tuple(tasks), edges=edges, memory_capacity=capacity)


def small() -> Problem:
    """Some hundred stages on four ranks, with a capacity."""
    return in_seconds(multimodal(4, 8, 5, laps=2, images=40, group=12, cap=3.0))


def large() -> Problem:
    """20 000 stages and some on 16 ranks."""
    return in_seconds(multimodal(16, 107, 2, cap=40.0))


def plan_of(problem: Problem, schedule: Schedule | None = None, digest: str = "0" * 64) -> Plan:
    """A schedule, by default the first-come one, as a plan."""
    began = time.perf_counter()
    schedule = interleave(problem) if schedule is None else schedule
    took = time.perf_counter() - began
    times, (bound, _) = retime(problem, schedule), lower_bound(problem)
    gap = max(0.0, times.makespan / bound - 1) if bound else 0.0
    return Plan(
        problem_sha256=digest,
        status="optimal" if gap <= OPTIMAL_GAP else "feasible",
        makespan=times.makespan,
        lower_bound=min(bound, times.makespan),
        gap=gap,
        evaluations=1,
        seconds=took,
        seed=0,
        tasks=tuple((task.id, times.start[task.id], times.end[task.id]) for task in problem.tasks),
        order=schedule.order,
        choices=schedule.choices,
    )


def measured(step: int, slower: float = 1.25, fallback: bool = False) -> StepTimeline:
    """A step of the planner's cases whose stages took up to ``slower`` times as long, each after what it needs."""
    plan = PLANNER.plan(step)
    rng = random.Random(step)
    sources: dict[object, list[object]] = {}
    for message in {m.id: m for program in plan.programs for m in program.messages}.values():
        sources.setdefault(message.target, []).append(message.source)
    rest = [list(rank) for rank in plan.stages]
    ended: dict[object, float] = {}
    free, times = [0.0004] * len(rest), [list[StageTime]() for _ in rest]
    while any(rest):
        for rank, row in enumerate(rest):
            while row and all(source in ended for source in sources.get(row[0].stage, ())):
                own = row.pop(0)
                ready = max([free[rank], *(ended[source] for source in sources.get(own.stage, ()))])
                free[rank] = ended[own.stage] = ready + (own.end - own.start) * rng.uniform(0.9, slower)
                times[rank].append(StageTime(own.stage, ready, free[rank]))
    real = RecordedStep(plan, tuple(map(tuple, times)), 0.0002, max(free) + 0.0003, "")
    partition = PLANNER.settings.partition
    problem = build_problem(plan.batch, MODEL, partition, PLANNER.costs)
    timeline = step_timeline(plan, real, problem, model=MODEL, partition=partition)
    return replace(timeline, kind="fallback", reason="late") if fallback else timeline


def run_folder(folder: Path, steps: int = 6) -> Path:
    """A run's folder with the timelines of these many steps, the third a fallback."""
    for step in range(steps):
        write_timeline(folder, measured(step, fallback=step == 2))
    return folder
