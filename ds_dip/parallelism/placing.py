"""A layout's partition, and the pipelines that its replicas form: what each of them runs, and on which ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import gcd

from ds_dip.data import SampleMetadata
from ds_dip.models.partition import Chunk, Partition
from ds_dip.models.spec import Model
from ds_dip.parallelism.job import Job
from ds_dip.parallelism.layout import CONTIGUOUS, DISAGGREGATED, Layout
from ds_dip.partition.bounds import levelled_bounds
from ds_dip.partition.chunks import chunk_ranks, make_partition
from ds_dip.partition.contiguous import contiguous_split
from ds_dip.planning import assign, build_problem
from ds_dip.planning.batch import Batch, Microbatch
from ds_dip.planning.cut import cut, uniform
from ds_dip.scheduling import Problem


@dataclass(frozen=True, slots=True)
class Pipelines:
    """How a layout's replicas hang together: ``groups`` alike, each with encoder and backbone replicas of its own.

    A separated replica is a group by itself. Where encoders and backbone have as many replicas as the other or not,
    their greatest common divisor is the number of groups: no sample leaves its group. ``microbatches`` are a group's.
    """

    groups: int
    encoders: int
    backbones: int
    microbatches: int

    @classmethod
    def of(cls, layout: Layout) -> Pipelines:
        """Those of a layout."""
        if layout.placement != DISAGGREGATED:
            return cls(layout.backbone.data, 1, 1, layout.microbatches)
        groups = gcd(layout.encoder.data, layout.backbone.data)
        backbones = layout.backbone.data // groups
        return cls(groups, layout.encoder.data // groups, backbones, layout.microbatches * backbones)

    @property
    def pieces(self) -> int:
        """Sub-microbatches that encoders cut a microbatch into, so that all encoder replicas have work."""
        return -(-self.encoders // self.backbones)


def partition_of(job: Job, layout: Layout) -> Partition:
    """Where every layer lives in one pipeline of each mesh: encoders' ranks first where they have their own.

    Bounds level the sums of each rank at the mean point. Raises PartitionError where a module has too few layers.
    """
    model = job.model
    if layout.placement == CONTIGUOUS:
        own = {module.name: _layer_seconds(job, layout, module.name) for module in model.modules}
        return contiguous_split(model, layout.backbone.pipeline, own)
    chunks: list[Chunk] = []
    for names, ranks, first in _sides(model, layout):
        part = Model(
            model.name,
            tuple(model.module(name) for name in names),
            tuple(edge for edge in model.edges if set(edge) <= set(names)),
        )
        laps = dict(zip((module.name for module in model.modules), layout.laps, strict=True))
        counts = {name: ranks * laps[name] for name in names}
        homes = chunk_ranks(part, counts, ranks, "looped")
        seconds = {name: _layer_seconds(job, layout, name) for name in names}
        bounds = levelled_bounds(seconds, homes, ranks)
        parts = {name: [stop - start for start, stop in pairwise(own)] for name, own in bounds.items()}
        found = make_partition(part, ranks, parts=parts)
        chunks += [replace(chunk, rank=first + chunk.rank) for chunk in found.chunks]
    return Partition(
        max(chunk.rank for chunk in chunks) + 1, tuple(chunks), tuple((module.name, None) for module in model.modules)
    )


def _layer_seconds(job: Job, layout: Layout, module: str) -> list[float]:
    """Seconds of a module's layers for the mean microbatch."""
    mesh = layout.meshes(job.model)[module]
    mean = job.mean_point(module, job.batch / (layout.microbatches * mesh.data))
    return job.costs(mesh.tensor).layer_seconds(module, mean)


def _sides(model: Model, layout: Layout) -> list[tuple[list[str], int, int]]:
    """(modules, ranks of a pipeline, the first of them) of each mesh."""
    names = [module.name for module in model.modules]
    if layout.placement != DISAGGREGATED:
        return [(names, layout.backbone.pipeline, 0)]
    return [
        (names[:-1], layout.encoder.pipeline, 0),
        (names[-1:], layout.backbone.pipeline, layout.encoder.pipeline),
    ]


