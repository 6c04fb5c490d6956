"""``ds-dip partition``: finds where every layer lives, and how encoders are cut, for a model and its data."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ds_dip.commands import refusing
from ds_dip.files import FileError, check_writable, read_object

if TYPE_CHECKING:
    from ds_dip.costs.model import CostModel
    from ds_dip.models.spec import Model
    from ds_dip.partition.search import Progress
    from ds_dip.partition.space import SearchOptions
    from ds_dip.partition.workload import Workload

_PATH = click.Path(path_type=Path)
_COUNT = click.IntRange(1, 10**6)
_WHOLE = "whole"
#: Characters a line of a table that no terminal cuts.
_PLAIN_WIDTH = 120


class _Gigabytes(click.FloatRange):
    """10^9 bytes, a finite number of them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; NaN and infinity are refused."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number of 10^9 bytes; leave it out for no limit.", param, ctx)
        return number


def _assignment(value: str) -> tuple[str, str]:
    """The two sides of ``NAME=VALUE``."""
    name, _, own = value.partition("=")
    if not name or not own:
        raise click.BadParameter(f"{value!r} is not NAME=VALUE.")
    return name, own


def _pairs(name: str, help: str) -> Callable[[Any], Any]:
    """An option that may be given for several names."""
    return click.option(name, type=_assignment, metavar="NAME=VALUE", multiple=True, help=help)


@click.command("partition")
@click.option("--model", "model_path", type=_PATH, required=True, help="The model's description.")
@click.option("--ranks", type=_COUNT, required=True, help="Pipeline ranks of a replica.")
@click.option("--data", type=_PATH, help="Metadata of samples, a ds-dip/batch file.")
@click.option("--dataset", help="Instead: a dataset's factory, PACKAGE.MODULE:CALLABLE.")
@click.option("--dataset-options", default="{}", help="Options of the factory, a JSON object.")
@click.option("--table", type=_PATH, help="Latency table of the machine, from ds-dip profile.")
@click.option("--device", type=_PATH, help="Instead: a device's description, for a roofline.")
@click.option("--link", type=click.Choice(["node", "network"]), default="node", help="Which of its links ranks use.")
@_pairs("--rate", "Replace a rate of the roofline: flops=4e14.")
@click.option("--deepspeed-config", type=_PATH, help="DeepSpeed JSON of the run: batch, data type, schedule, seed.")
@click.option("--batch-size", type=_COUNT, help="Samples of a global batch.")
@click.option("--microbatches", type=_COUNT, help="Microbatches a replica.")
@click.option("--replicas", type=_COUNT, default=1, show_default=True, help="Data-parallel replicas.")
@click.option("--compute", type=click.Choice(["float32", "bfloat16", "float16"]), help="Data type of the run.")
@click.option("--memory-gb", type=_Gigabytes(0, min_open=True), help="Memory of a rank in 10^9 bytes.")
@click.option("--batches", type=_COUNT, default=8, show_default=True, help="Sample batches to score by.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), help="Of the sampler that draws them.")
@_pairs("--laps", "Fix a module's K: vision=2.")
@_pairs("--sub-microbatch", "Fix a module's B: vision=8 or vision=whole.")
@_pairs("--parts", "Fix a module's layers a chunk: language=4,4.")
@click.option("--placement", type=click.Choice(["looped", "zigzag"]), help="Fix how chunks go over ranks.")
@click.option("--evaluations", type=_COUNT, default=3000, show_default=True, help="Schedules to make at most.")
@click.option("--most-laps", type=_COUNT, default=8, show_default=True, help="Largest K to search.")
@click.option("--show", type=_COUNT, default=8, show_default=True, help="Candidates to keep and show.")
@click.option("--again", is_flag=True, help="Search even if OUT was made from the same inputs.")
@click.option("--json", "as_json", is_flag=True, help="Print the partition file, not a table.")
@click.option("--out", type=_PATH, required=True, help="Where to write the partition.")
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
    check_writable(out)
    for name in ("model_path", "data", "table", "deepspeed_config"):
        if given[name] is not None and out.exists() and given[name].exists() and out.samefile(given[name]):
            raise FileError(f"{out}: is read as well and would be replaced; name another file")
    model = load_model(given["model_path"])
    document = _run(given)
    with refusing():
        costs, compute, costs_sha256 = _costs(model, given, document)
        workload = _workload(given, document)
        dip = read_config(document)
        options = _options(given)
        for warning in table_warnings(given["table"] or dip.table, model, workload):
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
            compute=compute,
            replicas=given["replicas"],
            link_depth=dip.link_depth,
            limits=dip.capacity(given["ranks"]),
        ),
        options=options,
    )
    with _progress() as progress:
        _, kept = partition_offline(
            inputs,
            costs,
            *schedulers(dip.schedule, dip.planner.scored()),
            out,
            again=given["again"],
            progress=progress,
        )
    _report(out, kept, given["as_json"])


