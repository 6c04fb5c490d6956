"""Images that vary over 40 iterations, under partitions that were chosen before."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from math import exp, fsum
from random import Random

from ds_dip.data import SampleMetadata
from ds_dip.data.documents import PackedDocuments
from ds_dip.partition.scoring import UnfitError
from ds_dip.reproduction import contenders
from ds_dip.reproduction.cases import Case
from ds_dip.reproduction.contenders import Way
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
    speedup,
)
from ds_dip.reproduction.published import PEAK
from ds_dip.reproduction.systems import BASELINES, RULE
from ds_dip.scheduling import interleave

KEY, FREE = "varying", "varying-memory"
MODEL = "VLM-S"
#: Mean images a sequence: at the first and last iteration, and in the middle.
LEAST, MOST = 4.0, 40.0
ITERATIONS, QUICK = 40, 5
_POOL = 4096
SYSTEMS = ("megatron", "static", "optimus", "rule")


def course(iterations: int) -> list[float]:
    """Mean images a sequence at every iteration: up to the peak and back, in equal steps."""
    top = (iterations - 1) / 2
    return [LEAST + (MOST - LEAST) * (1 - abs(step - top) / top) for step in range(iterations)]


def tilted(samples: Sequence[SampleMetadata], mean: float, count: int, seed: str) -> tuple[SampleMetadata, ...]:
    """``count`` of the samples, drawn with weights exponential in their images such that the mean is as asked for.

    They are drawn at equal steps of the weights' sum, so that few of them have that mean too, in random order.
    """
    samples = sorted(samples, key=_images)
    images = [_images(own) for own in samples]
    low, high, weights = -2.0, 2.0, [1.0] * len(images)
    for _ in range(60):
        tilt = (low + high) / 2
        weights = [exp(tilt * (own - images[-1] * (tilt > 0))) for own in images]
        reached = fsum(a * b for a, b in zip(weights, images, strict=True)) / fsum(weights)
        low, high = (tilt, high) if reached < mean else (low, tilt)
    random = Random(seed)
    sums = list(accumulate(weights))
    start = random.random()
    drawn = [samples[bisect(sums, (step + start) / count * sums[-1])] for step in range(count)]
    random.shuffle(drawn)
    return tuple(drawn)


def _images(sample: SampleMetadata) -> int:
    return len(sample.modules["vision"])


def _ways(case: Case) -> dict[str, Way]:
    """What every system has chosen before, on the case's own batches."""
    found = {
        "megatron": contenders.best(case, contenders.megatron_ways(case))[0],
        "static": contenders.best(case, contenders.static_ways(case))[0],
        "optimus": next(contenders.optimus_ways(case)),
    }
    partition = contenders.rule(case)
    return {**found, "rule": Way(partition, interleave, contenders.describe(case, partition))}


def _run(settings: Settings, progress: Progress, *, limited: bool) -> Result:
    """All iterations; without a memory limit only the one with most images."""
    effort = settings.effort
    # Batches of half the size: there are many of them.
    half = replace(effort, microbatches=max(8, effort.microbatches // 2))
    case = settings.case(MODEL, effort=half, limited=limited)
    pool = [PackedDocuments(_POOL).metadata(index) for index in range(_POOL)]
    progress("partitions, chosen for the mean batch")
    ways = _ways(case)
    rows: list[Row] = []
    points: dict[str, list[tuple[float, float]]] = {name: [] for name in SYSTEMS}
    means = course(QUICK if settings.quick else ITERATIONS)
    for step, mean in enumerate(means):
        if not limited and step != len(means) // 2:
            continue
        progress(f"iteration {step + 1} of {len(means)}")
        samples = tilted(pool, mean, case.effort.microbatches, f"{effort.seed}/varying/{step}")
        images = fsum(map(_images, samples)) / len(samples)
        own = case.on([samples])
        group = f"iteration {step + 1}{'' if limited else ', without a memory limit'}"
        for name, way in ways.items():
            title = RULE[0] if name == "rule" else BASELINES[name][0]
            try:
                start = contenders.ordered(own, way.partition, way.order, way.detail)
                found = start.outcome
                if name == "rule":
                    found = contenders.mixed(
                        own, way.partition, contenders.reordered(own, way.partition, way.detail), way.detail
                    )
            except UnfitError as error:
                rows.append(Row(group, name, title, None, None, {"images": images}, {"refusal": str(error)}))
                continue
            notes = {"memory": found.strategy, "settings": found.detail}
            rows.append(Row(group, name, title, found.mean, found.gap, {"images": images}, notes))
            points[name].append((step + 1.0, found.mean))
    lines = tuple(Line(RULE[0] if name == "rule" else BASELINES[name][0], tuple(own)) for name, own in points.items())
    if not limited:
        return Result(tuple(rows))
    loads = {row.group: row.values["images"] for row in rows}
    return Result(
        tuple(rows),
        {
            "seconds": lines,
            "images": (Line("mean images a sequence", tuple((n + 1.0, own) for n, own in enumerate(loads.values()))),),
        },
    )


def parts(quick: bool) -> tuple[Part, ...]:
    """All iterations, and the one with most images without a memory limit."""
    return (
        Part(KEY, "images that vary", 6 if quick else 70, 6 if quick else 41, partial(_run, limited=True)),
        Part(FREE, "most images, no memory limit", 2 if quick else 5, 2, partial(_run, limited=False)),
    )


def _compare(results: Results) -> list[Comparison]:
    """At the iteration with most images, and beside it where images are nearest to their mean."""
    rows = results[KEY].rows
    images = {row.group: row.values["images"] for row in rows}
    peak = max(images, key=images.__getitem__)
    middle = fsum(images.values()) / len(images)
    usual = min(images, key=lambda group: abs(images[group] - middle))
    found = []
    for name, figure in PEAK.items():
        own, other = (speedup([row for row in rows if row.group == group], "rule", name) for group in (peak, usual))
        free = speedup(results[FREE].rows, "rule", name)
        changed = {key: value for key, value in (("load", other), ("memory", free)) if value is not None}
        where = f"{peak}, {images[peak]:.0f} images a sequence"
        found.append(Comparison(figure, own, ("load", "memory", "data"), where, changed))
    return found


VARY = Experiment(
    KEY,
    "Images that vary",
    f"VLM-S over {ITERATIONS} iterations whose mean number of images a sequence goes from {LEAST:g} to {MOST:g} and "
    "back; the sequences are packed documents, drawn with more and less weight on images. Partitions are chosen "
    "before, for the mean of the mix; every iteration has the memory strategies by module that are best for it, and "
    "DIP searches.",
    parts,
    _compare,
    columns={"images": "mean"},
    quick=f"{QUICK} iterations, of few sequences each.",
    plots=(
        Plot("seconds", "seconds of an iteration", "iteration", "seconds"),
        Plot("images", "images", "iteration", "images a sequence"),
    ),
)
