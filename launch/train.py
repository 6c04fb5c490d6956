"""Trains a small vision-language model on handwritten digits, every batch with a schedule of its own.

deepspeed --num_gpus 2 launch/train.py --deepspeed --deepspeed_config launch/quickstart_ds_config.json
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed import comm as dist

import ds_dip
from ds_dip.data.digits import digit_hits, sizes_for
from ds_dip.reporting.run import RunReport

HERE = Path(__file__).resolve().parent


def arguments() -> argparse.Namespace:
    """The command line; DeepSpeed's own arguments included."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(HERE.parent / "model_configs" / "quickstart.json"))
    parser.add_argument("--steps", type=at_least(1), default=900, help="batches to train on")
    parser.add_argument("--samples", type=at_least(1), default=57600, help="training samples of an epoch")
    parser.add_argument("--evaluate", type=at_least(0), default=400, help="held-out samples to evaluate on; 0 for none")
    parser.add_argument("--pipeline-ranks", type=at_least(1), help="ranks of a pipeline (default: all of the job's)")
    parser.add_argument("--seed", type=at_least(0), default=0, help="of the weights")
    parser.add_argument(
        "--checkpoints",
        help="folder of checkpoints: the newest is loaded, and one is saved when the run ends or is stopped",
    )
    parser.add_argument("--save-every", type=at_least(0), default=0, help="batches between two saves; 0 for none")
    parser.add_argument("--run-folder", default="runs/quickstart", help="folder for the summary and timelines")
    parser.add_argument("--local_rank", type=int, default=-1, help="given by the launcher")
    return deepspeed.add_config_arguments(parser).parse_args()


def at_least(least: int) -> Callable[[str], int]:
    """A whole number of at least ``least``, for the command line."""

    def whole(text: str) -> int:
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"{number} is given, expected at least {least}")
        return number

    whole.__name__ = "whole number"
    return whole


def digits(model: Any, samples: int, **options: Any) -> ds_dip.DatasetReference:
    """The digits dataset, its images cut and merged as the model's encoder does it."""
    return ds_dip.DatasetReference("ds_dip.data.digits:Digits", {"samples": samples, **options, **sizes_for(model)})


def accuracy(engine: Any, samples: int) -> float | None:
    """The share of held-out digits named exactly, over samples with images; the same on every rank."""
    if not samples:
        return None
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


def say(engine: Any, text: str) -> None:
    """A line on the screen, from one rank."""
    if engine.global_rank == 0:
        print(text, flush=True)  # this is a program, not the library


def save(engine: Any, folder: str) -> None:
    """Save a checkpoint and say so."""
    engine.save_checkpoint(folder)
    say(engine, f"saved step {engine.global_steps} in {folder}")


def train(engine: Any, report: RunReport, args: argparse.Namespace) -> None:
    """Train until the steps are done or a rank was asked to stop, and save."""
    while engine.global_steps < args.steps and not engine.stop_requested():
        loss = engine.train_batch()
        report.batch(float(loss))
        if args.checkpoints and args.save_every and engine.global_steps % args.save_every == 0:
            save(engine, args.checkpoints)
    if args.checkpoints and not (args.save_every and engine.global_steps % args.save_every == 0):
        save(engine, args.checkpoints)


def main() -> None:
    """Set up, train, evaluate, report."""
    args = arguments()
    try:
        config = ds_dip.load_config(args.deepspeed_config)
        model = ds_dip.load_model(args.model)
        training = digits(model, args.samples)
        Path(args.run_folder, "timelines").mkdir(parents=True, exist_ok=True)
        deepspeed.init_distributed()
        module = ds_dip.DIPModule(
            model,
            ds_dip.partition_for(model, config, args.pipeline_ranks or dist.get_world_size()),
            ds_dip.layer_factories(model, args.seed),
            ds_dip.token_cross_entropy,
        )
        engine, *_ = ds_dip.initialize(args=args, model=module, training_data=training)
    except torch.distributed.DistNetworkError as error:
        sys.exit(f"launch/train.py: the ranks cannot meet ({str(error).splitlines()[0]}); is --master_port free?")
    except (OSError, ValueError) as error:
        sys.exit(f"launch/train.py: {error}")
    try:
        with ds_dip.StopSignal(engine) as stop, engine:
            if args.checkpoints:
                engine.load_checkpoint(args.checkpoints)
            done = engine.global_steps
            if done:
                say(engine, f"{args.checkpoints}: {done} of {args.steps} steps are done")
            if done >= args.steps:
                return
            with RunReport(engine, args.run_folder, args.steps - done) as report:
                train(engine, report, args)
                if engine.stop_requested():
                    report.end()
                    say(engine, f"stopped after step {engine.global_steps} of {args.steps}")
                else:
                    stop.close()  # nothing is lost that a signal should wait for
                    report.end(accuracy=accuracy(engine, args.evaluate))
    except ds_dip.ERRORS as error:
        sys.exit(f"launch/train.py: {error}")
    sys.exit(stop.status)


if __name__ == "__main__":
    main()
