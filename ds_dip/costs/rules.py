"""A user's own rules over a cost model: numbers in a JSON file, or a Python factory; and the choice of a model."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ds_dip.costs.composed import CostError, TableCosts
from ds_dip.costs.model import CostModel
from ds_dip.costs.parallel import ALONE, TensorParallel
from ds_dip.costs.roofline import Rates, Roofline
from ds_dip.costs.table import LatencyTable
from ds_dip.files import FileError, read_json
from ds_dip.models.partition import Partition
from ds_dip.models.spec import Model, Sizes

FORMAT = "ds-dip/cost-rules"
QUANTITIES = ("forward", "backward", "bytes")
#: Largest term of a rule, either sign: far more than any time or memory, and sums of it are finite.
_MOST = 1e18
_NEVER_NEGATIVE = ("scale", "base")
_TERMS = ("scale", "base", "per_instance", "per_token", "per_token_squared")


@dataclass(frozen=True, slots=True)
class Rule:
    """What each of a module's layers ``start`` to ``stop`` (exclusive, None: all) costs instead.

    ``scale`` times what it would cost, plus ``base``, plus the other terms times the instances, their tokens, and the
    sum of their squares. ``quantity`` is one of ``QUANTITIES``; seconds or bytes.
    """

    module: str
    quantity: str
    start: int = 0
    stop: int | None = None
    scale: float = 1.0
    base: float = 0.0
    per_instance: float = 0.0
    per_token: float = 0.0
    per_token_squared: float = 0.0

    def __call__(self, cost: float, sizes: Sizes) -> float:
        """The layer's cost under this rule."""
        squares = sum(size * size for size in sizes.tokens)
        tokens = sum(sizes.tokens)
        terms = self.per_instance * len(sizes) + self.per_token * tokens + self.per_token_squared * squares
        return self.scale * cost + self.base + terms


@dataclass(frozen=True, slots=True)
class CostRules:
    """Rules, applied one after another, then a factory ``"package.module:callable"``.

    It is called as ``factory(costs, model, **options)`` and gives the CostModel to use instead.
    """

    rules: tuple[Rule, ...] = ()
    factory: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


