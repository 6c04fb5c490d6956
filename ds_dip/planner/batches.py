"""Which samples a replica trains on in a step, from metadata alone: drawn, balanced, cut."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace

from ds_dip.costs.corrections import CorrectedCosts, Corrections, Fit
from ds_dip.costs.model import CostModel
from ds_dip.data import Dataset, SampleMetadata, order_of
from ds_dip.files import first_line
from ds_dip.planner.adopted import Adopted
from ds_dip.planner.settings import PlannerSettings
from ds_dip.planning import Load, assign, cut, loads_of
from ds_dip.planning.batch import Batch
from ds_dip.planning.cut import PlanningError, sizes_of

#: Newest batches remembered: they are planned, and asked for again when they have run.
_NEWEST = 16
#: Samples of so many different sizes are remembered with their loads.
_SAMPLE_LOADS = 65536


class Batches:
    """The batches of one replica.

    A pure function of the settings, the dataset's metadata, the static ``costs`` and what all replicas have adopted of
    measured ones: every replica's planner assigns the samples of a global batch for itself, and all must find the
    same, so a replica's own corrections have no say here. A leader's training and the check of the plans that arrive
    ask in two threads, and a dataset serves one at a time.
    """

    def __init__(self, settings: PlannerSettings, dataset: Dataset, costs: CostModel) -> None:
        self._settings, self._dataset, self._costs = settings, dataset, costs
        self._order = order_of(dataset, settings.batch_size, settings.seed)
        self._adopted = Adopted()
        self._loads: dict[tuple[Fit, ...], _Loads] = {}
        limits = [own for own in settings.memory_capacity or () if own is not None]
        self._capacity = min(limits) if limits else None
        self._newest: OrderedDict[int, Batch] = OrderedDict()
        self._reading = threading.RLock()

    def samples(self, step: int) -> list[SampleMetadata]:
        """The global batch of a training step, in the sampler's order; PlanningError where metadata cannot be read."""
        return [self._metadata(index) for index in self._order.indices(step)]

    def adopt(self, adopted: Adopted) -> None:
        """Assign by these from now on, every step by its own."""
        with self._reading:
            self._adopted = adopted
            for step in [step for step, batch in self._newest.items() if batch.adopted != adopted.at(step)]:
                del self._newest[step]
            used = {version.fits for version in adopted.versions}
            self._loads = {fits: loads for fits, loads in self._loads.items() if fits in used}

    def of(self, step: int) -> Batch:
        """This replica's batch of a training step; PlanningError where it cannot be made."""
        with self._reading:
            if step not in self._newest:
                self._newest[step] = self._share(step, self.samples(step), self._adopted.at(step))
                if len(self._newest) > _NEWEST:
                    self._newest.popitem(last=False)
            return self._newest[step]

    def share(self, number: int, samples: Sequence[SampleMetadata]) -> Batch:
        """This replica's share of an evaluation over these samples, by what was adopted last."""
        with self._reading:
            return self._share(number, samples, self._adopted.newest)

    def _share(self, step: int, samples: Sequence[SampleMetadata], adopted: tuple[Fit, ...]) -> Batch:
        settings = self._settings
        if adopted not in self._loads:
            self._loads[adopted] = self._loads_by(adopted)
        shares = assign(
            samples,
            settings.replicas,
            settings.microbatches,
            self._loads[adopted],
            capacity=self._capacity,
            balanced=settings.balanced,
        )
        batch = cut(step, samples, shares[settings.replica], settings.model, settings.partition, loss=settings.loss)
        return replace(batch, assigned=_number(samples, shares), adopted=adopted)

    def _loads_by(self, adopted: tuple[Fit, ...]) -> _Loads:
        settings = self._settings
        # A line is a stage's, and a module's seconds are those of all its chunks.
        whole = [replace(fit, offset=fit.offset * len(settings.partition.of(fit.module))) for fit in adopted]
        costs = CorrectedCosts(self._costs, Corrections(fits=tuple(whole)), {}) if adopted else self._costs
        each = settings.batch_size / (settings.replicas * settings.microbatches)
        return _Loads(loads_of(settings.model, costs, each), None if self._capacity is None else self._bytes)

    def _metadata(self, index: int) -> SampleMetadata:
        try:
            return self._dataset.metadata(index)
        except Exception as error:
            raise PlanningError(
                f"the dataset raised {type(error).__name__} ({first_line(error)}) for the metadata of sample {index} "
                f"of {self._order.samples}; make metadata() answer for every index below the dataset's length"
            ) from error

    def _bytes(self, sample: SampleMetadata) -> float:
        """What a sample keeps on the rank where it keeps most."""
        sizes = sizes_of([sample], self._settings.model)
        held = [0.0] * self._settings.partition.ranks
        for chunk in self._settings.partition.chunks:
            if (own := sizes.get(chunk.module)) is not None:
                held[chunk.rank] += self._costs.activation_bytes(chunk.module, chunk.start, chunk.stop, own)
        return max(held)


class _Loads:
    """What samples cost, those of the same sizes counted once."""

    def __init__(
        self, seconds: Callable[[SampleMetadata], Load], memory: Callable[[SampleMetadata], float] | None
    ) -> None:
        self._seconds, self._memory = seconds, memory
        self._known: dict[tuple[object, ...], Load] = {}

    def __call__(self, sample: SampleMetadata) -> Load:
        key = (*sample.modules.items(), None, *sample.merged.items())
        if key not in self._known:
            if len(self._known) >= _SAMPLE_LOADS:
                self._known.clear()
            memory = 0.0 if self._memory is None else self._memory(sample)
            self._known[key] = replace(self._seconds(sample), memory=memory)
        return self._known[key]


def _number(samples: Sequence[SampleMetadata], shares: object) -> int:
    """A hash of an assignment, small enough to be exact in a float of 64 bits."""
    content = repr(([sample.id for sample in samples], shares)).encode()
    return int(hashlib.sha256(content).hexdigest()[:13], 16)
