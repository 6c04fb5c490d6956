"""What commands about a model, its data and its costs are given alike: options, and what they mean together."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ds_dip.commands import DEVICE, Finite, Shipped
from ds_dip.files import read_object

if TYPE_CHECKING:
    from ds_dip.costs.ending import Ending
    from ds_dip.costs.model import CostModel
    from ds_dip.costs.parallel import TensorParallel
    from ds_dip.costs.roofline import Rates
    from ds_dip.data import DatasetReference
    from ds_dip.models.spec import Model
    from ds_dip.partition.workload import Workload

PATH = click.Path(path_type=Path)
COUNT = click.IntRange(1, 10**6)
#: Characters a line of a table that no terminal cuts.
PLAIN_WIDTH = 120
_Command = TypeVar("_Command", bound=Callable[..., Any])


class Gigabytes(Finite):
    """10^9 bytes: a number above 0, and at most as many as ``dip.memory_gb`` takes."""

    what = "a finite number of 10^9 bytes; leave it out for no limit"

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True, max=1e9)


def _assignment(value: str) -> tuple[str, str]:
    """The two sides of ``NAME=VALUE``."""
    name, _, own = value.partition("=")
    if not name or not own:
        raise click.BadParameter(f"{value!r} is not NAME=VALUE.")
    return name, own


def pairs(name: str, help: str) -> Callable[[Any], Any]:
    """An option that may be given for several names."""
    return click.option(name, type=_assignment, metavar="NAME=VALUE", multiple=True, help=help)


def number(option: str, name: str, value: str, kind: type) -> Any:
    """The number in a pair's value."""
    try:
        return kind(value)
    except ValueError as error:
        expected = "a whole number" if kind is int else "a number"
        raise click.UsageError(f"{option} {name}={value}: {value!r} is not {expected}") from error


_OPTIONS = (
    click.option("--data", type=PATH, help="Metadata of samples, a ds-dip/batch file."),
    click.option("--dataset", help="Instead: a dataset's factory, PACKAGE.MODULE:CALLABLE."),
    click.option("--dataset-options", default="{}", help="Options of the factory, a JSON object."),
    click.option("--table", type=Shipped(), help="Latency table of the machine, from ds-dip profile."),
    click.option("--device", type=DEVICE, help="Instead: a device's description, for a roofline."),
    click.option(
        "--link", type=click.Choice(["node", "network"]), default="node", help="Which of its links ranks use."
    ),
    pairs("--rate", "Replace a rate of the roofline: flops=4e14."),
    click.option(
        "--deepspeed-config", type=Shipped(), help="DeepSpeed JSON of the run: batch, data type, schedule, seed."
    ),
    click.option("--batch-size", type=COUNT, help="Samples of a global batch."),
    click.option("--microbatches", type=COUNT, help="Microbatches a replica."),
    click.option("--compute", type=click.Choice(["float32", "bfloat16", "float16"]), help="Data type of the run."),
    click.option("--memory-gb", type=Gigabytes(), help="Memory of a device in 10^9 bytes."),
)


