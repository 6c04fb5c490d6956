"""Which shapes are measured: lines along one axis, from the sizes that a model's modules will see."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ds_dip.costs.layers import layer_shape, wanted_layers
from ds_dip.costs.names import LAYER, RECOMPUTED
from ds_dip.costs.operators import LINKS, OPERATORS, Call, calls, is_composed
from ds_dip.files import FileError, read_json
from ds_dip.models.kinds import DIFFUSION
from ds_dip.models.spec import Model, Sizes

FORMAT = "ds-dip/sweep"
#: Most instances of one size that are measured together where sizes vary.
_EQUAL = 4


@dataclass(frozen=True, slots=True)
class Extent:
    """What one module's stages see: sizes of instances, smallest to largest, and most instances in a stage."""

    smallest: int
    largest: int
    instances: int

    @property
    def mean(self) -> int:
        """A size between the ends, by ratio."""
        return max(self.smallest, round(math.sqrt(self.smallest * self.largest)))


@dataclass(frozen=True, slots=True)
class Sweep:
    """Extents of the modules, and ranges of what does not depend on them: both ends, and what lies between if asked."""

    modules: Mapping[str, Extent]
    transfer_bytes: tuple[int, int]
    collective_bytes: tuple[int, int]
    optimizer_elements: tuple[int, int]
    tensor_parallel: tuple[int, ...] = (1,)


@dataclass(frozen=True, slots=True)
class Line:
    """Points of one operator that differ along ``axis`` only; between them it is refined where it bends."""

    name: str
    fixed: tuple[tuple[str, int], ...]
    axis: str
    points: tuple[int, ...]
    tensor_parallel: int = 1

    def shape(self, point: int) -> dict[str, int]:
        """The shape at a point."""
        return dict(self.fixed) | {self.axis: point}


def read_sweep(path: str | Path, model: Model) -> Sweep:
    """Read a sweep's definition (``ds-dip/sweep`` 1) for a model.

    Raises FileError, one sentence with the field, the value found and what was expected.
    """
    document = read_json(path, FORMAT)
    modules = document.get("modules")
    names = [module.name for module in model.modules]
    if not isinstance(modules, dict) or sorted(modules) != sorted(names):
        raise FileError(f"{path}: field 'modules' names {_short(modules)}, expected the model's {', '.join(names)}")
    extents = {}
    for name, entry in modules.items():
        if not isinstance(entry, dict) or sorted(entry) != ["instances", "sizes"]:
            raise FileError(f"{path}: field 'modules.{name}' is {_short(entry)}, expected sizes and instances")
        smallest, largest = _range(path, f"modules.{name}.sizes", entry["sizes"])
        (most,) = _wholes(path, f"modules.{name}.instances", [entry["instances"]], 1)
        extents[name] = Extent(smallest, largest, most)
    known = ("format", "version", "modules", "transfer_bytes", "collective_bytes", "optimizer_elements",
             "tensor_parallel")  # fmt: skip
    for name in document:
        if name not in known:
            raise FileError(f"{path}: the file has the unknown field {name!r}; known are {', '.join(known)}")
    ranges = {name: _range(path, name, document.get(name)) for name in known[3:6]}
    degrees = document.get("tensor_parallel", [1])
    if not isinstance(degrees, list) or not degrees:
        raise FileError(f"{path}: field 'tensor_parallel' is {_short(degrees)}, expected a list of degrees")
    for degree in _wholes(path, "tensor_parallel", degrees, 1):
        for module in model.modules:
            for heads in {layer.options.get("heads", degree) for layer in module.layers}:
                if heads % degree:
                    raise FileError(
                        f"{path}: field 'tensor_parallel' has {degree}, which does not divide the {heads} heads of "
                        f"{module.name}; give degrees that do"
                    )
    return Sweep(extents, **ranges, tensor_parallel=tuple(degrees))


def _range(path: str | Path, name: str, value: Any) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise FileError(f"{path}: field {name!r} is {_short(value)}, expected the smallest and the largest")
    low, high = _wholes(path, name, value, 1)
    if low > high:
        raise FileError(f"{path}: field {name!r} is {_short(value)}, expected the smaller one first")
    return low, high