class RuledCosts:
    """A cost model with rules on top."""

    def __init__(self, base: CostModel, rules: tuple[Rule, ...]) -> None:
        self._base, self._rules = base, rules

    def forward(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        """Seconds of the forward."""
        return self._ruled("forward", module, start, stop, sizes)

    def backward(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        """Seconds of the backward."""
        return self._ruled("backward", module, start, stop, sizes)

    def activation_bytes(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        """Bytes that the forward keeps."""
        return self._ruled("bytes", module, start, stop, sizes)

    def transfer(self, bytes: float) -> float:
        """Seconds of a transfer."""
        return self._base.transfer(bytes)

    def _ruled(self, quantity: str, module: str, start: int, stop: int, sizes: Sizes) -> float:
        names = {"forward": "forward", "backward": "backward", "bytes": "activation_bytes"}
        cost = getattr(self._base, names[quantity])
        total = float(cost(module, start, stop, sizes))
        for rule in self._rules:
            if (rule.module, rule.quantity) != (module, quantity):
                continue
            for layer in range(max(start, rule.start), min(stop, rule.stop if rule.stop is not None else stop)):
                # What no layer costs, a stage's own part, is not the layer's.
                own = cost(module, layer, layer + 1, sizes) - cost(module, layer, layer, sizes)
                total += rule(own, sizes) - own
        if not math.isfinite(total) or total < 0:
            raise CostError(
                f"the rules for {quantity} of {module} give {total} for layers {start} to {stop} on "
                f"{sum(sizes.tokens)} tokens: costs must be finite and not negative"
            )
        return total


def base_costs(
    model: Model,
    rates: Rates,
    table: LatencyTable | None,
    partition: Partition | None = None,
    parallel: TensorParallel = ALONE,
) -> Roofline | TableCosts:
    """Costs from the table where there is one, from the rates else; a table's collectives are its own rows.

    Raises ValueError where heads do not divide among the devices of ``parallel``.
    """
    if table is None:
        return Roofline(model, rates, parallel)
    return TableCosts(model, table, rates, partition=partition, tensor_parallel=parallel.degree)


def with_rules(base: CostModel, model: Model, rules: CostRules | None) -> CostModel:
    """A cost model under a user's rules.

    Raises CostError where the factory cannot be used.
    """
    if rules is None:
        return base
    costs: CostModel = RuledCosts(base, rules.rules) if rules.rules else base
    if rules.factory is None:
        return costs
    where, (package, _, name) = f"cost factory {rules.factory!r}", rules.factory.partition(":")
    try:
        factory = getattr(importlib.import_module(package), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise CostError(f"{where} cannot be found ({error}); write 'package.module:callable'") from error
    try:
        made = factory(costs, model, **rules.options)
    except Exception as error:  # a user's code may raise anything
        given = ", ".join(("costs", "model", *rules.options))
        raise CostError(
            f"{where} failed when called with {given} ({type(error).__name__}: {error}); mend it, or its options"
        ) from error
    for method in ("forward", "backward", "activation_bytes", "transfer"):
        if not callable(getattr(made, method, None)):
            raise CostError(f"{where} gave a {type(made).__name__} without {method!r}; give a CostModel")
    found: CostModel = made
    return found


def read_rules(path: str | Path, model: Model) -> CostRules:
    """Read ``ds-dip/cost-rules`` 1 for a model.

    Raises FileError, one sentence with the field, the value found and what was expected.
    """
    document = read_json(path, FORMAT)
    _known(path, "the file", document, ("format", "version", "rules", "factory", "options"))
    entries, factory, options = document.get("rules", []), document.get("factory"), document.get("options", {})
    if not isinstance(entries, list):
        raise _wrong(path, "rules", entries, "a list of rules")
    if factory is not None and (not isinstance(factory, str) or ":" not in factory):
        raise _wrong(path, "factory", factory, "'package.module:callable'")
    if not isinstance(options, dict):
        raise _wrong(path, "options", options, "an object")
    if not entries and factory is None:
        raise FileError(f"{path}: has neither rules nor a factory and changes no cost; give one, or leave the file out")
    return CostRules(tuple(_rule(path, f"rules[{i}]", e, model) for i, e in enumerate(entries)), factory, options)


def _rule(path: str | Path, where: str, entry: Any, model: Model) -> Rule:
    if not isinstance(entry, dict):
        raise _wrong(path, where, entry, "an object")
    _known(path, where, entry, tuple(f.name for f in fields(Rule)))
    layers = {module.name: len(module.layers) for module in model.modules}
    module, quantity = entry.get("module"), entry.get("quantity")
    if module not in layers:
        raise _wrong(path, f"{where}.module", module, f"one of {', '.join(layers)}")
    if quantity not in QUANTITIES:
        raise _wrong(path, f"{where}.quantity", quantity, f"one of {', '.join(QUANTITIES)}")
    start, stop = entry.get("start", 0), entry.get("stop", layers[module])
    for name, value in (("start", start), ("stop", stop)):
        if type(value) is not int or not 0 <= value <= layers[module]:
            raise _wrong(path, f"{where}.{name}", value, f"a layer of {module}, 0 to {layers[module]}")
    if start >= stop:
        raise FileError(
            f"{path}: {where} is for layers {start} to {stop} (exclusive) of {module}, which are none; give a start "
            "below the stop"
        )
    terms = {name: entry[name] for name in _TERMS if name in entry}
    for name, value in terms.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _wrong(path, f"{where}.{name}", value, "a number")
        # Of a factor or seconds beyond the limit sums are no longer finite; the other terms may reduce a cost.
        least = 0.0 if name in _NEVER_NEGATIVE else -_MOST
        if not least <= value <= _MOST:
            raise _wrong(path, f"{where}.{name}", value, f"a number from {least:g} to {_MOST:g}")
    return Rule(module, quantity, start, stop, **{name: float(value) for name, value in terms.items()})


def _known(path: str | Path, where: str, entry: Mapping[str, Any], names: tuple[str, ...]) -> None:
    for name in entry:
        if name not in names:
            raise FileError(f"{path}: {where} has the unknown field {name!r}; known are {', '.join(names)}")


def _wrong(path: str | Path, place: str, value: object, expected: str) -> FileError:
    return FileError(f"{path}: field {place!r} is {json.dumps(value, default=str)[:80]}, expected {expected}")
