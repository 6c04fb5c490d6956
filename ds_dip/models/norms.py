"""Norm layers: NVIDIA apex's fused ones where they are really there, else torch's own."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class NormStatus:
    """Whether norms are apex's fused ones, and why or why not, in one sentence."""

    fused: bool
    reason: str


@cache
def fused_norms() -> NormStatus:
    """Look once whether NVIDIA apex's fused norms can be used here.

    The project called ``apex`` on PyPI is another one; NVIDIA's has ``apex.normalization`` with the fused classes
    and a compiled extension, and needs a CUDA device.
    """
    try:
        importlib.import_module("apex")
    except ImportError:
        return NormStatus(False, "apex is not installed; norms are torch's own")
    try:
        normalization = importlib.import_module("apex.normalization")
        importlib.import_module("fused_layer_norm_cuda")
    except ImportError as error:
        return NormStatus(
            False,
            f"the installed apex has no fused norms ({error}); norms are torch's own: "
            "for fused ones build NVIDIA's from github.com/NVIDIA/apex with its CUDA extensions",
        )
    if not (hasattr(normalization, "FusedLayerNorm") and hasattr(normalization, "FusedRMSNorm")):
        return NormStatus(False, "apex.normalization lacks FusedLayerNorm or FusedRMSNorm; norms are torch's own")
    if not torch.cuda.is_available():
        return NormStatus(False, "NVIDIA apex is installed, but there is no CUDA device; norms are torch's own")
    return NormStatus(True, "NVIDIA apex's fused norms are in use")


def layer_norm(hidden: int) -> nn.Module:
    """LayerNorm over the last dimension, with weight and bias, epsilon 1e-6."""
    return _norm("FusedLayerNorm", nn.LayerNorm, hidden)


def rms_norm(hidden: int) -> nn.Module:
    """RMSNorm over the last dimension, with weight, epsilon 1e-6."""
    return _norm("FusedRMSNorm", nn.RMSNorm, hidden)


def _norm(fused: str, plain: Any, hidden: int) -> nn.Module:
    kind = getattr(importlib.import_module("apex.normalization"), fused) if fused_norms().fused else plain
    layer: nn.Module = kind(hidden, eps=1e-6)
    return layer
