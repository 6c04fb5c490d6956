"""Memory strategies of a stage: what its forward keeps, and what that costs its backward (DIP, memory optimisation).

``none`` keeps everything. ``selective`` keeps what multiplications by weights and attention gave, and computes norms
and activation functions again, layer by layer. ``full`` keeps the stage's inputs and runs its whole forward again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ds_dip.costs.corrections import CorrectedCosts
from ds_dip.costs.memory import Footprint, footprint
from ds_dip.costs.model import CostModel
from ds_dip.costs.operators import calls, is_composed
from ds_dip.costs.parallel import ALONE, TensorParallel
from ds_dip.costs.roofline import Rates, operator_columns
from ds_dip.models.kinds import loses
from ds_dip.models.spec import Layer, Model, Sizes

STRATEGIES = ("none", "selective", "full")
_Value = TypeVar("_Value")
#: Operators that ``selective`` runs again.
CHEAP = ("layer_norm", "rms_norm", "modulate", "gelu", "silu_gate", "gather")


@dataclass(frozen=True, slots=True)
class StageCost:
    """A stage by one strategy: seconds of its forward and backward, bytes kept between them.

    ``workspace`` is the most that the backward holds beside that and the gradients that it gets.
    """

    forward: float
    backward: float
    memory: float
    workspace: float


def stage_costs(
    costs: CostModel,
    model: Model,
    module: str,
    start: int,
    stop: int,
    sizes: Sizes,
    *,
    inputs: float,
    compute: str,
    strategies: Sequence[str],
    parallel: TensorParallel = ALONE,
) -> tuple[StageCost, ...]:
    """What the layers ``start`` to ``stop`` cost by each strategy; ``inputs`` are the bytes that they take.

    Seconds and kept bytes rest on ``costs``; what of the bytes is kept where, and the workspace, on the layers'
    footprints. Bytes are whole numbers, of one of the devices that share a rank (as ``costs`` and ``inputs`` are).
    """
    if isinstance(costs, CorrectedCosts):
        plain = stage_costs(
            costs.base,
            model,
            module,
            start,
            stop,
            sizes,
            inputs=inputs,
            compute=compute,
            strategies=strategies,
            parallel=parallel,
        )
        return tuple(
            replace(
                cost,
                forward=costs.corrected(module, start, "F", sizes, cost.forward),
                backward=costs.corrected(module, start, "B", sizes, cost.backward),
            )
            for cost in plain
        )
    forward = costs.forward(module, start, stop, sizes)
    backward = costs.backward(module, start, stop, sizes)
    kept = float(costs.activation_bytes(module, start, stop, sizes))
    layers, frozen = model.module(module).layers[start:stop], model.module(module).frozen
    losing = [loses(model, module, index) for index in range(start, start + len(layers))]
    wanted = list(zip(layers, losing, strict=True))
    prints = _each(
        wanted,
        lambda layer, loss: footprint(layer, sizes, compute, loss=loss, frozen=frozen, parallel=parallel),
    )
    between = _each(
        wanted[:-1], lambda layer, _: sum(spec.bytes(sizes, compute) for spec in layer.output) / parallel.rows
    )
    # A module's first layer takes what other modules gave, which no layer keeps, but the stage does for its gradients.
    leaves = inputs if start == 0 else 0.0
    counted = sum(own.kept for own in prints)
    scale = kept / counted if counted else 1.0
    everything, most = kept + leaves, _workspace(prints, between, leaves, selective=False)
    found = []
    for strategy in strategies:
        if strategy == "none":
            found.append(_whole(forward, backward, everything, most))
        elif strategy == "selective":
            held = scale * sum(own.selective for own in prints) + leaves
            shares = _each(wanted, lambda layer, _: share(layer, sizes, compute))
            again = sum(own * _alone(costs, module, index, index + 1, sizes) for index, own in enumerate(shares, start))
            found.append(_whole(forward, backward + again, held, _workspace(prints, between, leaves, selective=True)))
        elif strategy == "full":
            again = _alone(costs, module, start, stop, sizes)
            held = min(inputs, everything)
            found.append(_whole(forward, backward + again, held, everything - held + most))
        else:
            raise ValueError(f"memory strategy {strategy!r} is unknown: use one of {', '.join(STRATEGIES)}")
    return tuple(found)


def _each(wanted: Sequence[tuple[Layer, bool]], of: Callable[[Layer, bool], _Value]) -> list[_Value]:
    """A value of every layer; one that is like the layer before, as most are, has that one's."""
    found: list[_Value] = []
    for place, own in enumerate(wanted):
        found.append(found[-1] if place and own == wanted[place - 1] else of(*own))
    return found


def forward_bytes(
    model: Model,
    module: str,
    start: int,
    stop: int,
    sizes: Sizes,
    *,
    strategy: str,
    compute: str,
    parallel: TensorParallel = ALONE,
) -> float:
    """The most that a forward holds beyond what it keeps; by ``full``, as without a backward, beyond its inputs."""
    most = held = 0.0
    layers = model.module(module).layers
    for index in range(start, stop):
        loss = loses(model, module, index)
        own = footprint(layers[index], sizes, compute, loss=loss, parallel=parallel)
        output = sum(spec.bytes(sizes, compute) for spec in layers[index].output) / parallel.rows
        if strategy == "full":
            most = max(most, held + own.forward)
            held = output
        else:
            # A layer's output and what it was added from, and what runs again later runs first.
            passing = output + (own.passing if strategy == "selective" else 0.0 if loss else output)
            most = max(most - (own.selective if strategy == "selective" else own.kept), passing)
    return float(round(most))


def _whole(forward: float, backward: float, memory: float, workspace: float) -> StageCost:
    return StageCost(float(forward), float(backward), float(round(memory)), float(round(workspace)))


def _alone(costs: CostModel, module: str, start: int, stop: int, sizes: Sizes) -> float:
    """Seconds of the layers' forward without what the engine adds to a stage, which does not run again."""
    return max(0.0, costs.forward(module, start, stop, sizes) - costs.forward(module, start, start, sizes))


def _workspace(prints: Sequence[Footprint], between: Sequence[float], leaves: float, *, selective: bool) -> float:
    """The most a backward holds beyond what the stage keeps, layers last to first, each freeing what it kept."""
    most = freed = 0.0
    for index in range(len(prints) - 1, -1, -1):
        own = prints[index]
        gradient = between[index] if index < len(between) else 0.0
        extra = own.recomputed if selective else 0.0
        most = max(most, own.backward + extra + gradient + (leaves if index == 0 else 0.0) - freed)
        freed += own.selective if selective else own.kept
    return most


def share(layer: Layer, sizes: Sizes, compute: str) -> float:
    """Share of a layer's forward that ``selective`` runs again, by the roofline's proportions; 0 of unknown layers."""
    if not is_composed(layer):
        return 0.0
    rates, cheap, total = Rates(compute=compute), 0.0, 0.0
    for call in calls(layer, sizes):
        seconds = operator_columns(call.operator, call.shape, rates)[0]
        total += seconds
        cheap += seconds if call.operator in CHEAP else 0.0
    return cheap / total if total else 0.0
