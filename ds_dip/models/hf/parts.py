"""What an adapter says of a layer: which of the library's modules it is made of, and how they are called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from ds_dip.models.hf.shell import Shell
from ds_dip.models.spec import Layer


@dataclass(frozen=True)
class Shared:
    """A layer whose module serves another place too: under ``key``, with ``weights`` in common, called by ``call``."""

    key: str
    weights: tuple[str, ...]
    call: Callable[..., Any]


@dataclass(frozen=True)
class Part:
    """One layer: ``make`` gets the modules or parameters at ``paths``, ``helpers`` and ``settings`` by their names.

    ``helpers`` are modules without weights, which ``make`` must not register: no conversion rounds their numbers.
    """

    layer: Layer
    make: Callable[..., nn.Module]
    paths: Mapping[str, str]
    helpers: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    shared: Shared | None = None


@dataclass(frozen=True)
class Chain:
    """A modality module: its layers in order, and the modules that it takes outputs of.

    ``covers`` are names of modules that could be apart and are not, since all of them are frozen or none is.
    """

    name: str
    parts: tuple[Part, ...]
    upstream: tuple[str, ...] = ()
    covers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Family:
    """How models of one family are split.

    ``chains`` are in data-flow order, the one with the loss last. ``unused`` are paths of modules and parameters that
    no loss depends on: they stay what they are, and are saved again.
    """

    chains: tuple[Chain, ...]
    unused: tuple[str, ...] = ()


def is_frozen(shell: Shell, name: str, parts: Sequence[Part]) -> bool:
    """Whether nothing of a module is trained: it was named so, or its weights are."""
    return name in shell.frozen or not any(shell.trained(part.paths.values()) for part in parts)


def encoder(shell: Shell, name: str, tower: Sequence[Part], adapter: Sequence[Part]) -> tuple[Chain, ...]:
    """An encoder's modules: tower and adapter in one, where the boundary behind it carries the adapter's small rows.

    Where one is frozen and the other is not they are two, ``name`` and "projector", since what is frozen needs no
    backward.
    """
    if is_frozen(shell, name, tower) == is_frozen(shell, "projector", adapter):
        return (Chain(name, (*tower, *adapter), covers=("projector",)),)
    return Chain(name, tuple(tower)), Chain("projector", tuple(adapter), (name,))


@dataclass(frozen=True)
class Factory:
    """Builds one layer on the CPU, from the weights of the model's source."""

    shell: Shell
    part: Part
    frozen: bool

    @property
    def shared(self) -> Shared | None:
        """The other place of the layer's module, if there is one; what is not trained needs no summing of gradients."""
        found = self.part.shared
        if found is None or (not self.frozen and self.shell.trained(self.part.paths.values())):
            return found
        return replace(found, weights=())

    def held(self) -> list[str]:
        """Names of the layer's weights, as the library's model has them, without building it."""
        return [name for path in self.part.paths.values() for name in self.shell.names(path)]

    def __call__(self) -> nn.Module:
        """Build the layer."""
        built = {name: self.shell.build(path) for name, path in self.part.paths.items()}
        helpers = {name: self.shell.build(path) for name, path in self.part.helpers.items()}
        module = self.part.make(**built, **helpers, **self.part.settings)
        return module.requires_grad_(False) if self.frozen else module

    def names(self, module: nn.Module) -> dict[str, str]:
        """Of every weight of the built layer the name that the library's model has for it."""
        found = {}
        for name in module.state_dict():
            attribute, _, rest = name.partition(".")
            path = self.part.paths[attribute]
            found[name] = f"{path}.{rest}" if rest else path
        return found
