"""A rank of the memory test: batches under several limits and strategies, the allocator's figures beside the plans'."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import deepspeed
from deepspeed import comm as dist
from deepspeed.runtime.config import DeepSpeedConfig

import ds_dip
from ds_dip.benchmarks.memory import SamePlans, program_peak
from ds_dip.costs.roofline import Rates
from ds_dip.models.config import parse_model
from ds_dip.models.spec import Model
from ds_dip.planner import PlannerSettings
from ds_dip.programs.program import Backward
from ds_dip.runtime.initialize import make_engine
from ds_dip.runtime.shutdown import shutdown
from tests.distributed.ranks import report


@dataclass(frozen=True)
class Shape:
    """A model, how it is cut, and its batches."""

    hidden: int
    layers: int
    gated: bool
    vocabulary: int
    laps: int
    placement: str
    microbatches: int
    samples: int
    half: bool = False


def model_of(shape: Shape) -> Model:
    """An image encoder and a language model."""
    width = {"hidden": shape.hidden, "heads": 4, "ffn": 3 * shape.hidden, "gated": shape.gated}
    vision = {"name": "vision", "kind": "image_encoder", "layers": shape.layers, "kv_heads": 4, **width, "patch": 2,
              "channels": 1, "image": 8, "merge": 4}  # fmt: skip
    language = {"name": "language", "kind": "language_model", "layers": shape.layers, "kv_heads": 2, **width,
                "vocabulary": shape.vocabulary, "placeholders": {"vision": 4}, "rope_theta": 1000}  # fmt: skip
    document = {"format": "ds-dip/model", "version": 1, "name": "memory", "modules": [vision, language],
                "edges": [["vision", "language"]]}  # fmt: skip
    return parse_model(document)


def engine_of(shape: Shape) -> Any:
    document = {
        "train_batch_size": shape.microbatches * shape.samples,
        "gradient_accumulation_steps": shape.microbatches,
        "optimizer": {"type": "SGD", "params": {"lr": 0.0}},
        "steps_per_print": 1000000,
        "bf16": {"enabled": shape.half},
        "dip": {
            "laps": {"language": shape.laps},
            "sub_microbatch": {"vision": 2 * shape.samples},
            "placement": shape.placement,
        },
    }
    model = model_of(shape)
    partition = ds_dip.partition_for(model, document, dist.get_world_size())
    module = ds_dip.DIPModule(model, partition, ds_dip.layer_factories(model), ds_dip.token_cross_entropy)
    data = ds_dip.DatasetReference("ds_dip.data.digits:Digits", {"samples": 512, "merge": 4})
    settings = PlannerSettings(
        model, partition, data, shape.microbatches * shape.samples, microbatches=shape.microbatches, evaluations=100,
        paced=False, rates=Rates(compute="bfloat16" if shape.half else "float32"),
    )  # fmt: skip
    return make_engine(module, document, DeepSpeedConfig(document, module.mpu()), SamePlans(settings), data.open())


ALL = ("none", "selective", "full")
#: Limits as shares of what is taken without one, and the strategies to choose from.
CASES = (
    (None, ("none",)), (None, ("selective",)), (None, ("full",)), (0.85, ALL), (0.7, ALL), (0.6, ALL),
    (0.7, ("none", "full")), (0.8, ("none", "selective")),
)  # fmt: skip
SHAPES = (
    Shape(64, 2, True, 128, 1, "looped", 4, 16),
    Shape(96, 4, False, 512, 2, "zigzag", 6, 12),
    Shape(32, 4, True, 128, 2, "looped", 3, 24),
)


def main() -> None:
    deepspeed.init_distributed("gloo")
    rank = dist.get_rank()
    for shape in SHAPES:
        engine = engine_of(shape)
        for share, strategies in CASES:
            engine.plans.choose(share, strategies)
            engine.train_batch()
            found = program_peak(engine)
            used = Counter(i.strategy for i in engine.plan.programs[rank].instructions if isinstance(i, Backward))
            limit = None if share is None else share * engine.plans.free[rank]
            report(
                shape=str(shape), share=share, strategies=strategies, used=used, measured=found,
                predicted=engine.plan.peak_memory[rank], limit=limit,
            )  # fmt: skip
    shutdown(engine)


if __name__ == "__main__":
    main()
