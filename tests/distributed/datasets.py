"""Datasets that a planner's process opens, too: apart from what imports torch, which it has no use for."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ds_dip.data import SampleMetadata
from ds_dip.data.digits import Digits

#: Seconds that a plan is waited for.
DEADLINE_S = 0.3
#: A planner's troubles; the first two are done to it from outside.
TROUBLES = ("killed", "stopped", "slow", "garbage", "memory", "ended by the system")


class Faulty(Digits):
    """The digits, of which one sample is not as its metadata says; or the dataset ends early."""

    def __init__(self, fault: str, **options: Any) -> None:
        super().__init__(**options)
        self.fault = fault

    def metadata(self, index: int) -> Any:
        if self.fault == "ends" and index >= 20:
            raise IndexError(f"index {index} is beyond the end")
        if self.fault == "metadata":
            raise OSError(5, "Input/output error")
        metadata = super().metadata(index)
        if self.fault == "unsupervised":
            return type(metadata)(metadata.id, metadata.modules, 0, metadata.merged)
        return metadata

    def load(self, sample: str, fields: Any) -> Any:
        loaded = super().load(sample, fields)
        if self.fault == "raises" and "pixels" in fields:
            raise OSError(5, "Input/output error")
        if self.fault == "stops" and "labels" in fields:
            raise StopIteration
        if self.fault == "width" and "pixels" in fields:
            return {**loaded, "pixels": [np.pad(array, ((0, 0), (0, 1))) for array in loaded["pixels"]]}
        if self.fault == "sizes" and "pixels" in fields:
            return {**loaded, "pixels": [array[:-1] for array in loaded["pixels"]]}
        if self.fault == "vocabulary" and "tokens" in fields:
            return {**loaded, "tokens": [array + 1000 for array in loaded["tokens"]]}
        if self.fault == "dtype" and "tokens" in fields:
            return {**loaded, "tokens": [array.astype(np.float32) for array in loaded["tokens"]]}
        return loaded


class Troubled(Digits):
    """The digits, whose metadata bring a planner's process into whatever trouble a file in ``folder`` names."""

    def __init__(self, folder: str, **options: Any) -> None:
        super().__init__(**options)
        planner = Path(sys.argv[0]).parts[-2:] == ("planner", "__main__.py")
        self.folder = Path(folder) if planner else None

    def metadata(self, index: int) -> Any:
        trouble = next((t for t in TROUBLES if self.folder and (self.folder / t).exists()), None)
        if trouble == "slow":
            time.sleep(2 * DEADLINE_S)
        elif trouble == "garbage":
            os.write(int(sys.argv[1]), bytes(range(255, 0, -1)))
            time.sleep(60)
        elif trouble == "memory":
            devour()
        elif trouble == "ended by the system":  # as the kernel ends what takes the last memory
            os.kill(os.getpid(), signal.SIGKILL)
        return super().metadata(index)


def devour() -> None:
    """Allocate until there is no memory."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, before[1]))
    try:
        hoard = []
        while True:
            hoard.append(bytearray(2**22))
    finally:
        del hoard
        resource.setrlimit(resource.RLIMIT_AS, before)


class Silent(Digits):
    """The digits, of which every third sample has no supervised token."""

    def metadata(self, index: int) -> SampleMetadata:
        metadata = super().metadata(index)
        return replace(metadata, loss_tokens=0) if index % 3 == 2 else metadata

    def load(self, sample: str, fields: Any) -> Any:
        loaded = super().load(sample, fields)
        if "labels" in fields and int(sample.split("-")[1]) % 3 == 2:
            return {**loaded, "labels": [array * 0 - 100 for array in loaded["labels"]]}
        return loaded
