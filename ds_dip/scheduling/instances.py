"""Instances with known answers: uniform pipelines, Taillard's generator, and batches of a multimodal model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from ds_dip.scheduling.problem import Choice, Pair, Problem, Task


class Taillard:
    """Taillard's linear congruential generator: ``value()`` is 1 to 99, reproducible by seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def value(self, high: int = 99) -> int:
        """The next integer from 1 to ``high``."""
        quotient, rest = divmod(self.seed, 127773)
        self.seed = 16807 * rest - 2836 * quotient
        if self.seed < 0:
            self.seed += 2147483647
        return 1 + int(self.seed / 2147483647 * high)


def pipeline(
    ranks: int,
    laps: int,
    microbatches: int,
    forward: list[list[float]],
    backward: list[list[float]],
    cap: float | None = None,
    weight: list[list[float]] | None = None,
) -> Problem:
    """One module in ``ranks * laps`` chunks, chunk c on rank c mod P; durations are [chunk][microbatch].

    Memory counts chunk activations alive from the start of F to the end of B (of W where given).
    """
    chunks = ranks * laps
    tasks: list[Task] = []
    edges: list[tuple[int, int, float]] = []
    kinds = 3 if weight else 2

    def number(kind: int, chunk: int, microbatch: int) -> int:
        return (kind * chunks + chunk) * microbatches + microbatch

    for kind, durations in enumerate([forward, backward, weight or []][:kinds]):
        for chunk in range(chunks):
            for microbatch in range(microbatches):
                tasks.append(
                    Task(
                        id=number(kind, chunk, microbatch),
                        rank=chunk % ranks,
                        kind="FBW"[kind],
                        module="backbone",
                        chunk=chunk,
                        segment=chunk // ranks,
                        microbatch=microbatch,
                        sub=0,
                        duration=durations[chunk][microbatch],
                        acquire=1.0 if kind == 0 else 0.0,
                        release=1.0 if kind == kinds - 1 else 0.0,
                    )
                )
    for microbatch in range(microbatches):
        for chunk in range(chunks - 1):
            edges.append((number(0, chunk, microbatch), number(0, chunk + 1, microbatch), 0.0))
            edges.append((number(1, chunk + 1, microbatch), number(1, chunk, microbatch), 0.0))
        edges.append((number(0, chunks - 1, microbatch), number(1, chunks - 1, microbatch), 0.0))
        if weight:
            edges += [(number(1, chunk, microbatch), number(2, chunk, microbatch), 0.0) for chunk in range(chunks)]
    return Problem(ranks, (cap,) * ranks, tuple(tasks), tuple(edges))


def uniform(
    ranks: int, laps: int, microbatches: int, forward: float = 1.0, backward: float = 2.0, cap: float | None = None
) -> Problem:
    """A pipeline whose chunks all take as long; durations are of one chunk."""
    rows = [[forward] * microbatches] * (ranks * laps)
    return pipeline(ranks, laps, microbatches, rows, [[backward] * microbatches] * (ranks * laps), cap)


def unequal(ranks: int, laps: int, microbatches: int, seed: int, cap: float | None = None) -> Problem:
    """Forward durations by Taillard's generator, stage-major; backwards take twice as long."""
    draw = Taillard(seed)
    forward = [[float(draw.value()) for _ in range(microbatches)] for _ in range(ranks * laps)]
    return pipeline(ranks, laps, microbatches, forward, [[2 * value for value in row] for row in forward], cap)


def flow_shop(jobs: int, machines: int, seed: int) -> Problem:
    """Taillard's permutation flow shop as a forward-only problem, a machine a rank."""
    draw = Taillard(seed)
    tasks, edges = [], []
    for machine in range(machines):
        for job in range(jobs):
            number = machine * jobs + job
            tasks.append(Task(number, machine, "F", "backbone", machine, 0, job, 0, float(draw.value())))
            if machine:
                edges.append((number - jobs, number, 0.0))
    return Problem(machines, (None,) * machines, tuple(tasks), tuple(edges))


