"""What the engine adds to layers: stages, loads, posts and the end of a batch, measured through real training steps.

The rows and the slowdown are medians and robust fits over batches of a dataset; their planner runs beside them, as in
training.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np
from deepspeed import comm as dist

import ds_dip
from ds_dip.costs.composed import ITERATION, TableCosts, later_chunks
from ds_dip.costs.corrections import WINDOW, Corrections, Fit, Measurement
from ds_dip.costs.names import BATCH_END, FIRST, LOAD, POST, STAGE
from ds_dip.costs.table import LatencyTable, Row, Seconds
from ds_dip.models.build import factories_and_loss
from ds_dip.models.partition import Partition
from ds_dip.models.spec import Model
from ds_dip.planner import StepPlan
from ds_dip.planner.codec import Codec
from ds_dip.profiling.predict import makespan, spread_of
from ds_dip.profiling.rounds import Rounds, plans_of
from ds_dip.programs.program import (
    Backward,
    BackwardWeight,
    Forward,
    Instruction,
    Load,
    Message,
    PostReceive,
    PostSend,
    Stage,
    WaitReceive,
)
from ds_dip.ranks import tell
from ds_dip.runtime.exchange import gather

#: Batches that are run before anything is kept; that stages are measured in, and whole iterations.
WARM_UP, BATCHES, ITERATIONS = 4, 32, 48
#: The first step whose batch is one of ``ITERATIONS``.
FIRST_STEP = 500

#: Of what layers take alone, the least that is believed of them in the engine; below 1 since that is measured, too.
LEAST_SLOWDOWN = 0.8


@dataclass(frozen=True, slots=True)
class Around:
    """Seconds of one instruction that is no stage; ``what`` is its kind, for the stage that it serves."""

    what: str
    stage: Stage
    instances: int
    seconds: float


_AROUND: Codec[tuple[Around, ...]] = Codec(tuple[Around, ...], "a rank's instructions")


@dataclass
class Watch:
    """Times the instructions of a rank's programs that are no stages."""

    engine: Any
    found: list[Around] = field(default_factory=list)

    def __post_init__(self) -> None:
        executor = self.engine._executor
        self._run = executor.execute
        executor.execute = self._execute

    def close(self) -> list[Around]:
        """Stop; what was found."""
        self.engine._executor.execute = self._run
        return self.found

    def _execute(self, instruction: Instruction) -> None:
        if isinstance(instruction, Forward | Backward | BackwardWeight):
            self._run(instruction)
            return
        began = time.perf_counter()
        self._run(instruction)
        seconds = time.perf_counter() - began
        plan: StepPlan = self.engine.plan
        if isinstance(instruction, Load):
            stage = instruction.stage
        else:
            message = self._message(plan, instruction.message)
            stage = message.source if isinstance(instruction, PostSend) else message.target
        sizes = plan.batch.microbatches[stage.microbatch].sub_sizes(stage.module, stage.sub)
        self.found.append(Around(type(instruction).__name__, stage, len(sizes), seconds))

    def _message(self, plan: StepPlan, number: int) -> Message:
        stage: int = self.engine.stage_id
        return next(m for m in plan.programs[stage].messages if m.id == number)


def make_engine(model: Model, s: Mapping[str, Any]) -> tuple[Any, ds_dip.DatasetReference]:
    """The engine of a configuration on this job's ranks, and its dataset."""
    config = ds_dip.load_config(s["config"])
    # The costs are those of whole backwards.
    config["dip"] = config.get("dip", {}) | {"split_backward": None}
    partition = ds_dip.partition_for(model, config, dist.get_world_size())
    module = ds_dip.DIPModule(model, partition, *factories_and_loss(s["model"], model))
    reference = ds_dip.DatasetReference(s["dataset"], s["options"])
    engine, *_ = ds_dip.initialize(model=module, training_data=reference, config=config)
    return engine, reference


