"""What a training run shows while it goes and leaves when it has gone: progress, timelines, summary."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from typing_extensions import Self

from ds_dip.costs.roofline import Rates, Roofline
from ds_dip.planning import build_problem
from ds_dip.programs import strategies_of
from ds_dip.reporting.live import LiveWriter, RankMemory
from ds_dip.reporting.picture import panels, pixels
from ds_dip.reporting.summary import StepRecord, Summary, summarise, table, write_summary
from ds_dip.reporting.timeline import step_timeline, write_timeline

if TYPE_CHECKING:
    from ds_dip.planner import StepPlan
    from ds_dip.runtime import DIPEngine
    from ds_dip.runtime.measure import Measured

#: Rates on the screen are means over this many batches.
_WINDOW = 20
#: Where there is no terminal, a run writes about this many lines.
_LINES = 20


class RunReport:
    """The report of one run; every rank makes it, the first one shows and writes.

    ``run`` is the run's folder, where a recording goes too, and ``steps`` how many batches it trains on. Call
    ``batch`` after every ``train_batch()`` and ``end`` once; as a context manager it leaves the terminal in order, and
    ``live.json``, which ``ds-dip watch`` shows, says how the run ended.
    """

    def __init__(self, engine: DIPEngine, run: str | Path, steps: int, console: Console | None = None) -> None:
        self._engine, self._run, self._steps = engine, Path(run), steps
        self._shows = engine.global_rank == 0
        if engine.recorder is not None:
            engine.recorder.into(self._run)
        self._console = console or Console(markup=False)
        self._records: list[StepRecord] = []
        self._drawn = 0
        self._recent: deque[StepRecord] = deque(maxlen=_WINDOW)
        self._began = self._last = time.monotonic()
        self._progress = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=self._console,
            refresh_per_second=2,
            disable=not (self._shows and self._console.is_terminal),
        )
        self._task = self._progress.add_task("", total=steps)
        self._live = LiveWriter(self._run, steps, self._warn) if self._shows else None
        self._ended = False

    def __enter__(self) -> Self:
        self._progress.start()
        self._began = self._last = time.monotonic()
        if self._live is not None:
            self._live.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._progress.stop()
        if self._live is not None and not self._ended:
            statistics = self._engine.plans.statistics()
            if error is None:
                self._live.write(statistics, "stopped" if len(self._records) < self._steps else "ended")
            else:
                self._live.write(statistics, "failed", f"{type(error).__name__}: {error}")

    def batch(self, loss: float) -> None:
        """Take in the batch that the engine has just trained on."""
        if not self._shows:
            return
        plan, measured = self._engine.plan, self._engine.measured
        if plan is None or measured is None:
            raise ValueError("the engine has trained on no batch yet; call batch() after train_batch()")
        now = time.monotonic()
        record = StepRecord(
            step=plan.step,
            loss=loss,
            samples=self._engine.train_batch_size(),
            seconds=now - self._last,
            predicted_s=plan.iteration,
            measured_s=measured.iteration,
            bubble=measured.bubble,
            stall_s=measured.waited,
        )
        self._last = now
        self._records.append(record)
        self._recent.append(record)
        self._show()
        if self._live is not None and self._live.step(record, plan, self._memory(plan, measured)):
            self._live.write(self._engine.plans.statistics())
        trace = self._engine.dip.trace
        done = len(self._records)
        self._tensorboard(plan, measured, trace.picture, done)
        if trace.every and (done % trace.every == 0 or done == self._steps):
            self._write_timeline(trace.directory or self._run, trace.keep)
            self._drawn = done

    def end(self, accuracy: float | None = None) -> Summary | None:
        """Write ``summary.json`` into the run's folder and show it; None on every rank but the first."""
        self._progress.stop()
        if not self._shows:
            return None
        trace = self._engine.dip.trace
        if trace.every and self._records and self._drawn < len(self._records):
            # The run was stopped: this was its last step.
            self._write_timeline(trace.directory or self._run, trace.keep)
        statistics = self._engine.plans.statistics()
        if self._live is not None:
            self._live.write(statistics, "stopped" if len(self._records) < self._steps else "ended")
            self._ended = True
        summary = summarise(self._records, statistics, accuracy=accuracy, seconds=time.monotonic() - self._began)
        summary = replace(summary, left_out=len(self._engine.omissions.faults))
        path = self._run / "summary.json"
        write_summary(path, summary)
        self._console.print(table(summary, self._run.name))
        if summary.left_out:
            self._console.print(f"{summary.left_out} samples were left out, since they cannot be decoded: see the log")
        self._console.print(f"summary: {path}", soft_wrap=True, highlight=False)
        return summary

    def _show(self) -> None:
        recent = self._recent
        seconds = sum(record.seconds for record in recent)
        rate = sum(record.samples for record in recent) / seconds if seconds > 0 else 0.0
        loss = sum(record.loss for record in recent) / len(recent)
        bubble = sum(record.bubble for record in recent) / len(recent)
        text = f"loss {loss:.4f}  {rate:.1f} samples/s  bubble {bubble:.1%}"
        done = len(self._records)
        self._progress.update(self._task, advance=1, description=text)
        if not self._console.is_terminal and (done == 1 or done % max(1, self._steps // _LINES) == 0):
            self._console.print(f"{done}/{self._steps}  {text}", soft_wrap=True)

    def _warn(self, sentence: str) -> None:
        self._console.print(f"warning: {sentence}", soft_wrap=True, highlight=False)

    def _memory(self, plan: StepPlan, measured: Measured) -> list[RankMemory]:
        limits = self._engine.dip.capacity(len(plan.programs))
        counted = measured.peak_memory or (None,) * len(limits)
        rows = zip(plan.peak_memory, counted, limits, strict=True)
        return [RankMemory(rank, float(predicted), own, limit) for rank, (predicted, own, limit) in enumerate(rows)]

    def _tensorboard(self, plan: StepPlan, measured: Measured, every: int, done: int) -> None:
        """What DeepSpeed's monitor has no call for: a fallback's reason, and pictures of timelines."""
        writer: Any = getattr(self._engine.monitor.tb_monitor, "summary_writer", None)
        if writer is None:
            return
        samples = self._engine.global_samples
        if plan.kind == "fallback":
            writer.add_text("DIP/fallback", f"step {plan.step}: {plan.reason}", samples)
        if every and (done % every == 0 or done == self._steps):
            picture = pixels(panels(step_timeline(plan, measured)))
            writer.add_image("DIP/timeline", picture, samples, dataformats="HWC")

    def _write_timeline(self, folder: str | Path, keep: int) -> None:
        engine = self._engine
        assert engine.plan is not None
        compute = str(engine.dtype_of("compute")).removeprefix("torch.")
        model, partition = engine.module.model, engine.module.partition
        # A transfer that was planned arrives when the planner, which this rank leads, expects it.
        costs = getattr(engine.plans, "costs", None) or Roofline(model, Rates(compute=compute))
        chosen = strategies_of(engine.plan.programs)
        problem = build_problem(engine.plan.batch, model, partition, costs, compute=compute, chosen=chosen)
        timeline = step_timeline(
            engine.plan, engine.measured, problem, model=model, partition=partition, compute=compute
        )
        write_timeline(folder, timeline, keep)
