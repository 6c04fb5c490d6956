"""How even and how fast samples are balanced, from global batches of 64 to 2048."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from ds_dip.balancing import METHODS, Loads, balance, lower_bound
from ds_dip.balancing.exact import prove
from ds_dip.balancing.problem import Floats, Ints, in_shares
from ds_dip.reproduction.dflop.jobs import Case, job_of, mixed
from ds_dip.reproduction.dflop.mixes import MIXES
from ds_dip.reproduction.dflop.published import BALANCING, LISTED
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

KEY = "scheduler"
SIZES, QUICK_SIZES = (64, 128, 256, 512, 1024, 2048), (64, 256)
#: Samples a microbatch, seconds of the exact solver, and the most samples that it is given.
_EACH, _SECONDS, _EXACT = 16, 5.0, 256
_RUNS = 5
_TITLES: Mapping[str, str] = {
    "round-robin": "in turn",
    "lpt": "longest first",
    "karmarkar-karp": "Karmarkar and Karp",
    "ours": "ds_dip",
    "exact": f"CP-SAT from ds_dip's, {_SECONDS:g} s",
}
_PLOTS = (
    Plot("over", "fullest microbatch over the bound, everything mixed", "samples", "per cent above", logarithmic=True),
    Plot("time", "milliseconds of one core, everything mixed", "samples", "ms", logarithmic=True),
)


def _run(settings: Settings, progress: Progress, mix: str) -> Result:
    job = job_of(settings, Case(mixed(settings.quick).model, mix, 1))
    seconds = in_shares(np.array([job.load(sample).seconds for sample in job.profile]))
    sizes = QUICK_SIZES if settings.quick else SIZES
    rows: list[Row] = []
    for size in sizes:
        progress(f"{mix}, {size} samples")
        rows += _balanced(mix, seconds[:size], not settings.quick)
    lines: dict[str, list[Line]] = {plot.name: [] for plot in _PLOTS if mix == "mixed"}
    for name, title in _TITLES.items():
        own = [(row.values["samples"], row) for row in rows if row.system == name]
        if lines and own:
            lines["over"].append(Line(title, tuple((size, 100 * (row.gap or 0.0)) for size, row in own)))
            lines["time"].append(Line(title, tuple((size, 1e3 * (row.seconds or 0.0)) for size, row in own)))
    return Result(tuple(rows), {name: tuple(own) for name, own in lines.items()})


def _balanced(mix: str, seconds: Floats, exact: bool) -> list[Row]:
    """Every way to balance these samples: seconds that it takes, and the fullest microbatch over the bound."""
    own = Loads(seconds, max(1, len(seconds) // _EACH))
    bound = lower_bound(own)
    group = f"{mix}, {len(seconds)} samples in {own.buckets} microbatches"

    def row(name: str, taken: float, makespan: float) -> Row:
        return Row(group, name, _TITLES[name], taken, makespan / bound - 1, {"samples": float(len(seconds))})

    found = balance(own)
    rows = [
        row(name, _seconds(partial(_afresh, method, own)), own.fullest(method(own))) for name, method in METHODS.items()
    ]
    rows.append(row("ours", _seconds(lambda: balance(Loads(own.seconds, own.buckets))), found.makespan))
    if exact and len(seconds) <= _EXACT:
        began = time.perf_counter()
        proved = prove(own, found, _SECONDS)
        rows.append(row("exact", time.perf_counter() - began, proved.makespan))
    return rows


def _afresh(method: Callable[[Loads], Ints], own: Loads) -> Ints:
    return method(Loads(own.seconds, own.buckets))


def _seconds(run: Callable[[], object]) -> float:
    """The median of some runs, the first of which compiles and is not counted."""
    run()
    taken = []
    for _ in range(_RUNS):
        began = time.perf_counter()
        run()
        taken.append(time.perf_counter() - began)
    return sorted(taken)[_RUNS // 2]


def _parts(quick: bool) -> tuple[Part, ...]:
    mixes, steps = (("mixed",), len(QUICK_SIZES)) if quick else (MIXES, len(SIZES))
    return tuple(
        Part(_key(mix), f"scheduler, {mix}", 2.0 if quick else 20.0, steps, partial(_run, mix=mix)) for mix in mixes
    )


def _key(mix: str) -> str:
    return f"{KEY}-{mix.replace(' ', '-')}"


def _compare(results: Results) -> list[Comparison]:
    rows = results[_key("mixed")].rows
    most = max(row.values["samples"] for row in rows)
    last = {row.system: row for row in rows if row.values["samples"] == most}
    ours, where = last["ours"], f"{most:g} samples, everything mixed"
    changed = {"exchanges": ours.gap} if ours.gap is not None else {}
    return [
        Comparison(LISTED, last["lpt"].gap, ("data", "exchanges"), where, changed),
        Comparison(BALANCING, ours.seconds, ("exchanges",), where),
    ]


QUALITY = Experiment(
    KEY,
    "The scheduler from 64 to 2048 samples",
    "Samples by the seconds that a roofline says of each module, 16 a microbatch. Seconds are what balancing takes on "
    "one core; the fullest microbatch is told over the lower bound, which may itself be too low.",
    _parts,
    _compare,
    plots=_PLOTS,
    reference="",
    quick="one mix, two sizes, no exact solver.",
)
