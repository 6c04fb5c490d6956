"""Fine-tunes a model of transformers on conversations, or a pipeline of diffusers on pictures with captions.

It is saved as its library saves it.

deepspeed --num_gpus 2 launch/finetune.py --model FOLDER --data FILE --out FOLDER --deepspeed_config JSON
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed import comm as dist
from train import at_least, say

import ds_dip
from ds_dip.models import from_diffusers, from_transformers
from ds_dip.reporting.run import RunReport
from ds_dip.runtime.pretrained import save_pretrained

#: What diffusers calls the list of a pipeline's parts.
PIPELINE = "model_index.json"


def arguments() -> argparse.Namespace:
    """The command line; DeepSpeed's own arguments included."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder that save_pretrained wrote: model, tokenizer, processor")
    parser.add_argument("--data", required=True, help="conversations (docs/conversations.md); pictures with captions")
    parser.add_argument("--size", type=at_least(1), default=512, help="side of pictures in pixels, for a pipeline")
    parser.add_argument("--out", required=True, help="folder for the trained model, which must not be there yet")
    parser.add_argument("--steps", type=at_least(1), default=300, help="batches to train on")
    parser.add_argument("--frozen", nargs="*", help="modules that are not trained: vision, … (a pipeline's text)")
    parser.add_argument("--lora", type=at_least(1), help="rank of LoRA on the language model's linear layers")
    parser.add_argument("--pipeline-ranks", type=at_least(1), help="ranks of a pipeline (default: all of the job's)")
    parser.add_argument("--run-folder", default="runs/finetune", help="folder for the summary and timelines")
    parser.add_argument("--local_rank", type=int, default=-1, help="given by the launcher")
    return deepspeed.add_config_arguments(parser).parse_args()


def adapter(rank: int | None) -> Any:
    """Peft's configuration for LoRA on every linear layer of the language model, None for none."""
    if rank is None:
        return None
    from peft import LoraConfig

    layers = r".*(language_model|model)\.layers\..*_proj"
    return LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=layers, exclude_modules=r".*(vision|visual|audio).*")


def conversations(args: argparse.Namespace, half: Any) -> tuple[Any, ds_dip.DatasetReference]:
    """(a model of transformers, its conversations)."""
    split = from_transformers(args.model, frozen=args.frozen or (), lora=adapter(args.lora), dtype=half)
    encoders = [own.name for own in split.model.modules if own.name != split.model.loss_module]
    options = {
        "files": str(Path(args.data).resolve()),
        "processor": {"pretrained": str(Path(args.model).resolve()), "encoders": encoders},
        "index": str(Path(args.run_folder, "index").resolve()),
    }
    return split, ds_dip.DatasetReference("ds_dip.data.conversations:Conversations", options)


def pictures(args: argparse.Namespace, half: Any) -> tuple[Any, ds_dip.DatasetReference]:
    """(the transformer and text encoder of a pipeline of diffusers, its pictures)."""
    if args.lora is not None:
        raise ValueError("--lora is for models of transformers; leave it out for a pipeline of diffusers")
    split = from_diffusers(args.model, frozen=("text",) if args.frozen is None else args.frozen, dtype=half)
    if "image" not in [own.name for own in split.model.modules]:
        raise ValueError(f"{args.model} makes no pictures; give a dataset of your own to a script like this one")
    options = {"files": str(Path(args.data).resolve()), "pipeline": str(Path(args.model).resolve()), "size": args.size}
    return split, ds_dip.DatasetReference("ds_dip.data.pictures:Pictures", options)


def main() -> None:
    """Split, train, save."""
    args = arguments()
    try:
        if Path(args.out).exists():
            raise ValueError(f"{args.out} is there already; name a folder that is not")
        config = ds_dip.load_config(args.deepspeed_config)
        half = torch.bfloat16 if config.get("bf16", {}).get("enabled") else None
        pretrained, data = (pictures if Path(args.model, PIPELINE).is_file() else conversations)(args, half)
        Path(args.run_folder, "timelines").mkdir(parents=True, exist_ok=True)
        deepspeed.init_distributed()
        ranks = args.pipeline_ranks or dist.get_world_size()
        partition = ds_dip.partition_for(pretrained.model, config, ranks)
        module = ds_dip.DIPModule(pretrained.model, partition, pretrained.layers, pretrained.loss)
        engine, *_ = ds_dip.initialize(args=args, model=module, training_data=data)
    except torch.distributed.DistNetworkError as error:
        sys.exit(f"launch/finetune.py: the ranks cannot meet ({str(error).splitlines()[0]}); is --master_port free?")
    except (OSError, ValueError) as error:
        sys.exit(f"launch/finetune.py: {error}")
    try:
        with ds_dip.StopSignal(engine) as stop, engine, RunReport(engine, args.run_folder, args.steps) as report:
            while engine.global_steps < args.steps and not engine.stop_requested():
                report.batch(float(engine.train_batch()))
            save_pretrained(engine.module, pretrained, args.out)
            report.end()
            say(engine, f"saved step {engine.global_steps} in {args.out}")
    except ds_dip.ERRORS as error:
        sys.exit(f"launch/finetune.py: {error}")
    sys.exit(stop.status)


if __name__ == "__main__":
    main()
