"""The search: schedules found over time by four methods, and how far an exact solver comes."""

from __future__ import annotations

import time
from dataclasses import replace

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
)
from ds_dip.reproduction.published import PROVEN, SEARCH
from ds_dip.scheduling import Problem, interleave, solve

KEY = "search"
MODEL = "VLM-L"
METHODS = {
    "portfolio": "ours (portfolio)",
    "mcts": "tree search (the paper's)",
    "random": "random",
    "dfs": "depth-first",
}
#: Microbatches of the exact solver's problems, and seconds for each.
EXACT = (1, 2, 3, 4, 6, 8, 10)
QUICK_EXACT, LIMIT, QUICK_LIMIT = (1, 2), 40.0, 2.0
#: A search is over when it is this close to the best that any method finds.
NEAR = 0.01
#: After how many seconds, in a row.
SOON = "near the best after"
#: A bound this close is a proof: the solver counts in whole units, and rounds every duration down to one.
_PROVEN = 1e-5
#: Problems in a row that are not proven, after which larger ones are not tried.
_GIVE_UP = 2


def _problem(settings: Settings, model: str, microbatches: int, *, plain: bool = False) -> Problem:
    """The first batch, on the rule's partition, with the memory strategies by module that the dual queue is best by.

    A ``plain`` one has no memory limit, and its microbatches are not cut.
    """
    case = settings.case(
        model, effort=replace(settings.effort, microbatches=microbatches, batches=1), limited=not plain
    )
    partition = contenders.rule(case)
    if plain:
        partition = replace(partition, sub_microbatch=())
    found = contenders.ordered(case, partition, interleave, "")
    return case.problems(partition, found.chosen)[0]


def _curves(settings: Settings, progress: Progress) -> Result:
    microbatches = 8 if settings.quick else 32
    evaluations = 300 if settings.quick else 40_000
    problem = _problem(settings, "VLM-S" if settings.quick else MODEL, microbatches)
    found, shares = {}, {}
    for method in METHODS:
        # What is compiled, or loaded, on first use is not counted.
        solve(problem, evaluations=1, method=method)
    for method, title in METHODS.items():
        progress(title)
        began = time.process_time()
        found[method] = solve(problem, evaluations=evaluations, budget=None if settings.quick else 40.0, method=method)
        # Of a busy machine a search has a share: its seconds are told in those of the processor.
        shares[method] = min(1.0, (time.process_time() - began) / max(1e-9, found[method].seconds))
    best = min(own.makespan for own in found.values())
    rows, lines, counts = [], [], []
    for method, own in found.items():
        near = next((seconds for seconds, _, makespan in own.curve if makespan <= best * (1 + NEAR)), None)
        values = {"evaluations": float(own.evaluations), "search seconds": own.seconds * shares[method]}
        notes = {"settings": "not within 1 % of the best"}
        if near is not None:
            values[SOON], notes = near * shares[method], {}
        rows.append(Row("methods", method, METHODS[method], own.makespan, own.gap, values, notes))
        ends = [*own.curve, (own.seconds, own.evaluations, own.makespan)]
        lines.append(
            Line(
                METHODS[method],
                tuple((max(1e-3, a * shares[method]), 100 * (c / own.lower_bound - 1)) for a, _, c in ends),
            )
        )
        counts.append(Line(METHODS[method], tuple((max(1.0, b), 100 * (c / own.lower_bound - 1)) for _, b, c in ends)))
    return Result(tuple(rows), {"time": tuple(lines), "count": tuple(counts)}, {"tasks": float(len(problem.tasks))})


def _exact(settings: Settings, progress: Progress) -> Result:
    from ds_dip.scheduling.exact import prove

    sizes, limit = (QUICK_EXACT, QUICK_LIMIT) if settings.quick else (EXACT, LIMIT)
    rows: list[Row] = []
    missed = 0
    for microbatches in sizes:
        progress(f"exact solver, {microbatches} microbatches")
        title = f"{microbatches} microbatch{'es' if microbatches > 1 else ''}"
        values = {"microbatches": float(microbatches), "limit": limit}
        if missed >= _GIVE_UP:
            notes = {"refusal": "not tried: smaller ones were not proven"}
            rows.append(Row("exact solver", title, title, None, None, values, notes))
            continue
        problem = _problem(settings, "VLM-S", microbatches, plain=True)
        start = solve(problem, evaluations=20 * settings.effort.evaluations)
        try:
            found = prove(problem, start, limit)
        except ImportError as error:
            rows.append(Row("exact solver", title, title, None, None, values, {"refusal": str(error)}))
            continue
        proven = found.gap <= _PROVEN
        missed = 0 if proven else missed + 1
        values |= {
            "tasks": float(len(problem.tasks)),
            "proven": float(proven),
            "search over proof": start.makespan / found.makespan - 1,
            "search seconds": found.seconds,
        }
        rows.append(Row("exact solver", title, title, found.makespan, found.gap, values))
    return Result(tuple(rows))


def parts(quick: bool) -> tuple[Part, ...]:
    """The methods, and the exact solver."""
    return (
        Part("search-methods", "search", 2 if quick else 125, len(METHODS), _curves),
        Part("search-exact", "exact solver", 3 if quick else 90, len(QUICK_EXACT if quick else EXACT), _exact),
    )


def _compare(results: Results) -> list[Comparison]:
    """Seconds until our search is near its best, and the largest problem that is proven."""
    ours = next(row for row in results["search-methods"].rows if row.system == "portfolio")
    tried = [row.values for row in results["search-exact"].rows if "proven" in row.values]
    proven = max((own["microbatches"] for own in tried if own["proven"]), default=None)
    limits = sorted({own["limit"] for own in tried}) or [LIMIT]
    where = f"{limits[0]:g} s each, one core"
    if proven is not None and proven == max(own["microbatches"] for own in tried):
        where += ", and no more were tried"
    return [
        Comparison(SEARCH, ours.values.get(SOON), (), "one core, until within 1 % of the best found"),
        Comparison(PROVEN, proven, ("solver",), where),
    ]


SEARCHES = Experiment(
    KEY,
    "Search",
    "One batch on the rule's partition under fixed memory strategies, searched by our portfolio, by the paper's tree "
    "search over segment orders, by random orders and depth-first, with as many schedules and seconds at most. Seconds "
    "are those of a processor of the machine that the report was made on. The exact solver gets batches of VLM-S of "
    "whole microbatches without a memory limit, which is easier, and starts from the searched schedule.",
    parts,
    _compare,
    columns={
        "tasks": "count",
        "evaluations": "count",
        "search seconds": "seconds",
        SOON: "seconds",
        "proven": "yes",
        "search over proof": "share",
    },
    plots=(
        Plot("time", "best schedule over its lower bound", "seconds", "% above bound", logarithmic=True),
        Plot("count", "best schedule over its lower bound", "schedules scored", "% above bound", logarithmic=True),
    ),
    reference="mcts",
    quick="VLM-S in the place of VLM-L and few schedules for the methods; "
    f"{len(QUICK_EXACT)} problems and {QUICK_LIMIT:g} s each for the exact solver.",
)
