"""A step of a run, explained: from its recording with all that its plan knew, or from its timeline alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ds_dip.costs.corrections import CorrectedCosts
from ds_dip.costs.rules import base_costs, with_rules
from ds_dip.explaining import Bubble, Explanation, Times, explain
from ds_dip.files import FileError
from ds_dip.planner.recording import SUFFIX as RECORDED
from ds_dip.planner.recording import Recording
from ds_dip.planner.splitting import Splitter
from ds_dip.planning import build_problem
from ds_dip.planning.split import split
from ds_dip.programs import strategies_of
from ds_dip.programs.program import Stage
from ds_dip.reporting.timeline import StageInterval, StepTimeline, timeline_of, timelines
from ds_dip.scheduling.problem import Problem, Task
from ds_dip.scheduling.schedule import Schedule


@dataclass(frozen=True)
class ExplainedStep:
    """A step's explanation, the problem that it is of, start and end of its tasks by id, and its timeline."""

    timeline: StepTimeline
    problem: Problem
    schedule: Schedule
    explanation: Explanation
    spans: Mapping[int, tuple[float, float]]

    @property
    def as_it_ran(self) -> Problem:
        """The problem with its tasks as long as they were; raises FileError where a timeline is all that is known."""
        if not self.explanation.ready_work:
            raise FileError(
                f"step {self.timeline.step} is known by its timeline alone, which has no edges within a rank, so it "
                'cannot be searched again: record the run ("dip.record.every")'
            )
        tasks = (replace(own, duration=self.spans[own.id][1] - self.spans[own.id][0]) for own in self.problem.tasks)
        return replace(self.problem, tasks=tuple(tasks))


def explained_step(run: str | Path, step: int | None = None, *, planned: bool = False) -> ExplainedStep:
    """Explain a step of a run (the last with a timeline by default), as it was measured or as it was ``planned``.

    A step that was not recorded has no edges within a rank, so nothing is said of work that was ready. Raises FileError
    where there is no such step, or its file cannot be used.
    """
    found = timelines(run)
    step = max(found) if step is None else step
    if step not in found:
        raise FileError(
            f"{run}: has no timeline of step {step}; it has {len(found)}, from {min(found)} to {max(found)}"
        )
    timeline = timeline_of(run, step)
    problem = _recorded(run, step) if found[step].name.endswith(RECORDED) else None
    known = problem is not None and {_stage(t) for t in problem.tasks} == {s.stage for s in timeline.planned.stages}
    if problem is None or not known:
        problem = timeline_problem(timeline)
    return explained_timeline(timeline, problem, ready_work=known, planned=planned)


def explained_timeline(
    timeline: StepTimeline, problem: Problem | None = None, *, ready_work: bool = False, planned: bool = False
) -> ExplainedStep:
    """Explain a timeline; ``problem`` is what its plan solved, one made from its plan where it is not known."""
    problem = timeline_problem(timeline) if problem is None else problem
    number = {_stage(task): task.id for task in problem.tasks}
    measured = None if planned else timeline.measured
    track = timeline.planned if measured is None else measured
    schedule = Schedule(
        tuple(
            tuple(number[own.stage] for own in _in_order(timeline.planned.stages, rank))
            for rank in range(timeline.ranks)
        ),
        (0,) * len(problem.pairs),
    )
    # A plan's times are shifted to where the first measured stage began.
    shift = 0.0 if measured is not None else min((own.start_s for own in track.stages), default=0.0)
    start = {number[own.stage]: own.start_s - shift for own in track.stages}
    end = {number[own.stage]: own.end_s - shift for own in track.stages}
    until = max(end.values(), default=0.0)
    waits, loading = list[Bubble](), tuple[float, ...]()
    if measured is not None:
        until = max(until, timeline.iteration_s or 0.0)
        waits = [Bubble(rank, 0.0, timeline.waited_s or 0.0, "planner") for rank in range(timeline.ranks)]
        loading = timeline.loading_s or ()
    found = explain(
        problem,
        schedule,
        Times(start, end, until),
        measured=measured is not None,
        ready_work=ready_work,
        waits=[own for own in waits if own.seconds > 0],
        loading=loading,
    )
    return ExplainedStep(timeline, problem, schedule, found, {task: (start[task], end[task]) for task in start})


def timeline_problem(timeline: StepTimeline) -> Problem:
    """What a timeline tells of its problem: its plan's stages, and messages between ranks, with planned seconds."""
    stages = [own for rank in range(timeline.ranks) for own in _in_order(timeline.planned.stages, rank)]
    number = {own.stage: place for place, own in enumerate(stages)}
    tasks = tuple(
        Task(n, s.rank, s.kind, s.module, s.chunk, 0, s.microbatch, s.sub, s.end_s - s.start_s)
        for n, s in enumerate(stages)
    )
    edges = tuple(
        (number[Stage(*own.source)], number[Stage(*own.target)], own.end_s - own.start_s)
        for own in timeline.planned.transfers
        if Stage(*own.source) in number and Stage(*own.target) in number
    )
    return Problem(timeline.ranks, (None,) * timeline.ranks, tasks, edges)


def _recorded(run: str | Path, step: int) -> Problem:
    """The problem of a recorded step, every stage with the memory strategy of its plan."""
    recording = Recording(run)
    found = recording.read(step)
    settings = recording.run(found.run).settings
    model, partition = settings.model, settings.partition
    costs = with_rules(base_costs(model, settings.rates, settings.table, partition), model, settings.rules)
    chunks = {(chunk.module, chunk.start): chunk for chunk in partition.chunks}
    problem = build_problem(
        found.plan.batch,
        model,
        partition,
        CorrectedCosts(costs, found.plan.corrections, chunks),
        compute=settings.rates.compute,
        memory_capacity=settings.memory_capacity,
        chosen=strategies_of(found.plan.programs),
    )
    apart = {replace(own.stage, kind="B") for rank in found.plan.stages for own in rank if own.stage.kind == "W"}
    if not apart or settings.split is None:
        return problem
    shares = Splitter(settings).weights(problem, found.plan.batch)
    return split(problem, shares, settings.split, lambda task: _stage(task) in apart)[0]


def _in_order(stages: Iterable[StageInterval], rank: int) -> list[StageInterval]:
    """A rank's stages in running order; of equal times as they are listed, which is the plan's order."""
    return [own for own in stages if own.rank == rank]


def _stage(task: Task) -> Stage:
    return Stage(task.kind, task.module, task.chunk, task.microbatch, task.sub)
