"""A rank of ``ds-dip profile --check``: runs layers, and batches of plans that are known before, in the real engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import deepspeed
import torch
from deepspeed import comm as dist
from deepspeed.accelerator import get_accelerator

import ds_dip
from ds_dip.costs.composed import TableCosts
from ds_dip.costs.layers import Wanted, wanted_layers
from ds_dip.costs.operators import is_composed
from ds_dip.costs.table import read_table
from ds_dip.files import write_json
from ds_dip.models.config import load_model
from ds_dip.models.partition import Partition
from ds_dip.models.spec import Model, Sizes
from ds_dip.planner import StepPlan
from ds_dip.profiling.cases import Place, layer_case
from ds_dip.profiling.engine import make_engine
from ds_dip.profiling.fidelity import Compared, report
from ds_dip.profiling.measure import measure
from ds_dip.profiling.predict import makespan
from ds_dip.profiling.rounds import Rounds, plans_of
from ds_dip.profiling.timing import Patience
from ds_dip.programs.program import Stage
from ds_dip.ranks import settings, tell

#: Batches that run before any counts, and the first step whose batch is taken: not one that the table was made from.
WARM_UP, FIRST = 4, 1000
#: Shapes that every kind of layer is measured for.
_SHAPES = 8


def compare_layers(costs: TableCosts, plans: Sequence[StepPlan], place: Place, patience: Patience) -> list[Compared]:
    """Every kind of layer for instances of real (sub-)microbatches, by itself; forward and backward."""
    found, seen = [], set[Wanted]()
    model = costs.model
    for (module, _), wanted in wanted_layers(model).items():
        if wanted in seen or not is_composed(wanted.layer):
            continue
        seen.add(wanted)
        for sizes in _shapes(plans, module):
            case = lambda wanted=wanted, sizes=sizes: layer_case(wanted, sizes, place)  # noqa: E731  # bound
            row = measure(wanted.layer.kind, {}, case, patience)
            columns = costs.layer(wanted.layer, sizes, loss=wanted.loss).columns
            name = f"{wanted.layer.kind} of {sum(sizes.tokens)} tokens in {len(sizes)} instances"
            found.append(Compared("layer", f"F {name}", columns[0], (row.forward.median,)))
            backward = row.backward_input.median + row.backward_weight.median
            found.append(Compared("layer", f"B {name}", columns[1] + columns[2], (backward,)))
    return found


def _shapes(plans: Sequence[StepPlan], module: str) -> list[Sizes]:
    found = dict[Sizes, None]()
    for plan in plans:
        for microbatch in plan.batch.microbatches:
            for sub in range(len(microbatch.subs[module])):
                found.setdefault(microbatch.sub_sizes(module, sub))
    everything = sorted(found, key=lambda sizes: sum(sizes.tokens))
    return everything[:: max(1, -(-len(everything) // _SHAPES))]


def compare_runs(
    costs: TableCosts, partition: Partition, runs: Sequence[tuple[StepPlan, Sequence[Any]]], compute: str
) -> list[Compared]:
    """Stages and iterations of plans that ran several times each."""
    chunks = {(chunk.module, chunk.index): chunk for chunk in partition.chunks}
    found = []
    for plan, rounds in runs:
        times: dict[Stage, list[float]] = {}
        for measured in rounds:
            for interval in (interval for rank in measured.stages for interval in rank):
                times.setdefault(interval.stage, []).append(interval.end - interval.start)
        for stage, seconds in times.items():
            chunk = chunks[stage.module, stage.chunk]
            sizes = plan.batch.microbatches[stage.microbatch].sub_sizes(stage.module, stage.sub)
            predicted = costs.stage(stage.kind, stage.module, chunk.start, chunk.stop, sizes)
            name = f"{stage.kind} {stage.module}.{stage.chunk} of batch {plan.step}, {stage.microbatch}.{stage.sub}"
            found.append(Compared("stage", name, predicted, tuple(seconds)))
        predicted = costs.iteration(makespan(plan, costs.model, partition, costs, compute))
        iterations = tuple(measured.iteration for measured in rounds)
        found.append(Compared("iteration", f"batch {plan.step}", predicted, iterations))
    return found


def check(s: Mapping[str, Any], model: Model) -> None:
    """Run everything; rank 0 writes the report."""
    table = read_table(s["table"])
    engine, reference = make_engine(model, s)
    costs, rank = TableCosts(model, table, partition=engine.module.partition), dist.get_rank()
    plans = plans_of(engine, reference, costs, FIRST, s["batches"])
    place = Place(torch.device(get_accelerator().current_device_name()), getattr(torch, table.dtype))
    rows = compare_layers(costs, plans, place, Patience(s["least"], s["most"]))
    engine.plans = Rounds(engine.plans, plans)
    rounds: dict[int, list[Any]] = {plan.step: [] for plan in plans}
    total = WARM_UP + s["rounds"] * len(plans)
    for number in range(total):
        engine.train_batch()
        if number >= WARM_UP:
            rounds[engine.plan.step].append(engine.measured)
        if rank == 0:
            tell({"done": number + 1, "total": total, "what": "batches"})
    runs = [(plan, rounds[plan.step]) for plan in plans]
    rows += compare_runs(costs, engine.module.partition, runs, table.dtype)
    if rank == 0:
        write_json(s["result"], report(rows))
    ds_dip.shutdown(engine)


def main() -> None:
    """Run as one rank."""
    s = settings()
    deepspeed.init_distributed(dist_backend=get_accelerator().communication_backend_name())
    torch.set_num_threads(s["threads"])
    check(s, load_model(s["model"]))


if __name__ == "__main__":
    main()
