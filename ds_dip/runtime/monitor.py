"""A batch's figures for DeepSpeed's monitor (TensorBoard, CSV, …)."""

from __future__ import annotations

from ds_dip.planner import SourceStatistics, StepPlan
from ds_dip.runtime.measure import Measured


def scalars(
    plan: StepPlan, measured: Measured, statistics: SourceStatistics, samples: int
) -> list[tuple[str, float, int]]:
    """(name, value, ``samples`` trained on) of each figure; names end in their unit."""
    values = {
        "plan_ms": 1e3 * statistics.plan_seconds,
        "predicted_s": plan.iteration,
        "measured_s": measured.iteration,
        "error_pct": 100.0 * (plan.iteration / measured.iteration - 1.0),
        "bubble_pct": 100.0 * measured.bubble,
        "bound_gap_pct": 100.0 * (plan.makespan / plan.lower_bound - 1.0) if plan.lower_bound else 0.0,
        "fallbacks": float(sum(statistics.fallbacks.values())),
        "stall_ms": 1e3 * measured.waited,
        "peak_memory_gb": max(plan.peak_memory) / 1e9,
    }
    return [(f"DIP/{name}", value, samples) for name, value in values.items()]
