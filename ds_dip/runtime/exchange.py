"""Values that ranks give each other at start and around checkpoints: typed, checked JSON in tensors, never pickle."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator

from ds_dip.planner.codec import Codec

T = TypeVar("T")


def gather(codec: Codec[T], value: T, group: Any = None) -> list[T]:
    """Every rank's value, in the order of the group's ranks; all of them call.

    Raises CodecError for a value that is not of the codec's type, here or from another rank.
    """
    mine = _tensor(codec.encode(value), group)
    size = torch.tensor([len(mine)], device=mine.device)
    sizes = [torch.zeros_like(size) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, size, group=group)
    lengths = [int(length) for length in sizes]
    padded = torch.nn.functional.pad(mine, (0, max(lengths) - len(mine)))
    found = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(found, padded, group=group)
    return [codec.decode(_bytes(data[:length])) for data, length in zip(found, lengths, strict=True)]


def broadcast(codec: Codec[T], value: T) -> T:
    """The first rank's value; all ranks call, and what the others give does not matter. Errors as for ``gather``."""
    first = dist.get_rank() == 0
    data = _tensor(codec.encode(value) if first else b"", None)
    size = torch.tensor([len(data)], device=data.device)
    dist.broadcast(size, 0)
    if not first:
        data = torch.empty(int(size), dtype=torch.uint8, device=data.device)
    dist.broadcast(data, 0)
    return value if first else codec.decode(_bytes(data))


def _tensor(data: bytes, group: Any) -> torch.Tensor:
    device = "cpu" if dist.get_backend(group) == "gloo" else get_accelerator().current_device_name()
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device) if data else torch.empty(0).byte().to(device)


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()
