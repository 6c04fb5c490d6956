"""What an LMM is: modules, layers, edges, and the torch layers of our own models.

Importing this room needs no torch; the names that do are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ds_dip.models.config import load_model, parse_model
from ds_dip.models.kinds import IGNORED
from ds_dip.models.partition import Chunk, Partition
from ds_dip.models.spec import Layer, Model, Module, Sizes, TensorSpec, fields_of

if TYPE_CHECKING:
    from ds_dip.models.build import layer_factories
    from ds_dip.models.context import Context
    from ds_dip.models.diffusion import flow_matching_loss
    from ds_dip.models.dropout import Dropout
    from ds_dip.models.hf.diffusers import from_diffusers
    from ds_dip.models.hf.split import from_transformers
    from ds_dip.models.loss import token_cross_entropy
    from ds_dip.models.norms import NormStatus, fused_norms

__all__ = [
    "IGNORED",
    "Chunk",
    "Context",
    "Dropout",
    "Layer",
    "Model",
    "Module",
    "NormStatus",
    "Partition",
    "Sizes",
    "TensorSpec",
    "fields_of",
    "flow_matching_loss",
    "from_diffusers",
    "from_transformers",
    "fused_norms",
    "layer_factories",
    "load_model",
    "parse_model",
    "token_cross_entropy",
]

_WITH_TORCH = {
    "Context": "context",
    "Dropout": "dropout",
    "NormStatus": "norms",
    "flow_matching_loss": "diffusion",
    "from_diffusers": "hf.diffusers",
    "from_transformers": "hf.split",
    "fused_norms": "norms",
    "layer_factories": "build",
    "token_cross_entropy": "loss",
}


def __getattr__(name: str) -> Any:
    if name not in _WITH_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WITH_TORCH[name]}"), name)
