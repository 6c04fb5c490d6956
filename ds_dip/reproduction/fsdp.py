"""FSDP as an analytic cost: every device computes whole microbatches with weights that are gathered when needed.

There is no schedule to simulate. In a round each device has one microbatch, and they wait for each other at every
module, because a layer's weights are gathered by all of them at once. Weights are gathered in the run's data type once
a forward and once a backward, gradients scattered in fp32; that and the computing of the module hide each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from ds_dip.costs.ending import Ending
from ds_dip.costs.roofline import Roofline
from ds_dip.costs.strategies import STRATEGIES, stage_costs
from ds_dip.data import SampleMetadata
from ds_dip.models.parameters import module_parameters, parameters
from ds_dip.models.spec import ELEMENT_BYTES, Sizes
from ds_dip.partition.memory import Memory
from ds_dip.partition.scoring import UnfitError
from ds_dip.planning.cut import sizes_of
from ds_dip.reproduction.cases import COMPUTE, Case
from ds_dip.reproduction.contenders import Outcome

#: Devices of a node, which share its ports to the network (the paper's machines).
NODE = 8
_GRADIENT = 4


@dataclass(frozen=True, slots=True)
class _Work:
    """A microbatch on one device: seconds by module, and the most bytes of activations."""

    seconds: Mapping[str, float]
    bytes: float


def fsdp(case: Case) -> Outcome:
    """The batch over all devices of the setup, however many microbatches it has.

    Raises UnfitError where no memory strategy fits.
    """
    return _fsdp(case, hidden=True)


def exposed(case: Case) -> Outcome:
    """The same where gathering and scattering hide behind nothing: the other end of what FSDP may take."""
    return _fsdp(case, hidden=False)


def _fsdp(case: Case, *, hidden: bool) -> Outcome:
    """``fsdp``, or ``exposed``.

    A sampled batch's work is divided among the devices at the efficiency of a round, for which as many samples are
    drawn as there are devices. Every layer is checkpointed by the strategy that is fastest among those that fit.
    """
    devices, rates = case.setup.devices, case.device.rates(COMPUTE, "network")
    room = _room(case)
    ending = Ending(1, rates.link, rates.link_latency, rates.memory, COMPUTE)
    total = sum(module_parameters(case.model, own.name) for own in case.model.modules if not own.frozen)
    best: Outcome | None = None
    for strategy in STRATEGIES:
        rounds = [[_work(case, sample, strategy) for sample in own] for own in case.rounds]
        if max(work.bytes for own in rounds for work in own) > room:
            continue
        seconds = []
        for samples, own in zip(case.scorer.workload.batches, rounds, strict=True):
            batch = fsum(fsum(_work(case, sample, strategy).seconds.values()) for sample in samples)
            efficiency = fsum(fsum(work.seconds.values()) for work in own) / (
                devices * _round(case, own, hidden=hidden)
            )
            seconds.append(batch / devices / efficiency + ending.step(total / devices))
        found = Outcome(tuple(seconds), (), f"{devices} devices", strategy)
        if best is None or found.mean < best.mean:
            best = found
    if best is None:
        raise UnfitError(f"{case.name}, FSDP: a microbatch's activations exceed {room / 1e9:.3g} GB by every strategy")
    return best


def _room(case: Case) -> float:
    """Bytes of a device for activations: state is shared by all, and two layers' weights are whole."""
    model, devices, width = case.model, case.setup.devices, ELEMENT_BYTES[COMPUTE]
    memory = Memory(case.device.memory_bytes, COMPUTE)
    state, largest = 0.0, 0.0
    for module in model.modules:
        # Parameter and, where it is trained, gradient, fp32 copy and two moments.
        each = width if module.frozen else width + 4 * _GRADIENT
        state += each * module_parameters(model, module.name) / devices
        largest = max([largest, *(float(width * parameters(layer)) for layer in module.layers)])
    return memory.activations(0, state + 2 * largest, 0.0) or 0.0


def _round(case: Case, works: Sequence[_Work], *, hidden: bool) -> float:
    """Seconds in which every device computes one microbatch."""
    devices, total = len(works), 0.0
    node, network = case.device.rates(COMPUTE, "node").link, case.device.rates(COMPUTE, "network").link
    link = node if devices <= NODE else min(node, NODE * network)
    for module in case.model.modules:
        width = ELEMENT_BYTES[COMPUTE]
        moved = width * (2 if case.model.backward(module.name) else 1) + (0 if module.frozen else _GRADIENT)
        sent = moved * module_parameters(case.model, module.name) * (devices - 1) / devices / link
        slowest = max(work.seconds[module.name] for work in works)
        total += max(sent, slowest) if hidden else sent + slowest
    return total


def _work(case: Case, sample: SampleMetadata, strategy: str) -> _Work:
    """One sample as a microbatch on one device, every layer a stage of its own."""
    costs = Roofline(case.model, case.device.rates(COMPUTE, "node"))
    sizes = sizes_of([sample], case.model)
    seconds: dict[str, float] = {}
    kept = workspace = 0.0
    for module in case.model.modules:
        own = sizes[module.name]
        seconds[module.name] = 0.0
        # Blocks are alike: one is costed for all of a kind that follow each other.
        for index, count in _runs(case, module.name) if len(own) else ():
            (cost,) = stage_costs(
                costs,
                case.model,
                module.name,
                index,
                index + 1,
                own,
                inputs=_inputs(case, module.name, index, sizes),
                compute=COMPUTE,
                strategies=(strategy,),
            )
            seconds[module.name] += count * (cost.forward + cost.backward)
            if case.model.backward(module.name):
                kept += count * cost.memory
                workspace = max(workspace, cost.workspace)
    return _Work(seconds, kept + workspace)


def _runs(case: Case, module: str) -> list[tuple[int, int]]:
    """(last layer of a run, how many layers) of equal layers that follow each other, a module's first one apart."""
    layers = case.model.module(module).layers
    runs: list[tuple[int, int]] = []
    for index, layer in enumerate(layers):
        if index > 1 and layer == layers[index - 1]:
            runs[-1] = index, runs[-1][1] + 1
        else:
            runs.append((index, 1))
    return runs


def _inputs(case: Case, module: str, index: int, sizes: Mapping[str, Sizes]) -> float:
    """Bytes that a layer takes."""
    if index:
        specs = case.model.module(module).layers[index - 1].output
        return float(sum(spec.bytes(sizes[module], COMPUTE) for spec in specs))
    return float(
        sum(
            spec.bytes(sizes[source], COMPUTE)
            for source in case.model.upstream(module)
            for spec in case.model.module(source).layers[-1].output
        )
    )
