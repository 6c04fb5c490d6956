"""The motivation: ViT 5B and a 32B language model in 16 stages, cut as well as one static split can."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import fsum

from ds_dip.partition.bounds import bottleneck_bounds, even_bounds
from ds_dip.reproduction.experiment import Comparison, Experiment, Part, Progress, Result, Results, Row, Settings
from ds_dip.reproduction.published import BUBBLE
from ds_dip.scheduling import Problem, Schedule, interleave, lower_bound, one_f_one_b, retime, solve
from ds_dip.scheduling.instances import pipeline

KEY = "motivation"
STAGES, MICROBATCHES = 16, 64
#: Layers, and seconds of a layer's forward and backward: 8 images in the ViT, 8192 tokens in the language model.
ENCODER, BACKBONE = (63, 6.75e-3), (64, 10.5e-3)
#: Of a layer's seconds; a backward takes the rest.
FORWARD = 1 / 3
STEPS = (
    "a static split, 1F1B",
    "perfect balance, 1F1B",
    "each module over all stages, dual queue",
    "the same, searched",
)


def bubble(problem: Problem, makespan: float) -> float:
    """The share of all ranks' time in which they do nothing."""
    return 1 - fsum(task.duration for task in problem.tasks) / (problem.ranks * makespan)


def split() -> list[float]:
    """Seconds of every stage of the contiguous split whose slowest stage is fastest."""
    layers = [seconds for count, seconds in (ENCODER, BACKBONE) for _ in range(count)]
    return [fsum(layers[start:stop]) for start, stop in pairwise(bottleneck_bounds(layers, STAGES))]


def separated() -> list[float]:
    """Seconds of every chunk where each module is cut over all stages."""
    return [
        (stop - start) * seconds
        for count, seconds in (ENCODER, BACKBONE)
        for start, stop in pairwise(even_bounds(count, STAGES))
    ]


def _problem(chunks: Sequence[float]) -> Problem:
    """Chunk c on stage c mod P, every microbatch alike."""
    forward = [[FORWARD * seconds] * MICROBATCHES for seconds in chunks]
    backward = [[(1 - FORWARD) * seconds] * MICROBATCHES for seconds in chunks]
    return pipeline(STAGES, len(chunks) // STAGES, MICROBATCHES, forward, backward)


def _run(settings: Settings, progress: Progress) -> Result:
    stages = split()
    static, even = _problem(stages), _problem([fsum(stages) / STAGES] * STAGES)
    ours = _problem(separated())
    rows = []

    def add(problem: Problem, schedule: Schedule, system: str, title: str) -> None:
        makespan = retime(problem, schedule).makespan
        values = {"bubble": bubble(problem, makespan)}
        rows.append(Row(KEY, system, title, makespan, makespan / lower_bound(problem)[0] - 1, values))

    progress(STEPS[0])
    add(static, one_f_one_b(static), "static", STEPS[0])
    progress(STEPS[1])
    add(even, one_f_one_b(even), "balanced", STEPS[1])
    progress(STEPS[2])
    first = interleave(ours)
    add(ours, first, "queue", STEPS[2])
    progress(STEPS[3])
    found = solve(ours, evaluations=settings.effort.evaluations, seed=settings.effort.seed, warm_start=first)
    assert found.schedule is not None, "a search that starts from a schedule has one"
    add(ours, found.schedule, "searched", STEPS[3])
    return Result(tuple(rows), numbers={"spread": max(stages) / min(stages) - 1})


def parts(quick: bool) -> tuple[Part, ...]:
    """One part."""
    return (Part(KEY, "motivation", 1 if quick else 2, len(STEPS), _run),)


def _compare(results: Results) -> list[Comparison]:
    found = results[KEY]
    bubbles = {row.system: row.values["bubble"] for row in found.rows}
    ours = {"spread": found.numbers["spread"], "total": bubbles["static"], "balanced": bubbles["balanced"]}
    return [Comparison(figure, ours[name]) for name, figure in BUBBLE.items()]


MOTIVATE = Experiment(
    KEY,
    "Motivation",
    "ViT 5B (63 layers of 6.75 ms, forward and backward) and a 32B language model (64 layers of 10.5 ms) in 16 stages "
    "with 64 microbatches, all alike. The best contiguous split has stages of 63 to 73.5 ms. Of its bubble in total "
    "most would be left by perfect balance too: it is the pipeline's filling and draining. Cut over all stages, each "
    "module by itself, the same layers fill twice as fast.",
    parts,
    _compare,
    columns={"bubble": "share"},
    reference="static",
)
