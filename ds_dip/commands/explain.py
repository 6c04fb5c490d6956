"""``ds-dip explain``: says why a plan or a step takes as long as it does, and what changes would bring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ds_dip.commands import FILE, MODEL, Command, Seconds
from ds_dip.commands._progress import waiting
from ds_dip.commands._setups import setup_options

if TYPE_CHECKING:
    from ds_dip.explaining.what_if import Effort, Outcome

#: What can be changed, of a problem and of a model's setup.
_OF_PROBLEMS = ("memory", "links", "balance", "microbatch")
_OF_SETUPS = ("laps", "sub-microbatch", "microbatch", "memory", "links", "balance")


@click.command(
    "explain",
    cls=Command,
    examples=[
        "ds-dip explain plan.json --problem problem.json --path",
        "ds-dip explain plan.json --problem problem.json --what-if all",
        "ds-dip explain runs/quickstart --step 99",
        (
            "ds-dip explain --model model_configs/quickstart.json --ranks 2 --batch-size 16 --microbatches 4",
            "--dataset ds_dip.data.digits:Digits --dataset-options '{\"samples\": 400}' --what-if all",
        ),
    ],
)
@click.argument("source", type=click.Path(path_type=Path), required=False)
@click.option("--problem", type=FILE, help="Of a plan: the problem that it solves.")
@click.option("--step", type=click.IntRange(min=0), help="Of a run: the step; the last one with a timeline by default.")
@click.option("--planned", is_flag=True, help="Of a run: the step as it was planned, not as it was measured.")
@click.option("--path", is_flag=True, help="List the critical path too.")
@click.option(
    "--what-if",
    "changes",
    type=click.Choice([*dict.fromkeys((*_OF_PROBLEMS, *_OF_SETUPS)), "all"]),
    multiple=True,
    help="Search again with this changed (repeatable).",
)
@click.option("--evaluations", type=click.IntRange(1, 10**9), default=1000, show_default=True,
              help="Schedules that each search scores at most.")  # fmt: skip
@click.option("--budget", type=Seconds(), default=5.0, show_default=True, help="Seconds of each search at most.")
@click.option("--seeds", type=click.IntRange(1, 100), default=3, show_default=True,
              help="Searches of each problem, whose spread tells what the budget leaves open.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print a ds-dip/explanation document.")
@click.option("--model", "model_path", type=MODEL, help="Instead of SOURCE: a model's description, or its folder.")
@setup_options
def command(source: Path | None, problem: Path | None, step: int | None, planned: bool, **given: Any) -> None:
    """Say why SOURCE takes as long as it does: its critical path, and a cause for every second in which a rank idles.

    SOURCE is a ds-dip/plan with its --problem, or a run's folder. With --model and its data the first sample batch is
    planned and explained, and --what-if is about all of them: K, sub-microbatches, microbatches, memory and links.
    What --what-if prints was found by searches of the changed problems, not estimated.
    """
    from ds_dip.commands._explained import show_explanation
    from ds_dip.explaining.what_if import Effort, what_if
    from ds_dip.scheduling import lower_bound

    if (source is None) == (given["model_path"] is None):
        raise click.UsageError("give a plan or a run's folder, or else a --model with its data")
    if problem is not None and (step is not None or planned):
        raise click.UsageError("--step and --planned are of a run, and --problem of a plan; leave one of them out")
    if source is None and (problem is not None or step is not None or planned):
        raise click.UsageError(
            "--problem, --step and --planned go with a plan or a run, not with --model; leave them out"
        )
    if source is not None:
        _without_setup(source)
    changes, allowed = given["changes"], _OF_SETUPS if source is None else _OF_PROBLEMS
    if unfit := set(changes) - {"all", *allowed}:
        raise click.UsageError(f"--what-if {min(unfit)}: here it is {', '.join(allowed)} or all")
    effort = Effort(given["evaluations"], given["budget"], given["seeds"])
    names = allowed if "all" in changes else tuple(dict.fromkeys(changes))
    outcomes: list[Outcome] = []
    if source is None:
        found, outcomes = _setup(given, names, effort)
    elif problem is not None:
        found = _plan(source, problem)
    elif source.is_file():
        raise click.UsageError(f"{source} is a file: give the --problem of the plan, or a run's folder")
    else:
        found = _step(source, step, planned, again=bool(names))
    schedule, again = found.pop("schedule"), found.pop("again", found["problem"])
    if names and source is not None:
        with waiting("searching") as heard:
            outcomes = what_if(again, schedule, names, effort, lambda name: heard({"name": name}))
    bound = None if found["explanation"].measured else lower_bound(found["problem"])[0]
    show_explanation(**found, bound=bound, outcomes=outcomes, path=given["path"], as_json=given["as_json"])


def _without_setup(source: Path) -> None:
    """Refuse options that only --model has: they would change nothing."""
    context = click.get_current_context()
    own = {param.name: param.opts[0] for param in setup_options(click.command()(lambda: None)).params}
    for name, option in own.items():
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option} goes with --model, and {source} is explained as it is; leave it out")


def _setup(given: Mapping[str, Any], names: Sequence[str], effort: Effort) -> tuple[dict[str, Any], list[Outcome]]:
    """The first sampled batch, planned, and what changes of the setup would bring on all of them."""
    from ds_dip.commands._setups import inputs_of
    from ds_dip.explaining import explain
    from ds_dip.explaining.setup_what_if import Setup, setup_what_if
    from ds_dip.explaining.trial import problem_of
    from ds_dip.scheduling import InfeasibleError, solve

    inputs = inputs_of(given)
    scorer = inputs.scorer
    task_graph = problem_of(scorer, scorer.batches(inputs.partition)[0][0], inputs.partition, inputs.strategies)
    with waiting("searching the first batch's order"):
        made = solve(task_graph, evaluations=effort.evaluations, budget=effort.budget)
    if made.schedule is None or made.timeline is None:
        raise InfeasibleError(f"the first batch does not fit: {made.reason}", made.sufficient_capacity or ())
    outcomes = []
    if names:
        setup = Setup(scorer.workload, inputs.costs, inputs.partition, scorer.memory, inputs.strategies)
        with waiting("searching") as heard:
            outcomes = setup_what_if(scorer, setup, names, effort, lambda name: heard({"name": name}))
    spans = {task: (start, made.timeline.end[task]) for task, start in made.timeline.start.items()}
    found = {
        "problem": task_graph,
        "schedule": made.schedule,
        "explanation": explain(task_graph, made.schedule),
        "spans": spans,
        "title": f"{inputs.model.name} on {task_graph.ranks} ranks, batch 1 of {len(scorer.workload.batches)}",
    }
    return found, outcomes


def _plan(path: Path, problem: Path) -> dict[str, Any]:
    from ds_dip.commands._explained import plan_that_holds
    from ds_dip.explaining import Times, explain
    from ds_dip.scheduling import Schedule

    task_graph, plan = plan_that_holds(path, problem)
    schedule = Schedule(plan.order, plan.choices)
    spans = {task: (start, end) for task, start, end in plan.tasks}
    times = Times({t: own[0] for t, own in spans.items()}, {t: own[1] for t, own in spans.items()}, plan.makespan)
    found = explain(task_graph, schedule, times)
    title = f"{path}: {len(plan.tasks)} tasks on {task_graph.ranks} ranks"
    return {"problem": task_graph, "schedule": schedule, "explanation": found, "spans": spans, "title": title}


def _step(run: Path, step: int | None, planned: bool, *, again: bool) -> dict[str, Any]:
    from ds_dip.reporting.explained import explained_step

    found = explained_step(run, step, planned=planned)
    how = "measured" if found.explanation.measured else "planned"
    title = f"{run}, step {found.timeline.step}, {found.timeline.kind} by {found.timeline.schedule}, as {how}"
    return {
        "again": found.as_it_ran if again else found.problem,
        "problem": found.problem,
        "schedule": found.schedule,
        "explanation": found.explanation,
        "spans": found.spans,
        "title": title,
    }