def batches_of(
    job: Job,
    layout: Layout,
    partition: Partition,
    step: int,
    samples: Sequence[SampleMetadata],
    *,
    balanced: bool = True,
) -> tuple[Batch, ...]:
    """A global batch as every group runs it, balanced as a run does it, or in turn; empty groups are left out."""
    own = Pipelines.of(layout)
    each = len(samples) / (own.groups * own.microbatches)
    shares = assign(samples, own.groups, own.microbatches, lambda s: job.load(s, each), balanced=balanced)
    return tuple(cut(step, samples, share, job.model, partition, loss=job.loss) for share in shares if share)


def pieces_of(model: Model, batch: Batch, layout: Layout) -> Batch:
    """A group's batch with its microbatches cut for the encoder replicas that work on each of them."""
    own = Pipelines.of(layout)
    if own.pieces == 1:
        return batch
    return replace(batch, microbatches=tuple(_cut(model, each, own.pieces) for each in batch.microbatches))


def _cut(model: Model, microbatch: Microbatch, pieces: int) -> Microbatch:
    """With the instances of modules that nothing feeds in so many sub-microbatches, as far as there are so many."""
    subs = dict(microbatch.subs)
    for module in model.modules[:-1]:
        count = len(microbatch.sizes[module.name])
        if not model.upstream(module.name) and count:
            subs[module.name] = uniform(count, -(-count // pieces))
    return replace(microbatch, subs=subs)


def problem_of(
    job: Job,
    layout: Layout,
    partition: Partition,
    batch: Batch,
    capacity: Sequence[float | None],
    tails: Sequence[float],
) -> Problem:
    """What the planner would schedule of a group's batch; ``capacity`` and ``tails`` are by the partition's ranks."""
    meshes, whole = layout.meshes(job.model), pieces_of(job.model, batch, layout)
    problem = build_problem(
        whole,
        job.model,
        partition,
        {name: job.costs(mesh.tensor) for name, mesh in meshes.items()},
        compute=job.cluster.compute,
        memory_capacity=capacity,
        strategies=(layout.strategy,),
        tails=tails,
        parallel={name: job.cluster.parallel(mesh.tensor) for name, mesh in meshes.items()},
    )
    return spread(problem, layout, whole, job.model.loss_module)


def spread(problem: Problem, layout: Layout, batch: Batch, last: str) -> Problem:
    """A problem of the partition's ranks on those of a group's replicas.

    Microbatches go to the backbone replicas in turn, and each encoder sub-microbatch to the encoder replica that has
    the fewest tokens so far: from there every one goes straight to the replica of its microbatch.
    """
    own = Pipelines.of(layout)
    if layout.placement != DISAGGREGATED or own.encoders == own.backbones == 1:
        return problem
    deep, wide = layout.encoder.pipeline, layout.backbone.pipeline
    homes = _encoder_homes(batch, own.encoders, last)
    tasks = []
    for task in problem.tasks:
        if task.module == last:
            rank = own.encoders * deep + task.microbatch % own.backbones * wide + task.rank - deep
        else:
            rank = homes[task.microbatch, task.module, task.sub] * deep + task.rank
        tasks.append(replace(task, rank=rank))
    like = [*range(deep)] * own.encoders + [*range(deep, deep + wide)] * own.backbones
    capacity = tuple(problem.memory_capacity[rank] for rank in like)
    return replace(problem, ranks=len(like), memory_capacity=capacity, tasks=tuple(tasks))


def _encoder_homes(batch: Batch, replicas: int, last: str) -> Mapping[tuple[int, str, int], int]:
    """The encoder replica of every (microbatch, module, sub-microbatch)."""
    loads, found = [0] * replicas, {}
    for number, microbatch in enumerate(batch.microbatches):
        for module, subs in microbatch.subs.items():
            for sub in range(len(subs)) if module != last else ():
                home = loads.index(min(loads))
                loads[home] += sum(microbatch.sub_sizes(module, sub).tokens)
                found[number, module, sub] = home
    return found
