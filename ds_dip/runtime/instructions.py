"""A Program in DeepSpeed's instruction stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from deepspeed.runtime.pipe import schedule

from ds_dip.programs.program import Instruction


class Execute(schedule.PipeInstruction):
    """A Program's instructions, in one: DeepSpeed's dispatch takes longer than most of them."""


class ProgramSchedule(schedule.PipeSchedule):
    """A Program's instructions followed by DeepSpeed's own for the end of a batch."""

    def __init__(
        self, instructions: Sequence[Instruction], end: Sequence[schedule.PipeInstruction], **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._instructions, self._end = instructions, end

    def steps(self) -> Iterator[list[schedule.PipeInstruction]]:
        """The Program, then the end of the batch."""
        yield [Execute(instructions=self._instructions), *self._end]

    def num_pipe_buffers(self) -> int:
        """None: tensors are kept by stage."""
        return 0
