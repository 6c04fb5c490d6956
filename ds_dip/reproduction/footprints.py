"""Memory over time on every rank: what comes and goes, and DIP within the memory of coarse Optimus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import fsum, sqrt

import numpy as np

from ds_dip.models.partition import Partition
from ds_dip.reproduction import contenders
from ds_dip.reproduction.cases import Case
from ds_dip.reproduction.contenders import Outcome
from ds_dip.reproduction.experiment import (
    Comparison,
    Experiment,
    Line,
    Part,
    Plot,
    Progress,
    Result,
    Results,
    Row,
    Settings,
    row_of,
    speedup,
)
from ds_dip.reproduction.published import EQUAL_PEAK, FLUCTUATION
from ds_dip.reproduction.systems import BASELINES, RULE
from ds_dip.scheduling import Problem, Schedule, retime
from ds_dip.scheduling.arrays import arrays_of

KEY, FREE = "memory", "memory-free"
MODEL = "VLM-S"
#: Points of a line.
_POINTS = 240
_GB = 1e9
Steps = list[tuple[float, float]]
"""(time, bytes from then on), from 0 to the last task's end."""


def footprint(problem: Problem, schedule: Schedule) -> list[Steps]:
    """Activations of every rank over time."""
    arrays, times = arrays_of(problem).with_choices(schedule.choices), retime(problem, schedule)
    moments: list[list[tuple[float, int, float]]] = [[] for _ in range(problem.ranks)]
    for position, (task, rank) in enumerate(zip(arrays.id.tolist(), arrays.rank.tolist(), strict=True)):
        # Of what happens at one moment, what is given back comes first: one task ends where the next one starts.
        moments[rank].append((times.start[task], 1, float(arrays.acquire[position])))
        moments[rank].append((times.end[task], 0, -float(arrays.release[position])))
    found = []
    for own in moments:
        held, steps = 0.0, [(0.0, 0.0)]
        for time, _, bytes in sorted(own):
            held += bytes
            steps.append((time, held))
        found.append(steps)
    return found


def middle(steps: Steps, makespan: float) -> tuple[float, float]:
    """(the most less the least, the standard deviation) in the middle half of an iteration; bytes."""
    first, last = 0.25 * makespan, 0.75 * makespan
    parts = [
        (min(after, last) - max(time, first), held)
        for (time, held), (after, _) in pairwise([*steps, (makespan, 0.0)])
        if min(after, last) > max(time, first)
    ]
    length = fsum(seconds for seconds, _ in parts)
    mean = fsum(seconds * held for seconds, held in parts) / length
    variance = fsum(seconds * (held - mean) ** 2 for seconds, held in parts) / length
    return max(held for _, held in parts) - min(held for _, held in parts), sqrt(variance)


def line(steps: Steps, makespan: float, state: float) -> tuple[tuple[float, float], ...]:
    """GB by seconds as few points: the most in every one of equal spans."""
    edges = np.linspace(0.0, makespan, _POINTS + 1)
    times, held = np.array([own[0] for own in steps]), np.array([own[1] for own in steps])
    first = np.maximum(0, np.searchsorted(times, edges[:-1], side="right") - 1)
    last = np.searchsorted(times, edges[1:], side="left")
    found = [
        (float(edge), float(held[a : max(b, a + 1)].max() + state) / _GB)
        for edge, a, b in zip(edges[:-1], first, last, strict=True)
    ]
    return tuple(found)


def _row(
    case: Case,
    partition: Partition,
    outcome: Outcome,
    system: str,
    title: str,
    made: Sequence[tuple[Problem, Schedule]],
) -> tuple[Row, tuple[Line, ...]]:
    """A system with its memory on the first batch."""
    problem, schedule = made[0]
    steps, makespan = footprint(problem, schedule), retime(problem, schedule).makespan
    state = case.scorer.memory.state(case.model, partition)
    ends = [middle(own, makespan) for own in steps]
    peak = max(max(held for _, held in own) + base for own, base in zip(steps, state, strict=True))
    values = {
        "peak": peak / _GB,
        "comes and goes": fsum(own for own, _ in ends) / len(ends) / _GB,
        "deviation": fsum(own for _, own in ends) / len(ends) / _GB,
    }
    drawn = tuple(
        Line(f"rank {rank}", line(own, makespan, base))
        for rank, (own, base) in enumerate(zip(steps, state, strict=True))
    )
    return row_of(MODEL, system, title, outcome, **values), drawn


