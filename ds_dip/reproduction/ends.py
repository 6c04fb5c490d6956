"""End to end: every system on the five models, over each baseline, and again without a memory limit."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ds_dip.reproduction.cases import END_TO_END
from ds_dip.reproduction.experiment import (
    Comparison,
    Experiment,
    Part,
    Progress,
    Result,
    Results,
    Settings,
    rows_of,
    simulate,
    speedup,
)
from ds_dip.reproduction.published import END_TO_END as RANGES
from ds_dip.reproduction.systems import BASELINES, OURS, RULE, SYSTEMS

#: The models of the quick run: one of each family.
QUICK = ("VLM-S", "T2V-S")
#: Systems that are run without a memory limit too.
UNLIMITED = ("megatron", "static", "optimus", "rule")
_COST = {"VLM-S": 40.0, "VLM-M": 25.0, "VLM-L": 100.0, "T2V-S": 20.0, "T2V-L": 60.0}


def _run(settings: Settings, progress: Progress, model: str) -> Result:
    case = settings.case(model)
    return Result(tuple(simulate(case, SYSTEMS, progress)), numbers={"unevenness": case.unevenness})


def _unlimited(settings: Settings, progress: Progress, model: str) -> Result:
    case = settings.case(model, limited=False)
    rows = simulate(case, {name: SYSTEMS[name] for name in UNLIMITED}, progress)
    return Result(tuple(replace(row, group=f"{model}, without a memory limit") for row in rows))


def _free(settings: Settings, progress: Progress, model: str) -> Result:
    case = settings.case(model, collectives=False)
    return Result(tuple(simulate(case, {"rule": RULE}, progress, f"{model}, collectives that take no time")))


def parts(quick: bool) -> tuple[Part, ...]:
    """A part a model, and in the full run another one without a memory limit."""
    if quick:
        return tuple(Part(_key(own), own, 4, len(SYSTEMS), partial(_run, model=own)) for own in QUICK)
    limited = [Part(_key(own), own, _COST[own], len(SYSTEMS), partial(_run, model=own)) for own in END_TO_END]
    free = [
        Part(
            f"unlimited-{own.lower()}",
            f"{own}, no memory limit",
            _COST[own] / 5,
            len(UNLIMITED),
            partial(_unlimited, model=own),
        )
        for own in END_TO_END
    ]
    quiet = [
        Part(f"collectives-{own.lower()}", f"{own}, collectives free", 5, 1, partial(_free, model=own))
        for own in END_TO_END
    ]
    return (*limited, *free, *quiet)


def _key(model: str) -> str:
    return f"end-to-end-{model.lower()}"


def _compare(results: Results) -> list[Comparison]:
    """Least and largest throughput of ours over a baseline, by family of models."""
    found = []
    for family, figures in RANGES.items():
        tables = {
            result.rows[0].group: result.rows
            for key, result in results.items()
            if key.startswith(_key(family)) and result.rows
        }
        gains = [
            (gain, model, name)
            for model, rows in tables.items()
            for name in BASELINES
            if (gain := speedup(rows, OURS, name)) is not None
        ]
        for figure, choose in zip(figures, (min, max), strict=True):
            if not gains:
                found.append(Comparison(figure, None, _BEHIND))
                continue
            gain, model, name = choose(gains)
            changed = {}
            if name == "fsdp" and (other := speedup(tables[model], OURS, "exposed")) is not None:
                changed["fsdp"] = other
            quiet = [row.seconds for row in rows_of(results, f"collectives-{model.lower()}")]
            fsdp = next(row.seconds for row in tables[model] if row.system == "fsdp")
            if name == "fsdp" and fsdp is not None and quiet and quiet[0] is not None:
                changed["collectives"] = fsdp / quiet[0]
            if (free := speedup(rows_of(results, f"unlimited-{model.lower()}"), "rule", name)) is not None:
                changed["memory"] = free
            behind = _BEHIND if name != "fsdp" else ("fsdp", "collectives", *_BEHIND)
            found.append(Comparison(figure, gain, behind, f"{model} over {BASELINES[name][0]}", changed))
    return found


_BEHIND = ("ranges", "memory", "data", "batch")
ENDS = Experiment(
    "end-to-end",
    "End to end",
    "Every system on every model, and those with a schedule again on devices without a memory limit, DIP also "
    "with collectives that take no time; there the rule's partition stands for the searched one. The paper's figures "
    "are known as ranges only, so ours are compared at the ends of these.",
    parts,
    _compare,
    winner=OURS,
    quick="one model of each family, and nothing of it again.",
)
