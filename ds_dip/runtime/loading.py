"""Checkpoint files are data: reading one builds tensors and plain values and runs nothing of what it might hold."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address
from torch.serialization import add_safe_globals, get_unsafe_globals_in_checkpoint

# What DeepSpeed's own files hold beside tensors and plain values; each keeps numbers only.
add_safe_globals([LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address])
#: torch's switch, which holds whatever a caller asks for: DeepSpeed itself asks for everything.
_SWITCH = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


@contextmanager
def data_only() -> Iterator[None]:
    """Inside, ``torch.load`` refuses what is no tensor and no plain value, whoever calls it.

    Types of DeepSpeed's own, and those that ``torch.serialization.add_safe_globals`` was given, are let through.
    """
    before = os.environ.get(_SWITCH)
    os.environ[_SWITCH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SWITCH]
        else:
            os.environ[_SWITCH] = before


def read(path: Path, **options: Any) -> Any:
    """A checkpoint file's content on the CPU; ``options`` are torch's."""
    with data_only():
        return torch.load(path, map_location="cpu", weights_only=True, **options)


def refused_types(path: str | Path) -> str:
    """A sentence on what a file holds that will not be read back; empty where there is nothing.

    Of a file in torch's old form nothing can be said before it is read.
    """
    if not zipfile.is_zipfile(path):
        return ""
    found = sorted(get_unsafe_globals_in_checkpoint(str(path)))
    if not found:
        return ""
    return (
        f"holds {', '.join(found[:4])}, and only tensors and plain values are read back; leave it out, or call "
        "torch.serialization.add_safe_globals for types that you trust, before it is saved and before it is loaded"
    )