def engine_rows(table: LatencyTable, model: Model, s: Mapping[str, Any]) -> LatencyTable:
    """The table with the engine's rows and slowdown; every rank calls it, rank 0's answer is the measurement."""
    engine, reference = make_engine(model, s)
    partition = engine.module.partition
    watch = Watch(engine)
    _train(engine, WARM_UP, 0)
    watch.found.clear()
    runs = _train(engine, BATCHES, WARM_UP)
    everything = gather(_AROUND, tuple(watch.close()))
    table = with_stages(table, model, partition, runs, [around for rank in everything for around in rank])
    # Of a plan that was chosen for being fast by these costs, the costs promise a little too much: so these are such.
    costs = TableCosts(model, table, partition=partition)
    engine.plans = Rounds(engine.plans, plans_of(engine, reference, costs, FIRST_STEP, ITERATIONS))
    table = with_iterations(table, model, partition, _train(engine, ITERATIONS, WARM_UP + BATCHES))
    engine.close()
    return table


def _train(engine: Any, batches: int, before: int) -> list[tuple[StepPlan, Any]]:
    """Plans and measured timelines of the next batches; ``before`` have run."""
    runs = []
    for number in range(batches):
        engine.train_batch()
        runs.append((engine.plan, engine.measured))
        if dist.get_rank() == 0:
            tell({"what": "engine", "share": (before + number + 1) / (WARM_UP + BATCHES + ITERATIONS)})
    return runs


def with_stages(
    table: LatencyTable,
    model: Model,
    partition: Partition,
    runs: Sequence[tuple[StepPlan, Any]],
    around: Sequence[Around],
) -> LatencyTable:
    """The table with what these batches say of stages in the engine; earlier rows of the engine are replaced."""
    old = (STAGE, FIRST, LOAD, POST, BATCH_END)
    table = replace(table, rows=tuple(row for row in table.rows if not row.name.startswith(old)), slowdown={})
    stages = _stages(TableCosts(model, table), partition, runs)
    rows, slowdown = list(table.rows), dict[str, float]()
    for module in model.modules:
        name = module.name
        own = [stage for stage in stages if stage.measurement.module == name]
        # Where a rank holds several chunks, the later ones tell what a stage takes by itself.
        plain = [s for s in own if s.later] or own
        fits, notes = _fits([s.measurement for s in plain])
        added = {kind: Seconds(fits[kind].offset if kind in fits else 0.0) for kind in "FB"}
        rows.append(Row(STAGE + name, {}, forward=added["F"], backward_input=added["B"], note="; ".join(notes)))
        slowdown |= {f"{name}/{kind}": fit.factor for kind, fit in fits.items()}
        if any(s.later for s in own):
            rows.append(_first(name, own, fits["F"]))
        rows += _loads(name, around)
        rows.append(_posts(name, around, sum(s.measurement.kind == "F" for s in own)))
    return replace(table, rows=tuple(rows), slowdown=slowdown)


def with_iterations(
    table: LatencyTable, model: Model, partition: Partition, runs: Sequence[tuple[StepPlan, Any]]
) -> LatencyTable:
    """The table with what surrounds stages: a batch's span over its makespan, and the rest of the iteration."""
    costs = TableCosts(model, table, partition=partition)
    stretch = median(
        measured.executed / makespan(plan, model, partition, costs, table.dtype) for plan, measured in runs
    )
    ends = [measured.iteration - measured.executed for _, measured in runs]
    end = Row(BATCH_END, {}, forward=_seconds(ends), repeats=len(ends))
    return replace(table, rows=(*table.rows, end), slowdown={**table.slowdown, ITERATION: stretch})


@dataclass(frozen=True, slots=True)
class _Ran:
    """A stage that ran, beside its layers by themselves; ``later`` if its rank holds an earlier chunk of the module."""

    measurement: Measurement
    later: bool


def _stages(costs: TableCosts, partition: Partition, runs: Sequence[tuple[StepPlan, Any]]) -> list[_Ran]:
    chunks, later = {(chunk.module, chunk.index): chunk for chunk in partition.chunks}, later_chunks(partition)
    found = []
    for plan, measured in runs:
        for interval in (interval for rank in measured.stages for interval in rank):
            stage = interval.stage
            chunk = chunks[stage.module, stage.chunk]
            sizes = plan.batch.microbatches[stage.microbatch].sub_sizes(stage.module, stage.sub)
            known = costs.layers(stage.kind, stage.module, chunk.start, chunk.stop, sizes)
            measurement = Measurement(stage.module, stage.kind, known, interval.end - interval.start)
            found.append(_Ran(measurement, (chunk.module, chunk.start) in later))
    return found


