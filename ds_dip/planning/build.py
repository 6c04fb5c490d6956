"""A replica's Batch on a partition -> the scheduling Problem (DIP, online steps 2 to 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from ds_dip.costs.model import CostModel
from ds_dip.models.partition import Chunk, Partition
from ds_dip.models.spec import ELEMENT_BYTES, Model, Sizes, TensorSpec
from ds_dip.planning.batch import Batch
from ds_dip.scheduling.problem import Problem, Task


def build_problem(
    batch: Batch,
    model: Model,
    partition: Partition,
    costs: CostModel,
    *,
    compute: str = "float32",
    forward_only: bool = False,
    memory_capacity: float | Sequence[float | None] | None = None,
    tails: Sequence[float] | None = None,
) -> Problem:
    """The tasks of a batch: a forward, and where the module has one a backward, per chunk and sub-microbatch.

    Edges follow the data: along a module's chain, from every sub-microbatch's last chunk to the
    first chunk of the modules downstream, from a forward to its backward, and backwards against
    all of these. An edge between two ranks is delayed by the transfer of what it carries, of which
    ``compute`` names the data type. Activations are acquired when a forward starts and released
    when its backward ends, or its forward where it has none. Seconds and bytes.
    ``memory_capacity`` is bytes a rank, one number for all ranks or one each; None is no limit.
    ``tails`` are seconds that every rank still needs after its last backward (see ``costs.ending``): each of its
    backwards has them, and the last one's count.
    Task ids are dense and follow (microbatch, module, sub-microbatch, chunk, kind).
    """
    problem = _Builder(batch, model, partition, costs, compute, forward_only).problem(memory_capacity)
    return problem if tails is None else _ending(problem, tails)


def _ending(problem: Problem, tails: Sequence[float]) -> Problem:
    if len(tails) != problem.ranks:
        raise ValueError(f"tails has {len(tails)} values for {problem.ranks} ranks: give one a rank")
    tasks = tuple(replace(t, tail=float(tails[t.rank])) if t.kind == "B" else t for t in problem.tasks)
    return replace(problem, tasks=tasks)


class _Builder:
    def __init__(
        self, batch: Batch, model: Model, partition: Partition, costs: CostModel, compute: str, forward_only: bool
    ) -> None:
        self.batch, self.model, self.partition, self.costs = batch, model, partition, costs
        self.compute, self.forward_only = compute, forward_only
        self.chains = {module.name: partition.of(module.name) for module in model.modules}
        self.has_backward = {module.name: not forward_only and model.backward(module.name) for module in model.modules}
        self.tasks: list[Task] = []
        self.edges: list[tuple[int, int, float]] = []
        #: Ids of the first and the last chunk's tasks by (microbatch, module, sub, kind).
        self.ends: dict[tuple[int, str, int, str], tuple[int, int]] = {}

    def problem(self, capacity: float | Sequence[float | None] | None) -> Problem:
        ranks = self.partition.ranks
        for microbatch in range(len(self.batch.microbatches)):
            for module in self.model.modules:
                for sub in range(len(self.batch.microbatches[microbatch].subs[module.name])):
                    self._chain(microbatch, module.name, sub)
            for source, target in self.model.edges:
                self._join(microbatch, source, target)
        capacities = (capacity,) * ranks if capacity is None or isinstance(capacity, int | float) else tuple(capacity)
        if len(capacities) != ranks:
            raise ValueError(f"memory_capacity has {len(capacities)} values for {ranks} ranks: give one a rank")
        return Problem(ranks, capacities, tuple(self.tasks), tuple(self.edges))

    def _chain(self, microbatch: int, module: str, sub: int) -> None:
        """The tasks of one sub-microbatch of one module and the edges among them."""
        sizes = self.batch.microbatches[microbatch].sub_sizes(module, sub)
        chain, backward = self.chains[module], self.has_backward[module]
        forwards, backwards = [], []
        for chunk in chain:
            memory = float(self.costs.activation_bytes(module, chunk.start, chunk.stop, sizes))
            where = (module, chunk.start, chunk.stop, sizes)
            forwards.append(
                self._task(chunk, "F", microbatch, sub, self.costs.forward(*where), memory, 0.0 if backward else memory)
            )
            if backward:
                seconds = self.costs.backward(*where)
                backwards.append(self._task(chunk, "B", microbatch, sub, seconds, 0.0, memory))
                self.edges.append((forwards[-1], backwards[-1], 0.0))
        for before, after in pairwise(range(len(chain))):
            self._edge(forwards[before], forwards[after], chain[before], chain[after], sizes, gradient=False)
            if backward:
                self._edge(backwards[after], backwards[before], chain[before], chain[after], sizes, gradient=True)
        self.ends[microbatch, module, sub, "F"] = forwards[0], forwards[-1]
        if backward:
            self.ends[microbatch, module, sub, "B"] = backwards[0], backwards[-1]

    def _task(
        self, chunk: Chunk, kind: str, microbatch: int, sub: int, seconds: float, acquire: float, release: float
    ) -> int:
        number = len(self.tasks)
        self.tasks.append(
            Task(
                number, chunk.rank, kind, chunk.module, chunk.index, chunk.segment, microbatch, sub,
                float(seconds), acquire, release,
            )
        )  # fmt: skip
        return number

    def _join(self, microbatch: int, source: str, target: str) -> None:
        """Edges from a module to the one that takes its outputs, and their gradients' way back."""
        subs = self.batch.microbatches[microbatch].subs
        last, first = self.chains[source][-1], self.chains[target][0]
        for sub in range(len(subs[source])):
            sizes = self.batch.microbatches[microbatch].sub_sizes(source, sub)
            for other in range(len(subs[target])):
                ahead = self.ends[microbatch, source, sub, "F"][1], self.ends[microbatch, target, other, "F"][0]
                self._edge(*ahead, last, first, sizes, gradient=False)
                if self.has_backward[source]:
                    back = self.ends[microbatch, target, other, "B"][0], self.ends[microbatch, source, sub, "B"][1]
                    self._edge(*back, last, first, sizes, gradient=True)

    def _edge(self, before: int, after: int, producer: Chunk, consumer: Chunk, sizes: Sizes, *, gradient: bool) -> None:
        """An edge that carries the outputs of ``producer``'s last layer, or their gradients back to it."""
        delay = 0.0
        if producer.rank != consumer.rank:
            specs = self.model.module(producer.module).layers[producer.stop - 1].output
            delay = float(self.costs.transfer(_bytes(specs, sizes, self.compute, gradient)))
        self.edges.append((before, after, delay))


def _bytes(specs: tuple[TensorSpec, ...], sizes: Sizes, compute: str, gradient: bool) -> int:
    if compute not in ELEMENT_BYTES:
        raise ValueError(f"compute data type {compute!r} is unknown: use one of {', '.join(ELEMENT_BYTES)}")
    return sum(spec.bytes(sizes, compute) for spec in specs if spec.differentiable or not gradient)
