"""A choice of layouts as a document (``ds-dip/layouts`` 1), with why each one is behind the first; and as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ds_dip.models.partition import model_hash
from ds_dip.parallelism.job import Job
from ds_dip.parallelism.layout import DISAGGREGATED, SEPARATED, Layout, Mesh
from ds_dip.parallelism.optimizer import Found
from ds_dip.parallelism.simulation import Prediction

if TYPE_CHECKING:
    from rich.table import Table

FORMAT = "ds-dip/layouts"
#: What a layout may lose by, in the words of a sentence; the names are those of ``Parts``.
_LOSSES = {
    "work": "its busiest rank works longer",
    "waiting": "its busiest rank waits longer",
    "ending": "reducing gradients and the optimizer's step take longer",
    "longer": "its slowest replica is further behind the others",
}


def layouts_document(job: Job, found: Found, planned: tuple[float, float] | None = None) -> dict[str, Any]:
    """What was searched and found, the best first; ``planned`` is what ``planned_and_simulated`` says of it."""
    best = found.best
    rows = [candidate_document(own, best) for own in found.candidates]
    return {
        "format": FORMAT,
        "version": 1,
        "model": job.model.name,
        "model_sha256": model_hash(job.model),
        "gpus": job.cluster.gpus,
        "gpus_per_node": job.cluster.per_node,
        "global_batch": job.batch,
        "profile_samples": len(job.profile),
        "layouts": found.layouts,
        "simulated": found.simulated,
        "unfit": found.unfit,
        "refusal": found.refusal,
        "schedules": found.schedules,
        "planned": None if planned is None else dict(zip(("planned_s", "simulated_s"), planned, strict=True)),
        "candidates": rows,
        "mean_point": None if found.mean_point is None else candidate_document(found.mean_point, best),
    }


def candidate_document(own: Prediction, best: Prediction) -> dict[str, Any]:
    """One layout: what it is, what is predicted of it, and why it loses to the best; seconds and bytes of a GPU."""
    layout = own.layout
    return {
        "placement": layout.placement,
        "encoder": _mesh(layout.encoder),
        "backbone": _mesh(layout.backbone),
        "microbatches": layout.microbatches,
        "laps": list(layout.laps),
        "strategy": layout.strategy,
        "mean_s": own.mean,
        "makespans_s": list(own.makespans),
        "parts_s": {name: getattr(own.parts, name) for name in _LOSSES},
        "bubble": own.bubble,
        "memory_bytes": own.memory,
        "state_bytes": list(own.state),
        "activation_bytes": list(own.activations),
        "loses": "" if own is best or own.layout == best.layout else why(own, best),
    }


def why(own: Prediction, best: Prediction) -> str:
    """By what a layout is slower than the best: the largest of its losses, in milliseconds."""
    if own.mean < best.mean:
        return "faster on these batches; the paper's objective has it behind"
    losses = {name: getattr(own.parts, name) - getattr(best.parts, name) for name in _LOSSES}
    worst = max(losses, key=losses.__getitem__)
    if losses[worst] <= 0 or own.mean <= best.mean:
        return "as fast; the first is the plainer one"
    what = f"{_LOSSES[worst]} (+{1e3 * losses[worst]:.1f} ms)"
    if worst == "waiting" and own.short:
        what += ", for memory too"
    return what


def cannot_run(layout: Layout) -> str:
    """Why the runtime cannot run a layout yet; nothing where it can."""
    if layout.placement == DISAGGREGATED:
        return (
            "encoders and language model on ranks of their own are planned and simulated here, and the runtime does "
            f"not run them yet: choose with --placement {SEPARATED}"
        )
    if layout.backbone.tensor > 1:
        return (
            f"a tensor-parallel degree of {layout.backbone.tensor} is planned and simulated here, and the runtime does "
            "not run it yet: choose with --most-tensor 1"
        )
    return ""


def layouts_table(document: Mapping[str, Any]) -> Table:
    """The best layouts, and the paper's choice, for people."""
    from rich.table import Table

    best, gpus = document["candidates"][0]["mean_s"], document["gpus"]
    table = Table(
        title=f"{document['model']} on {gpus} GPU{'s' * (gpus > 1)}, {document['gpus_per_node']} a node, global batch "
        f"{document['global_batch']}",
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    for name in ("", "placement", "TP x PP x DP", "m", "K", "recomputes"):
        table.add_column(name, no_wrap=True)
    for name in ("ms", "behind", "GB", "bubble"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("why it loses")
    rows = [(str(number), row) for number, row in enumerate(document["candidates"], start=1)]
    if document["mean_point"] is not None:
        rows.append(("mean point", document["mean_point"]))
    for label, row in rows:
        meshes = [_short(row["encoder"]), _short(row["backbone"])]
        table.add_row(
            label,
            row["placement"],
            " + ".join(meshes) if row["placement"] == DISAGGREGATED else meshes[1],
            str(row["microbatches"]),
            "/".join(map(str, row["laps"])),
            row["strategy"],
            f"{1e3 * row['mean_s']:.1f}",
            f"{100 * (row['mean_s'] / best - 1):+.1f} %",
            f"{row['memory_bytes'] / 1e9:.3g}",
            f"{100 * row['bubble']:.1f} %",
            row["loses"],
        )
    return table


def _mesh(mesh: Mesh) -> dict[str, int]:
    return {"tensor_parallel": mesh.tensor, "pipeline_parallel": mesh.pipeline, "data_parallel": mesh.data}


def _short(mesh: Mapping[str, int]) -> str:
    return "x".join(str(size) for size in mesh.values())
