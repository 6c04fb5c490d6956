"""A cost model asked once for each kind of layer and its instances: modules have many layers and few kinds."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ds_dip.costs.composed import TableCosts
from ds_dip.costs.layers import Wanted
from ds_dip.costs.model import CostModel
from ds_dip.costs.roofline import Roofline
from ds_dip.models.kinds import loses
from ds_dip.models.spec import Model, Sizes

Floats = npt.NDArray[np.float64]
#: Cost models that know no layer by its place, so that layers alike cost alike.
_PLACELESS = (Roofline, TableCosts)
_QUANTITIES = ("forward", "backward", "activation_bytes")


class KindCosts:
    """The same costs as ``costs``, as sums over kinds of layers, but for rounding.

    A cost that depends on nothing but the stage (what the engine adds) is kept apart and counted once. Layers are
    alike by what their cost depends on; each is its own kind where a user's rules may name it.
    """

    def __init__(self, model: Model, costs: CostModel) -> None:
        self.costs = costs
        self._representatives: dict[str, tuple[int, ...]] = {}
        self._counts: dict[str, Floats] = {}
        self._known: dict[tuple[str, Sizes], tuple[Floats, Floats]] = {}
        for module in model.modules:
            places: dict[object, int] = {}
            kinds = []
            for index, layer in enumerate(module.layers):
                alike = Wanted.of(layer, loses(model, module.name, index)), bool(layer.fields)
                places.setdefault(alike if isinstance(costs, _PLACELESS) else index, index)
                kinds.append(places[alike if isinstance(costs, _PLACELESS) else index])
            own = tuple(dict.fromkeys(kinds))
            self._representatives[module.name] = own
            each = np.array([[kind == place for place in own] for kind in kinds], dtype=np.float64).reshape(
                len(kinds), len(own)
            )
            self._counts[module.name] = np.concatenate([np.zeros((1, len(own))), np.cumsum(each, axis=0)])

    def forward(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        """Seconds of the forward."""
        return self._sum(0, module, start, stop, sizes)

    def backward(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        """Seconds of the backward."""
        return self._sum(1, module, start, stop, sizes)

    def activation_bytes(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        """Bytes kept until the backward."""
        return self._sum(2, module, start, stop, sizes)

    def transfer(self, bytes: float) -> float:
        """Seconds of a transfer."""
        return self.costs.transfer(bytes)

    def kinds(self, module: str, start: int, stop: int) -> Floats:
        """How many layers of each kind lie in a chunk."""
        counts = self._counts[module]
        found: Floats = counts[stop] - counts[start]
        return found

    def representatives(self, module: str) -> tuple[int, ...]:
        """A layer of each kind."""
        return self._representatives[module]

    def row(self, module: str, sizes: Sizes) -> tuple[Floats, Floats]:
        """(3,) what a stage costs without layers, (3, kinds) a layer of each kind: forward, backward, bytes kept."""
        key = module, sizes
        if key not in self._known:
            self._known[key] = self._ask(module, sizes)
        return self._known[key]

    def _sum(self, quantity: int, module: str, start: int, stop: int, sizes: Sizes) -> float:
        base, each = self.row(module, sizes)
        if start >= stop:
            return float(base[quantity])
        return float(base[quantity] + self.kinds(module, start, stop) @ each[quantity])

    def _ask(self, module: str, sizes: Sizes) -> tuple[Floats, Floats]:
        base = np.array([getattr(self.costs, name)(module, 0, 0, sizes) for name in _QUANTITIES])
        rows = [
            [getattr(self.costs, name)(module, place, place + 1, sizes) for name in _QUANTITIES]
            for place in self._representatives[module]
        ]
        return base, np.array(rows).T - base[:, None]

    def layer_seconds(self, module: str, sizes: Sizes) -> list[float]:
        """Seconds of every layer, forward and backward, without what a stage adds."""
        each = self.row(module, sizes)[1]
        counts = self._counts[module]
        return [float((after - before) @ (each[0] + each[1])) for before, after in pairwise(counts)]
