"""What a layout is chosen for: a model, samples of its data, a global batch, and GPUs with their costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, cycle, islice
from math import inf

import numpy as np

from ds_dip.costs.ending import Ending
from ds_dip.costs.model import CostModel
from ds_dip.costs.parallel import TensorParallel
from ds_dip.data import SampleMetadata
from ds_dip.models.parameters import parameters
from ds_dip.models.spec import Model, Module, Sizes
from ds_dip.parallelism.pricing import KindCosts
from ds_dip.partition.memory import Memory
from ds_dip.planning import Load, loads_of
from ds_dip.planning.assign import is_alone
from ds_dip.planning.cut import LOSS_RULES, sizes_of


@dataclass(frozen=True, slots=True)
class Cluster:
    """``gpus`` GPUs, ``per_node`` in each node, of ``memory`` bytes (None: no limit).

    Costs are those of one device in a tensor-parallel group: ``costs`` and ``parallel`` give them by the group's size,
    the former for a model whose heads it divides.
    ``ending`` is what a batch ends with on one replica; its replicas are those of a layout. ``compute`` names the data
    type. Raises ValueError for counts below 1, and for nodes that are not full.
    """

    gpus: int
    per_node: int
    memory: float | None
    costs: Callable[[Model, int], CostModel]
    parallel: Callable[[int], TensorParallel]
    ending: Ending | None = None
    compute: str = "bfloat16"

    def __post_init__(self) -> None:
        if self.gpus < 1 or self.per_node < 1:
            raise ValueError(f"there are {self.gpus} GPUs, {self.per_node} a node: at least 1 of each is needed")
        if self.gpus > self.per_node and self.gpus % self.per_node:
            raise ValueError(
                f"{self.gpus} GPUs are not whole nodes of {self.per_node}: give a multiple of {self.per_node}, or fewer"
            )


@dataclass(frozen=True)
class Job:
    """A model to train in global batches of ``batch`` samples like ``profile`` on a cluster.

    Raises ValueError where there is no sample, or ``batch`` or the loss rule mean nothing.
    """

    model: Model
    profile: tuple[SampleMetadata, ...]
    batch: int
    cluster: Cluster
    loss: str = "tokens"
    _costs: dict[int, KindCosts] = field(default_factory=dict, repr=False, compare=False)
    _memories: dict[tuple[int, int], Memory] = field(default_factory=dict, repr=False, compare=False)
    _loads: dict[tuple[str, bool], Load] = field(default_factory=dict, repr=False, compare=False)
    #: Of a module by its group's size: parameters of all layers before each one, and of all.
    _elements: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.profile:
            raise ValueError("the data profile holds no sample: give at least one")
        ids: set[str] = set()
        for sample in self.profile:
            if sample.id in ids:
                # What a sample costs is remembered by its id.
                raise ValueError(f"two samples of the data profile have the id {sample.id!r}: give each one of its own")
            ids.add(sample.id)
        if self.batch < 1:
            raise ValueError(f"the global batch has {self.batch} samples: at least 1 is needed")
        if self.loss not in LOSS_RULES:
            raise ValueError(f"loss is {self.loss!r}: use one of {', '.join(LOSS_RULES)}")

    def costs(self, tensor: int) -> KindCosts:
        """Costs of one device in a group of ``tensor``."""
        if tensor not in self._costs:
            # Modules whose heads it does not divide are on other groups: their layers are left out.
            modules = tuple(own if _divides(own, tensor) else replace(own, layers=()) for own in self.model.modules)
            model = replace(self.model, modules=modules)
            self._costs[tensor] = KindCosts(model, self.cluster.costs(model, tensor))
        return self._costs[tensor]

    def elements(self, module: str, tensor: int, start: int, stop: int) -> int:
        """Parameters of the layers ``start`` to ``stop`` on one device in a group of ``tensor``."""
        if (module, tensor) not in self._elements:
            counts = (parameters(layer, tensor) for layer in self.model.module(module).layers)
            self._elements[module, tensor] = (0, *accumulate(counts))
        sums = self._elements[module, tensor]
        return sums[stop] - sums[start]

    def memory(self, tensor: int, replicas: int) -> Memory:
        """How a device in a group of ``tensor`` spends its memory among ``replicas``."""
        if (tensor, replicas) not in self._memories:
            cluster, parallel = self.cluster, self.cluster.parallel(tensor)
            own = Memory(bytes=cluster.memory, compute=cluster.compute, replicas=replicas, parallel=parallel)
            self._memories[tensor, replicas] = own
        return self._memories[tensor, replicas]

    def ending(self, replicas: int) -> Ending | None:
        """What a batch ends with on ``replicas`` replicas."""
        own = self.cluster.ending
        return None if own is None else replace(own, replicas=replicas)

    def drawn(self, step: int, seed: int) -> tuple[SampleMetadata, ...]:
        """A global batch; samples repeat only where the profile has fewer than a batch."""
        size = len(self.profile)
        random = np.random.default_rng([seed, step])
        return tuple(self.profile[own] for own in random.choice(size, self.batch, replace=size < self.batch))

    @cached_property
    def heaviest(self) -> tuple[SampleMetadata, ...]:
        """The batch of the samples that hold most activations: none that is drawn from the profile holds more.

        Where the profile has fewer than a batch, its samples repeat, the heaviest first.
        """
        costs = self.costs(1)

        def held(sample: SampleMetadata) -> float:
            sizes = sizes_of([sample], self.model)
            return sum(
                costs.activation_bytes(own.name, 0, len(own.layers), sizes[own.name]) for own in self.model.modules
            )

        ranked = sorted(self.profile, key=held, reverse=True)
        return tuple(islice(cycle(ranked), self.batch))

    def load(self, sample: SampleMetadata, each: float = inf) -> Load:
        """What a sample costs where the mean microbatch holds ``each``, without tensor parallelism (see ``loads_of``).

        Samples are balanced by shares of each module's seconds, which depend little on the size of groups; so layouts
        with as many replicas and microbatches have the same.
        """
        key = sample.id, is_alone(each)
        if key not in self._loads:
            self._loads[key] = loads_of(self.model, self.costs(1), each)(sample)
        return self._loads[key]

    @cached_property
    def mean_sizes(self) -> dict[str, tuple[float, int, int]]:
        """Of every module: instances a sample, tokens and merged tokens an instance, in the mean."""
        whole = sizes_of(self.profile, self.model)
        found = {}
        for name, sizes in whole.items():
            count = max(1, len(sizes))
            mean = max(1, round(sum(sizes.tokens) / count)), max(1, round(sum(sizes.merged) / count))
            found[name] = len(sizes) / len(self.profile), *mean
        return found

    def mean_point(self, module: str, samples: float) -> Sizes:
        """A module's instances in ``samples`` mean samples: whole instances of the mean size."""
        instances, tokens, merged = self.mean_sizes[module]
        count = max(1, round(instances * samples)) if instances else 0
        return Sizes((tokens,) * count, (merged,) * count)


def _divides(module: Module, tensor: int) -> bool:
    return all(layer.options.get("heads", tensor) % tensor == 0 for layer in module.layers)
