"""What is simulated: a model of the paper on so many nodes of A100s, with one mix of data."""

from __future__ import annotations

from dataclasses import dataclass

from ds_dip.costs.devices import read_device
from ds_dip.costs.ending import Ending
from ds_dip.costs.roofline import Roofline
from ds_dip.models import load_model
from ds_dip.parallelism import Cluster, Job
from ds_dip.parallelism.optimizer import Effort
from ds_dip.reproduction.dflop.mixes import AUDIO, draw_mix
from ds_dip.reproduction.experiment import Settings

DEVICE, PER_NODE, COMPUTE = "a100", 8, "bfloat16"
#: Samples of a global batch for every GPU, and of a data profile.
EACH, PROFILE = 8, 4000
#: Batches that layouts are searched by, and layouts that a search ends with.
_BATCHES, _SHOWN = 2, 4
#: By name, what the paper calls them; the files are ``dflop_NAME.json``.
MODELS = {
    "siglip_qwen_7b": "SigLIP 400M + Qwen2.5 7B",
    "siglip_qwen_32b": "SigLIP 400M + Qwen2.5 32B",
    "siglip_qwen_72b": "SigLIP 400M + Qwen2.5 72B",
    "siglip_llama_8b": "SigLIP 400M + Llama3 8B",
    "siglip_llama_70b": "SigLIP 400M + Llama3 70B",
    "siglip_large_qwen_7b": "upscaled SigLIP + Qwen2.5 7B",
    "internvit_qwen_72b": "InternViT 6B + Qwen2.5 72B",
    "qwen2_audio": "Qwen2-Audio",
}
SPEAKING = "qwen2_audio"


@dataclass(frozen=True, slots=True)
class Case:
    """A model, a mix of data and a number of nodes."""

    model: str
    mix: str
    nodes: int

    def __str__(self) -> str:
        return f"{MODELS[self.model]}, {self.mix}, {self.nodes} node{'s' * (self.nodes > 1)}"


def job_of(settings: Settings, case: Case, gpus: int | None = None) -> Job:
    """A case's job, on another number of GPUs where that is given; files that cannot be used raise FileError."""
    model = load_model(settings.models / f"dflop_{case.model}.json")
    device = read_device(settings.devices / f"{DEVICE}.json")
    count = gpus or case.nodes * PER_NODE
    rates = device.rates(COMPUTE, "node" if count <= PER_NODE else "network")
    patches = 1024 if case.model.startswith("internvit") else 729
    cluster = Cluster(
        count,
        PER_NODE,
        device.memory_bytes,
        lambda own, tensor: Roofline(own, rates, device.tensor_parallel(tensor)),
        device.tensor_parallel,
        Ending(1, rates.link, rates.link_latency, rates.memory, COMPUTE),
        COMPUTE,
    )
    return Job(model, draw_mix(case.mix, PROFILE, patches), EACH * count, cluster)


def effort_of(settings: Settings) -> Effort:
    """How much a search simulates: figures are means over ``batches`` batches that no search has seen."""
    own = settings.effort
    return Effort(pool=own.partition_evaluations, batches=_BATCHES, held_out=own.batches, shown=_SHOWN, seed=own.seed)


def mixed(quick: bool) -> Case:
    """The case that is looked at from several sides: the smallest model on everything mixed."""
    return Case("siglip_qwen_7b", "mixed", 1 if quick else 8)


def spoken(nodes: int) -> Case:
    """The audio model's case."""
    return Case(SPEAKING, AUDIO, nodes)
