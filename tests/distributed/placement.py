"""A rank of the placement probe: an encoder on ranks 0 and 1, each with a share of it, the language model on rank 2.

Nothing of DeepSpeed's grid is used: programs, executor and links alone run a layout that is no product of
pipeline and data parallelism.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import deepspeed
import torch
from deepspeed import comm as dist

from ds_dip.models.partition import Chunk, Partition
from ds_dip.planning.build import build_problem
from ds_dip.programs import compile_programs, replay
from ds_dip.runtime.executor import Executor
from ds_dip.runtime.links import LinkTransport
from tests.cases import Case, RandomCosts, batches_of, random_case, random_order
from tests.distributed.ranks import report
from tests.test_executor import Compute, dtype_of, loaded

LINKS = ((0, 2), (1, 2), (2, 0), (2, 1))


def case_of(seed: int) -> Case:
    base = random_case(seed, ranks=1, encoders=1, layers=4, frozen=())
    chunks = (Chunk("vision", 0, 0, 0, 0, 4), Chunk("language", 0, 0, 2, 0, 2), Chunk("language", 1, 1, 2, 2, 4))
    partition = Partition(3, chunks, (("vision", 1 + seed % 2),))
    samples = [base.dataset.metadata(index) for index in range(7)]
    return Case(
        base.toy,
        base.dataset,
        partition,
        batches_of(samples, [[(0, 1), (2,), (3, 4, 5), (6,)]], base.toy, partition),
        seed,
    )


def run(case: Case, transport: LinkTransport, rank: int, group: Any) -> None:
    batch = case.batches[0]
    problem = build_problem(batch, case.toy.model, case.partition, RandomCosts(case.seed), compute="float64")
    # The encoder's sub-microbatches alternate between its two replicas.
    tasks = tuple(
        replace(task, rank=(task.microbatch + task.sub) % 2) if task.module == "vision" else task
        for task in problem.tasks
    )
    plan = random_order(replace(problem, tasks=tasks), random.Random(case.seed))
    programs = compile_programs(
        plan.problem, plan.order, plan.start, plan.end, batch, case.toy.model, case.partition, link_depth=2
    )
    replay(programs)
    layers = case.toy.layers()

    def load(microbatch: Any, module: str, fields: Any, start: int, stop: int) -> Any:
        return loaded(case.dataset, microbatch, module, fields, start, stop)

    executor = Executor(
        case.toy.model, case.partition, Compute(layers, batch.loss_count), transport, load,
        device=torch.device("cpu"), dtype=dtype_of,
    )  # fmt: skip
    executor.begin(programs[rank], batch, train=True)
    for instruction in programs[rank].instructions:
        executor.execute(instruction)
    executor.finish()
    mine = "language" if rank == 2 else "vision"
    parameters = [parameter for layer in layers[mine] for parameter in layer.parameters()]
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if rank != 2:
            dist.all_reduce(parameter.grad, group=group)
    # The norm over the model: the encoder's replicas hold the same gradient, which counts once.
    square = sum((parameter.grad.square().sum() for parameter in parameters), torch.zeros((), dtype=torch.float64))
    square = torch.zeros_like(square) if rank == 1 else square
    dist.all_reduce(square)

    whole = case.toy.layers()
    case.toy.reference(case.dataset, case.samples, batch.loss_count, whole)
    wanted = [parameter for layer in whole[mine] for parameter in layer.parameters()]
    error = 0.0
    for parameter, reference in zip(parameters, wanted, strict=True):
        gradient = torch.zeros_like(reference) if reference.grad is None else reference.grad
        scale = float(gradient.abs().max())
        worst = float((parameter.grad - gradient).abs().max())
        error = max(error, worst / scale if scale else worst)
    everything = [
        p.grad.square().sum()
        for chain in whole.values()
        for layer in chain
        for p in layer.parameters()
        if p.grad is not None
    ]
    norm = float(torch.stack(everything).sum().sqrt())
    ran = sum(1 for i in programs[rank].instructions if type(i).__name__ == "Forward")
    report(seed=case.seed, error=error, norm=float(square.sqrt()), expected=norm, forwards=ran)


def main() -> None:
    deepspeed.init_distributed("gloo")
    rank = dist.get_rank()
    transport = LinkTransport(LINKS, [[0, 1, 2]], rank, 0, device=torch.device("cpu"), dtype=dtype_of, deadline_s=60.0)
    group = dist.new_group([0, 1])
    for seed in range(12):
        run(case_of(seed), transport, rank, group)
    transport.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
