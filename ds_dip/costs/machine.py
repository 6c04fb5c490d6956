"""What a table was measured on: the device by name, the libraries, the threads."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

#: The libraries whose version a latency depends on.
LIBRARIES = ("ds_dip", "torch", "deepspeed", "numpy")


def versions() -> dict[str, str]:
    """Versions of Python and the libraries."""
    return {"python": ".".join(map(str, sys.version_info[:3]))} | {name: version(name) for name in LIBRARIES}


def processor() -> str:
    """The processor's model, and how many cores this process may use."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        pairs = (line.partition(":") for line in lines)
        fields = {key.strip(): value.strip() for key, _, value in pairs if value.strip()}
        signature = "/".join(fields[key] for key in ("cpu family", "model", "stepping") if key in fields)
        name = fields.get("model name", name) + (f" ({signature})" if signature else "")
    except OSError:
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} cores"


def device_name() -> str:
    """The accelerator's name as its driver tells it, or the processor's."""
    from deepspeed.accelerator import get_accelerator

    accelerator = get_accelerator()
    if accelerator.device_name() == "cpu":
        return processor()
    named = getattr(accelerator, "get_device_name", None)
    if named is None:
        import torch

        named = getattr(torch, accelerator.device_name()).get_device_name
    return str(named(accelerator.current_device()))


def data_types() -> tuple[str, ...]:
    """The data types that the accelerator computes in."""
    from deepspeed.accelerator import get_accelerator

    accelerator, found = get_accelerator(), ["float32"]
    if accelerator.is_bf16_supported():
        found.append("bfloat16")
    if accelerator.is_fp16_supported():
        found.append("float16")
    return tuple(found)
