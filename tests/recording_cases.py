"""Recorded steps for tests: plans of the planner's cases, and times that follow from them in some way."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from ds_dip.planner import Planner, PlannerSettings, StageTime, StepPlan
from ds_dip.planner.recording import RecordedStep, Run, folder_of, write_run, write_step
from tests.planner_cases import settings

PLANNER = Planner(settings())
VERSIONS = {"ds_dip": "0.1.0"}
RUN = Run(PLANNER.settings, len(PLANNER.dataset), VERSIONS)


def scaled(plan: StepPlan, factor: float = 1.0, *, begin: float = 0.003, end: float = 0.002) -> RecordedStep:
    """A step whose times are ``factor`` times the plan's, ``begin`` seconds after its start, half of them waited."""
    stages = tuple(
        tuple(StageTime(time.stage, begin + factor * time.start, begin + factor * time.end) for time in rank)
        for rank in plan.stages
    )
    return RecordedStep(plan, stages, begin / 2, begin + factor * plan.makespan + end, "")


def simulated(plan: StepPlan, seed: int) -> RecordedStep:
    """A step as ranks could have run it: stages in the plan's order, each after its messages, of random lengths."""
    rng = random.Random(seed)
    sources: dict[Any, list[Any]] = {}
    for message in {m.id: m for program in plan.programs for m in program.messages}.values():
        sources.setdefault(message.target, []).append(message.source)
    rest = [[time.stage for time in rank] for rank in plan.stages]
    planned = {time.stage: time.end - time.start for rank in plan.stages for time in rank}
    ended: dict[Any, float] = {}
    free = [rng.random() * 0.01 for _ in rest]
    times: list[list[StageTime]] = [[] for _ in rest]
    late, slow = rng.choice((0.0, 1e-4, 5e-3)), rng.choice((0.0, 0.1, 3.0))
    while any(rest):
        for rank, stages in enumerate(rest):
            while stages and all(source in ended for source in sources.get(stages[0], ())):
                stage = stages.pop(0)
                ready = max([free[rank], *(ended[source] for source in sources.get(stage, ()))])
                start = ready + late * rng.random()
                ended[stage] = free[rank] = start + planned[stage] * (1.0 + slow * (rng.random() - 0.3))
                times[rank].append(StageTime(stage, start, free[rank]))
    first = min(time.start for rank in times for time in rank)
    loading = tuple(rng.random() * 0.01 for _ in times)
    waited, iteration = rng.random() * 2 * first, max(free) + rng.random() * 0.01
    return RecordedStep(plan, tuple(map(tuple, times)), waited, iteration, "", loading)


def record(folder: Path, *steps: RecordedStep, run: Run = RUN) -> Path:
    """A run's folder with these steps recorded."""
    where = folder_of(folder, run.settings.replica)
    digest = write_run(where, run)
    for step in steps:
        write_step(where, step.plan, step, digest)
    return folder


def run_of(changes: PlannerSettings) -> Run:
    """A run by other settings."""
    return Run(changes, len(PLANNER.dataset), VERSIONS)
