"""What is simulated: a model of the paper on its devices, with its data, costs and memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ds_dip.costs.devices import Device, read_device
from ds_dip.costs.ending import Ending, rank_tails
from ds_dip.costs.model import sample_seconds
from ds_dip.costs.roofline import Roofline
from ds_dip.costs.strategies import STRATEGIES
from ds_dip.data import SampleMetadata
from ds_dip.data.clips import PackedClips
from ds_dip.data.documents import PackedDocuments
from ds_dip.models import load_model
from ds_dip.models.config import load_setups
from ds_dip.models.partition import Partition
from ds_dip.models.schema import Setup
from ds_dip.models.spec import Model
from ds_dip.partition.memory import Memory
from ds_dip.partition.scoring import Remembered, Scorer
from ds_dip.partition.workload import Workload, draw
from ds_dip.planner.ordering import schedulers
from ds_dip.planning import build_problem
from ds_dip.planning.cut import sizes_of
from ds_dip.scheduling import Problem

#: The paper's models and their files.
MODELS: Mapping[str, str] = {
    "VLM-S": "vlm_s.json",
    "VLM-M": "vlm_m.json",
    "VLM-L": "vlm_l.json",
    "T2V-S": "t2v_s.json",
    "T2V-L": "t2v_l.json",
    "VLM-XL": "vlm_xl.json",
    "T2V-XL": "t2v_xl.json",
}
#: Of them those that the paper ran on devices.
END_TO_END = ("VLM-S", "VLM-M", "VLM-L", "T2V-S", "T2V-L")
_DATA: Mapping[str, Callable[[int], PackedDocuments | PackedClips]] = {"VLM": PackedDocuments, "T2V": PackedClips}
_SAMPLES = 4096
#: Stages of a batch that are planned within a second.
MOST_STAGES = 8000
#: Bytes a second of a link on which nothing takes time.
_ENDLESS = 1e30
#: Data type of the simulated runs.
COMPUTE = "bfloat16"


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is simulated: microbatches of a batch, sampled batches, schedules scored a batch and a partition search.

    ``most_laps`` bounds K of our partitions and v of interleaved baselines.
    """

    microbatches: int
    batches: int
    evaluations: int
    partition_evaluations: int
    most_laps: int
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """A model in one of its setups; seconds and bytes are those of one device.

    ``rounds`` are samples for every device of the setup at once, as many rounds as there are sampled batches.
    """

    name: str
    model: Model
    setup: Setup
    device: Device
    scorer: Scorer
    effort: Effort
    rounds: tuple[tuple[SampleMetadata, ...], ...]
    _free: dict[Partition, list[Problem]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def family(self) -> str:
        """VLM or T2V."""
        return self.name.partition("-")[0]

    @property
    def unevenness(self) -> float:
        """How many times as long as the lightest the heaviest of the sampled microbatches takes."""
        batches = self.scorer.workload.batches
        seconds = [
            sample_seconds(self.model, self.scorer.costs, sizes_of([sample], self.model))
            for batch in batches
            for sample in batch
        ]
        return max(seconds) / min(seconds)

    def on(self, batches: Sequence[tuple[SampleMetadata, ...]]) -> Case:
        """The same on other batches."""
        scorer = self.scorer
        other = Scorer(
            self.model,
            Workload(tuple(batches), self.effort.microbatches),
            scorer.costs,
            schedulers("dip", self.effort.evaluations, self.effort.seed)[0],
            scorer.memory,
            scorer.ending,
            STRATEGIES,
            MOST_STAGES,
        )
        return replace(self, scorer=other, _free={})

    def within(self, limits: Sequence[float | None]) -> Case:
        """The same with at most this many bytes of activations on every rank."""
        other = self.on(self.scorer.workload.batches)
        other.scorer.memory = replace(other.scorer.memory, limits=tuple(limits))
        return other

    def problems(self, partition: Partition, chosen: Mapping[str, str] | None = None) -> list[Problem]:
        """Every sampled batch on a partition, stages with the memory strategy of their module, or with a choice of all.

        Raises UnfitError where nothing is left for activations.
        """
        if partition not in self._free:
            # Costs are what takes long, and of one partition all strategies are asked for one after the other.
            self._free.clear()
            self._free[partition] = self._problems(partition)
        free = self._free[partition]
        return free if chosen is None else [fixed(problem, chosen) for problem in free]

    def _problems(self, partition: Partition) -> list[Problem]:
        scorer = self.scorer
        assert scorer.ending is not None
        tails = rank_tails(self.model, partition, scorer.ending, scorer.memory.parallel.degree)
        capacity = scorer.capacity(partition)
        return [
            build_problem(
                batch,
                self.model,
                partition,
                scorer.costs,
                compute=COMPUTE,
                memory_capacity=capacity,
                strategies=STRATEGIES,
                tails=tails,
                parallel=scorer.memory.parallel,
            )
            for (batch,) in scorer.batches(partition)
        ]


def fixed(problem: Problem, chosen: Mapping[str, str]) -> Problem:
    """A problem without choices: every pair has the memory strategy of its module."""
    tasks = {task.id: task for task in problem.tasks}
    for pair in problem.pairs:
        forward, backward = tasks[pair.forward], tasks[pair.backward]
        own = pair.choices[STRATEGIES.index(chosen[forward.module])]
        tasks[pair.forward] = replace(forward, duration=own.forward_duration, acquire=own.memory)
        tasks[pair.backward] = replace(
            backward,
            duration=own.backward_duration,
            acquire=own.backward_acquire,
            release=own.memory + own.backward_acquire,
        )
    return replace(problem, tasks=tuple(tasks.values()), pairs=())


def make_case(
    name: str,
    effort: Effort,
    models: Path,
    devices: Path,
    device: str = "h800",
    *,
    ranks: int | None = None,
    limited: bool = True,
    collectives: bool = True,
    factor: float = 1.0,
    unevenness: float | None = None,
) -> Case:
    """The case of one of ``MODELS`` in its first setup on a device (with ``ranks``), from folders of descriptions.

    Pipelines have the device's memory, or no limit where it is not ``limited``; without ``collectives`` those of their
    tensor parallelism take no time. ``factor`` multiplies the share of its
    arithmetic that the device reaches. With ``unevenness`` only samples are drawn of which none takes more than that
    many times as long as another one: the most that can be kept.
    Tensor-parallel groups are inside a node, pipeline messages and what devices do at a batch's end go over the
    network. Raises FileError for a file that cannot be used, ValueError for a device without a setup.
    """
    path = models / MODELS[name]
    model, setups = load_model(path), load_setups(path)
    setup = next((own for own in setups if own.device == device and ranks in (None, own.ranks)), None)
    if setup is None:
        raise ValueError(f"{path} has no setup on {device}: add one, or take another device")
    sheet = read_device(devices / f"{device}.json")
    sheet = replace(sheet, efficiency={**sheet.efficiency, "flops": factor * sheet.efficiency["flops"]})
    parallel, rates = sheet.tensor_parallel(setup.tensor_parallel), sheet.rates(COMPUTE, "network")
    if not collectives:
        parallel = replace(parallel, link=_ENDLESS, link_latency=0.0)
    costs = Remembered(Roofline(model, rates, parallel))
    dataset = _DATA[name.partition("-")[0]](_SAMPLES)
    samples = [dataset.metadata(index) for index in range(len(dataset))]
    if unevenness is not None:
        samples = evened(samples, [sample_seconds(model, costs, sizes_of([own], model)) for own in samples], unevenness)
    batches = draw(len(samples), samples.__getitem__, effort.microbatches, effort.batches, effort.seed)
    scorer = Scorer(
        model,
        Workload(batches, effort.microbatches),
        costs,
        schedulers("dip", effort.evaluations, effort.seed)[0],
        Memory(sheet.memory_bytes if limited else None, COMPUTE, setup.replicas, parallel=parallel),
        Ending(setup.replicas, rates.link, rates.link_latency, rates.memory, COMPUTE),
        STRATEGIES,
        MOST_STAGES,
    )
    rounds = draw(len(samples), samples.__getitem__, min(setup.devices, len(samples)), effort.batches, effort.seed)
    return Case(name, model, setup, sheet, scorer, effort, rounds)


def evened(samples: Sequence[SampleMetadata], seconds: Sequence[float], unevenness: float) -> list[SampleMetadata]:
    """The most samples of which none takes more than ``unevenness`` times as long as another one, in their order."""
    order = sorted(range(len(samples)), key=seconds.__getitem__)
    best, low = range(0), 0
    for high, index in enumerate(order):
        while seconds[index] > unevenness * seconds[order[low]]:
            low += 1
        if high + 1 - low > len(best):
            best = range(low, high + 1)
    return [samples[index] for index in sorted(order[place] for place in best)]