def multimodal(
    ranks: int, microbatches: int, seed: int, laps: int = 4, images: int = 48, group: int = 12, cap: float | None = None
) -> Problem:
    """A vision encoder (one lap, sub-microbatches of up to ``group`` images) before a backbone of ``laps`` laps.

    A microbatch draws 0 to ``images`` images; encoder stages take as long as their images ask and keep
    memory alike; backbone stages are alike. ``cap`` is in units of the largest microbatch's footprint
    on a rank.
    """
    draw = Taillard(seed)
    tasks: list[Task] = []
    edges: list[tuple[int, int, float]] = []

    def add(kind: str, module: str, chunk: int, microbatch: int, sub: int, duration: float, memory: float) -> int:
        held = (memory, 0.0) if kind == "F" else (0.0, memory)
        place = (chunk % ranks, kind, module, chunk, chunk // ranks, microbatch, sub)
        tasks.append(Task(len(tasks), *place, duration, *held))
        return len(tasks) - 1

    for microbatch in range(microbatches):
        count = draw.value(images + 1) - 1
        sizes = [min(group, count - first) for first in range(0, count, group)]
        ends, starts = [], []
        for sub, size in enumerate(sizes):
            forward = [add("F", "vision", chunk, microbatch, sub, size / 10, size / 12) for chunk in range(ranks)]
            backward = [add("B", "vision", chunk, microbatch, sub, size / 5, size / 12) for chunk in range(ranks)]
            edges += [(one, other, 0.01) for one, other in itertools.pairwise(forward)]
            edges += [(other, one, 0.01) for one, other in itertools.pairwise(backward)]
            ends.append(forward[-1])
            starts.append(backward[-1])
        lengths = _lengths(draw, ranks * laps)
        forward, backward = [], []
        for chunk, length in enumerate(lengths):
            forward.append(add("F", "backbone", chunk, microbatch, 0, length, 1.0))
            backward.append(add("B", "backbone", chunk, microbatch, 0, 2 * length, 1.0))
        edges += [(one, other, 0.01) for one, other in itertools.pairwise(forward)]
        edges += [(other, one, 0.01) for one, other in itertools.pairwise(backward)]
        edges.append((forward[-1], backward[-1], 0.0))
        edges += [(end, forward[0], 0.01) for end in ends] + [(backward[0], start, 0.01) for start in starts]
    capacity = None if cap is None else cap * footprint(tasks)
    return Problem(ranks, (capacity,) * ranks, tuple(tasks), tuple(edges))


def _lengths(draw: Taillard, chunks: int) -> Iterator[float]:
    scale = 0.9 + draw.value() / 500
    return iter([scale] * chunks)


def footprint(tasks: list[Task]) -> float:
    """The largest memory that one microbatch acquires on one rank."""
    use: dict[tuple[int, int], float] = {}
    for task in tasks:
        key = (task.microbatch, task.rank)
        use[key] = use.get(key, 0.0) + task.acquire
    return max(use.values(), default=0.0)


def strategic(problem: Problem) -> Problem:
    """The problem with three memory strategies a stage pair: keep all, half recomputed, nearly all recomputed.

    Recomputing half (nine tenths) of a stage's memory takes a quarter (half) of its backward more,
    and needs that memory as workspace of the backward.
    """
    stages: dict[tuple[object, ...], dict[str, Task]] = {}
    for task in problem.tasks:
        stages.setdefault((task.rank, task.module, task.chunk, task.microbatch, task.sub), {})[task.kind] = task
    pairs = []
    for stage in stages.values():
        forward, backward = stage["F"], stage["B"]
        time, memory = backward.duration, forward.acquire
        choices = (
            Choice(forward.duration, time, memory),
            Choice(forward.duration, 1.25 * time, memory / 2, memory / 2),
            Choice(forward.duration, 1.5 * time, memory / 10, 9 * memory / 10),
        )
        pairs.append(Pair(forward.id, backward.id, choices))
    return replace(problem, pairs=tuple(pairs))
