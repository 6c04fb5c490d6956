"""A rank of the checked-mode test: rank 1 loads other content, runs another plan, or shares samples otherwise."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import deepspeed
import torch
from deepspeed import comm as dist
from deepspeed.runtime.config import DeepSpeedConfig

from ds_dip.runtime.initialize import make_engine
from ds_dip.runtime.measure import AssignmentError
from ds_dip.runtime.module import DIPModule
from ds_dip.runtime.shutdown import shutdown
from ds_dip.runtime.transport import TransportError
from tests.cases import random_case
from tests.distributed.gradients import CasePlans, settings
from tests.distributed.ranks import report
from tests.toy import ToyDataset, loss_sum


class OtherContent(ToyDataset):
    """Sizes as everybody's, content of its own."""

    def load(self, sample: str, fields: Any) -> Any:
        return {name: [array + 1 for array in arrays] for name, arrays in super().load(sample, fields).items()}


def with_batch(plan: Any, **changes: Any) -> SimpleNamespace:
    return SimpleNamespace(**{**vars(plan), "batch": replace(plan.batch, **changes)})


def main() -> None:
    fault = sys.argv[1]
    deepspeed.init_distributed("gloo")
    rank = dist.get_rank()
    # Replicas, to share samples among; else ranks of one pipeline.
    replicas = 2 if fault == "assignment" else 1
    case = random_case(4, ranks=2 // replicas, replicas=replicas, encoders=1, layers=6, frozen=())
    document = settings(case, "fp32", replicas)
    document["dip"] = {"checked": True, "timeouts": {"rank_s": 20.0}}
    module = DIPModule(case.toy.model, case.partition, case.toy.specs(torch.float32), loss_sum)
    dataset = case.dataset
    if fault == "content" and rank == 1:
        dataset = OtherContent(seed=case.dataset.seed, share=case.dataset.share, encoders=1)
    plans = CasePlans(case, rank if replicas == 2 else 0)
    if fault == "assignment":
        whole = plans.next
        plans.next = lambda step: with_batch(whole(step), assigned=7 + rank)
    if fault == "plan" and rank == 1:
        ours = plans.next
        plans.next = lambda step: SimpleNamespace(**{**vars(ours(step)), "step": step + 1})
    engine = make_engine(module, document, DeepSpeedConfig(document, module.mpu()), plans, dataset)
    error = ""
    try:
        engine.train_batch()
    except (TransportError, AssignmentError) as found:
        error = str(found)
    report(error=error)
    shutdown(engine, failed=bool(error))


if __name__ == "__main__":
    main()
