"""``ds-dip data``: looks through files of conversations, and makes their index."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ds_dip.commands import MODEL, Group, refusing
from ds_dip.commands._inputs import COUNT, PATH, PLAIN_WIDTH

if TYPE_CHECKING:
    from ds_dip.data.conversations.index import Progress
    from ds_dip.profiling.conversations import Inspection

_BARS = " ▁▂▃▄▅▆▇█"


def _replacement(value: str) -> tuple[str, str]:
    beginning, equals, instead = value.partition("=")
    if not beginning or not equals:
        raise click.BadParameter(f"{value!r} is not BEGINNING=INSTEAD.")
    return beginning, instead


@click.group("data", cls=Group, examples=["ds-dip data inspect train.jsonl --pretrained FOLDER"])
def command() -> None:
    """Look through files of conversations."""


@command.command(
    "inspect",
    examples=[
        "ds-dip data inspect train.jsonl --pretrained FOLDER",
        (
            "ds-dip data inspect a.json b.parquet --model model.json --batch-size 64 --microbatches 8",
            "--picture sizes.svg",
        ),
        "ds-dip data inspect train.jsonl --pretrained FOLDER --json > inspection.json",
    ],
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=PATH)
@click.option("--pretrained", type=PATH, help="Count by the processor of this folder of transformers.")
@click.option("--model", type=MODEL, help="Or for this model of our own, a ds-dip/model file.")
@click.option("--tokenizer", type=PATH, help="A tokenizer's folder for --model; without it text is bytes.")
@click.option("--root", type=PATH, help="Folder of the media; by default the first file's.")
@click.option("--outside", is_flag=True, help="Media may lie outside the root.")
@click.option(
    "--prefix",
    type=_replacement,
    metavar="BEGINNING=INSTEAD",
    multiple=True,
    help="Replace the beginning of paths: data/=images/, or data/= by nothing.",
)
@click.option("--ignore-key", multiple=True, help="A key of records that may be there.")
@click.option("--decode", is_flag=True, help="Decode every medium once, to find what headers do not show.")
@click.option("--index", type=PATH, help="Folder of the index; by default beside the first file.")
@click.option("--worst", type=click.IntRange(0, 1000), default=5, show_default=True, help="Largest samples to show.")
@click.option("--problems", type=click.IntRange(0), default=20, show_default=True, help="Problems to show.")
@click.option("--batch-size", type=COUNT, help="Tell how balanced batches of so many samples will be.")
@click.option("--replicas", type=COUNT, default=1, show_default=True, help="Replicas that share a batch.")
@click.option("--microbatches", type=COUNT, default=1, show_default=True, help="Microbatches a replica.")
@click.option("--picture", type=PATH, help="Write the histograms as an SVG.")
@click.option("--batch", type=PATH, help="Write the samples' sizes, a ds-dip/batch file.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def inspect(files: tuple[Path, ...], **given: Any) -> None:
    """Read FILEs of conversations and their media's headers, and tell what is there.

    Counts and histograms by modality, tokens under the given processor, the largest samples, and every problem with its
    line. Exits with 1 where there are problems.
    """
    from ds_dip.data.conversations import Conversations
    from ds_dip.data.metadata import write_batch
    from ds_dip.files import check_writable, write_atomic
    from ds_dip.profiling.conversations import inspect as look
    from ds_dip.profiling.conversations import svg

    if (given["pretrained"] is None) == (given["model"] is None):
        raise click.UsageError("give --pretrained FOLDER or --model MODEL.json, whose processor counts tokens")
    if given["picture"] is not None and given["picture"] == given["batch"]:
        raise click.UsageError(f"--picture and --batch both name {given['batch']}; name two files.")
    for target in (given["picture"], given["batch"]):
        if target is not None:
            check_writable(target, files)
    processor = {name: str(given[name]) for name in ("pretrained", "model", "tokenizer") if given[name] is not None}
    options = {name: str(given[name]) for name in ("root", "index") if given[name] is not None}
    with refusing(), _progress() as told:
        dataset = Conversations(
            progress=told,
            files=[str(file) for file in files],
            processor=processor,
            prefixes=dict(given["prefix"]),
            outside=given["outside"],
            ignored_keys=list(given["ignore_key"]),
            verify="decode" if given["decode"] else "headers",
            problems="skip",
            **options,
        )
        inspection, samples = look(
            dataset,
            worst=given["worst"],
            batch_size=given["batch_size"] or 0,
            replicas=given["replicas"],
            microbatches=given["microbatches"],
        )
    problems = [str(problem) for problem in dataset.problems(given["problems"])]
    if given["as_json"]:
        click.echo(json.dumps({**inspection.document(), "first_problems": problems}))
    else:
        _show(inspection)
        for problem in problems:
            click.echo(problem)
        if (more := inspection.problems - given["problems"]) > 0:
            click.echo(f"… and {more} more")
    if given["picture"] is not None:
        write_atomic(given["picture"], svg(inspection, ", ".join(file.name for file in files)))
    if given["batch"] is not None:
        write_batch(given["batch"], samples)
    sys.exit(1 if inspection.problems else 0)


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar for what is not in the index yet, on a terminal."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    with Bar(console=console, transient=True, disable=not console.is_terminal) as bar:
        tasks: dict[Path, Any] = {}

        def told(file: Path, records: int, done: int, whole: int) -> None:
            task = tasks[file] if file in tasks else tasks.setdefault(file, bar.add_task(escape(file.name)))
            bar.update(task, completed=done, total=whole, description=f"{escape(file.name)}: {records} records")

        yield told


def _show(inspection: Inspection) -> None:
    from rich.console import Console
    from rich.table import Table

    terminal = Console(markup=False)
    console = terminal if terminal.is_terminal else Console(markup=False, width=PLAIN_WIDTH)
    console.print(f"{inspection.samples} samples, {inspection.problems} problems", highlight=False)
    counts = Table("", "media", "samples with it", box=None)
    for kind in inspection.having:
        counts.add_row(kind, str(inspection.media.get(kind, "")), str(inspection.having[kind]))
    console.print(counts)
    for note, count in sorted(inspection.notes.items()):
        console.print(f"  {count} x {note}", highlight=False)
    sizes = Table("", "mean", "median", "95 %", "most", "from least to most", box=None)
    for name, own in inspection.histograms.items():
        top = max(own.counts)
        bars = "".join(_BARS[-(-count * (len(_BARS) - 1) // top)] for count in own.counts)
        sizes.add_row(name, f"{own.mean:.1f}", *(f"{own.quantiles[q]:.0f}" for q in ("0.5", "0.95", "1")), bars)
    console.print(sizes)
    for large in inspection.worst:
        parts = [f"{name} {sum(own)} in {len(own)}" for name, own in large.sample.modules.items() if own]
        console.print(
            f"  large: {large.place}: {', '.join(parts)} ({large.sample.id})", highlight=False, soft_wrap=True
        )
    if (balance := inspection.balance) is not None:
        console.print(
            f"batches of {balance.batch_size} for {balance.replicas} replicas with {balance.microbatches} "
            "microbatches: the fullest microbatch over the mean",
            highlight=False,
        )
        for name in balance.drawn:
            line = f"  {name}: {balance.drawn[name]:.2f} as drawn, {balance.assigned[name]:.2f} as assigned by tokens"
            console.print(line, highlight=False)
