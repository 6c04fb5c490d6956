"""From a model's layers to torch modules, each the same whatever rank builds it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from torch import nn

from ds_dip.models.context import Context
from ds_dip.models.diffusion import DIFFUSION_BUILDERS, flow_matching_loss
from ds_dip.models.layers import BUILDERS as PLAIN
from ds_dip.models.loss import token_cross_entropy
from ds_dip.models.spec import Layer, Model

#: For each module, one factory a layer, in order; and the loss summed over a microbatch.
Factories: TypeAlias = Mapping[str, Sequence[Callable[[], nn.Module]]]
Loss: TypeAlias = Callable[[torch.Tensor, Context], torch.Tensor]
#: How each kind of layer is built.
BUILDERS = {**PLAIN, **DIFFUSION_BUILDERS}


@dataclass(frozen=True)
class LayerFactory:
    """Builds one layer on the CPU, in torch's default dtype; calls give equal weights, whatever was built before."""

    layer: Layer
    seed: int
    frozen: bool

    def __call__(self) -> nn.Module:
        """Build the layer; torch's random state is left as it was."""
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.default_generator.manual_seed(self.seed)
            module = BUILDERS[self.layer.kind](self.layer)
        return module.requires_grad_(not self.frozen)


def layer_factories(model: Model, seed: int = 0) -> Mapping[str, tuple[Callable[[], nn.Module], ...]]:
    """For each module, one factory a layer, in order.

    A layer's weights depend on ``seed``, its module's name and its position alone, so every partition starts from
    the same model. Raises ValueError for a kind of layer that is not ours.
    """
    for module in model.modules:
        for layer in module.layers:
            if layer.kind not in BUILDERS:
                raise ValueError(
                    f"module {module.name!r} has a layer of kind {layer.kind!r}, expected one of {', '.join(BUILDERS)}"
                )
    return {
        module.name: tuple(
            LayerFactory(layer, _layer_seed(seed, module.name, index), module.frozen)
            for index, layer in enumerate(module.layers)
        )
        for module in model.modules
    }


def factories_and_loss(path: str | Path, model: Model, seed: int = 0) -> tuple[Factories, Loss]:
    """(the layers, as ``layer_factories``, of the model that ``load_model`` read from ``path``; what it is trained by).

    A folder's are the library's own layers and loss; they are drawn where the folder has no weights.
    """
    if not Path(path).is_dir():
        tokens = model.modules[-1].layers[-1].kind == "head"
        return layer_factories(model, seed), token_cross_entropy if tokens else flow_matching_loss
    from ds_dip.models.hf.split import drawn_or_read

    split = drawn_or_read(path, seed)
    return split.layers, split.loss


def _layer_seed(seed: int, module: str, index: int) -> int:
    digest = hashlib.sha256(f"{seed}/{module}/{index}".encode()).digest()
    return int.from_bytes(digest[:7], "big")
