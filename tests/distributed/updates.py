"""A rank of the update test: one step of plain SGD moves the weights by the clipped gradient of the whole model.

A case an engine, each with its own placement: every module on every rank, or an encoder on ranks of its own, which
then train nothing in a batch without images.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import deepspeed
import torch
from deepspeed import comm as dist
from deepspeed.runtime.config import DeepSpeedConfig

from ds_dip.models.partition import Chunk, Partition
from ds_dip.runtime.finite import NonFiniteError
from ds_dip.runtime.initialize import make_engine
from ds_dip.runtime.module import DIPModule
from ds_dip.runtime.shutdown import shutdown
from tests.cases import Case, batches_of, random_case
from tests.distributed.gradients import CasePlans, reference_layers, settings
from tests.distributed.ranks import report
from tests.toy import ToyDataset, loss_sum

#: Which replicas of a batch have images.
IMAGES = ("everywhere", "first replica", "nowhere")


def engine_for(case: Case, document: dict[str, Any]) -> Any:
    module = DIPModule(case.toy.model, case.partition, case.toy.specs(torch.float32), loss_sum)
    split = 0.0 if document["dip"].get("split_backward") is None else 1.0
    plans = CasePlans(case, module.mpu().get_data_parallel_rank(), split)
    engine = make_engine(
        module, document, DeepSpeedConfig(document, module.mpu()), plans, case.dataset, replan=lambda *_: plans
    )
    dist.barrier()
    return engine


def weights(engine: Any) -> dict[tuple[str, int, str], torch.Tensor]:
    return {
        (chunk.module, index, name): parameter.detach().double().clone()
        for chunk in engine.module.local_chunks
        for index, layer in engine.module.layers_of(chunk).items()
        for name, parameter in layer.named_parameters()
    }


#: So far that the rounding of the weights themselves, which the change is taken from, is nothing beside it.
RATE = 1000.0


def update(engine: Any, case: Case, mode: str, clip: float) -> dict[str, float]:
    """Train one batch at ``RATE``; how far the weights' change is from the reference's, and the gradient's norms.

    ``error`` is the largest difference over the largest change, ``relative`` that of their norms over all tensors.
    """
    before = weights(engine)
    engine.train_batch()
    after = weights(engine)
    layers = reference_layers(case, mode)
    case.toy.reference(case.dataset, case.samples, case.batches[0].loss_count, layers)
    gradients = {id(p): p.grad for chain in layers.values() for layer in chain for p in layer.parameters()}
    norm = float(torch.stack([g.square().sum() for g in gradients.values() if g is not None]).sum().sqrt())
    factor = min(1.0, clip / (norm + 1e-6))
    worst = largest = squares = 0.0
    for (module, index, name), start in before.items():
        gradient = dict(layers[module][index].named_parameters())[name].grad
        wanted = torch.zeros_like(start) if gradient is None else -RATE * factor * gradient
        difference = after[module, index, name] - start - wanted
        worst = max(worst, float(difference.abs().max()))
        largest = max(largest, float(wanted.abs().max()))
        squares += float(difference.square().sum())
    return {
        "error": worst / largest if largest else worst,
        "relative": squares**0.5 / (RATE * min(norm, clip)),
        "norm": norm,
        "told": float(engine.get_global_grad_norm()),
    }


def random_update(seed: int, ranks: int, replicas: int) -> tuple[Case, float]:
    """A case and what its gradient is clipped to."""
    rng = random.Random(seed)
    images, apart = IMAGES[seed % 3], seed % 2 == 1
    base = random_case(seed, ranks=ranks, replicas=replicas, encoders=1, layers=3 * ranks, tied=rng.random() < 0.5)
    partition = base.partition
    if apart:
        layers = 3 * ranks
        chunks = [Chunk("vision", 0, 0, 0, 0, layers)]
        chunks += [
            Chunk("language", n, 0, 1 + n, n * layers // (ranks - 1), (n + 1) * layers // (ranks - 1))
            for n in range(ranks - 1)
        ]
        partition = Partition(ranks, tuple(chunks), (("vision", rng.choice((None, 1, 2))),))
    dataset = ToyDataset(seed=seed, share=0.5, encoders=1)
    with_images = [n for n in range(64) if dataset.metadata(n).modules["vision"]]
    without = [n for n in range(64) if n not in with_images]
    shares, samples = [], []
    for replica in range(replicas):
        pictured = images == "everywhere" or (images == "first replica" and replica == 0)
        share = []
        for _ in range(rng.randint(1, 4)):
            # Of two samples at most one has images, so that some microbatches of a pictured replica have none either.
            chosen = [(with_images if pictured and rng.random() < 0.7 else without).pop(), without.pop()]
            share.append(tuple(range(len(samples), len(samples) + 2)))
            samples += [dataset.metadata(index) for index in chosen]
        shares.append(share)
    case = Case(base.toy, dataset, partition, batches_of(samples, shares, base.toy, partition), seed)
    return case, rng.choice((0.02, 0.2, 1e6))


def spoilt(engine: Any, case: Case) -> dict[str, Any]:
    """Train with a NaN in one sample of the last replica: what this rank is told, and whether its weights stayed."""
    sample = case.batches[-1].microbatches[0].samples[0].id
    load, before, error = case.dataset.load, weights(engine), ""

    def poisoned(asked: str, fields: Any) -> Any:
        loaded = load(asked, fields)
        return {
            name: [array * float("nan") if (asked, name) == (sample, "labels") else array for array in arrays]
            for name, arrays in loaded.items()
        }

    case.dataset.load = poisoned
    try:
        engine.train_batch()
    except NonFiniteError as found:
        error = str(found)
    kept = all(torch.equal(a, b) for a, b in zip(before.values(), weights(engine).values(), strict=True))
    return {"told": error, "kept": kept, "replica": engine.grid.get_data_parallel_rank()}


def main() -> None:
    mode, world, replicas, first, cases = sys.argv[1], *map(int, sys.argv[2:])
    deepspeed.init_distributed("gloo")
    for seed in range(first, first + cases):
        case, clip = random_update(seed, world // replicas, replicas)
        document = settings(case, mode, replicas)
        document["optimizer"]["params"]["lr"] = RATE
        document["gradient_clipping"] = clip
        document["dip"]["split_backward"] = 0.1 if seed // 2 % 2 else None
        engine = engine_for(case, document)
        pictures = [sum(len(m.sizes["vision"]) for m in batch.microbatches) for batch in case.batches]
        report(seed=seed, clip=clip, pictures=pictures, **update(engine, case, mode, clip))
        if seed == first + cases - 1:
            report(**spoilt(engine, case))
            shutdown(engine)


if __name__ == "__main__":
    main()