def _fits(measurements: Sequence[Measurement]) -> tuple[dict[str, Fit], list[str]]:
    """The fit of each kind, and why one was not believed.

    Few or noisy stages give lines that are too flat, by which a stage costs the same whatever its layers: stages far
    below what the layers took alone are those of no engine.
    """
    fits, notes = {}, []
    for fit in Corrections().updated(_even(measurements)).fits:
        fits[fit.kind] = fit
        if fit.factor < LEAST_SLOWDOWN:
            more = [m.measured - m.predicted for m in measurements if m.kind == fit.kind]
            fits[fit.kind] = replace(fit, factor=1.0, offset=max(0.0, median(more)))
            notes.append(
                f"{len(more)} {'forwards' if fit.kind == 'F' else 'backwards'} gave a slowdown of {fit.factor:.2f}, "
                "which is not believed: 1 is taken; measure the engine again, on more varied batches"
            )
    return fits, notes


def _even(measurements: Iterable[Measurement]) -> list[Measurement]:
    """An even choice of at most a window of each kind: all batches count, early and late in them."""
    kinds: dict[str, list[Measurement]] = {}
    for measurement in measurements:
        kinds.setdefault(measurement.kind, []).append(measurement)
    return [m for own in kinds.values() for m in own[:: -(-len(own) // WINDOW)]]


def _first(module: str, stages: Sequence[_Ran], fit: Fit) -> Row:
    """What a forward takes longer in the first chunk of a rank."""
    more = [
        s.measurement.measured - (fit.factor * s.measurement.predicted + fit.offset)
        for s in stages
        if s.measurement.kind == "F" and not s.later
    ]
    seconds = _seconds(more)
    return Row(FIRST + module, {}, forward=Seconds(max(0.0, seconds.median), seconds.spread), repeats=len(more))


def _seconds(values: Sequence[float]) -> Seconds:
    lower, middle, upper = np.quantile(values, [0.25, 0.5, 0.75])
    return Seconds(float(middle), float(upper - lower))


def _loads(module: str, around: Sequence[Around]) -> list[Row]:
    """Loads by instances: a line through the measured ones, at its two ends."""
    loads = [a for a in around if a.what == Load.__name__ and a.stage.module == module]
    if not loads:
        return []
    limit = np.quantile([a.seconds for a in loads], 0.95)
    kept = [(a.instances, a.seconds) for a in loads if a.seconds <= limit]
    counts, seconds = (np.array(column, dtype=float) for column in zip(*kept, strict=True))
    low, high = int(counts.min()), int(counts.max())
    slope, base = np.polyfit(counts, seconds, 1) if low < high else (0.0, float(seconds.mean()))
    spread = _seconds(list(seconds - (base + slope * counts))).spread
    return [
        Row(
            LOAD + module,
            {"instances": count},
            forward=Seconds(max(0.0, float(base + slope * count)), spread),
            repeats=len(kept),
        )
        for count in dict.fromkeys((low, high))
    ]


def _posts(module: str, around: Sequence[Around], stages: int) -> Row:
    """Seconds a stage for posting its messages and for waits that have nothing to wait for."""
    parts = {}
    for kind in "FB":
        total = 0.0
        for what in (PostSend.__name__, PostReceive.__name__, WaitReceive.__name__):
            own = [a.seconds for a in around if a.what == what and (a.stage.module, a.stage.kind) == (module, kind)]
            if own:
                # A wait may last as long as the peer takes: its lowest quarter is what it costs by itself.
                each = float(np.quantile(own, 0.25)) if what == WaitReceive.__name__ else spread_of(own)
                total += each * len(own)
        parts[kind] = total / max(1, stages)
    return Row(POST + module, {}, forward=Seconds(parts["F"]), backward_input=Seconds(parts["B"]), repeats=stages)
