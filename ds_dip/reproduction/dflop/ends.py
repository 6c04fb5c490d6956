"""End to end: every system on every model and mix of data, on 1 to 8 nodes, and on audio."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import fsum

from ds_dip.parallelism.space import Options
from ds_dip.planner.ordering import fastest
from ds_dip.reproduction.dflop.jobs import MODELS, SPEAKING, Case, effort_of, job_of, mixed, spoken
from ds_dip.reproduction.dflop.mixes import MIXES
from ds_dip.reproduction.dflop.published import IDLE, SPEEDS, SPOKEN
from ds_dip.reproduction.dflop.systems import BASELINES, SYSTEMS, systems
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
    rows_of,
    speedup,
)
from ds_dip.reproduction.published import Figure

NODES = (1, 2, 4, 8)
_COST = 25.0
_COLUMNS = {"idle": "share", "memory": "GB"}
_PLOT = Plot("nodes", "over the Megatron-like baseline, by nodes", "nodes", "times its throughput", logarithmic=True)
_BEHIND = ("baselines", "objective", "ranges", "data", "network")


def rows_of_case(settings: Settings, case: Case, progress: Progress) -> list[Row]:
    """A row for every system."""
    effort, options = effort_of(settings), Options(most_laps=settings.effort.most_laps)
    found = systems(
        job_of(settings, case),
        lambda problem: fastest(problem, "dip"),
        effort,
        options,
        lambda name: progress(f"{case}: {SYSTEMS[name]}"),
    )
    rows = []
    for name, own in found.items():
        if isinstance(own, str):
            rows.append(Row(str(case), name, SYSTEMS[name], None, notes={"refusal": own}))
            continue
        values = {"idle": own.idle, "memory": own.memory / 1e9}
        gap = max(0.0, own.seconds / own.bound - 1)  # both are sums, rounded apart
        rows.append(Row(str(case), name, SYSTEMS[name], own.seconds, gap, values, {"settings": own.layout}))
    return rows


def _model(settings: Settings, progress: Progress, model: str) -> Result:
    mixes, nodes = (MIXES, NODES[-1]) if not settings.quick else (("mixed",), 1)
    return Result(tuple(row for mix in mixes for row in rows_of_case(settings, Case(model, mix, nodes), progress)))


def _nodes(settings: Settings, progress: Progress, model: str) -> Result:
    base = mixed(settings.quick)
    cases = [spoken(own) if model == SPEAKING else Case(base.model, base.mix, own) for own in _counts(settings.quick)]
    rows = [rows_of_case(settings, case, progress) for case in cases]
    lines = []
    for name, title in SYSTEMS.items():
        points = [
            (float(case.nodes), speed)
            for case, own in zip(cases, rows, strict=True)
            if (speed := speedup(own, name, "megatron")) is not None
        ]
        lines.append(Line(title, tuple(points)))
    return Result(tuple(row for own in rows for row in own), {_PLOT.name: tuple(lines)})


def _counts(quick: bool) -> tuple[int, ...]:
    return NODES[:1] if quick else NODES


def _places(quick: bool) -> tuple[Part, ...]:
    models = [mixed(True).model] if quick else [model for model in MODELS if model != SPEAKING]
    count = 1 if quick else len(MIXES)
    return tuple(
        Part(
            f"places-{model.replace('_', '-')}", MODELS[model], _COST * count, count * len(SYSTEMS),
            partial(_model, model=model),
        )
        for model in models
    )  # fmt: skip


def _clusters(quick: bool) -> tuple[Part, ...]:
    if quick:
        return ()
    return (Part("nodes", "1 to 8 nodes", 60, len(NODES) * len(SYSTEMS), partial(_nodes, model=mixed(quick).model)),)


def _audio(quick: bool) -> tuple[Part, ...]:
    counts = _counts(quick)
    return (Part("audio", "audio", 12.0 * len(counts), len(counts) * len(SYSTEMS), partial(_nodes, model=SPEAKING)),)


def _ends(rows: Sequence[Row], figures: tuple[Figure, Figure]) -> list[Comparison]:
    """Least and largest throughput of DFLOP over a baseline; changed, of our objective and order too."""
    found = []
    for figure, choose in zip(figures, (min, max), strict=True):
        speeds = [
            (speed, f"{group} over {SYSTEMS[name]}", own, name)
            for group, own in _groups(rows).items()
            for name in BASELINES
            if (speed := speedup(own, "dflop", name)) is not None
        ]
        if not speeds:
            found.append(Comparison(figure, None, _BEHIND))
            continue
        speed, where, own, name = choose(speeds, key=lambda one: one[0])
        both = speedup(own, "both", name)
        found.append(Comparison(figure, speed, _BEHIND, where, {} if both is None else {"objective": both}))
    return found


def _idle(rows: Sequence[Row]) -> list[Comparison]:
    """The mean over all cases of how DFLOP's idle time is to a baseline's."""
    found = []
    for name, figure in IDLE.items():
        shares: dict[str, list[float]] = {"dflop": [], "both": []}
        for own in _groups(rows).values():
            times = {row.system: row.seconds * row.values["idle"] for row in own if row.seconds is not None}
            if times.get(name):
                for system, each in shares.items():
                    if system in times:
                        each.append(times[system] / times[name])
        means = {system: fsum(each) / len(each) for system, each in shares.items() if each}
        changed = {"objective": means["both"]} if "both" in means else {}
        found.append(Comparison(figure, means.get("dflop"), _BEHIND, "mean over all cases", changed))
    return found


def _groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.group, []).append(row)
    return found


def _compare(results: Results) -> list[Comparison]:
    rows = rows_of(results, "places-")
    return [*_ends(rows, SPEEDS), *_idle(rows)]


PLACES = Experiment(
    "end-to-end",
    "End to end",
    "Every system on every model and mix of data on 8 nodes: DFLOP's optimizer and its scheduler alone and together, "
    "DIP alone, and both. Seconds are those of the mean held-out batch; idle is the share of all GPUs' time without "
    "work. The paper's figures are known as ranges only, so ours are compared at the ends of these.",
    _places,
    _compare,
    columns=_COLUMNS,
    winner="both",
    quick="the smallest model, one mix, one node.",
)
CLUSTERS = Experiment(
    "nodes",
    "1 to 8 nodes",
    "The smallest model on everything mixed, with as many samples a GPU on every number of nodes. The paper has no "
    "figure of this that is known to us.",
    _clusters,
    lambda _: [],
    columns=_COLUMNS,
    plots=(_PLOT,),
    winner="both",
)
AUDITION = Experiment(
    "audio",
    "Audio",
    "Qwen2-Audio on sounds of one to thirty seconds, which its encoder takes as windows of 30 s.",
    _audio,
    lambda results: _ends(results["audio"].rows, SPOKEN),
    columns=_COLUMNS,
    plots=(_PLOT,),
    winner="both",
    quick="one node.",
)
