"""``ds-dip trace``: writes a step's planned and measured timeline as a Chrome/Perfetto trace."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ds_dip.commands import Command


@click.command(
    "trace",
    cls=Command,
    examples=[
        "ds-dip trace runs/quickstart --out trace.json",
        "ds-dip trace runs/quickstart --step 99 --out trace.json",
    ],
)
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--step", type=int, help="The step to show; the last one with a timeline by default.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("trace.json"),
    show_default=True,
    help="Where to write the trace.",
)
@click.option("--json", "as_json", is_flag=True, help="Say as JSON what was written.")
def command(run: Path, step: int | None, out: Path, as_json: bool) -> None:
    """Write a step of RUN, planned and measured on one clock, as a Chrome/Perfetto trace.

    RUN is a run's folder, with timelines/ or recording/ in it (see "dip.trace" and "dip.record" in the
    configuration). Open the trace in Perfetto or chrome://tracing.
    """
    from ds_dip.files import FileError, check_writable
    from ds_dip.reporting.timeline import timeline_of, timelines
    from ds_dip.reporting.trace import write_trace

    found = timelines(run)
    if step is None:
        step = max(found)
    if step not in found:
        raise FileError(f"{run}: has no timeline of step {step}, only of {_ranges(list(found))}; name one of those")
    check_writable(out)
    if _is_ours(out) or out.resolve().parent == found[step].resolve().parent:
        raise FileError(f"{out}: is a place of the run's own files, which a trace would replace; name another file")
    timeline = timeline_of(run, step)
    write_trace(out, timeline)
    if as_json:
        written = {"step": step, "measured": timeline.measured is not None, "ranks": timeline.ranks}
        click.echo(json.dumps({**written, "stages": len(timeline.planned.stages), "trace": str(out)}))
        return
    parts = "planned and measured" if timeline.measured else "planned (it was not measured)"
    click.echo(f"step {step}, {parts}, {len(timeline.planned.stages)} stages on {timeline.ranks} ranks: {out}")


def _is_ours(path: Path) -> bool:
    """Whether a file is a document that ds_dip reads: they all begin with their format."""
    if not path.exists():
        return False
    with path.open("rb") as stream:
        return stream.read(64).startswith(b'{"format": "ds-dip/')


def _ranges(steps: list[int]) -> str:
    return ", ".join(map(str, steps)) if len(steps) <= 8 else f"{steps[0]} to {steps[-1]} ({len(steps)} of them)"