def _run(settings: Settings, progress: Progress, *, limited: bool) -> Result:
    case = settings.case(MODEL, effort=replace(settings.effort, batches=1), limited=limited)
    group = MODEL if limited else f"{MODEL}, without a memory limit"
    rows: list[Row] = []
    lines: dict[str, tuple[Line, ...]] = {}

    def add(
        own: Case, partition: Partition, outcome: Outcome, name: str, title: str, made: list[tuple[Problem, Schedule]]
    ) -> None:
        row, drawn = _row(own, partition, outcome, name, title, made)
        rows.append(replace(row, group=group))
        lines[name] = drawn

    peaks: tuple[float, ...] = ()
    for name, ways in (("megatron", contenders.megatron_ways), ("optimus", contenders.optimus_ways)):
        title = BASELINES[name][0]
        progress(title)
        way, found = contenders.best(case, ways(case))
        made = list(zip(case.problems(way.partition, found.chosen), found.schedules, strict=True))
        add(case, way.partition, found.outcome, name, title, made)
        peaks = retime(*made[0]).peak_memory
    partition = contenders.rule(case)
    detail = contenders.describe(case, partition)
    # The loop's last system is coarse Optimus: its peak on every rank is the limit of the second run of DIP.
    for own, name, title in (
        (case, "rule", RULE[0]),
        (case.within(peaks), "equal", "the same within coarse Optimus' peak"),
    ):
        progress(title)
        start = contenders.reordered(own, partition, detail)
        searched = contenders.mixed_schedules(own, partition, start)
        outcome = Outcome(
            tuple(result.makespan for _, result in searched),
            tuple(result.lower_bound for _, result in searched),
            detail,
            contenders.MIXED,
        )
        made = [(problem, result.schedule) for problem, result in searched if result.schedule is not None]
        add(own, partition, outcome, name, title, made)
    return Result(tuple(rows), lines if limited else {})


def parts(quick: bool) -> tuple[Part, ...]:
    """With the devices' memory and without a limit."""
    return (
        Part(KEY, "memory over time", 2 if quick else 6, 4, partial(_run, limited=True)),
        Part(FREE, "the same, no memory limit", 2 if quick else 6, 4, partial(_run, limited=False)),
    )


def _compare(results: Results) -> list[Comparison]:
    rows, free = results[KEY].rows, results[FREE].rows
    equal = speedup(free, "equal", "optimus")
    return [
        Comparison(
            FLUCTUATION,
            _ratio(rows, "comes and goes"),
            ("fluctuation", "memory"),
            changed={"fluctuation": _ratio(rows, "deviation"), "memory": _ratio(free, "comes and goes")},
        ),
        Comparison(
            EQUAL_PEAK,
            speedup(rows, "equal", "optimus"),
            ("memory", "data", "batch"),
            changed={} if equal is None else {"memory": equal},
        ),
    ]


def _ratio(rows: Sequence[Row], name: str) -> float:
    """DIP's value to Megatron's."""
    values = {row.system: row.values[name] for row in rows}
    return values["rule"] / values["megatron"]


FOOTPRINTS = Experiment(
    KEY,
    "Memory over time",
    "One batch of VLM-S: parameters, gradients, optimizer state and activations on every rank. What comes and goes is "
    "the most less the least that is held in the middle half of the iteration, the mean over ranks.",
    parts,
    _compare,
    columns={"peak": "GB", "comes and goes": "GB", "deviation": "GB"},
    plots=(
        Plot("megatron", BASELINES["megatron"][0], "seconds", "GB"),
        Plot("optimus", BASELINES["optimus"][0], "seconds", "GB"),
        Plot("rule", RULE[0], "seconds", "GB"),
        Plot("equal", "DIP within coarse Optimus' peak", "seconds", "GB"),
    ),
)
