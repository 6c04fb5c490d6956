"""Large scale: utilisation of VLM-XL and T2V-XL on thousands of H100, replicas included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import fsum

from ds_dip.costs.flops import model_flops
from ds_dip.costs.model import sample_seconds
from ds_dip.data import SampleMetadata
from ds_dip.partition.scoring import UnfitError
from ds_dip.planning.cut import sizes_of
from ds_dip.reproduction import contenders
from ds_dip.reproduction.cases import COMPUTE, Case
from ds_dip.reproduction.contenders import Outcome
from ds_dip.reproduction.experiment import (
    Comparison,
    Experiment,
    Part,
    Progress,
    Result,
    Results,
    Row,
    Settings,
    row_of,
)
from ds_dip.reproduction.published import utilisation
from ds_dip.reproduction.systems import BASELINES, RULE

KEY = "scale"
#: Model, pipeline ranks, devices.
SIZES = (("VLM-XL", 8, 8192), ("VLM-XL", 16, 16384), ("T2V-XL", 4, 3072), ("T2V-XL", 8, 6144))
_STEPS = 4
Samples = tuple[SampleMetadata, ...]


def dealt(samples: Sequence[SampleMetadata], loads: Sequence[float], replicas: int) -> list[Samples]:
    """As many samples for every replica and about as much load: heaviest first, to and fro over the replicas."""
    order = sorted(range(len(samples)), key=lambda index: (-loads[index], index))
    hands: list[list[SampleMetadata]] = [[] for _ in range(replicas)]
    for place, index in enumerate(order):
        turn, seat = divmod(place, replicas)
        hands[seat if turn % 2 == 0 else replicas - 1 - seat].append(samples[index])
    return [tuple(own) for own in hands]


def _run(settings: Settings, progress: Progress, model: str, ranks: int) -> Result:
    progress("samples of all replicas")
    setup = settings.case(model, "h100", ranks=ranks, effort=replace(settings.effort, batches=1)).setup
    effort = replace(settings.effort, batches=setup.replicas)
    case = settings.case(model, "h100", ranks=ranks, effort=effort)
    batches = case.scorer.workload.batches
    samples = [own for batch in batches for own in batch]
    loads = [sample_seconds(case.model, case.scorer.costs, sizes_of([own], case.model)) for own in samples]
    by_id = {own.id: load for own, load in zip(samples, loads, strict=True)}
    flops = model_flops(case.model, sizes_of(samples, case.model))
    assert flops is not None, "the kinds of layers of the paper's models all tell their operations"
    mean = fsum(loads) / setup.replicas

    def load(batch: Samples) -> float:
        return fsum(by_id[own.id] for own in batch)

    drawn, even = max(batches, key=load), max(dealt(samples, loads, setup.replicas), key=load)
    # Partitions are chosen on the first replicas' batches.
    usual = case.on(batches[:2])
    group = f"{model}, {ranks} ranks, {setup.devices} devices"
    partition = contenders.rule(usual)
    detail = contenders.describe(usual, partition)

    def ours(own: Case) -> Outcome:
        return contenders.mixed(own, partition, contenders.reordered(own, partition, detail), detail)

    def theirs(own: Case) -> Outcome:
        way, _ = contenders.best(usual, contenders.megatron_ways(usual))
        return contenders.ordered(own, way.partition, way.order, way.detail).outcome

    rows = []
    for name, title, run, batch in (
        ("megatron", BASELINES["megatron"][0], theirs, drawn),
        ("rule", RULE[0], ours, drawn),
        ("even", "the same, samples dealt evenly to replicas", ours, even),
    ):
        progress(title)
        try:
            outcome = run(case.on([batch]))
        except UnfitError as error:
            rows.append(Row(group, name, title, None, notes={"refusal": str(error)}))
            continue
        share = flops / (setup.devices * case.device.flops[COMPUTE] * outcome.mean)
        rows.append(row_of(group, name, title, outcome, MFU=share, heaviest=load(batch) / mean))
    return Result(tuple(rows), numbers={"devices": float(setup.devices)})


def parts(quick: bool) -> tuple[Part, ...]:
    """A part a model and number of ranks."""
    return tuple(
        Part(
            _key(model, ranks),
            f"{model} on {devices}",
            4 if quick else 15,
            _STEPS,
            partial(_run, model=model, ranks=ranks),
        )
        for model, ranks, devices in (SIZES[:1] if quick else SIZES)
    )


def _key(model: str, ranks: int) -> str:
    return f"{KEY}-{model.lower()}-{ranks}"


def _compare(results: Results) -> list[Comparison]:
    """The paper's figures are not known: ours stand alone."""
    found = []
    for model, ranks, devices in SIZES:
        if (key := _key(model, ranks)) in results:
            own = next(row for row in results[key].rows if row.system == "rule")
            found.append(Comparison(utilisation(f"{model}, {ranks} ranks", devices), own.values.get("MFU"), ()))
    return found


SCALE = Experiment(
    KEY,
    "Large scale",
    "The slowest replica is simulated, with the reduction of gradients over all replicas behind it, and the whole is "
    "as fast as that one; which it is, the work of its samples says. Utilisation is the model's operations over what "
    "all devices could do in that time. 'heaviest' is how many times as long as the mean replica the simulated one "
    "works. "
    "The paper's figures are not known.",
    parts,
    _compare,
    columns={"MFU": "share", "heaviest": "times"},
    quick="one model of one size.",
)
