"""Which part of a backward could be put off: the weight gradients of linear layers, by operators' costs."""

from __future__ import annotations

from functools import lru_cache

from ds_dip.costs.composed import TableCosts
from ds_dip.costs.operators import calls, is_composed
from ds_dip.costs.roofline import Rates
from ds_dip.costs.table import LatencyTable
from ds_dip.models.spec import Layer, Model, Sizes


class WeightShares:
    """Shares of backwards, from a latency table where there is one, else from rates.

    A layer of another kind than ours counts as if it was all linear: half of its backward.
    """

    def __init__(self, model: Model, rates: Rates, table: LatencyTable | None = None) -> None:
        self._model = model
        self._costs = TableCosts(model, table or LatencyTable("", rates.compute), rates)
        self._layer = lru_cache(maxsize=8192)(self._uncached)

    def share(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        """The part, 0 to 1, of the backward of the layers ``start`` to ``stop`` that can come later.

        The layers before the first that has a gradient to hand back count too, although nobody waits for theirs.
        """
        if self._model.module(module).frozen:
            return 0.0
        parts = [self._layer(module, index, sizes) for index in range(start, stop)]
        whole = sum(all_of for _, all_of in parts)
        return sum(of_weights for of_weights, _ in parts) / whole if whole else 0.0

    def _uncached(self, module: str, index: int, sizes: Sizes) -> tuple[float, float]:
        """Seconds of a layer's backward: what can be put off, and all."""
        layer: Layer = self._model.module(module).layers[index]
        columns = self._costs.layer(layer, sizes).columns
        if not is_composed(layer):
            return columns[2], columns[1] + columns[2]
        later = whole = 0.0
        for call in calls(layer, sizes):
            _, of_input, of_weight, _ = self._costs.operator(call.operator, call.shape)
            whole += of_input + of_weight
            later += of_weight if call.operator == "linear" else 0.0
        return later, whole
