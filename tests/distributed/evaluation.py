"""A rank of the evaluation test: the same samples evaluated under several plans, and against one process."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed import comm as dist
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import ds_dip
from ds_dip.data import DatasetReference, SampleMetadata, collate
from ds_dip.data.digits import Digits
from ds_dip.models.config import load_model
from ds_dip.models.context import Context
from ds_dip.models.spec import fields_of
from ds_dip.planner import PlanSourceError
from ds_dip.planning.cut import sizes_of
from tests.distributed.datasets import Silent
from tests.distributed.ranks import report
from tests.distributed.test_main_job import MODEL

#: Pipeline ranks (the rest are replicas), accumulation steps, laps, schedule.
PLANS = {
    "one replica": (2, 4, {"language": 2}, "dip"),
    "few microbatches": (2, 1, {}, "1f1b"),
    "two replicas": (1, 2, {"vision": 2}, "dip"),
}


def batches(dataset: Digits) -> dict[str, list[SampleMetadata]]:
    everything = [dataset.metadata(index) for index in range(48)]
    text = [sample for sample in everything if not sample.modules["vision"]]
    return {
        "partial": everything[:13],
        "one sample": everything[:1],
        "no images": text[:5],
        "one with images": [*text[:3], next(sample for sample in everything if sample.modules["vision"])],
        "partly supervised": everything[1:4],
    }


def alone(model: Any, dataset: Any, samples: Sequence[SampleMetadata]) -> tuple[float, dict[str, torch.Tensor]]:
    """One process, the whole batch at once: the mean loss, and each sample's rows of logits."""
    layers, sizes = ds_dip.layer_factories(model, 0), sizes_of(samples, model)
    x: Any = {}
    context = None
    for module in model.modules:
        chain = [factory() for factory in layers[module.name]]
        count = len(sizes[module.name])
        if not count:
            width = model.modules[-1].layers[0].options["hidden"]
            x[module.name] = torch.zeros(0, width)
            continue
        names = fields_of(module.layers)
        arrays = collate(dataset, samples, module.name, names, 0, count)
        fields = {name: torch.from_numpy(array) for name, array in arrays.items()}
        fields = {name: t.float() if t.is_floating_point() else t for name, t in fields.items()}
        instances = tuple(f"{s.id}/{n}" for s in samples for n in range(len(s.modules[module.name])))
        context = Context(sizes[module.name], fields, instances)
        value: Any = {source: x[source] for source in model.upstream(module.name)}
        for index, layer in enumerate(chain):
            value = layer(value, replace(context, layer=f"{module.name}.{index}"))
        x[module.name] = value
    assert context is not None
    logits = x[model.loss_module]
    loss = ds_dip.token_cross_entropy(logits, context) / sum(sample.loss_tokens for sample in samples)
    rows = logits.split([sum(sample.modules[model.loss_module]) for sample in samples])
    return float(loss), {sample.id: part for sample, part in zip(samples, rows, strict=True)}


def engine_of(model: Any, plan: str, **changes: Any) -> Any:
    ranks, steps, laps, schedule = PLANS[plan]
    config = {
        "train_batch_size": 8,
        "gradient_accumulation_steps": steps,
        "steps_per_print": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.0, "torch_adam": True}},
        "dip": {"laps": laps, "schedule": schedule, "planner": {"enabled": False}, "timeouts": {"rank_s": 60.0}},
        **changes,
    }
    module = ds_dip.DIPModule(
        model,
        ds_dip.partition_for(model, config, ranks),
        ds_dip.layer_factories(model, 0),
        ds_dip.token_cross_entropy,
    )
    data = DatasetReference("tests.distributed.datasets:Silent", {"samples": 64, "merge": 4})
    return ds_dip.initialize(model=module, training_data=data, config=config)[0]


def evaluate(model: Any, plan: str) -> None:
    engine, dataset = engine_of(model, plan), Silent(samples=64, merge=4)
    for name, samples in batches(dataset).items():
        with torch.no_grad():
            expected, rows = alone(model, dataset, samples)
        loss, logits = engine.eval_batch(samples, return_logits=True)
        apart = max((float((logits[key] - rows[key]).abs().max()) for key in logits), default=0.0)
        again = float(engine.eval_batch(samples))
        report(
            plan=plan, batch=name, loss=float(loss), again=again, expected=expected, apart=apart,
            given=sorted(logits), samples=sorted(rows), first=engine.is_last_stage(),
        )  # fmt: skip
    nothing = [dataset.metadata(index) for index in (2, 5, 8)]
    refused = []
    for samples in (nothing, []):
        try:
            engine.eval_batch(samples)
        except PlanSourceError as error:
            refused.append(str(error))
    # The run goes on after a refusal.
    report(plan=plan, batch="refused", refused=refused, loss=float(engine.train_batch()), steps=engine.global_steps)
    engine.close()


def watched(model: Any, folder: Path) -> None:
    """TensorBoard, another batch size in the middle, prints of every second step, flops."""
    engine = engine_of(
        model,
        "one replica",
        tensorboard={"enabled": True, "output_path": str(folder), "job_name": "watched"},
        dip={"planner": {"enabled": True}, "timeouts": {"rank_s": 60.0}},
    )
    sizes = []
    for size in (8, 8, 4, 4, 10):
        if size != engine.train_batch_size():
            engine.set_train_batch_size(size)
        engine.train_batch()
        sizes.append(sum(len(microbatch.samples) for microbatch in engine.plan.batch.microbatches))
    figures: dict[str, list[tuple[int, float]]] = {}
    if dist.get_rank() == 0:
        for writer in engine.monitor.tb_monitor.summary_writer.all_writers.values():
            writer.flush()
        events = EventAccumulator(str(folder / "watched"))
        events.Reload()
        figures = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    report(plan="watched", sizes=sizes, samples=engine.global_samples, figures=figures)
    ds_dip.shutdown(engine)


def main() -> None:
    folder = Path(sys.argv[1])
    path = folder / f"model-{os.environ['RANK']}.json"
    document = json.loads(json.dumps(MODEL))
    for module in document["modules"]:
        module["layers"] = 4
    path.write_text(json.dumps(document))
    model = load_model(path)
    deepspeed.init_distributed("gloo")
    for plan in PLANS:
        evaluate(model, plan)
    watched(model, folder)


if __name__ == "__main__":
    main()