def _wholes(path: str | Path, name: str, values: Sequence[Any], least: int) -> list[int]:
    for value in values:
        if type(value) is not int or not least <= value < 2**40:
            raise FileError(f"{path}: field {name!r} has {_short(value)}, expected whole numbers of at least {least}")
    return list(values)


def _short(value: object) -> str:
    return repr(value)[:80]


def between(low: int, high: int, inner: int) -> tuple[int, ...]:
    """Both ends and ``inner`` points between them, by ratio."""
    steps = inner + 1
    return tuple(sorted({round(low * (high / low) ** (i / steps)) for i in range(steps + 1)}))


def operator_lines(model: Model, sweep: Sweep) -> list[Line]:
    """Lines of every operator that the model's layers call, each once, by the sizes of all modules that call it."""
    reach: dict[tuple[str, tuple[tuple[str, int], ...], str, int], tuple[int, int]] = {}
    for degree in sweep.tensor_parallel:
        for (module, _), wanted in wanted_layers(model).items():
            if not is_composed(wanted.layer):
                continue
            extent = sweep.modules[module]
            merge = wanted.layer.options.get("merge", 1)
            small, large = (
                Sizes((size,) * count, (max(1, size // merge),) * count)
                for size, count in ((extent.smallest, 1), (_typical(extent), extent.instances))
            )
            ends = zip(
                _single(calls(wanted.layer, small, degree, loss=wanted.loss)),
                _single(calls(wanted.layer, large, degree, loss=wanted.loss)),
                strict=True,
            )
            for low, high in ends:
                (axis,) = OPERATORS[low.operator].axes
                fixed = tuple(sorted((key, value) for key, value in low.shape.items() if key != axis))
                key = low.operator, fixed, axis, degree
                found = reach.get(key, (low.shape[axis], high.shape[axis]))
                reach[key] = min(found[0], low.shape[axis]), max(found[1], high.shape[axis])
    lines = [Line(name, fixed, axis, between(*ends, 1), degree) for (name, fixed, axis, degree), ends in reach.items()]
    elements = between(*sweep.optimizer_elements, 1)
    lines += [*_attention_lines(model, sweep), *_cross_attention_lines(model, sweep)]
    return [*lines, Line("optimizer_step", (), "elements", elements)]


def _single(called: Sequence[Call]) -> list[Call]:
    """Those of one axis within a rank: how many others there are depends on the sizes (see ``_attention_lines``)."""
    return [call for call in called if call.operator not in LINKS and len(OPERATORS[call.operator].axes) == 1]


def _typical(extent: Extent) -> int:
    """A mean size that a full stage does not exceed: the largest instances do not all come together."""
    return round((extent.smallest + extent.largest) / 2)


def _square(size: int, merge: int) -> int:
    """The nearest size of a square image that divides into squares of ``merge`` patches."""
    root = math.isqrt(merge)
    return int((max(1, round(size**0.5 / root)) * root) ** 2)


def _attended(extent: Extent, options: Mapping[str, int]) -> Extent:
    """What attends to itself: whole instances, or their windows, which all are of one size but for the rests."""
    window = options.get("window")
    if window is None or window >= extent.largest:
        return extent
    return Extent(window, window, extent.instances * -(-extent.largest // window))


def _attention_lines(model: Model, sweep: Sweep) -> Iterator[Line]:
    """Attention by size for one instance and several, or by instances of one size; packing by rows and runs."""
    seen = set()
    for degree in sweep.tensor_parallel:
        for (module, _), wanted in wanted_layers(model).items():
            o = wanted.layer.options
            if wanted.layer.kind not in ("encoder_block", "decoder_block", "diffusion_block"):
                continue
            extent, causal = _attended(sweep.modules[module], o), int(wanted.layer.kind == "decoder_block")
            heads = {"heads": o["heads"] // degree, "kv_heads": max(1, o["kv_heads"] // degree)}
            fixed = heads | {"head_dim": o["head_dim"]}
            key = tuple(fixed.items()), causal, extent, degree
            if key in seen:
                continue
            seen.add(key)
            attended = fixed | {"causal": causal}
            if extent.smallest == extent.largest:
                several = tuple(sorted((attended | {"size": extent.largest}).items()))
                yield Line("attention", several, "instances", between(1, extent.instances, 1), degree)
                continue
            # Few instances of one size come together where sizes vary.
            for count in between(1, min(_EQUAL, extent.instances), 1):
                alike = tuple(sorted((attended | {"instances": count}).items()))
                yield Line("attention", alike, "size", between(extent.smallest, extent.largest, 2), degree)
            for runs in dict.fromkeys((2, max(2, extent.instances))):
                packed = tuple(sorted((fixed | {"runs": runs}).items()))
                rows = max(runs * 2, extent.smallest * runs), _typical(extent) * max(runs, extent.instances // 2)
                yield Line("packing", packed, "rows", between(*rows, 1), degree)


def _cross_attention_lines(model: Model, sweep: Sweep) -> Iterator[Line]:
    """Attention of clips to their text by patches, for the shortest and the longest text of the module upstream."""
    for degree in sweep.tensor_parallel:
        for module in model.modules:
            block = next((layer.options for layer in module.layers if layer.kind == "diffusion_block"), None)
            if block is None:
                continue
            extent, (upstream,) = sweep.modules[module.name], model.upstream(module.name)
            heads = {"heads": block["heads"] // degree, "kv_heads": max(1, block["kv_heads"] // degree)}
            most = _typical(extent) * max(1, extent.instances // 2)
            for text in sorted({sweep.modules[upstream].smallest, sweep.modules[upstream].largest}):
                fixed = tuple(sorted((heads | {"head_dim": block["head_dim"], "text": text}).items()))
                yield Line("cross_attention", fixed, "rows", between(extent.smallest, most, 1), degree)


def layer_lines(model: Model, sweep: Sweep) -> list[tuple[Line, str]]:
    """Whole layers (lines with the layer's name, see ``Wanted``) of every kind by instances.

    Blocks also with the forward computed again in the backward, one shape each. Layers of a diffusion transformer,
    whose shapes depend on clips and their texts, are their operators alone.
    """
    lines: dict[tuple[str, str, int, int], tuple[Line, str]] = {}
    for (module, _), wanted in wanted_layers(model).items():
        if not is_composed(wanted.layer) or wanted.layer.kind in DIFFUSION:
            continue
        extent = sweep.modules[module]
        merge = model.module(module).layers[-1].options.get("merge")
        # An encoder's images are squares of merged squares: equal ones stand for all.
        varied = extent.smallest < extent.largest and merge is None
        sizes = {extent.mean, _typical(extent)} if varied else {_square(extent.mean, merge or 1)}
        for size in sizes:
            fixed = layer_shape(wanted, size, 1, int(varied))
            del fixed["instances"]
            points = between(2 if varied else 1, max(2, extent.instances), 2)
            name = LAYER + wanted.layer.kind
            lines[name, wanted.name, size, 0] = (
                Line(name, tuple(sorted(fixed.items())), "instances", points),
                wanted.name,
            )
        if "block" in wanted.layer.kind:
            again = layer_shape(wanted, max(sizes), 1, int(varied))
            del again["instances"]
            name = RECOMPUTED + wanted.layer.kind
            point = (max(1, extent.instances // 2),)
            lines[name, wanted.name, 0, 1] = (
                Line(name, tuple(sorted(again.items())), "instances", point),
                wanted.name,
            )
    return list(lines.values())


def link_lines(sweep: Sweep, ranks: int) -> list[Line]:
    """Transfers, and collectives of groups of 2, 4, … ranks, by bytes."""
    if ranks < 2:
        return []
    lines = [Line("transfer", (), "bytes", between(*sweep.transfer_bytes, 2))]
    group = 2
    while group <= ranks:
        for name in LINKS[1:]:
            lines.append(Line(name, (("group", group),), "bytes", between(*sweep.collective_bytes, 1)))
        group *= 2
    return lines
