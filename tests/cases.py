"""Random valid cases around the toy models: costs, partitions, batches and schedules in any valid order."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ds_dip.costs.strategies import STRATEGIES
from ds_dip.models.partition import Chunk, Partition
from ds_dip.models.spec import Model, Sizes
from ds_dip.planning.batch import Batch
from ds_dip.planning.build import build_problem
from ds_dip.planning.cut import cut
from ds_dip.planning.split import split as split_backwards
from ds_dip.scheduling.problem import Problem
from tests.toy import Toy, ToyDataset


class RandomCosts:
    """Durations that say nothing about the model: any order must give the same gradient."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def forward(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        return self.rng.choice((0.0, 1.0, self.rng.random()))

    backward = forward

    def activation_bytes(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        return 0.0

    def transfer(self, bytes: float) -> float:
        return self.rng.choice((0.0, self.rng.random()))


@dataclass(frozen=True)
class Plan:
    problem: Problem
    order: tuple[tuple[int, ...], ...]
    start: tuple[float, ...]
    end: tuple[float, ...]
    strategies: Mapping[int, str] = field(default_factory=dict)


def random_strategies(problem: Problem, rng: random.Random) -> dict[int, str]:
    """Any memory strategy for each stage, the same for its two tasks."""
    drawn: dict[tuple, str] = {}
    return {
        task.id: drawn.setdefault((task.module, task.chunk, task.microbatch, task.sub), rng.choice(STRATEGIES))
        for task in problem.tasks
    }


def random_partition(model: Model, ranks: int, laps: Mapping[str, int], rng: random.Random) -> Partition:
    """Separated placement with random layer bounds; every chunk has a layer."""
    chunks = []
    for module in model.modules:
        count = ranks * laps[module.name]
        bounds = [0, *sorted(rng.sample(range(1, len(module.layers)), count - 1)), len(module.layers)]
        chunks += [
            Chunk(module.name, index, index // ranks, index % ranks, bounds[index], bounds[index + 1])
            for index in range(count)
        ]
    encoders = [module.name for module in model.modules if model.downstream(module.name)]
    return Partition(ranks, tuple(chunks), tuple((name, rng.choice((None, 1, 2))) for name in encoders))


def random_order(problem: Problem, rng: random.Random) -> Plan:
    """Any valid order: ready tasks are taken by random priority, times follow."""
    missing = {task.id: 0 for task in problem.tasks}
    after: dict[int, list[tuple[int, float]]] = {task.id: [] for task in problem.tasks}
    for before, target, delay in problem.edges:
        missing[target] += 1
        after[before].append((target, delay))
    tasks = {task.id: task for task in problem.tasks}
    free = [0.0] * problem.ranks
    ready_at = dict.fromkeys(tasks, 0.0)
    start, end = [0.0] * len(tasks), [0.0] * len(tasks)
    order: list[list[int]] = [[] for _ in range(problem.ranks)]
    greedy = rng.random() < 0.5
    ready = [task_id for task_id, count in missing.items() if not count]
    while ready:
        if greedy:
            ready.sort(key=lambda i: (max(free[tasks[i].rank], ready_at[i]), i))
            task = tasks[ready.pop(0)]
        else:
            task = tasks[ready.pop(rng.randrange(len(ready)))]
        start[task.id] = max(free[task.rank], ready_at[task.id])
        end[task.id] = free[task.rank] = start[task.id] + task.duration
        order[task.rank].append(task.id)
        for target, delay in after[task.id]:
            ready_at[target] = max(ready_at[target], end[task.id] + delay)
            missing[target] -= 1
            if not missing[target]:
                ready.append(target)
    return Plan(problem, tuple(map(tuple, order)), tuple(start), tuple(end))


@dataclass(frozen=True)
class Case:
    """One random training step: a toy, its data, where it lives and in which order it runs."""

    toy: Toy
    dataset: ToyDataset
    partition: Partition
    batches: tuple[Batch, ...]
    seed: int

    def plan(self, replica: int, *, forward_only: bool = False, split: float = 0.0) -> Plan:
        """A random valid order; that share of the backwards puts its weight gradients off."""
        problem = build_problem(
            self.batches[replica],
            self.toy.model,
            self.partition,
            RandomCosts(self.seed),
            compute="float64",
            forward_only=forward_only,
        )
        rng = random.Random(self.seed + replica)
        problem, _ = split_backwards(
            problem, {task.id: rng.random() for task in problem.tasks}, 0.1, lambda _: rng.random() < split
        )
        plan = random_order(problem, rng)
        # Half of the cases without split backwards compute something again.
        other = random.Random(self.seed * 7 + replica)
        return replace(plan, strategies=random_strategies(problem, other)) if self.seed % 2 and not split else plan

    @property
    def samples(self) -> list:
        """The global batch, over all replicas."""
        return [s for batch in self.batches for microbatch in batch.microbatches for s in microbatch.samples]


def random_case(
    seed: int, *, ranks: int, replicas: int = 1, toy_seed: int | None = None, dropout: float = 0.0, **fixed: Any
) -> Case:
    """Modules 1 to 3, K 1 to 3, any share of samples with a modality, 1 to 6 microbatches of 1 to 3 samples."""
    rng = random.Random(seed)
    encoders = fixed.get("encoders", rng.randint(0, 2))
    layers = fixed.get("layers", ranks * 3)
    frozen = [name for name in ("vision", "audio")[:encoders] if rng.random() < 0.15]
    toy = Toy(
        seed if toy_seed is None else toy_seed,
        encoders=encoders,
        layers=layers,
        frozen=fixed.get("frozen", frozen),
        tied=fixed.get("tied", False),
        dropout=dropout,
    )
    most = layers // ranks
    laps = {module.name: fixed.get("laps", rng.randint(1, most)) for module in toy.model.modules}
    partition = random_partition(toy.model, ranks, laps, rng)
    dataset = ToyDataset(seed=seed, share=rng.choice((0.0, 0.3, 0.7, 1.0)), encoders=encoders)
    shares, position = [], 0
    for _ in range(replicas):
        share = []
        for _ in range(rng.randint(1, 6)):
            count = rng.randint(1, 3)
            share.append(tuple(range(position, position + count)))
            position += count
        shares.append(share)
    samples = [dataset.metadata(index) for index in range(position)]
    return Case(toy, dataset, partition, batches_of(samples, shares, toy, partition), seed)


def batches_of(
    samples: Sequence, shares: Sequence[Sequence[Sequence[int]]], toy: Toy, partition: Partition
) -> tuple[Batch, ...]:
    return tuple(cut(0, samples, share, toy.model, partition) for share in shares)
