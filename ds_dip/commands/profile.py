"""``ds-dip profile``: measures what operators take on this machine, checks predictions, and looks at a dataset."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from ds_dip.commands import DEVICE, MODEL, Command, Seconds, Shipped, refusing
from ds_dip.files import FileError, check_writable, write_atomic
from ds_dip.shipped import find

_OUT = click.Path(path_type=Path, dir_okay=False)
_FILE = Shipped(dir_okay=False)
_COUNT = click.IntRange(1, 10**6)
_DTYPES = ("float32", "bfloat16", "float16")


@click.command(
    "profile",
    cls=Command,
    examples=[
        (
            "ds-dip profile --model model_configs/quickstart.json --config launch/quickstart_ds_config.json",
            "--out table.json",
        ),
        "ds-dip profile --check --table table.json    # how good its predictions are",
        (
            "ds-dip profile --data --dataset ds_dip.data.digits:Digits",
            "--dataset-options '{\"samples\": 5000}' --out data.json",
        ),
        "ds-dip profile --plot --table table.json --out latency.svg",
    ],
)
@click.option("--model", type=MODEL, default=Path("model_configs/quickstart.json"), show_default=True,
              help="The model's description.")  # fmt: skip
@click.option("--sweep", type=_FILE, help="Sizes to measure (default: profiling/sweeps/NAME of the model's file).")
@click.option("--config", type=_FILE, help="DeepSpeed JSON: also measure what the engine adds to layers.")
@click.option("--dataset", help="The run's dataset, PACKAGE.MODULE:CALLABLE (default: the quickstart's digits).")
@click.option("--dataset-options", default="{}", help="Options of the factory, a JSON object.")
@click.option("--ranks", type=click.IntRange(1, 1024), default=2, show_default=True, help="Ranks of this node.")
@click.option("--threads", type=click.IntRange(1, 1024), default=1, show_default=True, help="Threads of each rank.")
@click.option("--dtype", type=click.Choice([*_DTYPES, "all"]), default="float32", show_default=True,
              help="Data type; all writes a file for each that the device has.")  # fmt: skip
@click.option("--device", type=DEVICE, help="Compute the table from this device's data sheet; nothing is measured.")
@click.option("--link", type=click.Choice(["node", "network"]), default="node", show_default=True,
              help="Link of --device.")  # fmt: skip
@click.option("--out", type=_OUT, help="Where to write the table, the data's profile or the plot.")
@click.option("--fresh", is_flag=True, help="Start over, whatever OUT holds.")
@click.option("--check", is_flag=True, help="Compare what --table predicts with layers, stages and iterations.")
@click.option("--data", is_flag=True, help="Sample the dataset's metadata into histograms and a ds-dip/batch file.")
@click.option("--plot", is_flag=True, help="Draw --table, latency against shape, as an SVG.")
@click.option("--table", type=_FILE, help="The latency table to check or draw.")
@click.option("--operator", multiple=True, help="Draw only this operator; may be given again.")
@click.option("--samples", type=_COUNT, default=10_000, show_default=True, help="Samples that --data looks at.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Of these samples.")
@click.option(
    "--batches", type=click.IntRange(2, 1000), default=50, show_default=True, help="Batches that --check runs."
)
@click.option("--rounds", type=click.IntRange(1, 100), default=6, show_default=True, help="Times that each is run.")
@click.option("--patience", type=Seconds(min=0.01), default=0.12, show_default=True,
              help="Seconds that a row's part is repeated at most.")  # fmt: skip
@click.option("--deadline", type=Seconds(min=1.0), default=900.0, show_default=True, help="Seconds all may take.")
@click.option(
    "--master-port", type=click.IntRange(0, 65535), default=0, help="Port of the ranks (default: a free one)."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(**given: Any) -> None:
    """Measure operators, whole layers, links and the engine into a latency table; once per machine.

    All ranks measure the same at once, as training runs them. Finished rows are kept: a run that was stopped is
    continued by the same command. --check, --data and --plot do something else with a table or a dataset.
    """
    modes = [name for name in ("check", "data", "plot") if given[name]]
    if len(modes) > 1:
        raise click.UsageError(f"--{modes[0]} and --{modes[1]} exclude each other.")
    _options(given)
    run = {"data": _data, "plot": _plot, "check": _check}.get(modes[0]) if modes else None
    with refusing():
        (run or (_computed if given["device"] else _measure))(given)


def _needed(given: Mapping[str, Any], name: str, what: str) -> Path:
    path: Path | None = given[name]
    if path is None:
        raise click.UsageError(f"--{name} is missing: {what}.")
    return path


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    try:
        options = json.loads(given["dataset_options"])
    except ValueError as error:
        raise click.UsageError(f"--dataset-options is not JSON ({error}).") from error
    if not isinstance(options, dict):
        raise click.UsageError(f"--dataset-options is {given['dataset_options']}, expected a JSON object.")
    return options


def _sweep(given: Mapping[str, Any]) -> Path:
    if not given["model"].exists():
        raise FileError(f"{given['model']}: there is no such model; give a model's description by --model")
    path: Path = given["sweep"] or find(Path("profiling/sweeps", given["model"].name))
    if not path.exists():
        raise FileError(
            f"{path}: there is no such sweep; give the sizes to measure by --sweep, in the form of "
            f"{find(Path('profiling/sweeps/quickstart.json'))}"
        )
    return path


def _company(given: Mapping[str, Any]) -> Any:
    from ds_dip.profiling.session import Company

    most = given["patience"]
    return Company(
        given["ranks"], given["threads"], min(0.02, most), most, given["deadline"], port=given["master_port"]
    )


def _engine(given: Mapping[str, Any], config: Path | None) -> dict[str, Any]:
    """What the ranks need of the run: its DeepSpeed JSON and its dataset; both are tried before they are measured."""
    from ds_dip.models import load_model
    from ds_dip.profiling.session import dataset_for

    if config is None:
        return {"config": "", "dataset": "", "options": {}}
    from ds_dip.data import order_of
    from ds_dip.partition.workload import batch_shape
    from ds_dip.runtime import load_config, partition_for

    document, model = load_config(config), load_model(given["model"])
    partition_for(model, document, given["ranks"])
    reference = dataset_for(model, given["dataset"], _options(given))
    try:
        order_of(reference.open(), batch_shape(document)[0])
    except ValueError as error:
        raise FileError(f"{config}: cannot train on the dataset: {error}") from error
    return {
        "config": str(config.resolve()),
        "dataset": reference.factory,
        "options": dict(reference.options),
    }


@contextmanager
def _progress(first: str) -> Iterator[Callable[[dict[str, Any]], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:<28}", markup=False), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(first, total=None)

        def heard(message: dict[str, Any]) -> None:
            done, total = message.get("done"), message.get("total")
            if "share" in message:
                done, total = message["share"], 1.0
            bar.update(task, description=message["what"], completed=done or 0, total=total)

        yield heard


def _measure(given: Mapping[str, Any]) -> None:
    from ds_dip.costs.machine import data_types, device_name
    from ds_dip.costs.table import read_table
    from ds_dip.profiling.session import profile, unfinished
    from ds_dip.ranks import DeadlineError

    out, sweep, company = _needed(given, "out", "where to write the table"), _sweep(given), _company(given)
    check_writable(out, (given["model"], given["sweep"], given["config"]))
    known = data_types()
    wanted = known if given["dtype"] == "all" else (given["dtype"],)
    if wanted[0] not in known:
        raise FileError(f"{device_name()} does not compute in {wanted[0]}: use one of {', '.join(known)}")
    engine = _engine(given, given["config"])
    for dtype in wanted:
        path = out if len(wanted) == 1 else out.with_suffix(f".{dtype}{out.suffix}")
        if given["fresh"]:
            path.unlink(missing_ok=True)
        table = unfinished(path, company, dtype, device_name())
        if table is not None:
            click.echo(f"{path}: {len(table.rows)} rows are kept, the rest is measured", err=True)
        # The engine of the DeepSpeed JSON trains in one data type only.
        own = engine if dtype == _engine_dtype(given["config"]) else {"config": "", "dataset": "", "options": {}}
        try:
            with _progress("starting") as heard:
                profile(given["model"], sweep, path, dtype, company, heard, own)
        except KeyboardInterrupt:
            rows = len(read_table(path).rows) if path.exists() else 0
            click.echo(f"stopped; {path} keeps {rows} rows, and the same command measures the rest", err=True)
            sys.exit(130)
        except DeadlineError as error:
            rows = len(read_table(path).rows) if path.exists() else 0
            raise DeadlineError(
                f"{error} or repeat the command: {path} keeps {rows} rows, and only the rest is measured then"
            ) from error
        _show_table(path, given["as_json"])


def _engine_dtype(config: Path | None) -> str:
    if config is None:
        return ""
    document = json.loads(config.read_bytes())
    for key, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
        if isinstance(document.get(key), dict) and document[key].get("enabled") is True:
            return dtype
    return "float32"


def _show_table(path: Path, as_json: bool) -> None:
    from ds_dip.costs.table import read_table

    table = read_table(path)
    names = dict.fromkeys(row.name for row in table.rows)
    uneasy = sum(bool(row.note) for row in table.rows)
    if as_json:
        rows = {name: len(table.named(name)) for name in names}
        click.echo(json.dumps({"out": str(path), "device": table.device, "rows": rows, "with_note": uneasy}))
        return
    click.echo(f"{path}: {len(table.rows)} rows of {len(names)} operators and layers on {table.device}, {table.dtype}")
    if uneasy:
        click.echo(f"{uneasy} rows are not known within 2 % and say why (field note)")


def _computed(given: Mapping[str, Any]) -> None:
    from ds_dip.costs.devices import read_device
    from ds_dip.costs.table import write_table
    from ds_dip.models import load_model
    from ds_dip.profiling.computed import computed_table
    from ds_dip.profiling.sweep import read_sweep

    out, device = _needed(given, "out", "where to write the table"), read_device(given["device"])
    check_writable(out, (given["model"], given["sweep"], given["device"]))
    model = load_model(given["model"])
    wanted = tuple(device.flops) if given["dtype"] == "all" else (given["dtype"],)
    for dtype in wanted:
        path = out if len(wanted) == 1 else out.with_suffix(f".{dtype}{out.suffix}")
        write_table(
            path, computed_table(device, model, read_sweep(_sweep(given), model), dtype, given["ranks"], given["link"])
        )
        _show_table(path, given["as_json"])


def _check(given: Mapping[str, Any]) -> None:
    from ds_dip.costs.machine import device_name
    from ds_dip.costs.table import read_table
    from ds_dip.profiling.session import check

    path = _needed(given, "table", "the table whose predictions are checked")
    table = read_table(path)
    for warning in filter(None, (table.mismatch(device_name(), given["threads"]), table.gap)):
        click.echo(f"warning: {warning}", err=True)
    config = given["config"] or find(Path("launch/quickstart_ds_config.json"))
    if given["out"] is not None:
        check_writable(given["out"], (path, given["model"], config))
    engine, company = _engine(given, config), _company(given)
    with _progress("starting") as heard:
        document = check(given["model"], path, given["batches"], given["rounds"], company, heard, engine)
    if given["out"] is not None:
        write_atomic(given["out"], json.dumps(document, indent=1) + "\n")
    if given["as_json"]:
        click.echo(json.dumps(document))
    else:
        from ds_dip.profiling.show import show_check

        show_check(document)


def _data(given: Mapping[str, Any]) -> None:
    from ds_dip.models import load_model
    from ds_dip.profiling.data import profile_data
    from ds_dip.profiling.session import dataset_for

    out = _needed(given, "out", "where to write the histograms; the samples go next to it")
    check_writable(out, (given["model"],))
    reference = dataset_for(load_model(given["model"]), given["dataset"], _options(given))
    document = profile_data(reference, out, given["samples"], given["seed"])
    if given["as_json"]:
        click.echo(json.dumps(document))
    else:
        from ds_dip.profiling.show import show_data

        show_data(document, out)


def _plot(given: Mapping[str, Any]) -> None:
    from ds_dip.costs.table import read_table
    from ds_dip.profiling.plot import panels, svg

    path, out = _needed(given, "table", "the table to draw"), _needed(given, "out", "where to write the SVG")
    table = read_table(path)
    drawn = panels(table, given["operator"])
    if not drawn:
        names = ", ".join(dict.fromkeys(row.name for row in table.rows))
        raise FileError(f"{path}: has no line of three rows of these operators to draw; it has {names}")
    check_writable(out, (path,))
    write_atomic(out, svg(table, drawn))
    click.echo(f"{out}: {len(drawn)} panels")
