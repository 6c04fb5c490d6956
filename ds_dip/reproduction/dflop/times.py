"""What choosing a layout takes, from 16 to 1024 GPUs: the paper's objective, and ours."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from ds_dip.parallelism import DISAGGREGATED, Job, closed, optimize
from ds_dip.parallelism.optimizer import Effort
from ds_dip.parallelism.space import Options, columns
from ds_dip.planner.ordering import fastest
from ds_dip.reproduction.dflop.jobs import job_of, mixed
from ds_dip.reproduction.dflop.published import CLOSED, LARGEST
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
)
from ds_dip.scheduling import Problem

_Value = TypeVar("_Value")
KEY = "optimizer"
SIZES, QUICK_SIZES = (16, 64, 256, 1024), (16,)
_TITLES = {
    "closed": "the paper's objective, of all layouts",
    "listed": "the same, with listing the layouts",
    "mean": "the same, checked by simulation",
    "ours": "scheduled batches",
}
_PLOT = Plot("time", "seconds of one core to choose a layout", "GPUs", "s", logarithmic=True)


def _run(settings: Settings, progress: Progress) -> Result:
    rows: list[Row] = []
    sizes = QUICK_SIZES if settings.quick else SIZES
    effort = replace(Effort(), pool=settings.effort.partition_evaluations) if settings.quick else Effort()
    # Kernels that are loaded or compiled are not what choosing takes.
    optimize(
        job_of(settings, mixed(True), QUICK_SIZES[0]), _scheduled, effort=Effort(pool=2, batches=1, held_out=1, shown=1)
    )
    for gpus in sizes:
        for name in ("closed", "mean", "ours"):
            progress(f"{gpus} GPUs, {_TITLES[name]}")
            # Nothing is known yet, as in a run of the command.
            job = job_of(settings, mixed(True), gpus)
            if name == "closed":
                rows += _closed(job, gpus)
                continue
            found, seconds = _timed(partial(optimize, job, _scheduled, None, effort, mean_point=name == "mean"))
            rows.append(_row(gpus, name, seconds, found.layouts))
    lines = [
        Line(title, tuple((row.values["GPUs"], row.seconds or 0.0) for row in rows if row.system == name))
        for name, title in _TITLES.items()
    ]
    return Result(tuple(rows), {_PLOT.name: tuple(lines)})


def _closed(job: Job, gpus: int) -> list[Row]:
    space, listing = _timed(lambda: columns(job, Options((DISAGGREGATED,))))
    means = closed.Means(job)
    # What a curve takes once is profiling's in the paper.
    closed.paper(job, means, space)
    _, seconds = _timed(lambda: int(np.argmin(closed.paper(job, means, space))))
    return [_row(gpus, "closed", seconds, len(space)), _row(gpus, "listed", seconds + listing, len(space))]


def _scheduled(problem: Problem) -> Any:
    return fastest(problem, "dip")


def _timed(run: Callable[[], _Value]) -> tuple[_Value, float]:
    began = time.process_time()
    found = run()
    return found, time.process_time() - began


def _row(gpus: int, name: str, seconds: float, layouts: int) -> Row:
    return Row(f"{gpus} GPUs", name, _TITLES[name], seconds, None, {"GPUs": float(gpus), "layouts": float(layouts)})


def _parts(quick: bool) -> tuple[Part, ...]:
    steps = 3 * len(QUICK_SIZES if quick else SIZES)
    return (Part(KEY, "the optimizer's time", 4.0 if quick else 90.0, steps, _run),)


def _compare(results: Results) -> list[Comparison]:
    found = []
    for figure, gpus in ((CLOSED, 64), (LARGEST, 1024)):
        rows = {row.system: row.seconds for row in results[KEY].rows if row.values["GPUs"] == gpus}
        if rows:
            found.append(Comparison(figure, rows["closed"], ("clock",), changed={"clock": rows["listed"] or 0.0}))
    return found


TIMES = Experiment(
    KEY,
    "The optimizer's time up to 1024 GPUs",
    "Seconds of one core to choose a layout of the smallest model. The paper's objective is a closed form, here for "
    "all layouts at once in arrays; ours schedules sample batches on the most promising ones.",
    _parts,
    _compare,
    columns={"layouts": "count"},
    plots=(_PLOT,),
    reference="",
    quick="16 GPUs.",
)
