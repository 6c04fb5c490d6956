"""Costs of layers, chunks and stages composed from a latency table's operators by the model's description.

A layer is the sum of its operators, times what whole layers took over the same sum where the table has measured some.
A stage is its layers, slowed down as they are inside the engine, and what the engine adds around them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from ds_dip.costs.grid import COMPUTED, EXACT, MARKS, OUTSIDE, Columns, Cost, Family, families, key_of, point_of
from ds_dip.costs.layers import Wanted, layer_place, layer_sizes, wanted_layers
from ds_dip.costs.names import BATCH_END, FIRST, LOAD, POST, STAGE
from ds_dip.costs.operators import LINKS, Shape, calls, is_composed
from ds_dip.costs.parallel import TensorParallel
from ds_dip.costs.roofline import Rates, Roofline, operator_columns
from ds_dip.costs.table import LatencyTable, Row, Seconds
from ds_dip.models.partition import Partition
from ds_dip.models.spec import ELEMENT_BYTES, Layer, Model, Sizes

#: In the table's ``slowdown``: how much longer a batch's stages take than the makespan that its stages make.
ITERATION = "iteration"
#: What happens to a shape that the table does not reach.
OUTSIDE_RULES = ("roofline", "refuse")


class CostError(ValueError):
    """A cost that is asked for and cannot be told; the message says which and what to do."""


class TableCosts:
    """The cost model of a model on the machine of a latency table.

    Operators that the table does not have are computed from ``rates`` (default: one core's); shapes beyond its grid
    grow from the nearest row as the roofline does. ``mark`` tells which; with ``outside="refuse"`` both raise
    CostError instead. ``tensor_parallel`` is the degree that layers are cut by. ``partition`` tells which chunk of a
    module is the first on its rank; without one every chunk counts as first. ``forward`` and ``backward`` are how
    long a rank is busy with a stage; ``stage`` is the part that the engine's clock measures, ``around`` the rest:
    loading its fields, and posting its messages.
    Raises ValueError for an unknown rule or heads that do not divide by the degree.
    """

    def __init__(
        self,
        model: Model,
        table: LatencyTable,
        rates: Rates | None = None,
        *,
        outside: str = "roofline",
        tensor_parallel: int = 1,
        partition: Partition | None = None,
    ) -> None:
        if outside not in OUTSIDE_RULES:
            raise ValueError(f"outside is {outside!r}: use one of {', '.join(OUTSIDE_RULES)}")
        self.model, self.table, self.outside, self.tensor_parallel = model, table, outside, tensor_parallel
        self.rates = rates or Rates(compute=table.dtype)
        self._roofline = Roofline(model, self.rates, TensorParallel(tensor_parallel, False, self.rates.link))
        self._families = families(table.rows, tensor_parallel, self._computed)
        self._wanted = wanted_layers(model)
        rows = {row.name: row for row in table.rows if not row.shape}
        self._stage = {m.name: rows.get(STAGE + m.name, Row("", {})) for m in model.modules}
        self._post = {m.name: rows.get(POST + m.name, Row("", {})) for m in model.modules}
        self.batch_end = rows.get(BATCH_END, Row("", {})).forward.median
        self._first = {m.name: rows.get(FIRST + m.name, Row("", {})).forward.median for m in model.modules}
        self._later = set() if partition is None else later_chunks(partition)
        self._load = {m.name: _by_instances(table.named(LOAD + m.name)) for m in model.modules}
        self._cost = lru_cache(maxsize=8192)(self._uncached)
        self._ratios: Mapping[tuple[str, int], Family] = {}
        self._ratios = self._calibrate()

    def forward(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        """Seconds that a rank is busy with the forward."""
        return self.stage("F", module, start, stop, sizes) + self.around("F", module, start, stop, sizes)

    def backward(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        """Seconds that a rank is busy with the backward; a frozen module computes the gradients of inputs only."""
        if not self.model.backward(module):
            return 0.0
        return self.stage("B", module, start, stop, sizes) + self.around("B", module, start, stop, sizes)

    def stage(self, kind: str, module: str, start: int, stop: int, sizes: Sizes) -> float:
        """Seconds of a forward (``F``) or backward (``B``) between the engine's two marks."""
        slowdown = self.table.slowdown.get(f"{module}/{kind}", 1.0)
        first = self._first[module] if kind == "F" and (module, start) not in self._later else 0.0
        added = _of(self._stage[module], kind).median + first
        return self.layers(kind, module, start, stop, sizes) * slowdown + added

    def layers(self, kind: str, module: str, start: int, stop: int, sizes: Sizes) -> float:
        """Seconds of a stage's layers by themselves, without the engine."""
        frozen, total = self.model.module(module).frozen, 0.0
        for forward, of_input, of_weight, _ in self._columns(module, start, stop, sizes):
            total += forward if kind == "F" else of_input + (0.0 if frozen else of_weight)
        return total

    def around(self, kind: str, module: str, start: int, stop: int, sizes: Sizes) -> float:
        """Seconds that a rank spends on a stage outside of the engine's two marks."""
        seconds, load = _of(self._post[module], kind).median, self._load[module]
        if kind == "F" and load is not None:
            reading = sum(bool(layer.fields) for layer in self.model.module(module).layers[start:stop])
            seconds += reading * load.at(len(sizes)).columns[0]
        return seconds

    def activation_bytes(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        """Bytes that the forward keeps until the backward has run."""
        return sum(columns[3] for columns in self._columns(module, start, stop, sizes))

    def transfer(self, bytes: float) -> float:
        """Seconds of a transfer between two ranks."""
        return self._operator("transfer", {"bytes": round(bytes)}).columns[0]

    def iteration(self, makespan: float) -> float:
        """Seconds of a whole iteration of this makespan: its plan, reductions and the optimizer's step included."""
        return makespan * self.table.slowdown.get(ITERATION, 1.0) + self.batch_end

    def mark(self, module: str, start: int, stop: int, sizes: Sizes) -> str:
        """The least trustworthy of ``MARKS`` among what a chunk's cost is made of."""
        found = [self._cost(self._wanted[module, index], sizes).mark for index in range(start, stop)]
        return MARKS[max(found, default=EXACT)]

    def outside_share(self, modules: Iterable[tuple[str, Sizes]]) -> float:
        """Share, 0 to 1, of the seconds of these modules' layers that is not inside the table's grid."""
        beyond = total = 0.0
        for module, sizes in modules:
            for index in range(len(self.model.module(module).layers)):
                cost = self._cost(self._wanted[module, index], sizes)
                seconds = sum(cost.columns[:3])
                total += seconds
                beyond += seconds if cost.mark >= OUTSIDE else 0.0
        return beyond / total if total else 0.0

    def layer(self, layer: Layer, sizes: Sizes, *, loss: bool = False) -> Cost:
        """A layer's columns: its operators, times what whole layers took over theirs."""
        return self._cost(Wanted.of(layer, loss), sizes)

    def operator(self, name: str, shape: Shape) -> Columns:
        """An operator's columns."""
        return self._operator(name, shape).columns

    def composed(self, layer: Layer, sizes: Sizes, *, loss: bool = False) -> Cost:
        """A layer as the plain sum of its operators; ``loss`` if the loss follows it."""
        total: Columns = (0.0, 0.0, 0.0, 0.0)
        mark = EXACT
        for call in calls(layer, sizes, self.tensor_parallel, loss=loss):
            if call.operator in LINKS:
                width = ELEMENT_BYTES[self.table.dtype]
                shape = {"group": call.shape["group"], "bytes": call.shape["elements"] * width}
                cost = self._operator(call.operator, shape)
                forward, backward = (cost.columns[0] * (kind in call.passes) for kind in "FB")
                columns: Columns = (forward, backward, 0.0, 0.0)
            else:
                cost = self._operator(call.operator, call.shape)
                columns = cost.columns
            total = tuple([a + b for a, b in zip(total, columns, strict=True)])
            mark = max(mark, cost.mark)
        return Cost(total, mark)

    def _columns(self, module: str, start: int, stop: int, sizes: Sizes) -> list[Columns]:
        found = []
        for index in range(start, min(stop, len(self.model.module(module).layers))):
            wanted = self._wanted[module, index]
            cost = self._cost(wanted, sizes)
            if cost.mark >= OUTSIDE and self.outside == "refuse":
                raise CostError(
                    f"layer {index} of {module} ({wanted.layer.kind}) for {sum(sizes.tokens)} tokens in {len(sizes)} "
                    f"instances is {MARKS[cost.mark]} in the latency table of {self.table.device}: profile up to this "
                    "size, or take the roofline there"
                )
            found.append(cost.columns)
        return found

    def _uncached(self, wanted: Wanted, sizes: Sizes) -> Cost:
        layer = wanted.layer
        if not is_composed(layer):
            forward = self._roofline.layer(layer, sizes)
            part = forward * self.rates.backward_ratio / 2
            return Cost((forward, part, part, self._roofline.layer_bytes(layer, sizes)), COMPUTED)
        cost = self.composed(layer, sizes, loss=wanted.loss)
        spread = int(len(set(sizes.tokens)) > 1)
        family = self._ratios.get((wanted.name, spread)) or self._ratios.get((wanted.name, 1 - spread))
        if family is None or not len(sizes):
            return cost
        mean = round(sum(sizes.tokens) / len(sizes))
        forward, backward, kept = family.at(mean, len(sizes)).columns
        a, b, c, d = cost.columns
        return Cost((a * forward, b * backward, c * backward, d * kept), cost.mark)

    def _operator(self, name: str, shape: Shape) -> Cost:
        family = self._families.get(key_of(name, shape))
        return Cost(self._computed(name, shape), COMPUTED) if family is None else family.at(*point_of(name, shape))

    def _computed(self, name: str, shape: Shape) -> Columns:
        return operator_columns(name, shape, self.rates)

    def _calibrate(self) -> Mapping[tuple[str, int], Family]:
        """Per kind of layer, measured over composed: forward, backward, bytes, by mean size and instances."""
        known = {wanted.name: wanted for wanted in self._wanted.values() if is_composed(wanted.layer)}
        found: dict[tuple[str, int], dict[tuple[int, ...], Columns]] = {}
        for row in self.table.rows:
            place = layer_place(row)
            if place is None or place[0] not in known or row.tensor_parallel != self.tensor_parallel:
                continue
            name, (size, instances, spread) = place
            wanted = known[name]
            sum_of = self.composed(
                wanted.layer, layer_sizes(wanted.layer, size, instances, spread), loss=wanted.loss
            ).columns
            whole = row.forward.median, row.backward_input.median + row.backward_weight.median, row.kept_bytes
            parts = sum_of[0], sum_of[1] + sum_of[2], sum_of[3]
            found.setdefault((name, spread), {})[size, instances] = tuple(
                [w / p if p > 0 and w > 0 else 1.0 for w, p in zip(whole, parts, strict=True)]
            )
        return {key: Family(values) for key, values in found.items()}


def later_chunks(partition: Partition) -> set[tuple[str, int]]:
    """Chunks, by module and first layer, whose rank holds an earlier one of the same module."""
    seen, later = set(), set()
    for chunk in partition.chunks:
        if (chunk.module, chunk.rank) in seen:
            later.add((chunk.module, chunk.start))
        seen.add((chunk.module, chunk.rank))
    return later


def _of(row: Row, kind: str) -> Seconds:
    return row.forward if kind == "F" else row.backward_input


def _by_instances(rows: tuple[Row, ...]) -> Family | None:
    values: dict[tuple[int, ...], Columns] = {
        (row.shape["instances"],): (row.forward.median,) for row in rows if "instances" in row.shape
    }
    return Family(values) if values else None
