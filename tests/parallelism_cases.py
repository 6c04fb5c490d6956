"""Small jobs for the tests of layouts."""

from __future__ import annotations

import random
from typing import Any

from ds_dip.costs.ending import Ending
from ds_dip.costs.parallel import TensorParallel
from ds_dip.costs.roofline import Rates, Roofline
from ds_dip.data import SampleMetadata
from ds_dip.models import kinds
from ds_dip.models.spec import Model, Module
from ds_dip.parallelism import Cluster, Job

RATES = Rates(flops=1e9, memory=1e10, layer_overhead=1e-5, link=1e8, link_latency=1e-5)


def model_of(vision: int = 3, language: int = 4, heads: int = 4, language_heads: int | None = None) -> Model:
    """An encoder and a language model of so many layers and heads."""
    others = language_heads or heads
    small, large = kinds.Width(16, heads, heads, 4, 32, False), kinds.Width(32, others, others, 8, 64, True)
    encoder = Module(
        "vision",
        (
            kinds.patch_embedding(16, 2, 3, 8),
            *[kinds.encoder_block(small, vision)] * vision,
            kinds.merger(16, 4, 32),
        ),
    )
    decoder = Module(
        "language",
        (
            kinds.token_embedding(32, 64, {"vision": 1}),
            *[kinds.decoder_block(large, language, 10000)] * language,
            kinds.head(32, 64),
        ),
    )
    return Model("small", (encoder, decoder), (("vision", "language"),))


def samples(count: int, seed: int, most: int = 6) -> tuple[SampleMetadata, ...]:
    """Samples of 0 to ``most`` images and a text."""
    rng = random.Random(seed)
    found = []
    for number in range(count):
        images = rng.randint(0, most)
        tokens = images * 16 + rng.randint(4, 80)
        found.append(
            SampleMetadata(
                f"s{number}",
                {"vision": (64,) * images, "language": (tokens,)},
                tokens - images * 16,
                {"vision": (16,) * images, "language": (tokens,)},
            )
        )
    return tuple(found)


def job(
    gpus: int = 4,
    batch: int = 8,
    seed: int = 0,
    *,
    model: Model | None = None,
    memory: float | None = None,
    per_node: int = 4,
    **more: Any,
) -> Job:
    """A job on devices of a small roofline."""
    own = model or model_of()

    def parallel(tensor: int) -> TensorParallel:
        return TensorParallel(tensor, True, RATES.link, RATES.link_latency)

    cluster = Cluster(
        gpus,
        per_node,
        memory,
        lambda model, tensor: Roofline(model, RATES, parallel(tensor)),
        parallel,
        Ending(1, RATES.link, RATES.link_latency, RATES.memory),
        "float32",
    )
    return Job(own, more.pop("profile", samples(40, seed)), batch, cluster, **more)
