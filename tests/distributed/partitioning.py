"""A rank of the partition probe: DIPModules by partition_method, and what every rank sees of errors."""

from __future__ import annotations

from typing import Any

import deepspeed
from deepspeed import comm as dist

import ds_dip
from ds_dip.models.partition import partition_hash
from tests.distributed.ranks import report
from tests.partition_cases import QUICKSTART

CONFIG: dict[str, Any] = {"train_batch_size": 16, "gradient_accumulation_steps": 4}


def module(samples: int, **arguments: Any) -> ds_dip.DIPModule:
    return ds_dip.DIPModule(
        QUICKSTART,
        None,
        ds_dip.layer_factories(QUICKSTART, 0),
        ds_dip.token_cross_entropy,
        num_stages=2,
        config=CONFIG,
        training_data=ds_dip.DatasetReference("ds_dip.data.digits:Digits", {"samples": samples}),
        **arguments,
    )


def main() -> None:
    deepspeed.init_distributed("gloo")
    for method in ("profile", "uniform"):
        built = module(400, partition_method=method)
        layers = {f"{own.module}.{own.index}": own.stop - own.start for own in built.local_chunks}
        report(method=method, partition=partition_hash(built.partition), layers=layers)
    try:
        module(8, partition_method="profile")
    except ValueError as error:
        report(error=str(error))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
