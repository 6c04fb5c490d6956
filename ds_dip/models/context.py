"""What a layer sees beside its input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ds_dip.models.spec import Sizes


@dataclass(frozen=True)
class Context:
    """The (sub-)microbatch a layer works on; every layer is called as ``layer(x, context)``.

    ``sizes`` are the instances of the layer's own module. ``fields`` hold the dataset fields the
    chunk's layers asked for, the instances concatenated along dimension 0, on the device.
    The first layer of a module gets as ``x`` a mapping from upstream module to its outputs
    (a tensor, or a tuple of tensors), sub-microbatches concatenated along dimension 0 in instance
    order; with no instance the tensors have 0 rows. Every other layer gets what the layer before
    it returned. ``instances`` names each instance (sample and position in it); with ``step``,
    ``seed`` and ``layer`` (the module and the layer's index in it, told to layers that hold
    a ``Dropout``) it is what anything random must be keyed by.
    """

    sizes: Sizes
    fields: Mapping[str, torch.Tensor]
    instances: tuple[str, ...] = ()
    step: int = 0
    seed: int = 0
    layer: str = ""
