"""A layout: which GPUs run which module, in how many microbatches, laps, and by which memory strategy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ds_dip.models.spec import Model

#: Every module on every rank (DIP), encoders and the module with the loss on GPUs of their own (DFLOP), or one chain of
#: all modules cut into a run of layers a rank (Megatron-LM).
SEPARATED, DISAGGREGATED, CONTIGUOUS = PLACEMENTS = ("separated", "disaggregated", "contiguous")


@dataclass(frozen=True, slots=True, order=True)
class Mesh:
    """GPUs as tensor-parallel groups of ``tensor``, pipelines of ``pipeline`` such ranks, and ``data`` replicas."""

    tensor: int
    pipeline: int
    data: int

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.tensor * self.pipeline * self.data

    def __str__(self) -> str:
        return f"{self.tensor}x{self.pipeline}x{self.data}"


@dataclass(frozen=True, slots=True)
class Layout:
    """Encoders on one mesh and the module with the loss on another (``disaggregated``), or all modules on one.

    ``microbatches`` are those of each replica of the module with the loss. ``laps`` is K of every module in order (1
    where they are not separated), ``strategy`` the memory strategy of every stage.
    """

    placement: str
    encoder: Mesh
    backbone: Mesh
    microbatches: int
    laps: tuple[int, ...]
    strategy: str

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.backbone.gpus + (self.encoder.gpus if self.placement == DISAGGREGATED else 0)

    def meshes(self, model: Model) -> Mapping[str, Mesh]:
        """The mesh of every module."""
        return {
            module.name: self.backbone if module.name == model.loss_module else self.encoder for module in model.modules
        }

    @property
    def key(self) -> tuple[object, ...]:
        """An order of layouts that prefers the plainest among equals."""
        return (
            PLACEMENTS.index(self.placement), self.backbone.tensor, self.backbone.pipeline, self.encoder,
            self.laps, self.microbatches, self.strategy,
        )  # fmt: skip

    def __str__(self) -> str:
        if self.placement == DISAGGREGATED:
            meshes = f"{self.encoder} + {self.backbone}"
        elif self.placement == CONTIGUOUS:
            meshes = str(self.backbone)
        else:
            meshes = f"{self.backbone}, K {'/'.join(map(str, self.laps))}"
        return f"{self.placement} {meshes}, {self.microbatches} microbatches, {self.strategy}"
