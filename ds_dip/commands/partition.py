"""``ds-dip partition``: finds where every layer lives, and how encoders are cut, for a model and its data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ds_dip.commands import MODEL, Command, refusing
from ds_dip.commands._inputs import (
    COUNT,
    PATH,
    PLAIN_WIDTH,
    cost_inputs,
    named_strategies,
    number,
    pairs,
    run_document,
    searching,
    workload_of,
    workload_options,
)
from ds_dip.files import check_writable

if TYPE_CHECKING:
    from ds_dip.partition.space import SearchOptions

_WHOLE = "whole"


@click.command(
    "partition",
    cls=Command,
    examples=[
        (
            "ds-dip partition --model model_configs/quickstart.json --ranks 2 --table table.json --out partition.json",
            "--dataset ds_dip.data.digits:Digits --dataset-options '{\"samples\": 57600}'",
            "--deepspeed-config launch/quickstart_ds_config.json",
        ),
        (
            "ds-dip partition --model model_configs/vlm_s.json --ranks 4 --device profiling/devices/h800.json",
            "--memory-gb 80 --compute bfloat16 --batch-size 16 --microbatches 16",
            "--data samples.jsonl --out partition.json",
        ),
    ],
)
@click.option("--model", "model_path", type=MODEL, required=True, help="The model's description.")
@click.option("--frozen", multiple=True, metavar="NAME", help="A module of a folder's model that is not trained.")
@click.option("--ranks", type=COUNT, required=True, help="Pipeline ranks of a replica.")
@workload_options
@click.option("--tensor-parallel", type=COUNT, default=1, show_default=True, help="Devices that share a rank's layers.")
@click.option(
    "--sequence-parallel/--no-sequence-parallel",
    default=True,
    show_default=True,
    help="Whether they share norms, residuals and messages as well.",
)
@click.option("--replicas", type=COUNT, default=1, show_default=True, help="Data-parallel replicas.")
@click.option("--memory-strategies", metavar="NAME,…", help="none, selective and full: what stages may choose from.")
@click.option("--batches", type=COUNT, default=8, show_default=True, help="Sample batches to score by.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), help="Of the sampler that draws them.")
@pairs("--laps", "Fix a module's K: vision=2.")
@pairs("--sub-microbatch", "Fix a module's B: vision=8 or vision=whole.")
@pairs("--parts", "Fix a module's layers a chunk: language=4,4.")
@click.option("--placement", type=click.Choice(["looped", "zigzag"]), help="Fix how chunks go over ranks.")
@click.option("--evaluations", type=COUNT, default=3000, show_default=True, help="Schedules to make at most.")
@click.option("--most-laps", type=COUNT, default=8, show_default=True, help="Largest K to search.")
@click.option("--show", type=COUNT, default=8, show_default=True, help="Candidates to keep and show.")
@click.option("--again", is_flag=True, help="Search even if OUT was made from the same inputs.")
@click.option("--json", "as_json", is_flag=True, help="Print the partition file, not a table.")
@click.option("--out", type=PATH, required=True, help="Where to write the partition.")
def command(**given: Any) -> None:
    """Search K, B and the layers of every chunk, and write them as a partition.

    Candidates are scored by the mean predicted iteration of sample batches that are balanced, cut and
    scheduled as training does it. The rule of DIP's paper is scored too, and the answer is never slower.
    An OUT that was made from the same inputs is kept.
    """
    from ds_dip.config import read_config
    from ds_dip.models import load_model
    from ds_dip.partition.memory import Memory
    from ds_dip.partition.offline import Inputs, partition_offline
    from ds_dip.partition.sources import table_warnings
    from ds_dip.planner.ordering import schedulers

    out: Path = given["out"]
    check_writable(out, [given[name] for name in ("model_path", "data", "table", "device", "deepspeed_config")])
    model = load_model(given["model_path"], given["frozen"])
    document = run_document(given)
    with refusing():
        sources = cost_inputs(given, document)
        costs, costs_sha256 = sources.costs(model)
        workload = workload_of(given, document)
        dip = read_config(document)
        options = _options(given)
        for warning in table_warnings(sources.table, model, workload):
            click.echo(f"warning: {warning}", err=True)
    inputs = Inputs(
        model=model,
        ranks=given["ranks"],
        workload=workload,
        costs_sha256=costs_sha256,
        schedule=dip.schedule,
        evaluations=dip.planner.scored(),
        memory=Memory(
            bytes=None if given["memory_gb"] is None else given["memory_gb"] * 1e9,
            compute=sources.rates.compute,
            replicas=given["replicas"],
            link_depth=dip.link_depth,
            limits=dip.capacity(given["ranks"]),
            parallel=sources.parallel,
        ),
        options=options,
        ending=sources.ending,
        strategies=named_strategies(given["memory_strategies"]) or dip.strategies,
    )
    with searching("schedules") as progress:
        _, kept = partition_offline(
            inputs,
            costs,
            *schedulers(dip.schedule, dip.planner.scored()),
            out,
            again=given["again"],
            progress=progress,
        )
    _report(out, kept, given["as_json"])


def _options(given: Mapping[str, Any]) -> SearchOptions:
    from ds_dip.partition.chunks import PLACEMENTS
    from ds_dip.partition.space import SearchOptions

    return SearchOptions(
        evaluations=given["evaluations"],
        most_laps=given["most_laps"],
        shown=given["show"],
        laps={name: number("--laps", name, value, int) for name, value in given["laps"]},
        sub_microbatch={
            name: None if value == _WHOLE else number("--sub-microbatch", name, value, int)
            for name, value in given["sub_microbatch"]
        },
        parts={
            name: tuple(number("--parts", name, size, int) for size in value.split(","))
            for name, value in given["parts"]
        },
        placements=(given["placement"],) if given["placement"] else PLACEMENTS,
    )


def _report(out: Path, kept: bool, as_json: bool) -> None:
    document = json.loads(out.read_bytes())
    if as_json:
        click.echo(json.dumps(document, indent=1))
        return
    from rich.console import Console

    from ds_dip.partition.show import candidates_table

    search = document["search"]
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    console.print(candidates_table(document))
    if search["rule"] is None:
        click.echo(f"rule: {search['rule_refusal']}")
    click.echo(
        f"{search['tried']} candidates: {search['pruned']} left early by their busiest rank, {search['unfit']} that "
        f"cannot run; {search['schedules']} schedules"
    )
    click.echo(f"{out}: kept, it was made from the same inputs (--again searches)" if kept else f"{out}: written")
    place = json.dumps(str(out))
    click.echo(
        f'in the DeepSpeed JSON: "dip": {{"partition": {place}}}, in place of laps, sub_microbatch and placement'
    )
