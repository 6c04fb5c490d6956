"""What this machine can do for training, found out without trusting it: ``ds-dip doctor``'s checks.

torch, DeepSpeed and apex are asked in a process of their own, so a library that crashes on import is a
finding, not the end.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

#: What DeepSpeed's CPU backend takes of /dev/shm, in bytes a rank.
BUFFER_BYTES = 66e6
#: An operation is compiled within minutes: an older lock is nobody's.
LOCK_SECONDS = 600.0
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where DeepSpeed puts its buffers
PROBE_SECONDS = 180.0
_MARK = "ds_dip-probe: "


@dataclass(frozen=True, slots=True)
class Check:
    """One finding.

    ``status`` is ``ok``, ``optional`` (works without it), ``warning`` (trains, but look at it) or
    ``error`` (training cannot work); ``remedy`` says how to get what is missing.
    """

    name: str
    status: str
    found: str
    remedy: str = ""


def examine() -> tuple[Check, ...]:
    """All checks of this machine and environment, in the order a reader needs them."""
    version = ".".join(map(str, sys.version_info[:3]))
    python = Check("python", "ok", f"{version} ({sys.executable})")
    found = probe()
    return (
        python,
        *packages(),
        *libraries(found),
        *builds(gpu=found.get("accelerator") == "cuda"),
        *resources(),
        *shared_memory(SHARED_MEMORY),
        *locks(Path(os.environ.get("TORCH_EXTENSIONS_DIR") or Path.home() / ".cache" / "torch_extensions")),
    )


def packages() -> list[Check]:
    """The packages that ds_dip needs and those of its extras, against the versions it asks for."""
    required: list[Check] = []
    extras: dict[str, list[Check]] = {}
    for line in importlib.metadata.requires("ds_dip") or []:
        requirement = Requirement(line)
        extra = re.search(r'extra == "(\w+)"', str(requirement.marker))
        check = _package(requirement, extra.group(1) if extra else None)
        (extras.setdefault(extra.group(1), []) if extra else required).append(check)
    required.sort(key=lambda check: check.name)
    for name, checks in extras.items():
        missing = [check for check in checks if check.status != "ok"]
        found = ", ".join(f"{check.name} {check.found}" for check in checks)
        status, remedy = ("optional", f"pip install 'ds_dip[{name}]'") if missing else ("ok", "")
        required.append(Check(f"extra {name}", status, found, remedy))
    return required


def _package(requirement: Requirement, extra: str | None) -> Check:
    remedy = f"pip install '{requirement.name}{requirement.specifier}'"
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return Check(requirement.name, "optional" if extra else "error", "missing", remedy)
    if not requirement.specifier.contains(version, prereleases=True):
        wanted = f"{version}, needed {requirement.specifier}"
        return Check(requirement.name, "optional" if extra else "error", wanted, remedy)
    return Check(requirement.name, "ok", version)


def probe(code: str = "from ds_dip.reporting.machine import report; report()") -> dict[str, Any]:
    """What ``report`` finds in a process of its own; ``{"failure": …}`` where that process fails."""
    try:
        result = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=PROBE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return {"failure": f"importing torch and DeepSpeed took more than {PROBE_SECONDS:.0f} s"}
    for line in result.stdout.splitlines():
        if line.startswith(_MARK):
            return dict(json.loads(line[len(_MARK) :]))
    last = (result.stderr.strip().splitlines() or ["no message"])[-1]
    return {"failure": f"importing torch and DeepSpeed ended with exit status {result.returncode}: {last}"}


def report() -> None:
    """Print, as one marked JSON line, what torch, DeepSpeed and apex say of this machine."""
    import torch
    from deepspeed.accelerator import get_accelerator

    from ds_dip.models import fused_norms

    accelerator = get_accelerator()
    gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    norms = fused_norms()
    found = {
        "accelerator": accelerator.device_name(),
        "backend": accelerator.communication_backend_name(),
        "backend_available": torch.distributed.is_available()
        and torch.distributed.is_backend_available(accelerator.communication_backend_name() or ""),
        "bf16": bool(accelerator.is_bf16_supported()),
        "fp16": bool(accelerator.is_fp16_supported()),
        "cuda": torch.version.cuda,
        "gpus": [f"{gpu.name} ({gpu.total_memory / 1e9:.0f} GB)" for gpu in gpus],
        "chosen": os.environ.get("DS_ACCELERATOR"),
        "fused_norms": norms.fused,
        "norms": norms.reason,
    }
    print(_MARK + json.dumps(found), flush=True)  # noqa: T201 - the parent process reads it


def libraries(found: Mapping[str, Any]) -> list[Check]:
    """Accelerator, backend, data types and norms, from what ``probe`` found."""
    if "failure" in found:
        return [Check("accelerator", "error", found["failure"], "reinstall torch and deepspeed for this machine")]
    gpus, accelerator = found["gpus"], found["accelerator"]
    chosen = ", chosen by DS_ACCELERATOR" if found["chosen"] else ""
    checks = [Check("accelerator", "ok", f"{accelerator}{chosen}")]
    if gpus:
        checks.append(Check("gpus", "ok", f"{len(gpus)}: {', '.join(gpus)}, CUDA {found['cuda']}"))
    elif shutil.which("nvidia-smi"):
        checks.append(
            Check("gpus", "warning", "nvidia-smi is here, but torch sees no GPU", "install the CUDA build of torch")
        )
    else:
        checks.append(Check("gpus", "ok", "none: ranks run on the CPU"))
    backend = found["backend"]
    if found["backend_available"]:
        checks.append(Check("backend", "ok", backend))
    else:
        remedy = f"install a torch with {backend}"
        checks.append(Check("backend", "error", f"{backend} is not in this torch", remedy))
    types = ["fp32", *(name for name in ("bf16", "fp16") if found[name])]
    checks.append(Check("data types", "ok", ", ".join(types)))
    # Fused norms need a GPU: without one there is nothing to get.
    remedy = "build NVIDIA's apex with its CUDA extensions (not the PyPI project of that name)"
    lacking = bool(gpus) and not found["fused_norms"]
    checks.append(Check("norms", "optional" if lacking else "ok", found["norms"], remedy if lacking else ""))
    return checks


def builds(gpu: bool) -> list[Check]:
    """Whether DeepSpeed can build its C++ operators, which it does at the first run.

    On the CPU it builds its communication so; with a GPU only its fused optimizers, which torch's can replace.
    """
    tools = {
        "compiler": (os.environ.get("CXX", "c++"), "install g++ (apt-get install g++), or set CXX"),
        "ninja": ("ninja", "pip install ninja"),
    }
    if gpu:
        home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
        nvcc = shutil.which("nvcc") or f"{home}/bin/nvcc"
        tools["nvcc"] = (nvcc, "install the CUDA toolkit of torch's CUDA version, or set CUDA_HOME")
    checks = []
    for name, (program, remedy) in tools.items():
        where = shutil.which(program)
        own = Path(sys.executable).parent / program
        if where:
            checks.append(Check(name, "ok", where))
            continue
        found = f"{program} is not on the PATH"
        if own.exists():
            found, remedy = f"{own} is not on the PATH", f'activate the environment: source "{own.parent}/activate"'
        if gpu:
            remedy += ', or set "torch_adam": true among the optimizer\'s params'
        checks.append(Check(name, "warning" if gpu else "error", found, remedy))
    return checks


def resources() -> list[Check]:
    """Cores and memory that this process may use."""
    import psutil

    memory = psutil.virtual_memory()
    cores = len(os.sched_getaffinity(0))
    threads = os.environ.get("OMP_NUM_THREADS")
    checks = [
        Check("cores", "ok", f"{cores}, OMP_NUM_THREADS {threads or 'not set'}"),
        Check("memory", "ok", f"{memory.available / 1e9:.1f} of {memory.total / 1e9:.1f} GB available"),
    ]
    if memory.available < 2e9:
        checks[-1] = Check("memory", "warning", checks[-1].found, "free some: a rank on the CPU needs about 1 GB")
    return checks


def shared_memory(folder: Path) -> list[Check]:
    """Room for DeepSpeed's buffers, and what earlier runs on the CPU left of them."""
    if not folder.is_dir():
        return [Check("shared memory", "error", f"{folder} is missing", f"mount a tmpfs on {folder}")]
    leftovers = list(folder.glob("deepspeed_allreduce_buffer_*"))
    free = shutil.disk_usage(folder).free
    room = Check("shared memory", "ok", f"{free / 1e9:.1f} GB free in {folder}")
    if free < 2 * BUFFER_BYTES:
        remedy = f"free some, or enlarge it: {BUFFER_BYTES / 1e6:.0f} MB a rank (docker run --shm-size=8g)"
        room = Check(room.name, "error", room.found, remedy)
    if not leftovers:
        return [room]
    size = sum(path.stat().st_blocks * 512 for path in leftovers)
    return [
        room,
        Check(
            "leftover buffers",
            "warning",
            f"{len(leftovers)} files, {size / 1e6:.0f} MB, of runs on the CPU",
            f"while nothing trains: rm {folder}/deepspeed_allreduce_buffer_*",
        ),
    ]


def locks(folder: Path) -> list[Check]:
    """Locks of operations that are compiled on first use: one that a killed rank left stops every later run."""
    old = [path for path in folder.rglob("lock") if time.time() - path.stat().st_mtime > LOCK_SECONDS]
    return [
        Check("stale lock", "warning", str(path), f"while nothing trains or compiles: rm {path}")
        for path in sorted(old)
    ]
