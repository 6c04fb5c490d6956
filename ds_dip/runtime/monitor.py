"""A batch's figures for DeepSpeed's monitor (TensorBoard, CSV, …)."""

from __future__ import annotations

from ds_dip.costs.flops import model_flops
from ds_dip.models.spec import Model
from ds_dip.planner import SourceStatistics, StepPlan
from ds_dip.planning.cut import sizes_of
from ds_dip.runtime.measure import Measured


def scalars(
    plan: StepPlan, measured: Measured, statistics: SourceStatistics, samples: int, model: Model, batch_size: int
) -> list[tuple[str, float, int]]:
    """(name, value, ``samples`` trained on) of each figure; names end in their unit.

    ``DIP/samples_per_s`` counts the global batch of ``batch_size``. ``DIP/tflops`` is what a rank of this pipeline gets
    done: model FLOPs (see ``model_flops``) a second, over the whole iteration, in 10^12. It is left out where a
    layer does not tell its operations. ``DIP/peak_memory_gb`` is predicted, ``DIP/measured_memory_gb`` what the
    accelerator counted of the same, where it counts: the worst rank's; ``DIP/memory_gb/rank_N`` is each rank's, counted
    where it is, else predicted.
    """
    values = {
        "plan_ms": 1e3 * statistics.plan_seconds,
        "predicted_s": plan.iteration,
        "measured_s": measured.iteration,
        "error_pct": 100.0 * (plan.iteration / measured.iteration - 1.0),
        "samples_per_s": batch_size / measured.iteration,
        "bubble_pct": 100.0 * measured.bubble,
        "bound_gap_pct": 100.0 * (plan.makespan / plan.lower_bound - 1.0) if plan.lower_bound else 0.0,
        "fallbacks": float(sum(statistics.fallbacks.values())),
        "late": float(statistics.fallbacks.get("late", 0)),
        "hits": float(statistics.hits),
        "reused": float(statistics.reused),
        "lead": statistics.lead,
        "stall_ms": 1e3 * measured.waited,
        "stall_pct": 100.0 * measured.waited / measured.iteration,
        "peak_memory_gb": max(plan.peak_memory) / 1e9,
    }
    if measured.peak_memory:
        values["measured_memory_gb"] = max(measured.peak_memory) / 1e9
    own = enumerate(measured.peak_memory or plan.peak_memory)
    values |= {f"memory_gb/rank_{rank}": held / 1e9 for rank, held in own}
    sizes = sizes_of([sample for microbatch in plan.batch.microbatches for sample in microbatch.samples], model)
    if (flops := model_flops(model, sizes)) is not None:
        values["tflops"] = flops / measured.iteration / len(plan.programs) / 1e12
    return [(f"DIP/{name}", value, samples) for name, value in values.items()]
