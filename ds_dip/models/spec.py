"""What an LMM is, without torch: modules, their layers, and the tensors at every boundary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

#: Bytes of one element of each data type that may cross a boundary.
ELEMENT_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
FLOATING = ("compute", "float64", "float32", "float16", "bfloat16")
DIMENSIONS = ("tokens", "merged", "instances")


@dataclass(frozen=True, slots=True)
class Sizes:
    """The instances of one module in one (sub-)microbatch.

    ``tokens`` are the instances' sizes as the module counts them (patches of an image, tokens of
    a sequence), ``merged`` what each becomes in the module downstream.
    """

    tokens: tuple[int, ...]
    merged: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.tokens)

    def slice(self, start: int, stop: int) -> Sizes:
        """The instances ``start`` to ``stop`` (exclusive)."""
        return Sizes(self.tokens[start:stop], self.merged[start:stop])

    def dimension(self, name: str) -> int:
        """The value of a symbolic dimension (see ``DIMENSIONS``)."""
        if name == "tokens":
            return sum(self.tokens)
        if name == "merged":
            return sum(self.merged)
        if name == "instances":
            return len(self.tokens)
        raise ValueError(f"dimension {name!r} is unknown: use one of {', '.join(DIMENSIONS)}")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor at a boundary: ``dims`` are numbers or symbolic dimensions of ``Sizes``.

    ``dtype`` is a torch dtype's name, or ``"compute"`` for the dtype the run trains in. A small tensor that travels in
    the place of a large one, where ranks are emulated, counts as many bytes as the one that it ``stands_for``.
    """

    dims: tuple[int | str, ...]
    dtype: str = "compute"
    stands_for: TensorSpec | None = None

    @property
    def differentiable(self) -> bool:
        """Whether a gradient of this tensor travels back."""
        return self.dtype in FLOATING

    def shape(self, sizes: Sizes) -> tuple[int, ...]:
        """The shape for these instances."""
        return tuple(sizes.dimension(d) if isinstance(d, str) else d for d in self.dims)

    def bytes(self, sizes: Sizes, compute: str) -> int:
        """Bytes of this tensor, or of the one that it stands for, when ``"compute"`` is ``compute``."""
        if self.stands_for is not None:
            return self.stands_for.bytes(sizes, compute)
        name = compute if self.dtype == "compute" else self.dtype
        return prod(self.shape(sizes)) * ELEMENT_BYTES[name]


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: its kind and size, what it outputs, and the dataset fields it reads.

    ``options`` are the numbers its cost and its construction depend on (hidden, heads, …).
    """

    kind: str
    output: tuple[TensorSpec, ...]
    fields: tuple[str, ...] = ()
    options: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Module:
    """A modality module: a chain of layers; ``frozen`` modules have no trainable parameter."""

    name: str
    layers: tuple[Layer, ...]
    frozen: bool = False


@dataclass(frozen=True, slots=True)
class Model:
    """Modules in data-flow order, ``edges`` from a module to the one that takes its outputs.

    The last module ends in the loss.
    """

    name: str
    modules: tuple[Module, ...]
    edges: tuple[tuple[str, str], ...] = ()

    def module(self, name: str) -> Module:
        """The module of that name."""
        for module in self.modules:
            if module.name == name:
                return module
        raise KeyError(f"model {self.name!r} has no module {name!r}: it has {', '.join(m.name for m in self.modules)}")

    def upstream(self, name: str) -> tuple[str, ...]:
        """Modules whose outputs ``name`` takes, in data-flow order."""
        return tuple(source for source, target in self.edges if target == name)

    def downstream(self, name: str) -> tuple[str, ...]:
        """Modules that take the outputs of ``name``."""
        return tuple(target for source, target in self.edges if source == name)

    @property
    def loss_module(self) -> str:
        """The module whose last layer's output the loss is computed from."""
        return self.modules[-1].name

    def backward(self, name: str) -> bool:
        """Whether stages of ``name`` have a backward: it, or a module before it, is trainable."""
        return not self.module(name).frozen or any(self.backward(source) for source in self.upstream(name))


def fields_of(layers: Sequence[Layer]) -> tuple[str, ...]:
    """The dataset fields that these layers read, each once, in order."""
    return tuple(dict.fromkeys(name for layer in layers for name in layer.fields))
