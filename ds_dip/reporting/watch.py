"""A run while it goes, for a terminal: what ``ds-dip watch`` shows of ``live.json``."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ds_dip.reporting.live import Live
from ds_dip.reporting.summary import StepRecord

_BARS = "▁▂▃▄▅▆▇█"
#: Newest steps that a figure is the mean of, and columns of a small curve.
WINDOW, COLUMNS = 20, 40
_COLOURS = {
    "training": "green", "ended": "green", "stopped": "yellow", "silent": "yellow", "failed": "red", "dead": "red",
}  # fmt: skip


def _rate(above: float, below: float) -> float:
    return above / below if below > 0 else 0.0


#: Name, key among ``figures``, form, factor and value of a step's figures.
_CURVES: tuple[tuple[str, str, str, float, Callable[[StepRecord], float]], ...] = (
    ("loss", "loss", "{:.4f}", 1.0, lambda record: record.loss),
    ("samples/s", "samples_per_s", "{:.1f}", 1.0, lambda record: _rate(record.samples, record.seconds)),
    ("measured", "measured_s", "{:.1f} ms", 1e3, lambda record: record.measured_s),
    ("predicted", "predicted_s", "{:.1f} ms", 1e3, lambda record: record.predicted_s),
    ("  off by", "error", "{:.1%}", 1.0, lambda record: abs(record.error)),
    ("bubble", "bubble", "{:.1%}", 1.0, lambda record: record.bubble),
    ("stall", "stall", "{:.2%}", 1.0, lambda record: _rate(record.stall_s, record.measured_s)),
)


def figures(live: Live) -> dict[str, Any]:
    """The run's figures over the newest ``WINDOW`` steps, None where there is no step yet.

    Means; rates and shares of time are sums over sums, so that a slow step counts as long as it took.
    """
    recent = live.recent[-WINDOW:]
    if not recent:
        return dict.fromkeys(("step", "loss", "samples_per_s", "predicted_s", "measured_s", "error", "bubble", "stall"))
    measured = fmean(record.measured_s for record in recent)
    return {
        "step": recent[-1].step,
        "loss": fmean(record.loss for record in recent),
        "samples_per_s": _rate(sum(r.samples for r in recent), sum(r.seconds for r in recent)),
        "predicted_s": fmean(record.predicted_s for record in recent),
        "measured_s": measured,
        "error": fmean(abs(record.error) for record in recent),
        "bubble": fmean(record.bubble for record in recent),
        "stall": _rate(fmean(record.stall_s for record in recent), measured),
    }


def document(live: Live, condition: str, now: float | None = None) -> dict[str, Any]:
    """What ``ds-dip watch --json`` prints, beside the file's own content."""
    age = (time.time() if now is None else now) - live.updated
    return {"condition": condition, "age_s": age, **figures(live)}


def view(live: Live, condition: str, name: str, now: float | None = None) -> RenderableType:
    """The run as a picture of a terminal's size; ``condition`` is what ``live.condition`` found."""
    return Group(_head(live, condition, name, now), _bar(live), _curves(live), _plans(live), _memory(live))


def _head(live: Live, condition: str, name: str, now: float | None) -> Text:
    now = time.time() if now is None else now
    head = Text(f"{name}  ", style="bold")
    head.append(condition, style=_COLOURS[condition])
    last = now if condition == "training" else live.updated
    head.append(f"  process {live.pid} on {live.host}, {_time(last - live.started)}")
    if condition == "silent":
        head.append(f"; nothing was written for {_time(now - live.updated)}")
    if condition == "dead":
        head.append("; the process is gone and left no word: look at its output, and at the kernel's for its memory")
    if live.sentence:
        head.append(f"\n{live.sentence}", style="red")
    return head


def _bar(live: Live) -> Table:
    row = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=max(1, live.steps), completed=live.done, width=COLUMNS)
    row.add_row(bar, f"{live.done}/{live.steps}", _left(live))
    return row


def _left(live: Live) -> str:
    recent = live.recent[-WINDOW:]
    if live.state != "training" or not recent or live.done >= live.steps:
        return ""
    return f"{_time((live.steps - live.done) * fmean(record.seconds for record in recent))} left"


def _curves(live: Live) -> RenderableType:
    if not live.recent:
        return Text("no step yet: the first one includes the planner's start")
    table, recent = Table(box=None, pad_edge=False), live.recent[-COLUMNS:]
    table.add_column("")
    table.add_column(f"mean of {len(live.recent[-WINDOW:])}", justify="right")
    table.add_column("newest", justify="right")
    table.add_column(f"last {len(recent)} steps")
    means = figures(live)
    for name, key, text, factor, value in _CURVES:
        curve = sparkline([value(record) for record in recent])
        table.add_row(name, text.format(factor * means[key]), text.format(factor * value(recent[-1])), curve)
    return table


def _plans(live: Live) -> Table:
    plans, table = live.plans, Table.grid(padding=(0, 1))
    ahead = f"{plans.lead:g} steps ahead, {1e3 * plans.plan_s:.1f} ms a plan"
    counts = f"{plans.hits} of {plans.planned} in time, {plans.reused} of an equal batch, {plans.restarts} restarts"
    table.add_row("planner", f"{ahead}, {counts}")
    causes = ", ".join(f"{count} {cause}" for cause, count in plans.fallbacks.items() if count)
    table.add_row("fallbacks", causes or "none")
    if live.last_fallback is not None:
        table.add_row("  last", f"step {live.last_fallback.step}: {live.last_fallback.reason}")
    return table


def _memory(live: Live) -> RenderableType:
    if not live.memory:
        return Text("")
    table = Table("memory", "predicted", "counted", "limit", "", box=None, pad_edge=False)
    most = max(max(own.limit_bytes or 0.0, own.measured_bytes or 0.0, own.predicted_bytes) for own in live.memory)
    for own in live.memory:
        held = own.predicted_bytes if own.measured_bytes is None else own.measured_bytes
        colour = "red" if own.limit_bytes is not None and held > own.limit_bytes else "cyan"
        whole = max(1.0, own.limit_bytes or most)
        bar = ProgressBar(1.0, held / whole, width=COLUMNS // 2, complete_style=colour, finished_style=colour)
        amounts = (own.predicted_bytes, own.measured_bytes, own.limit_bytes)
        table.add_row(f"rank {own.rank}", *map(_bytes, amounts), bar)
    return table


def sparkline(values: Sequence[float]) -> str:
    """A curve of one line: the least value is the lowest bar."""
    if not values:
        return ""
    low, high = min(values), max(values)
    if not 0 < high - low < math.inf:
        return _BARS[3] * len(values)
    return "".join(_BARS[round((value - low) / (high - low) * (len(_BARS) - 1))] for value in values)


def _bytes(value: float | None) -> str:
    if value is None:
        return "-"
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.1f} GB"


def _time(seconds: float) -> str:
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 7200 else f"{whole // 3600} h {whole % 3600 // 60} min"
