"""ds_dip: large multimodal models on DeepSpeed pipelines, with a schedule of its own for every batch.

The names below are loaded when they are first used, so that what needs no torch does not import it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ds_dip.data import DatasetReference
    from ds_dip.models import layer_factories, load_model, token_cross_entropy
    from ds_dip.runtime import ERRORS, DIPEngine, DIPModule, load_config, partition_for
    from ds_dip.runtime.initialize import initialize
    from ds_dip.runtime.shutdown import shutdown
    from ds_dip.runtime.stopping import StopSignal

__all__ = [
    "ERRORS",
    "DIPEngine",
    "DIPModule",
    "DatasetReference",
    "StopSignal",
    "initialize",
    "layer_factories",
    "load_config",
    "load_model",
    "partition_for",
    "shutdown",
    "token_cross_entropy",
]

_ROOMS = {
    "ERRORS": "runtime",
    "DIPEngine": "runtime",
    "DIPModule": "runtime",
    "DatasetReference": "data",
    "StopSignal": "runtime",
    "initialize": "runtime",
    "layer_factories": "models",
    "load_config": "runtime",
    "load_model": "models",
    "partition_for": "runtime",
    "shutdown": "runtime",
    "token_cross_entropy": "models",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_ROOMS[name]}"), name)
