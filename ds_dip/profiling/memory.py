"""Bytes that a forward keeps for its backward, and the most that both hold at once."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from deepspeed.accelerator import get_accelerator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def kept_bytes(forward: Callable[[], Any]) -> int:
    """Bytes of the storages that autograd saves in ``forward``, each once.

    ``forward`` makes its own inputs. It runs twice: what both runs save is a weight or a constant, and no activation.
    """
    runs = []
    for _ in range(2):
        saved: dict[int, int] = {}
        keep: list[Any] = []

        def pack(tensor: torch.Tensor, saved: dict[int, int] = saved, keep: list[Any] = keep) -> torch.Tensor:
            storage = tensor.untyped_storage()
            saved[storage.data_ptr()] = storage.nbytes()
            keep.append(storage)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            outputs = forward()
        runs.append((saved, keep, outputs))
    first, second = runs[0][0], runs[1][0]
    return sum(size for pointer, size in second.items() if pointer not in first)


class _Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Follows the storages that operations allocate, and the most that are alive at once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # the same
        self.held = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, function: Any, types: Sequence[type], args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._see(tensor.untyped_storage(), given)
        return result

    def _see(self, storage: torch.UntypedStorage, given: set[int]) -> None:
        name, size = storage._cdata, storage.nbytes()
        if name in given or name in self._known:
            return
        self._known.add(name)
        self.held += size
        self.most = max(self.most, self.held)
        weakref.finalize(storage, self._free, name, size)

    def _free(self, name: int, size: int) -> None:
        self._known.discard(name)
        self.held -= size


def peak_bytes(run: Callable[[], Any]) -> int:
    """The most bytes that ``run`` holds at once beyond what was there before."""
    accelerator: Any = get_accelerator()
    if not accelerator.is_synchronized_device():
        accelerator.synchronize()
        before = int(accelerator.memory_allocated())
        accelerator.reset_peak_memory_stats()
        run()
        accelerator.synchronize()
        return max(0, int(accelerator.max_memory_allocated()) - before)
    with _Allocations() as allocations:
        run()
    most: int = allocations.most
    return most
