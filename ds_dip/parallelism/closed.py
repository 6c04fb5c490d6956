"""Closed forms of a layout's iteration at the mean point of the data, for all layouts at once.

``paper`` is DFLOP's objective: T = (m + E_pp + L_pp - 1) x max(E, L), where a duration is that of a stage for the mean
microbatch. ``expected`` is ours, for the order in which layouts are simulated: what a pipeline of unequal stages needs,
with what follows the last backward, and with the unevenness that few samples a microbatch leave.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ds_dip.models.parameters import parameters
from ds_dip.models.spec import ELEMENT_BYTES
from ds_dip.parallelism.job import Job
from ds_dip.parallelism.layout import CONTIGUOUS
from ds_dip.parallelism.space import Columns
from ds_dip.partition.bounds import bottlenecks

Floats = npt.NDArray[np.float64]


class Means:
    """A job's modules at the mean point: seconds and bytes as curves over the samples of a microbatch."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._names = [module.name for module in job.model.modules]
        #: Samples of a microbatch at which curves are computed; they are straight lines between.
        powers = 2.0 ** np.arange(np.ceil(np.log2(job.batch)) + 1)
        self._grid = np.unique(np.concatenate(([0.25, 0.5], powers, powers * 1.5)))
        self._known: dict[tuple[int, str], tuple[Floats, Floats]] = {}
        self._weights: dict[tuple[int, str], float] = {}

    def seconds(self, modules: Sequence[str], tensor: npt.NDArray[np.int64], samples: Floats) -> Floats:
        """Seconds of whole modules for microbatches of so many samples, forward and backward."""
        return self._curve(0, modules, tensor, samples)

    def bytes(self, modules: Sequence[str], tensor: npt.NDArray[np.int64], samples: Floats) -> Floats:
        """Bytes that they keep on each device of a rank, of all ranks together."""
        return self._curve(1, modules, tensor, samples)

    def elements(self, modules: Sequence[str], tensor: npt.NDArray[np.int64], trained: bool) -> Floats:
        """Parameters of a device of each rank, of all ranks together; only those ``trained``, or all."""
        found = np.zeros(len(tensor))
        for size in np.unique(tensor):
            own = 0.0
            for name in modules:
                module = self.job.model.module(name)
                if (int(size), name) not in self._weights:
                    count = float(sum(parameters(layer, int(size)) for layer in module.layers))
                    self._weights[int(size), name] = count
                own += 0.0 if trained and module.frozen else self._weights[int(size), name]
            found[tensor == size] = own
        return found

    def stretch(self, modules: Sequence[str], ranks: npt.NDArray[np.int64]) -> Floats:
        """How much longer than the mean rank the slowest takes, of whole layers: a factor, of one sample."""
        found = np.ones(len(ranks))
        if not modules:
            return found
        costs = self.job.costs(1)
        layers = [second for name in modules for second in costs.layer_seconds(name, self.job.mean_point(name, 1.0))]
        # What is not in this space, as more ranks than layers, is no longer than a layer either.
        most = min(len(layers), int(ranks.max(initial=1)))
        slowest = np.array(bottlenecks(layers, most)) * np.arange(1, most + 1) / max(sum(layers), 1e-300)
        found[:] = slowest[np.minimum(ranks, most) - 1]
        return found

    def _curve(self, what: int, modules: Sequence[str], tensor: npt.NDArray[np.int64], samples: Floats) -> Floats:
        found = np.zeros(len(samples))
        for size in np.unique(tensor):
            rows = tensor == size
            for name in modules:
                found[rows] += np.interp(samples[rows], self._grid, self._values(int(size), name)[what])
        return found

    def _values(self, tensor: int, name: str) -> tuple[Floats, Floats]:
        if (tensor, name) not in self._known:
            costs, layers = self.job.costs(tensor), len(self.job.model.module(name).layers)
            seconds, bytes = [], []
            for samples in self._grid:
                where = (name, 0, layers, self.job.mean_point(name, samples))
                seconds.append(costs.forward(*where) + costs.backward(*where))
                bytes.append(costs.activation_bytes(*where))
            # Fewer than one instance is not a thing of its own: a microbatch then often has none.
            whole = self._grid * max(self.job.mean_sizes[name][0], 1e-12)
            share = np.minimum(1.0, whole)
            self._known[tensor, name] = np.array(seconds) * share, np.array(bytes) * share
        return self._known[tensor, name]


def split(job: Job) -> tuple[list[str], list[str]]:
    """The names of the encoders, and of the module with the loss."""
    names = [module.name for module in job.model.modules]
    return names[:-1], names[-1:]


