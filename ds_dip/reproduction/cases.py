"""What is simulated: a model of the paper on its devices, with its data, costs and memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
from ds_dip.partition.scoring import Scorer
from ds_dip.partition.workload import Workload, draw
from ds_dip.planner.ordering import schedulers
from ds_dip.planning import build_problem
from ds_dip.planning.batch import Batch
from ds_dip.planning.cut import sizes_of
from ds_dip.scheduling import Problem

#: The models of the end-to-end figures: family, file.
MODELS: Mapping[str, str] = {
    "VLM-S": "vlm_s.json",
    "VLM-M": "vlm_m.json",
    "VLM-L": "vlm_l.json",
    "T2V-S": "t2v_s.json",
    "T2V-L": "t2v_l.json",
}
_DATA: Mapping[str, Callable[[int], PackedDocuments | PackedClips]] = {"VLM": PackedDocuments, "T2V": PackedClips}
_SAMPLES = 4096
#: Stages of a batch that are planned within a second.
MOST_STAGES = 8000
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

    def problems(self, partition: Partition, chosen: Mapping[str, str] | None = None) -> list[Problem]:
        """Every sampled batch on a partition, stages with the memory strategy of their module, or with a choice of all.

        Raises UnfitError where nothing is left for activations.
        """
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
                chosen=None if chosen is None else _stages(batch, partition, chosen),
                tails=tails,
                parallel=scorer.memory.parallel,
            )
            for (batch,) in scorer.batches(partition)
        ]


def _stages(batch: Batch, partition: Partition, chosen: Mapping[str, str]) -> dict[tuple[str, int, int, int], str]:
    """The strategies of single stages that modules' strategies are."""
    return {
        (chunk.module, chunk.index, number, sub): chosen[chunk.module]
        for chunk in partition.chunks
        for number, microbatch in enumerate(batch.microbatches)
        for sub in range(len(microbatch.subs[chunk.module]))
    }


def make_case(
    name: str, effort: Effort, models: Path, devices: Path, device: str = "h800", *, limited: bool = True
) -> Case:
    """The case of one of ``MODELS`` in its setup on a device, from folders of descriptions.

    Pipelines have the device's memory, or no limit where it is not ``limited``.
    Tensor-parallel groups are inside a node, pipeline messages and what devices do at a batch's end go over the
    network. Raises FileError for a file that cannot be used, ValueError for a device without a setup.
    """
    path = models / MODELS[name]
    model, setups = load_model(path), load_setups(path)
    setup = next((own for own in setups if own.device == device and own.replicas == 1), None)
    if setup is None:
        raise ValueError(f"{path} has no setup of one replica on {device}: add one, or take another device")
    sheet = read_device(devices / f"{device}.json")
    parallel, rates = sheet.tensor_parallel(setup.tensor_parallel), sheet.rates(COMPUTE, "network")
    dataset = _DATA[name.partition("-")[0]](_SAMPLES)
    batches = draw(len(dataset), dataset.metadata, effort.microbatches, effort.batches, effort.seed)
    scorer = Scorer(
        model,
        Workload(batches, effort.microbatches),
        Roofline(model, rates, parallel),
        schedulers("dip", effort.evaluations, effort.seed)[0],
        Memory(bytes=sheet.memory_bytes if limited else None, compute=COMPUTE, parallel=parallel),
        Ending(1, rates.link, rates.link_latency, rates.memory, COMPUTE),
        STRATEGIES,
        MOST_STAGES,
    )
    rounds = draw(len(dataset), dataset.metadata, setup.devices, effort.batches, effort.seed)
    return Case(name, model, setup, sheet, scorer, effort, rounds)
