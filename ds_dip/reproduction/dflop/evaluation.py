"""All cases of the evaluation, one after the other, as a document and a page."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ds_dip.costs.devices import read_device
from ds_dip.costs.ending import Ending
from ds_dip.costs.roofline import Roofline
from ds_dip.models import load_model
from ds_dip.parallelism import Cluster, Job, optimize
from ds_dip.parallelism.optimizer import Effort
from ds_dip.planner.ordering import fastest
from ds_dip.reproduction.dflop.mixes import AUDIO, MIXES, draw_mix
from ds_dip.reproduction.dflop.systems import Outcome, systems
from ds_dip.scheduling import Problem

FORMAT = "ds-dip/reproduction"
DEVICE, PER_NODE, COMPUTE = "a100", 8, "bfloat16"
#: Samples of a global batch for every GPU, and of a data profile.
EACH, PROFILE = 4, 4000
MODELS = (
    "siglip_qwen_7b", "siglip_qwen_32b", "siglip_qwen_72b", "siglip_llama_8b", "siglip_llama_70b",
    "siglip_large_qwen_7b", "internvit_qwen_72b",
)  # fmt: skip
NODES, OPTIMIZED = (1, 2, 4, 8), (64, 256, 1024)
#: What the paper reports over all of its cases.
PUBLISHED = "1.2 to 3.6 times as fast as the baselines, 82 to 84 % less idle time, audio 2 to 4 times"
#: Told before every case.
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Case:
    """A model, a mix of data and a number of nodes."""

    model: str
    mix: str
    nodes: int

    def __str__(self) -> str:
        return f"{self.model}, {self.mix}, {self.nodes} nodes"


def cases(quick: bool) -> list[Case]:
    """All of them; ``quick``, two small ones."""
    if quick:
        return [Case(MODELS[0], "mixed", 1), Case("qwen2_audio", AUDIO, 1)]
    found = [Case(model, mix, NODES[-1]) for model in MODELS for mix in MIXES]
    found += [Case(MODELS[0], "mixed", nodes) for nodes in NODES[:-1]]
    return [*found, *(Case("qwen2_audio", AUDIO, nodes) for nodes in NODES)]


def job_of(case: Case, models: Path, devices: Path, gpus: int | None = None) -> Job:
    """A case's job; files that cannot be used raise FileError."""
    model = load_model(models / f"dflop_{case.model}.json")
    device = read_device(devices / f"{DEVICE}.json")
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


def reproduce(models: Path, devices: Path, *, quick: bool = False, progress: Progress | None = None) -> dict[str, Any]:
    """Every case by every system, and how long the optimizer takes."""
    effort = Effort(pool=12, batches=1, held_out=2, shown=4) if quick else Effort()
    told = progress or (lambda _: None)
    rows = []
    for case in cases(quick):
        told(str(case))
        found = systems(job_of(case, models, devices), _schedule, effort)
        rows.append({"case": asdict(case), "systems": {name: _row(own) for name, own in found.items()}})
    return {
        "format": FORMAT,
        "version": 1,
        "paper": "dflop",
        "published": PUBLISHED,
        "cases": rows,
        "optimizer": [_timed(gpus, models, devices, told) for gpus in (() if quick else OPTIMIZED)],
    }


def _timed(gpus: int, models: Path, devices: Path, told: Progress) -> dict[str, Any]:
    told(f"optimizer, {gpus} GPUs")
    job = job_of(Case(MODELS[0], "mixed", 1), models, devices, gpus)
    began = time.process_time()
    found = optimize(job, _schedule)
    return {"gpus": gpus, "layouts": found.layouts, "cpu_s": time.process_time() - began}


def _schedule(problem: Problem) -> Any:
    return fastest(problem, "dip")


def _row(own: Outcome | str) -> dict[str, Any]:
    return {"refused": own} if isinstance(own, str) else asdict(own)


def total(quick: bool) -> int:
    """How often progress is told."""
    return len(cases(quick)) + (0 if quick else len(OPTIMIZED))


#: In the order of the page's columns.
SYSTEMS = ("Megatron-like", "PyTorch-like", "optimizer", "scheduler", "DFLOP", "DIP", "both")


def page(document: Mapping[str, Any]) -> str:
    """The document as Markdown: seconds and speedup over the Megatron-like baseline, idle time, chosen layouts."""
    return "\n".join(_lines(document)) + "\n"


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    yield "# DFLOP's evaluation, simulated"
    yield ""
    yield f"The paper, over all of its cases: {document['published']}."
    yield ""
    yield f"Seconds of the mean held-out batch on {DEVICE.upper()}s (over the Megatron-like baseline), and idle time."
    yield ""
    yield "| model | data | nodes | " + " | ".join(SYSTEMS) + " |"
    yield "|---|---|---|" + "---|" * len(SYSTEMS)
    for row in document["cases"]:
        own, base = row["case"], row["systems"]["Megatron-like"].get("seconds")
        cells = [_cell(row["systems"].get(name, {"refused": ""}), base) for name in SYSTEMS]
        yield f"| {own['model']} | {own['mix']} | {own['nodes']} | " + " | ".join(cells) + " |"
    yield ""
    for row in document["cases"]:
        yield f"- {Case(**row['case'])}: " + "; ".join(
            f"{name} {own.get('layout') or 'cannot run'}" for name, own in row["systems"].items()
        )
    for row in document["optimizer"]:
        yield f"- optimizer on {row['gpus']} GPUs: {row['layouts']} layouts, {row['cpu_s']:.1f} s of a core"


def _cell(own: Mapping[str, Any], base: float | None) -> str:
    if "seconds" not in own:
        return "cannot run"
    faster = "" if base is None else f" ({base / own['seconds']:.2f}x)"
    return f"{own['seconds']:.2f}{faster}, {own['idle']:.0%}"
