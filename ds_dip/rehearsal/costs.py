"""What a rehearsal waits for: the costs of the model itself, dilated, under the name of its twin. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ds_dip.costs.model import CostModel
from ds_dip.costs.roofline import Rates
from ds_dip.costs.rules import base_costs, read_rules, with_rules
from ds_dip.costs.table import read_table
from ds_dip.models.config import load_model
from ds_dip.models.spec import Model, Sizes
from ds_dip.partition.file import read_partition

#: How the planner's process, which has only a file of cost rules, finds them.
FACTORY = "ds_dip.rehearsal.costs:emulated"


@dataclass(frozen=True)
class Dilated:
    """A cost model whose seconds are multiplied; bytes are not."""

    base: CostModel
    factor: float

    def forward(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        """Seconds of the forward."""
        return self.factor * self.base.forward(module, start, stop, sizes)

    def backward(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        """Seconds of the backward."""
        return self.factor * self.base.backward(module, start, stop, sizes)

    def activation_bytes(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        """Bytes kept for the backward."""
        return self.base.activation_bytes(module, start, stop, sizes)

    def transfer(self, bytes: float) -> float:
        """Seconds of a transfer."""
        return self.factor * self.base.transfer(bytes)


def real_costs(
    model: Model, partition: str | Path, rates: Mapping[str, Any], table: str | None, rules: str | None
) -> CostModel:
    """The costs that a run of the model itself would be planned with, as its planner makes them.

    Errors as for ``read_partition``, ``read_table`` and ``read_rules``.
    """
    found = None if table is None else read_table(table)
    own = None if rules is None else read_rules(rules, model)
    return with_rules(base_costs(model, Rates(**rates), found, read_partition(partition, model)), model, own)


def emulated(
    costs: CostModel,  # noqa: ARG001  # the twin's, which mean nothing
    model: Model,  # noqa: ARG001
    *,
    real: str,
    partition: str,
    rates: Mapping[str, Any],
    table: str | None,
    rules: str | None,
    dilation: float,
) -> CostModel:
    """A factory of cost rules (see ``costs.rules``): of the model in ``real``, ``dilation`` times as slow."""
    return Dilated(real_costs(load_model(real), partition, rates, table, rules), dilation)
