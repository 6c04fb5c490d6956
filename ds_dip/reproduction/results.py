"""The results: the ablation, the end-to-end table and that of the H20, each compared with what the paper says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ds_dip.partition.scoring import UnfitError
from ds_dip.reproduction import contenders
from ds_dip.reproduction.cases import Case
from ds_dip.reproduction.contenders import Outcome
from ds_dip.reproduction.fsdp import fsdp
from ds_dip.reproduction.published import ABLATION, END_TO_END, H20, TOLERANCE, Figure
from ds_dip.scheduling import interleave, interleaved_1f1b

#: Told before every system is simulated: what.
Progress = Callable[[str], None]
Run = Callable[[Case], Outcome]
#: Systems that the paper compares with, then a stronger one, then DIP by the paper's rule and by our search.
BASELINES: Mapping[str, Run] = {
    "fsdp": fsdp,
    "megatron": contenders.megatron,
    "static": contenders.static,
    "optimus": contenders.optimus,
}
OURS = "ours"
SYSTEMS: Mapping[str, Run] = {
    **BASELINES,
    "balanced": contenders.balanced,
    "rule": contenders.paper,
    OURS: contenders.ours,
}
TITLES: Mapping[str, str] = {
    "fsdp": "FSDP (analytic)",
    "megatron": "Megatron, interleaved, equal parameters",
    "static": "static plan (nnScaler-like)",
    "optimus": "coarse Optimus",
    "balanced": "interleaved, equal seconds (not in the paper)",
    "rule": "DIP, partition by the paper's rule",
    OURS: "ds_dip, partition searched",
    "partitioner": "+ partitioner (the paper's rule)",
    "interleaving": "+ interleaving",
    "reordering": "+ reordering",
    "memory": "+ memory",
}
H20_SYSTEMS = ("fsdp", "megatron", OURS)
#: Systems of an ablation: Megatron, the paper's parts, and ours.
STEPS = len(ABLATION) + 2


@dataclass(frozen=True, slots=True)
class Entry:
    """A system on a model: its outcome, or why there is none."""

    model: str
    system: str
    outcome: Outcome | None
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A published speed beside ours, and which of ``ASSUMPTIONS`` may be behind the difference.

    ``ours`` is None where it could not be simulated; ``where`` says on which model and over which system it is.
    """

    figure: Figure
    ours: float | None
    assumptions: tuple[str, ...]
    where: str = ""

    @property
    def deviation(self) -> float | None:
        """How far ours is above the paper's, as a share."""
        return None if self.ours is None else self.ours / self.figure.speedup - 1

    @property
    def agrees(self) -> bool:
        """Whether it is within ``TOLERANCE``."""
        return self.deviation is not None and abs(self.deviation) <= TOLERANCE


def ablation(case: Case, progress: Progress) -> tuple[Entry, ...]:
    """Megatron, and then the paper's parts one after the other on the partition of its rule; at last our partition."""
    partition = contenders.rule(case)
    detail = contenders.describe(case, partition)
    steps: dict[str, Run] = {
        "megatron": contenders.megatron,
        "partitioner": lambda own: contenders.ordered(own, partition, interleaved_1f1b, detail).outcome,
        "interleaving": lambda own: contenders.ordered(own, partition, interleave, detail).outcome,
        "reordering": lambda own: contenders.reordered(own, partition, detail).outcome,
        "memory": contenders.paper,
        OURS: contenders.ours,
    }
    return _entries(case, steps, progress)


def end_to_end(case: Case, progress: Progress) -> tuple[Entry, ...]:
    """Every system on a model."""
    return _entries(case, SYSTEMS, progress)


def h20(case: Case, progress: Progress) -> tuple[Entry, ...]:
    """The systems of the paper's H20 table."""
    return _entries(case, {name: SYSTEMS[name] for name in H20_SYSTEMS}, progress)


def _entries(case: Case, systems: Mapping[str, Run], progress: Progress) -> tuple[Entry, ...]:
    found = []
    for name, run in systems.items():
        progress(f"{case.name} on {case.setup.device}: {TITLES[name]}")
        try:
            found.append(Entry(case.name, name, run(case)))
        except UnfitError as error:
            found.append(Entry(case.name, name, None, str(error)))
    return tuple(found)


def speedup(entries: Sequence[Entry], system: str, over: str) -> float | None:
    """Throughput of one system over another on one model; None where either could not run."""
    means = {entry.system: entry.outcome.mean for entry in entries if entry.outcome is not None}
    return means[over] / means[system] if system in means and over in means else None


def compare_ablation(entries: Sequence[Entry]) -> list[Comparison]:
    """Each part's cumulative throughput over Megatron."""
    return [
        Comparison(figure, speedup(entries, name, "megatron"), _ABLATION[name]) for name, figure in ABLATION.items()
    ]


def compare_end_to_end(tables: Sequence[Sequence[Entry]]) -> list[Comparison]:
    """Least and largest throughput of ours over a baseline, by family of models."""
    found = []
    for family, figures in END_TO_END.items():
        gains = [
            (gain, entries[0].model, name)
            for entries in tables
            if entries[0].model.startswith(family)
            for name in BASELINES
            if (gain := speedup(entries, OURS, name)) is not None
        ]
        for figure, choose in zip(figures, (min, max), strict=True):
            gain, model, name = choose(gains) if gains else (None, "", "")
            where = f"{model} over {TITLES[name]}" if gains else ""
            found.append(Comparison(figure, gain, _END_TO_END if name != "fsdp" else ("fsdp", *_END_TO_END), where))
    return found


def compare_h20(entries: Sequence[Entry]) -> list[Comparison]:
    """Throughput of ours over FSDP and over Megatron."""
    return [Comparison(figure, speedup(entries, OURS, name), _H20[name]) for name, figure in H20.items()]


#: What the paper leaves open, or what is simulated otherwise, and the sentence that tells it.
ASSUMPTIONS: Mapping[str, str] = {
    "memory": "The paper does not say what its systems compute again in backwards. Here each keeps, module by module, "
    "as much as a device's memory lets it, and whole microbatches of up to 48 images let baselines keep less than cut "
    "ones do. The ablation without a memory limit tells how much of a difference this is.",
    "data": "The paper's mix of data, which decides how uneven microbatches are, is not public; the figures of public "
    "data sets stand for it.",
    "batch": "The paper does not say its microbatches a batch; the fewer there are, the more of an iteration is the "
    "pipeline's filling and draining.",
    "fsdp": "FSDP is an analytic cost and an optimistic one: gathering hides behind computing without loss, and there "
    "are no collectives of tensor parallelism, which in the pipelines hide behind nothing.",
    "ranges": "The paper gives ranges, and not which models and baselines are at their ends.",
    "static": "The paper leaves open how a static order treats sub-microbatches; here those of a microbatch share its "
    "place in interleaved 1F1B.",
    "steps": "Memory strategies are the best by module in every step but the last, which adds only what single stages "
    "can do beyond that.",
}
_ABLATION: Mapping[str, tuple[str, ...]] = {
    "partitioner": ("static", "data", "batch"),
    "interleaving": ("memory", "steps", "data", "batch"),
    "reordering": ("memory", "steps", "data", "batch"),
    "memory": ("memory", "steps", "data", "batch"),
}
_END_TO_END = ("ranges", "memory", "data", "batch")
_H20: Mapping[str, tuple[str, ...]] = {"fsdp": ("fsdp", "data", "batch"), "megatron": ("memory", "data", "batch")}