def paper(job: Job, means: Means, of: Columns) -> Floats:
    """DFLOP's objective for every layout, infinite where its memory at the mean point is too much.

    A layout on one mesh has one pipeline: T = (m + pp - 1) x the stage of both modules.
    """
    before, behind = split(job)
    samples = job.batch / of.microbatches
    encoder = means.seconds(before, of.encoder[:, 0], samples / of.encoder[:, 2]) / of.encoder[:, 1]
    backbone = means.seconds(behind, of.backbone[:, 0], samples / of.backbone[:, 2]) / of.backbone[:, 1]
    deep = of.encoder[:, 1] + of.backbone[:, 1]
    found = np.where(
        of.disaggregated,
        (of.microbatches + deep - 1) * np.maximum(encoder, backbone),
        (of.microbatches + of.backbone[:, 1] - 1) * (encoder + backbone),
    )
    if job.cluster.memory is None:
        return found
    held = means.bytes(before, of.encoder[:, 0], samples / of.encoder[:, 2]) / of.encoder[:, 1]
    other = means.bytes(behind, of.backbone[:, 0], samples / of.backbone[:, 2]) / of.backbone[:, 1]
    state, rest = states(job, means, of)
    apart = np.maximum(state + deep * held, rest + of.backbone[:, 1] * other)
    together = state + rest + of.backbone[:, 1] * (held + other)
    fits = np.where(of.disaggregated, apart, together) <= job.cluster.memory
    return np.where(fits, found, np.inf)


def states(job: Job, means: Means, of: Columns) -> tuple[Floats, Floats]:
    """Bytes of parameters, gradients and optimizer state on a mean rank's device: of encoders, of the last module."""
    found = []
    width = ELEMENT_BYTES[job.cluster.compute]
    for names, mesh in zip(split(job), (of.encoder, of.backbone), strict=True):
        each = 4 + (8 + (4 if width < 4 else 0)) / mesh[:, 2]
        own = means.elements(names, mesh[:, 0], True) * each + means.elements(names, mesh[:, 0], False) * width
        found.append(own / mesh[:, 1])
    return found[0], found[1]


def expected(job: Job, means: Means, of: Columns) -> Floats:
    """Seconds of an iteration as far as the mean point tells them; K is 1, and nothing is computed again.

    The pipeline's filling takes longer by what a microbatch of few samples may; between, microbatches make up for
    each other.
    """
    before, behind = split(job)
    samples = job.batch / of.microbatches
    lone = 1 + _spread(job) * of.backbone[:, 2] * of.microbatches / job.batch
    encoder = means.seconds(before, of.encoder[:, 0], samples / of.encoder[:, 2]) / of.encoder[:, 1]
    backbone = means.seconds(behind, of.backbone[:, 0], samples / of.backbone[:, 2]) / of.backbone[:, 1]
    both, chain, whole = encoder + backbone, of.of(CONTIGUOUS), of.backbone[:, 1]
    longest = np.maximum(
        encoder * means.stretch(before, of.encoder[:, 1]), backbone * means.stretch(behind, of.backbone[:, 1])
    )
    apart = (of.microbatches - 1) * longest + (of.encoder[:, 1] * encoder + whole * backbone) * lone
    # A contiguous chain fills with the whole microbatch, a separated one with the shorter module.
    filling = (whole - 1) * np.where(chain, both, np.minimum(encoder, backbone))
    stretch = np.where(chain, means.stretch([*before, *behind], whole), 1.0)
    together = of.microbatches * both * stretch + filling * lone
    ends = []
    for names, mesh in zip((before, behind), (of.encoder, of.backbone), strict=True):
        ends.append(_end(job, mesh, means.elements(names, mesh[:, 0], True) / mesh[:, 1]))
    return np.where(of.disaggregated, apart + np.maximum(*ends), together + ends[0] + ends[1])


def _end(job: Job, mesh: npt.NDArray[np.int64], elements: Floats) -> Floats:
    found = np.zeros(len(elements))
    for replicas in np.unique(mesh[:, 2]):
        rows = mesh[:, 2] == replicas
        if (own := job.ending(int(replicas))) is not None:
            # A straight line above nothing.
            one, many = own.seconds(1.0), own.seconds(1e9 + 1.0)
            found[rows] = np.where(elements[rows] > 0, one + (many - one) / 1e9 * (elements[rows] - 1.0), 0.0)
    return found


def _spread(job: Job) -> float:
    """How much longer than the mean sample the longest of a few takes: its standard deviation, as a share."""
    seconds = np.array([sum(job.load(sample).seconds) for sample in job.profile[:512]])
    mean = float(seconds.mean())
    return float(seconds.std()) / mean if mean else 0.0
