"""Every layout that the GPUs, the batch and the model allow, as columns: there are up to millions of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from ds_dip.costs.parallel import check_heads
from ds_dip.models.spec import Model
from ds_dip.parallelism.job import Job
from ds_dip.parallelism.layout import CONTIGUOUS, DISAGGREGATED, PLACEMENTS, SEPARATED, Layout, Mesh

Ints = npt.NDArray[np.int64]
#: A batch of more stages than this is not planned while the one before it runs.
MOST_STAGES = 20_000


@dataclass(frozen=True, slots=True)
class Options:
    """What is searched: placements, and at most these K, microbatches a replica, and devices a group."""

    placements: tuple[str, ...] = PLACEMENTS
    most_laps: int = 4
    most_microbatches: int = 256
    most_tensor: int = 1 << 20

    def __post_init__(self) -> None:
        if not self.placements or not set(self.placements) <= set(PLACEMENTS):
            raise ValueError(f"placements are {self.placements}: name some of {', '.join(PLACEMENTS)}")
        for name in ("most_laps", "most_microbatches", "most_tensor"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: at least 1 is needed")


@dataclass(frozen=True, slots=True)
class Columns:
    """Layouts without K and memory strategy, one a row: the meshes' sizes and the microbatches.

    ``placement`` is a place in ``PLACEMENTS``. ``encoder`` and ``backbone`` are (rows, 3): tensor, pipeline, data;
    equal where all modules are on one mesh.
    """

    placement: Ints
    encoder: Ints
    backbone: Ints
    microbatches: Ints

    def __len__(self) -> int:
        return len(self.microbatches)

    @property
    def disaggregated(self) -> npt.NDArray[np.bool_]:
        """Which rows have two meshes."""
        return self.of(DISAGGREGATED)

    def of(self, placement: str) -> npt.NDArray[np.bool_]:
        """Which rows have a placement."""
        found: npt.NDArray[np.bool_] = self.placement == PLACEMENTS.index(placement)
        return found

    def layout(self, row: int, laps: tuple[int, ...], strategy: str) -> Layout:
        """One row with K and a memory strategy."""
        return Layout(
            PLACEMENTS[self.placement[row]],
            Mesh(*self.encoder[row].tolist()),
            Mesh(*self.backbone[row].tolist()),
            int(self.microbatches[row]),
            laps,
            strategy,
        )

    def take(self, rows: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Columns:
        """Some of the rows."""
        return Columns(self.placement[rows], self.encoder[rows], self.backbone[rows], self.microbatches[rows])


def columns(job: Job, options: Options) -> Columns:
    """All layouts: meshes whose GPUs are all of the cluster's, and microbatches that divide a replica's samples.

    A tensor-parallel group lies in one node, its size divides the node's GPUs and every module's heads; a module has
    a layer for each of its ranks, a contiguous chain for each of several; replicas of the module with the loss divide
    the global batch, as DeepSpeed's batch size does.
    """
    most_tensor, per_node = options.most_tensor, job.cluster.per_node
    model, gpus = job.model, job.cluster.gpus
    last, encoders = model.modules[-1], model.modules[:-1]
    found: list[tuple[int, ...]] = []
    tensors = tensor_sizes(model, [m.name for m in model.modules], per_node, most_tensor)
    counts = [len(module.layers) for module in model.modules]
    # A chain on one rank is separated, and so is that of one module.
    for placement, least, most in ((SEPARATED, 1, min(counts)), (CONTIGUOUS, 2, sum(counts) if encoders else 0)):
        for mesh in _meshes(gpus, tensors, most, job.batch) if placement in options.placements else ():
            if mesh[1] >= least and job.batch % mesh[2] == 0:
                kind = PLACEMENTS.index(placement)
                found += [(kind, *mesh, *mesh, own) for own in _microbatches(job, mesh, mesh, options)]
    if DISAGGREGATED in options.placements and encoders:
        before = tensor_sizes(model, [module.name for module in encoders], per_node, most_tensor)
        behind = tensor_sizes(model, [last.name], per_node, most_tensor)
        shallow = min(len(module.layers) for module in encoders)
        apart = PLACEMENTS.index(DISAGGREGATED)
        parts = {own: list(_meshes(own, before, shallow, job.batch)) for own in range(1, gpus)}
        for own in range(1, gpus):
            for mesh in _meshes(own, behind, len(last.layers), job.batch):
                if job.batch % mesh[2] == 0:
                    for other in parts[gpus - own]:
                        found += [(apart, *other, *mesh, m) for m in _microbatches(job, other, mesh, options)]
    table = np.array(found, dtype=np.int64).reshape(-1, 8)
    return Columns(table[:, 0], table[:, 1:4], table[:, 4:7], table[:, 7])


def laps(job: Job, layout: Layout, options: Options) -> Iterator[tuple[int, ...]]:
    """K of every module in order, the plainest first: more than 1 where all modules share several ranks."""
    modules, ranks = job.model.modules, layout.backbone.pipeline
    if layout.placement != SEPARATED or ranks == 1:
        yield (1,) * len(modules)
        return
    yield from product(*(range(1, min(options.most_laps, len(m.layers) // ranks) + 1) for m in modules))


def tensor_sizes(model: Model, modules: list[str], per_node: int, most: int) -> list[int]:
    """Sizes of tensor-parallel groups that divide a node and the heads of all of these modules."""
    part = Model(model.name, tuple(model.module(name) for name in modules))
    found = []
    for size in range(1, min(per_node, most) + 1):
        if per_node % size == 0:
            try:
                check_heads(part, size)
            except ValueError:
                continue
            found.append(size)
    return found


def _meshes(gpus: int, tensors: list[int], most_pipeline: int, most_data: int) -> Iterator[tuple[int, int, int]]:
    for tensor in tensors:
        if gpus % tensor == 0:
            ranks = gpus // tensor
            for pipeline in range(1, min(most_pipeline, ranks) + 1):
                if ranks % pipeline == 0 and ranks // pipeline <= most_data:
                    yield tensor, pipeline, ranks // pipeline


def _microbatches(
    job: Job, encoder: tuple[int, int, int], backbone: tuple[int, int, int], options: Options
) -> Iterator[int]:
    """Microbatches of a replica: what divides its samples, as far as they can be planned in time."""
    share = job.batch // backbone[2]
    stages = 2 * (backbone[1] + encoder[1])
    for count in range(1, min(share, options.most_microbatches) + 1):
        if share % count == 0 and stages * count <= MOST_STAGES:
            yield count
