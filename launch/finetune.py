"""Fine-tunes a vision-language model of transformers on conversations about images, and saves it as transformers does.

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
from ds_dip.models import from_transformers
from ds_dip.reporting.run import RunReport
from ds_dip.runtime.pretrained import save_pretrained

HERE = Path(__file__).resolve().parent


def arguments() -> argparse.Namespace:
    """The command line; DeepSpeed's own arguments included."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder that save_pretrained wrote: model, tokenizer, processor")
    parser.add_argument("--data", required=True, help="conversations, a file of any form in docs/data.md")
    parser.add_argument("--out", required=True, help="folder for the trained model, which must not be there yet")
    parser.add_argument("--steps", type=at_least(1), default=300, help="batches to train on")
    parser.add_argument("--frozen", nargs="*", default=[], help="modules that are not trained: vision, projector, …")
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


def main() -> None:
    """Split, train, save."""
    args = arguments()
    try:
        if Path(args.out).exists():
            raise ValueError(f"{args.out} is there already; name a folder that is not")
        config = ds_dip.load_config(args.deepspeed_config)
        half = torch.bfloat16 if config.get("bf16", {}).get("enabled") else None
        pretrained = from_transformers(args.model, frozen=args.frozen, lora=adapter(args.lora), dtype=half)
        Path(args.run_folder, "timelines").mkdir(parents=True, exist_ok=True)
        deepspeed.init_distributed()
        ranks = args.pipeline_ranks or dist.get_world_size()
        partition = ds_dip.partition_for(pretrained.model, config, ranks)
        module = ds_dip.DIPModule(pretrained.model, partition, pretrained.layers, pretrained.loss)
        encoders = [own.name for own in pretrained.model.modules if own.name != pretrained.model.loss_module]
        options = {
            "files": str(Path(args.data).resolve()),
            "processor": {"pretrained": str(Path(args.model).resolve()), "encoders": encoders},
            "index": str(Path(args.run_folder, "index").resolve()),
        }
        data = ds_dip.DatasetReference("ds_dip.data.conversations:Conversations", options)
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
