"""Sizes of sub-microbatches: how long an iteration takes, and how far apart schedules are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import fsum

import numpy as np

from ds_dip.reproduction import contenders
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
)
from ds_dip.reproduction.published import BEST_CUT, SMALL_CUT, SPREADS
from ds_dip.scheduling import Problem, interleave
from ds_dip.scheduling.arrays import arrays_of
from ds_dip.scheduling.timing import interleaving, makespan_of

KEY, FREE = "cutting", "cutting-memory"
MODEL, MODULE = "VLM-S", "vision"
#: The spread of orders of whole microbatches, in a row.
WHOLE = "spread of microbatches"
#: Images of a sub-microbatch; the last one is a whole microbatch.
SIZES = (2, 4, 6, 8, 12, 16, 24, 48)
QUICK = (4, 12, 48)


def spread(problem: Problem, count: int, seed: int, *, whole: bool = False) -> float:
    """How much longer the longest of ``count`` random orders is than the shortest, as a share.

    Segments of one microbatch, module and direction share a priority, or all of a microbatch where they are ordered as
    a ``whole``; the dual queue interleaves them.
    """
    arrays = arrays_of(problem)
    group = arrays.microbatch if whole else arrays.bundle
    draws = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        place = draws.permutation(int(group.max()) + 1)[group]
        priority = np.empty(arrays.n, dtype=np.int64)
        priority[np.lexsort([arrays.priority, place])] = np.arange(arrays.n)
        found.append(makespan_of(arrays, interleaving(arrays, priority)))
    return max(found) / min(found) - 1


def _run(settings: Settings, progress: Progress, *, limited: bool) -> Result:
    effort = settings.effort
    case = settings.case(MODEL, limited=limited)
    group = MODEL if limited else f"{MODEL}, without a memory limit"
    ruled = contenders.rule(case)
    limits = dict(ruled.sub_microbatch)
    rows: list[Row] = []
    for size in QUICK if settings.quick else SIZES:
        progress(f"sub-microbatches of {size} images")
        own = replace(ruled, sub_microbatch=tuple({**limits, MODULE: size}.items()))
        detail = contenders.describe(case, own)
        start = contenders.ordered(case, own, interleave, detail)
        problems = case.problems(own, start.chosen)
        count = max(50, effort.evaluations // 4)
        wide, narrow = (
            fsum(spread(problem, count, effort.seed, whole=whole) for problem in problems) / len(problems)
            for whole in (False, True)
        )
        found = contenders.reordered(case, own, detail).outcome
        rows.append(
            row_of(group, str(size), f"{size} images", found, images=float(size), spread=wide, **{WHOLE: narrow})
        )
    return Result(
        tuple(rows),
        {
            "seconds": (Line(group, tuple((row.values["images"], row.seconds or 0.0) for row in rows)),),
            "spread": (Line(group, tuple((row.values["images"], 100 * row.values["spread"]) for row in rows)),),
        },
    )


def parts(quick: bool) -> tuple[Part, ...]:
    """With the devices' memory and without a limit."""
    count = len(QUICK if quick else SIZES)
    return (
        Part(KEY, "sizes of sub-microbatches", 2 if quick else 15, count, partial(_run, limited=True)),
        Part(FREE, "the same, no memory limit", 2 if quick else 15, count, partial(_run, limited=False)),
    )


def _compare(results: Results) -> list[Comparison]:
    spreads, best, small = _figures(results[KEY].rows)
    wide, free_best, free_small = _figures(results[FREE].rows)
    found = [
        Comparison(
            SPREADS[name],
            spreads[name][0],
            ("spread", "memory", "data"),
            changed={"spread": spreads[name][1], "memory": wide[name][0]},
        )
        for name in ("wide", "narrow")
    ]
    behind = "memory", "kernels", "data"
    return [
        *found,
        Comparison(BEST_CUT, float(best), behind, changed={"memory": float(free_best)}),
        Comparison(SMALL_CUT, small, behind, f"best is {best}", {"memory": free_small}),
    ]


def _figures(rows: Sequence[Row]) -> tuple[dict[str, tuple[float, float]], int, float]:
    """(spreads of segments and of microbatches; the best size; by how much 4 images take longer)."""
    by_size = {int(row.values["images"]): row for row in rows}
    seconds = {size: row.seconds for size, row in by_size.items() if row.seconds is not None}
    best = min(seconds, key=seconds.__getitem__)
    spreads = {
        name: (by_size[size].values["spread"], by_size[size].values[WHOLE])
        for name, size in (("wide", SIZES[-1]), ("narrow", 12))
    }
    return spreads, best, seconds[4] / seconds[best] - 1


CUT = Experiment(
    KEY,
    "Sizes of sub-microbatches",
    "VLM-S on the rule's partition, images cut into sub-microbatches of at most so many. The spread is that of random "
    "orders of segments under the same memory strategies; the seconds are a searched order's.",
    parts,
    _compare,
    columns={"spread": "share", WHOLE: "share"},
    quick=f"{len(QUICK)} sizes of {len(SIZES)}, so that the best of them is known roughly.",
    plots=(
        Plot("seconds", "seconds of an iteration", "images in a sub-microbatch", "seconds", logarithmic=True),
        Plot("spread", "worst over best schedule", "images in a sub-microbatch", "%", logarithmic=True),
    ),
    reference="48",
)