def workload_options(command: _Command) -> _Command:
    """The options that say what is trained on, in which batches, and what that costs."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def run_document(given: Mapping[str, Any]) -> dict[str, Any]:
    """The DeepSpeed configuration of the run, with what the options say in its place."""
    document: dict[str, Any] = {}
    if (path := given["deepspeed_config"]) is not None:
        document = read_object(path, "a DeepSpeed JSON")
    for option, key in (("batch_size", "train_batch_size"), ("microbatches", "gradient_accumulation_steps")):
        if given[option] is not None:
            document.pop("train_micro_batch_size_per_gpu", None)
            document[key] = given[option]
    return document


@dataclass(frozen=True, slots=True)
class CostInputs:
    """The files and rates that costs are made from; the data type is in the rates.

    ``parallel`` is how devices share a rank, and ``ending`` what follows a rank's last backward, where that is known.
    """

    rates: Rates
    table: Path | None
    rules: Path | None
    parallel: TensorParallel
    ending: Ending | None = None

    def costs(self, model: Model) -> tuple[CostModel, str]:
        """(the cost model, a hash of what it is made from); errors as for ``partition.sources.cost_source``."""
        from ds_dip.partition.sources import cost_source

        return cost_source(model, self.rates, self.table, self.rules, self.parallel)


def cost_inputs(given: Mapping[str, Any], document: Mapping[str, Any]) -> CostInputs:
    """Of the options, and where they leave it open of the run's configuration.

    Commands without options for it have one device a rank.
    """
    from ds_dip.config import read_config
    from ds_dip.costs.parallel import TensorParallel
    from ds_dip.costs.roofline import Rates
    from ds_dip.costs.table import read_table
    from ds_dip.partition.workload import compute_of

    dip = read_config(document)
    table = dip.table if given["table"] is None else given["table"]
    if table is not None and given["device"] is not None:
        raise click.UsageError(f"--device is for a roofline, and {table} holds measured costs; leave one of them out")
    compute = given["compute"] or compute_of(document)
    if given["compute"] is None and given["deepspeed_config"] is None and table is not None:
        compute = read_table(table).dtype
    degree, sequence = given.get("tensor_parallel", 1), given.get("sequence_parallel", True)
    rates, parallel, ending = Rates(compute=compute), TensorParallel(degree, sequence), None
    if given["device"] is not None:
        from ds_dip.costs.devices import read_device
        from ds_dip.costs.ending import Ending

        device = read_device(given["device"])
        rates, network = device.rates(compute, given["link"]), device.rates(compute, "network")
        parallel = device.tensor_parallel(degree, sequence=sequence)
        ending = Ending(given["replicas"], network.link, network.link_latency, network.memory, compute)
    known = [field.name for field in fields(Rates) if field.name != "compute"]
    for name, value in given["rate"]:
        if name not in known:
            raise click.UsageError(f"--rate {name}={value}: use one of {', '.join(known)}")
        rates = replace(rates, **{name: number("--rate", name, value, float)})
    rules = None if dip.cost_rules is None else Path(dip.cost_rules)
    return CostInputs(rates, None if table is None else Path(table), rules, parallel, ending)


def named_strategies(given: str | None) -> tuple[str, ...]:
    """The memory strategies that an option names, none where it is not given."""
    from ds_dip.costs.strategies import STRATEGIES

    names = set(given.split(",")) if given else set()
    if unknown := names - set(STRATEGIES):
        raise click.UsageError(
            f"--memory-strategies: {', '.join(sorted(unknown))} is unknown: give some of {', '.join(STRATEGIES)}"
        )
    return tuple(name for name in STRATEGIES if name in names)


def dataset_of(given: Mapping[str, Any]) -> DatasetReference:
    """The samples, of a file or by a factory."""
    from ds_dip.data import DatasetReference

    if (given["data"] is None) == (given["dataset"] is None):
        raise click.UsageError("give the samples to score by: either --data or --dataset")
    if given["data"] is not None:
        if given["dataset_options"] != "{}":
            raise click.UsageError("--dataset-options are those of --dataset; give that in place of --data")
        return DatasetReference("ds_dip.data.metadata:BatchFile", {"path": str(given["data"].resolve())})
    try:
        options = json.loads(given["dataset_options"])
    except ValueError as error:
        raise click.UsageError(f"--dataset-options is not JSON ({error})") from error
    return DatasetReference.parse({"factory": given["dataset"], "options": options})


def workload_of(given: Mapping[str, Any], document: Mapping[str, Any]) -> Workload:
    """The sample batches."""
    from ds_dip.config import read_config
    from ds_dip.data.metadata import BatchFile
    from ds_dip.partition.workload import Workload, batch_shape, drawn

    dip = read_config(document)
    if not document:
        raise click.UsageError("give the run's --deepspeed-config, or --batch-size and --microbatches")
    batch_size, microbatches = batch_shape(document, given["replicas"])
    reference = dataset_of(given)
    # A file is read here, where its errors are told in its own words.
    dataset = reference.open() if given["data"] is None else BatchFile(str(given["data"]))
    seed = dip.planner.seed if given["seed"] is None else given["seed"]
    batches = drawn(dataset, batch_size, given["batches"], seed)
    return Workload(batches, microbatches, given["replicas"], dip.loss)


@contextmanager
def searching(what: str) -> Iterator[Callable[[int, int, float], None]]:
    """A bar on a terminal: how many of ``what`` were made of those allowed, and the best mean iteration so far."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(f"{what}, best {{task.fields[best]}}"),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task("search", total=None, best="-")

        def show(made: int, allowed: int, best: float) -> None:
            bars.update(task, completed=made, total=allowed, best=f"{1e3 * best:.2f} ms")

        yield show