def _run(given: Mapping[str, Any]) -> dict[str, Any]:
    """The DeepSpeed configuration of the run, with what the options say in its place."""
    document: dict[str, Any] = {}
    if (path := given["deepspeed_config"]) is not None:
        document = read_object(path, "a DeepSpeed JSON")
    for option, key in (("batch_size", "train_batch_size"), ("microbatches", "gradient_accumulation_steps")):
        if given[option] is not None:
            document.pop("train_micro_batch_size_per_gpu", None)
            document[key] = given[option]
    return document


def _costs(model: Model, given: Mapping[str, Any], document: Mapping[str, Any]) -> tuple[CostModel, str, str]:
    """(the cost model, the data type it is for, a hash of what it is made from)."""
    from ds_dip.config import read_config
    from ds_dip.costs.roofline import Rates
    from ds_dip.costs.table import read_table
    from ds_dip.partition.sources import cost_source
    from ds_dip.partition.workload import compute_of

    dip = read_config(document)
    table = dip.table if given["table"] is None else given["table"]
    if table is not None and given["device"] is not None:
        raise click.UsageError(f"--device is for a roofline, and {table} holds measured costs; leave one of them out")
    compute = given["compute"] or compute_of(document)
    if given["compute"] is None and given["deepspeed_config"] is None and table is not None:
        compute = read_table(table).dtype
    rates = Rates(compute=compute)
    if given["device"] is not None:
        from ds_dip.costs.devices import read_device

        rates = read_device(given["device"]).rates(compute, given["link"])
    known = [field.name for field in fields(Rates) if field.name != "compute"]
    for name, value in given["rate"]:
        if name not in known:
            raise click.UsageError(f"--rate {name}={value}: use one of {', '.join(known)}")
        rates = replace(rates, **{name: _number("--rate", name, value, float)})
    costs, sha256 = cost_source(model, rates, table, dip.cost_rules)
    return costs, compute, sha256


def _workload(given: Mapping[str, Any], document: Mapping[str, Any]) -> Workload:
    """The sample batches."""
    from ds_dip.config import read_config
    from ds_dip.data import DatasetReference, read_batch
    from ds_dip.partition.workload import Workload, batch_shape, draw

    dip = read_config(document)
    if not document:
        raise click.UsageError("give the run's --deepspeed-config, or --batch-size and --microbatches")
    batch_size, microbatches = batch_shape(document, given["replicas"])
    if (given["data"] is None) == (given["dataset"] is None):
        raise click.UsageError("give the samples to score by: either --data or --dataset")
    if given["data"] is not None:
        samples = read_batch(given["data"])
        size, metadata = len(samples), lambda index: samples[index]
    else:
        try:
            options = json.loads(given["dataset_options"])
        except ValueError as error:
            raise click.UsageError(f"--dataset-options is not JSON ({error})") from error
        reference = DatasetReference.parse({"factory": given["dataset"], "options": options})
        dataset = reference.open()
        size, metadata = len(dataset), dataset.metadata
    seed = dip.planner.seed if given["seed"] is None else given["seed"]
    batches = draw(size, metadata, batch_size, given["batches"], seed)
    return Workload(batches, microbatches, given["replicas"], dip.loss)


def _options(given: Mapping[str, Any]) -> SearchOptions:
    from ds_dip.partition.chunks import PLACEMENTS
    from ds_dip.partition.space import SearchOptions

    return SearchOptions(
        evaluations=given["evaluations"],
        most_laps=given["most_laps"],
        shown=given["show"],
        laps={name: _number("--laps", name, value, int) for name, value in given["laps"]},
        sub_microbatch={
            name: None if value == _WHOLE else _number("--sub-microbatch", name, value, int)
            for name, value in given["sub_microbatch"]
        },
        parts={
            name: tuple(_number("--parts", name, size, int) for size in value.split(","))
            for name, value in given["parts"]
        },
        placements=(given["placement"],) if given["placement"] else PLACEMENTS,
    )


def _number(option: str, name: str, value: str, kind: type) -> Any:
    try:
        return kind(value)
    except ValueError as error:
        expected = "a whole number" if kind is int else "a number"
        raise click.UsageError(f"{option} {name}={value}: {value!r} is not {expected}") from error


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on a terminal: schedules made of those allowed, and the best mean iteration so far."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("schedules, best {task.fields[best]}"),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task("search", total=None, best="-")

        def show(made: int, allowed: int, best: float) -> None:
            bars.update(task, completed=made, total=allowed, best=f"{1e3 * best:.2f} ms")

        yield show


def _report(out: Path, kept: bool, as_json: bool) -> None:
    document = json.loads(out.read_bytes())
    if as_json:
        click.echo(json.dumps(document, indent=1))
        return
    from rich.console import Console

    from ds_dip.partition.show import candidates_table

    search = document["search"]
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
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
