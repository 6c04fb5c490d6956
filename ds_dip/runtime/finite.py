"""NaN and infinity found before the optimizer's step, and named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ds_dip.programs.program import Stage

#: What a rank found: its kind (a stage, or a gradient of its parameters), then the stage.
Note = tuple[int, int, int, int, int, int]
_STAGE, _GRADIENT = 1, 2
CLEAN: Note = (0, 0, 0, 0, 0, 0)


class NonFiniteError(RuntimeError):
    """A loss, an activation or a gradient is NaN or infinite; the message says where it was first."""


class FiniteCheck:
    """Watches the stages of a batch on this rank; all ranks' notes together name the first culprit.

    Watching adds a reduction a tensor and nothing that waits for the device: results are read once,
    after the batch. ``modules`` are the names of the model's modules in data-flow order.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = list(modules)
        #: Stages, and the least and the greatest element of a tensor of theirs.
        self._watched: list[tuple[Stage, torch.Tensor]] = []

    def begin(self) -> None:
        """Start a batch."""
        self._watched = []

    def watch(self, stage: Stage, tensors: Sequence[torch.Tensor]) -> None:
        """Note whether a stage's outputs, or the gradients it hands back, are finite."""
        self._watched += [(stage, _extremes(t)) for t in tensors if t.is_floating_point() and t.numel()]

    def note(self, gradients: Sequence[torch.Tensor]) -> Note:
        """What this rank found; ``gradients`` are those of its parameters."""
        if self._watched:
            flags = torch.isfinite(torch.stack([extremes for _, extremes in self._watched])).all(1).tolist()
            rows = [self._note(stage) for (stage, _), fine in zip(self._watched, flags, strict=True) if not fine]
            if rows:
                return min(rows)
        found = [_extremes(gradient) for gradient in gradients if gradient.numel()]
        if found and not bool(torch.isfinite(torch.stack(found)).all()):
            return (_GRADIENT, 0, 0, 0, 0, 0)
        return CLEAN

    def sentence(self, notes: Mapping[int, Note]) -> str | None:
        """The first culprit among the notes of ranks, named; None where all is finite."""
        found = [(note, rank) for rank, note in notes.items() if note != CLEAN]
        if not found:
            return None
        # What comes first on the data's way explains what comes after it: notes are written to sort so.
        (kind, backward, module, chunk, microbatch, sub), rank = min(found)
        if kind == _GRADIENT:
            return f"rank {rank}: a parameter's gradient is NaN or infinite, though no stage's tensors are"
        what = "a gradient handed back by" if backward else "an output or the loss of"
        name = self._modules[abs(module)]
        return f"rank {rank}: {what} {name} chunk {abs(chunk)}, microbatch {microbatch}, sub {sub} is NaN or infinite"

    def _note(self, stage: Stage) -> Note:
        """Sorts forwards before backwards, and each in the order that data, or gradients, flow."""
        sign = 1 if stage.kind == "F" else -1
        module = self._modules.index(stage.module)
        return (_STAGE, int(stage.kind == "B"), sign * module, sign * stage.chunk, stage.microbatch, stage.sub)


def _extremes(tensor: torch.Tensor) -> torch.Tensor:
    """The least and the greatest element [2], finite only if all are: one pass, where isfinite takes several."""
    return torch.stack(torch.aminmax(tensor.detach()))
