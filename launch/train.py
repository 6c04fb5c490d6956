"""Trains a small vision-language model on handwritten digits, every batch with a schedule of its own.

deepspeed --num_gpus 2 launch/train.py --deepspeed --deepspeed_config launch/quickstart_ds_config.json
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed import comm as dist

import ds_dip
from ds_dip.data.digits import digit_hits
from ds_dip.reporting.run import RunReport

HERE = Path(__file__).resolve().parent


def arguments() -> argparse.Namespace:
    """The command line; DeepSpeed's own arguments included."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(HERE.parent / "model_configs" / "quickstart.json"))
    parser.add_argument("--steps", type=int, default=900, help="batches to train on")
    parser.add_argument("--evaluate", type=int, default=400, help="held-out samples to evaluate on at the end")
    parser.add_argument("--pipeline-ranks", type=int, help="ranks of a pipeline (default: all; the rest is replicas)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights")
    parser.add_argument("--run-folder", default="runs/quickstart", help="folder for summary, TensorBoard and timelines")
    parser.add_argument("--local_rank", type=int, default=-1, help="given by the launcher")
    return deepspeed.add_config_arguments(parser).parse_args()


def digits(model: Any, samples: int, **options: Any) -> ds_dip.DatasetReference:
    """The digits dataset, its images cut and merged as the model's encoder does it."""
    encoder = model.module("vision").layers
    options |= {"patch": encoder[0].options["patch"], "merge": encoder[-1].options["merge"]}
    return ds_dip.DatasetReference("ds_dip.data.digits:Digits", {"samples": samples, **options})


def accuracy(engine: Any, samples: int) -> float:
    """The share of held-out digits named exactly, over samples with images; the same on every rank."""
    held_out = digits(engine.module.model, samples, split="held_out", text_only=False).open()
    counts = torch.zeros(2, dtype=torch.int64, device=engine.device)
    metadata = [held_out.metadata(index) for index in range(samples)]
    size = engine.train_batch_size()
    for first in range(0, samples, size):
        _, logits = engine.eval_batch(metadata[first : first + size], return_logits=True, dataset=held_out)
        for sample, rows in logits.items():
            labels = held_out.load(sample, ["labels"])["labels"][0]
            counts += torch.tensor(digit_hits(rows.argmax(-1).cpu().numpy(), labels), device=engine.device)
    dist.all_reduce(counts)
    hits, asked = counts.tolist()
    return hits / asked


def main() -> None:
    """Set up, train, evaluate, report."""
    args = arguments()
    try:
        config = ds_dip.load_config(args.deepspeed_config)
        model = ds_dip.load_model(args.model)
        deepspeed.init_distributed()
        module = ds_dip.DIPModule(
            model,
            ds_dip.partition_for(model, config, args.pipeline_ranks or dist.get_world_size()),
            ds_dip.layer_factories(model, args.seed),
            ds_dip.token_cross_entropy,
        )
        training = digits(model, args.steps * config["train_batch_size"])
        engine, *_ = ds_dip.initialize(args=args, model=module, training_data=training)
    except ValueError as error:
        sys.exit(f"launch/train.py: {error}")
    with engine, RunReport(engine, args.run_folder, args.steps) as report:
        for _ in range(args.steps):
            loss = engine.train_batch()
            report.batch(float(loss))
        report.end(accuracy=accuracy(engine, args.evaluate))


if __name__ == "__main__":
    main()
