"""Where every layer lives: the chunks of every module and their ranks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chunk:
    """Layers ``start`` to ``stop`` (exclusive) of a module, on one pipeline rank.

    ``index`` is its position in the module's chain of chunks, ``segment`` the lap it belongs to.
    """

    module: str
    index: int
    segment: int
    rank: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Partition:
    """Chunks of every module in data-flow order, and each module's sub-microbatch size B.

    ``sub_microbatch`` counts instances; ``None`` leaves the module's microbatch whole.
    """

    ranks: int
    chunks: tuple[Chunk, ...]
    sub_microbatch: tuple[tuple[str, int | None], ...]

    def of(self, module: str) -> tuple[Chunk, ...]:
        """The chunks of one module along its chain."""
        return tuple(chunk for chunk in self.chunks if chunk.module == module)

    def on(self, rank: int) -> tuple[Chunk, ...]:
        """The chunks that live on one rank, in data-flow order."""
        return tuple(chunk for chunk in self.chunks if chunk.rank == rank)
