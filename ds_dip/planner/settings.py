"""What a replica's plans depend on."""

from __future__ import annotations

from dataclasses import dataclass, field

from ds_dip.costs.roofline import Rates
from ds_dip.costs.rules import CostRules
from ds_dip.costs.strategies import STRATEGIES
from ds_dip.costs.table import LatencyTable
from ds_dip.data import DatasetReference
from ds_dip.models.partition import Partition, check_partition
from ds_dip.models.spec import Model
from ds_dip.planner.ordering import SCHEDULES
from ds_dip.planning.cut import LOSS_RULES


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """What a replica's plans depend on, beside the step and the corrections.

    ``batch_size`` samples a global batch and ``seed`` are the sampler's. ``microbatches`` is the
    nominal number a replica. ``schedule`` is one of ``SCHEDULES`` and ``loss`` one of
    ``LOSS_RULES``. ``memory_capacity`` is bytes a rank of activations, their gradients and messages, None for no
    limit, and ``strategies`` are the memory strategies that a plan chooses from, some of ``STRATEGIES``.
    ``link_depth`` messages of a link are posted ahead, ``ahead`` steps planned ahead. Costs come from the ``table``,
    or from the ``rates`` where there is none, under the user's ``rules``. The search of a batch's order scores at most
    ``evaluations`` schedules on ``workers`` threads; where it is ``paced``, it takes no longer than training leaves it
    and begins with the order of the batch before. ``adaptive`` planners follow what single ranks and shapes deviate.
    Samples of a batch are ``balanced`` over replicas and microbatches, or go to them in turn.
    With ``split``, the share by which a split backward takes longer, plans may split some (see ``planning.split``).
    Raises ValueError, naming the setting, for a value that is none.
    """

    model: Model
    partition: Partition
    dataset: DatasetReference
    batch_size: int
    seed: int = 0
    replicas: int = 1
    replica: int = 0
    microbatches: int = 1
    schedule: str = "dip"
    loss: str = "tokens"
    link_depth: int = 4
    memory_capacity: tuple[float | None, ...] | None = None
    rates: Rates = field(default_factory=Rates)
    table: LatencyTable | None = None
    rules: CostRules | None = None
    ahead: int = 2
    evaluations: int = 1000
    workers: int = 1
    paced: bool = True
    adaptive: bool = True
    balanced: bool = True
    split: float | None = None
    strategies: tuple[str, ...] = ("none",)

    def __post_init__(self) -> None:
        for name in ("batch_size", "replicas", "microbatches", "link_depth", "ahead", "workers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: at least 1 is needed")
        if self.evaluations < 0:
            raise ValueError(f"evaluations is {self.evaluations}: give 0 for no search, or more")
        if not 0 <= self.replica < self.replicas:
            raise ValueError(f"replica is {self.replica}: give 0 to {self.replicas - 1}")
        if self.batch_size < self.replicas:
            raise ValueError(
                f"a global batch of {self.batch_size} samples leaves some of {self.replicas} replicas without any: "
                "give at least one sample a replica"
            )
        for name, choices in (("schedule", tuple(SCHEDULES)), ("loss", LOSS_RULES)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is {getattr(self, name)!r}: use one of {', '.join(choices)}")
        if not self.strategies or not set(self.strategies) <= set(STRATEGIES):
            raise ValueError(f"strategies are {self.strategies!r}: give at least one of {', '.join(STRATEGIES)}")
        if self.split is not None and self.strategies != STRATEGIES[:1]:
            raise ValueError(
                f"split is {self.split}, and strategies are {', '.join(self.strategies)}: a backward that is split "
                'keeps everything; give "none" alone, or no split'
            )
        if self.memory_capacity is not None and len(self.memory_capacity) != self.partition.ranks:
            raise ValueError(
                f"memory_capacity has {len(self.memory_capacity)} values for {self.partition.ranks} ranks: "
                "give one a rank"
            )
        check_partition(self.model, self.partition)
