"""A rank of the gradient test: engines of several shapes, many random plans each, against one process's autograd."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import deepspeed
import torch
from deepspeed import comm as dist
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.utils import safe_get_full_grad

from ds_dip.costs.corrections import Corrections
from ds_dip.data.metadata import SampleMetadata
from ds_dip.planner import SourceStatistics
from ds_dip.programs import compile_programs, replay
from ds_dip.runtime.initialize import make_engine
from ds_dip.runtime.module import DIPModule
from ds_dip.runtime.shutdown import shutdown
from tests.cases import Case, batches_of, random_case
from tests.distributed.ranks import report
from tests.toy import ENCODERS, loss_sum


class CasePlans:
    """Random plans in a random valid order, the same on every rank."""

    def __init__(self, case: Case, replica: int, split: float = 0.0) -> None:
        self.case, self.replica, self.split = case, replica, split

    def next(self, step: int) -> Any:
        return self.of(self.case, step, forward_only=False)

    def evaluation(self, samples: Sequence[SampleMetadata]) -> Any:
        half = (len(samples) + 1) // 2
        shares = [[(n,) for n in range(half)], [(n,) for n in range(half, len(samples))]]
        replicas = len(self.case.batches)
        shares = shares if replicas == 2 else [[n for share in shares for n in share]]
        batches = batches_of(samples, shares, self.case.toy, self.case.partition)
        case = Case(self.case.toy, self.case.dataset, self.case.partition, batches, self.case.seed)
        return self.of(case, 0, forward_only=True)

    def of(self, case: Case, step: int, *, forward_only: bool) -> Any:
        plan = case.plan(self.replica, forward_only=forward_only, split=0.0 if forward_only else self.split)
        batch = case.batches[self.replica]
        programs = compile_programs(
            plan.problem,
            plan.order,
            plan.start,
            plan.end,
            batch,
            case.toy.model,
            case.partition,
            strategies=plan.strategies,
        )
        replay(programs)
        return SimpleNamespace(
            step=step,
            batch=batch,
            programs=programs,
            iteration=1.0,
            makespan=1.0,
            lower_bound=0.5,
            peak_memory=(0.0,) * len(programs),
            corrections=Corrections(),
        )

    def statistics(self) -> SourceStatistics:
        return SourceStatistics()

    def measured(self, measured: Any) -> None:
        pass

    def resume(self, corrections: Any) -> None:
        pass

    def adopt(self, adopted: Any) -> None:
        pass

    def close(self) -> None:
        pass


def settings(case: Case, mode: str, replicas: int) -> dict[str, Any]:
    document = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 3,
        "train_batch_size": 3 * replicas,
        "optimizer": {"type": "SGD", "params": {"lr": 0.0}},
        "gradient_clipping": 0.0,
        "steps_per_print": 1000000,
        "dip": {"checked": case.seed % 2 == 0, "timeouts": {"rank_s": 60.0}},
    }
    if mode == "zero1":
        document["zero_optimization"] = {"stage": 1}
        document["zero_allow_untested_optimizer"] = True
    elif mode.startswith("bf16"):
        document["zero_optimization"] = {"stage": 1}
        document["zero_allow_untested_optimizer"] = True
        document["bf16"] = {"enabled": True}
        if mode == "bf16-accumulate":
            document["bf16"]["immediate_grad_update"] = True
            document["data_types"] = {"grad_accum_dtype": "fp32"}
    return document


def full_gradient(mode: str, parameter: torch.nn.Parameter) -> torch.Tensor:
    gradient = parameter.grad if mode == "fp32" else safe_get_full_grad(parameter)
    return torch.zeros_like(parameter) if gradient is None else gradient.detach().clone()


def measure(engine: Any, case: Case, mode: str, name: str) -> None:
    """One step of one random case; reports the worst error over the tensors of this rank's chunks.

    The statement is that the gradient is that of one process on the whole batch. In single precision one process is
    itself up to 1.2e-5 off the gradient in double precision, where terms cancel, and which of the two a pipeline's
    sums come closer to is chance. ``error`` is therefore, tensor by tensor, the distance to the nearer of the two,
    one process in fp64 and one in fp32: a gradient that is not one process's is near neither. ``exact`` is the
    distance to fp64 alone, and ``alone`` that of the process in fp32 to it.
    """
    engine.plans.case, engine.dataset = case, case.dataset
    gradients: dict[int, torch.Tensor] = {}
    step = engine.optimizer.step

    def capture(*args: Any, **kwargs: Any) -> Any:
        for parameter in engine.module.parameters():
            if parameter.requires_grad:
                gradients[id(parameter)] = full_gradient(mode, parameter)
        return step(*args, **kwargs)

    engine.optimizer.step = capture
    try:
        loss = float(engine.train_batch())
    finally:
        engine.optimizer.step = step
    count = case.batches[0].loss_count
    whole, single = reference_layers(case, mode), case.toy.layers(torch.float32)
    expected = float(case.toy.reference(case.dataset, case.samples, count, whole))
    case.toy.reference(case.dataset, case.samples, count, single)
    evaluated = float(engine.eval_batch(case.samples))
    quiet = {name: [layer.eval() for layer in chain] for name, chain in reference_layers(case, mode).items()}
    with torch.no_grad():
        undropped = float(case.toy.reference(case.dataset, case.samples, count, quiet))
    worst = {"error": 0.0, "exact": 0.0, "alone": 0.0}
    squares = [0.0, 0.0]
    for chunk in engine.module.local_chunks:
        for index, layer in engine.module.layers_of(chunk).items():
            references = (whole[chunk.module][index].parameters(), single[chunk.module][index].parameters())
            for parameter, exact, rounded in zip(layer.parameters(), *references, strict=True):
                if not parameter.requires_grad:
                    assert exact.grad is None
                    continue
                found, wanted = gradients[id(parameter)].double(), of(exact)
                distances = {"exact": distance(found, wanted), "alone": distance(of(rounded), wanted)}
                # In bf16 the weights are rounded, so a process in fp32 is none to compare with.
                nearer = distance(found, of(rounded)) if mode in ("fp32", "zero1") else distances["exact"]
                distances["error"] = min(distances["exact"], nearer)
                worst = {key: max(value, distances[key]) for key, value in worst.items()}
                squares[0] += float((found - wanted).square().sum())
                squares[1] += float(wanted.square().sum())
    report(
        name=name,
        seed=case.seed,
        loss=loss,
        expected=expected,
        evaluated=evaluated,
        undropped=undropped,
        norm=(squares[0] / squares[1]) ** 0.5 if squares[1] else 0.0,
        **worst,
    )


def of(parameter: torch.nn.Parameter) -> torch.Tensor:
    """A reference's gradient, zero where it has none."""
    return (torch.zeros_like(parameter) if parameter.grad is None else parameter.grad).double()


def distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference over the largest gradient (absolute where there is no gradient to speak of)."""
    scale, error = float(wanted.abs().max()), float((found - wanted).abs().max())
    return error / scale if scale > 1e-9 else error


def reference_layers(case: Case, mode: str) -> dict[str, list[torch.nn.Module]]:
    """The weights never move (the learning rate is 0): build them again, rounded as the engine's are."""
    layers = case.toy.layers(torch.bfloat16 if mode.startswith("bf16") else torch.float32)
    return {name: [layer.double() for layer in chain] for name, chain in layers.items()}


def main() -> None:
    mode, world, replicas, first, engines, cases = sys.argv[1], *map(int, sys.argv[2:])
    deepspeed.init_distributed("gloo")
    ranks = world // replicas
    for number in range(first, first + engines):
        rng = random.Random(number)
        encoders = rng.randint(0, 2)
        shape: dict[str, Any] = {
            "encoders": encoders,
            "layers": ranks * 3,
            "frozen": [name for name in ENCODERS[:encoders] if rng.random() < 0.25],
            "tied": rng.random() < 0.4,
            "dropout": rng.choice((0.0, 0.0, 0.3)),
        }
        recompute = rng.choice((0, 0, 1, 2))
        base = random_case(number * 1000, ranks=ranks, replicas=replicas, toy_seed=number, **shape)
        toy = base.toy
        module = DIPModule(toy.model, base.partition, toy.specs(torch.float32), loss_sum)
        document = settings(base, mode, replicas)
        document["pipeline"] = {"activation_checkpoint_interval": recompute}
        split = rng.choice((0.0, 0.5, 1.0))
        document["dip"]["split_backward"] = 0.1 if split else None
        plans = CasePlans(base, module.mpu().get_data_parallel_rank(), split)
        engine = make_engine(module, document, DeepSpeedConfig(document, module.mpu()), plans, base.dataset)
        dist.barrier()
        for offset in range(cases):
            # The same model and partition, another batch, cut and order each time.
            case = random_case(number * 1000 + offset, ranks=ranks, replicas=replicas, toy_seed=number, **shape)
            case = Case(toy, case.dataset, base.partition, recut(case, base), case.seed)
            measure(
                engine, case, mode, f"{mode}-{ranks}x{replicas}-{number} {shape} recompute {recompute} split {split}"
            )
        if number == first + engines - 1:
            shutdown(engine)


def recut(case: Case, base: Case) -> Any:
    shares, position = [], 0
    for batch in case.batches:
        share = []
        for microbatch in batch.microbatches:
            share.append(tuple(range(position, position + len(microbatch.samples))))
            position += len(microbatch.samples)
        shares.append(share)
    return batches_of(case.samples, shares, base.toy, base.partition)


if __name__ == "__main__":
    main()
