"""A replica's Batch on a partition -> the scheduling Problem (DIP, online steps 2 to 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from ds_dip.costs.model import CostModel
from ds_dip.costs.parallel import ALONE, TensorParallel
from ds_dip.costs.strategies import StageCost, forward_bytes, stage_costs
from ds_dip.models.partition import Chunk, Partition
from ds_dip.models.spec import ELEMENT_BYTES, Model, Sizes, TensorSpec
from ds_dip.planning.batch import Batch
from ds_dip.scheduling.problem import Choice, Pair, Problem, Task


def build_problem(
    batch: Batch,
    model: Model,
    partition: Partition,
    costs: CostModel | Mapping[str, CostModel],
    *,
    compute: str = "float32",
    forward_only: bool = False,
    memory_capacity: float | Sequence[float | None] | None = None,
    strategies: Sequence[str] = ("none",),
    chosen: Mapping[tuple[str, int, int, int], str] | None = None,
    tails: Sequence[float] | None = None,
    parallel: TensorParallel | Mapping[str, TensorParallel] = ALONE,
) -> Problem:
    """The tasks of a batch: a forward, and where the module has one a backward, per chunk and sub-microbatch.

    Edges follow the data: along a module's chain, from every sub-microbatch's last chunk to the
    first chunk of the modules downstream, from a forward to its backward, and backwards against
    all of these. An edge between two ranks is delayed by the transfer of what it carries, of which
    ``compute`` names the data type. Activations are acquired when a forward starts and released
    when its backward ends, or its forward where it has none; a backward's workspace while it runs. Seconds and bytes.
    ``memory_capacity`` is bytes a rank, one number for all ranks or one each; None is no limit.
    ``tails`` are seconds that every rank still needs after its last backward (see ``costs.ending``): each of its
    backwards has them, and the last one's count.
    With ``parallel`` a rank is a group of devices, and bytes are those of each; ``costs`` must be so too. Where modules
    are on groups of different size both are given by module; what goes from one to another takes as long as the slower
    of both sides says.
    Task ids are dense and follow (microbatch, module, sub-microbatch, chunk, kind).

    Every forward and its backward are a pair with a choice for each of ``strategies`` (of ``STRATEGIES``), in
    their order; with one there are no pairs, as there is no choice. ``chosen`` are the strategies of a plan by module,
    chunk, microbatch and sub-microbatch, in place of ``strategies``.
    """
    problem = _Builder(batch, model, partition, costs, compute, forward_only, strategies, chosen, parallel).problem(
        memory_capacity
    )
    return problem if tails is None else _ending(problem, tails)


def _ending(problem: Problem, tails: Sequence[float]) -> Problem:
    if len(tails) != problem.ranks:
        raise ValueError(f"tails has {len(tails)} values for {problem.ranks} ranks: give one a rank")
    tasks = tuple(replace(t, tail=float(tails[t.rank])) if t.kind == "B" else t for t in problem.tasks)
    return replace(problem, tasks=tasks)


class _Builder:
    def __init__(
        self,
        batch: Batch,
        model: Model,
        partition: Partition,
        costs: CostModel | Mapping[str, CostModel],
        compute: str,
        forward_only: bool,
        strategies: Sequence[str],
        chosen: Mapping[tuple[str, int, int, int], str] | None,
        parallel: TensorParallel | Mapping[str, TensorParallel],
    ) -> None:
        names = [module.name for module in model.modules]
        self.parallel = parallel if isinstance(parallel, Mapping) else dict.fromkeys(names, parallel)
        self.costs = costs if isinstance(costs, Mapping) else dict.fromkeys(names, costs)
        self.strategies, self.chosen = tuple(strategies), chosen
        self.pairs: list[Pair] = []
        self.batch, self.model, self.partition = batch, model, partition
        self.compute, self.forward_only = compute, forward_only
        self.chains = {module.name: partition.of(module.name) for module in model.modules}
        self.has_backward = {module.name: not forward_only and model.backward(module.name) for module in model.modules}
        self.tasks: list[Task] = []
        self.edges: list[tuple[int, int, float]] = []
        #: What stages of one chunk and equal instances cost alike.
        self.known: dict[tuple[object, ...], tuple[StageCost, ...]] = {}
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
        return Problem(ranks, capacities, tuple(self.tasks), tuple(self.edges), tuple(self.pairs))

    def _chain(self, microbatch: int, module: str, sub: int) -> None:
        """The tasks of one sub-microbatch of one module and the edges among them."""
        sizes = self.batch.microbatches[microbatch].sub_sizes(module, sub)
        chain, backward = self.chains[module], self.has_backward[module]
        forwards, backwards = [], []
        for chunk in chain:
            if not backward:
                seconds = self.costs[module].forward(module, chunk.start, chunk.stop, sizes)
                memory = self._inputs(chunk, microbatch, sizes) + forward_bytes(
                    self.model,
                    module,
                    chunk.start,
                    chunk.stop,
                    sizes,
                    strategy="full",
                    compute=self.compute,
                    parallel=self.parallel[module],
                )
                forwards.append(self._task(chunk, "F", microbatch, sub, seconds, memory, memory))
                continue
            found = self._costs(chunk, microbatch, sub, sizes)
            first = found[0]
            forwards.append(self._task(chunk, "F", microbatch, sub, first.forward, first.memory, 0.0))
            held = first.memory + first.workspace
            backwards.append(self._task(chunk, "B", microbatch, sub, first.backward, first.workspace, held))
            self.edges.append((forwards[-1], backwards[-1], 0.0))
            if len(found) > 1:
                choices = tuple(Choice(own.forward, own.backward, own.memory, own.workspace) for own in found)
                self.pairs.append(Pair(forwards[-1], backwards[-1], choices))
        for before, after in pairwise(range(len(chain))):
            self._edge(forwards[before], forwards[after], chain[before], chain[after], sizes, gradient=False)
            if backward:
                self._edge(backwards[after], backwards[before], chain[before], chain[after], sizes, gradient=True)
        self.ends[microbatch, module, sub, "F"] = forwards[0], forwards[-1]
        if backward:
            self.ends[microbatch, module, sub, "B"] = backwards[0], backwards[-1]

    def _costs(self, chunk: Chunk, microbatch: int, sub: int, sizes: Sizes) -> tuple[StageCost, ...]:
        """Of a stage's forward and backward, by each strategy that it may have."""
        own = None if self.chosen is None else self.chosen.get((chunk.module, chunk.index, microbatch, sub), "none")
        inputs = self._inputs(chunk, microbatch, sizes)
        key = (chunk, sizes, inputs, own)
        if key not in self.known:
            self.known[key] = stage_costs(
                self.costs[chunk.module],
                self.model,
                chunk.module,
                chunk.start,
                chunk.stop,
                sizes,
                inputs=inputs,
                compute=self.compute,
                strategies=self.strategies if own is None else (own,),
                parallel=self.parallel[chunk.module],
            )
        return self.known[key]

    def _inputs(self, chunk: Chunk, microbatch: int, sizes: Sizes) -> float:
        """Bytes of what a chunk takes from the one before it, or a module from those upstream."""
        rows = self.parallel[chunk.module].rows
        if chunk.start:
            specs = self.model.module(chunk.module).layers[chunk.start - 1].output
            return _bytes(specs, sizes, self.compute, gradient=False) / rows
        whole = self.batch.microbatches[microbatch].sizes
        return (
            sum(
                _bytes(self.model.module(source).layers[-1].output, whole[source], self.compute, gradient=False)
                for source in self.model.upstream(chunk.module)
            )
            / rows
        )

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
            bytes = _bytes(specs, sizes, self.compute, gradient)
            delay = float(max(self.costs[own.module].transfer(bytes) for own in (producer, consumer)))
        self.edges.append((before, after, delay))


def _bytes(specs: tuple[TensorSpec, ...], sizes: Sizes, compute: str, gradient: bool) -> int:
    if compute not in ELEMENT_BYTES:
        raise ValueError(f"compute data type {compute!r} is unknown: use one of {', '.join(ELEMENT_BYTES)}")
    return sum(spec.bytes(sizes, compute) for spec in specs if spec.differentiable or not gradient)
