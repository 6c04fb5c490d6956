"""Where a stage stands in the model: its chunk, what it takes and who takes what it gives, and its name in words."""

from __future__ import annotations

from ds_dip.models.partition import Chunk, Partition
from ds_dip.models.spec import Model, TensorSpec
from ds_dip.planning.batch import Batch
from ds_dip.programs.program import Stage


class Stages:
    """The stages of a model on a partition."""

    def __init__(self, model: Model, partition: Partition) -> None:
        self._model = model
        self._chunks = {(chunk.module, chunk.index): chunk for chunk in partition.chunks}
        self._last = {module.name: partition.of(module.name)[-1].index for module in model.modules}

    def chunk(self, stage: Stage) -> Chunk:
        """The chunk that it runs."""
        return self._chunks[stage.module, stage.chunk]

    def specs(self, stage: Stage) -> tuple[TensorSpec, ...]:
        """What its chunk's last layer gives."""
        return self._model.module(stage.module).layers[self.chunk(stage).stop - 1].output

    def loses(self, stage: Stage) -> bool:
        """Whether the loss is taken from its output."""
        return stage.module == self._model.loss_module and stage.chunk == self._last[stage.module]

    def sources(self, batch: Batch, stage: Stage) -> list[Stage]:
        """The forwards whose outputs a forward takes."""
        if stage.chunk:
            return [Stage("F", stage.module, stage.chunk - 1, stage.microbatch, stage.sub)]
        subs = batch.microbatches[stage.microbatch].subs
        return [
            Stage("F", module, self._last[module], stage.microbatch, sub)
            for module in self._model.upstream(stage.module)
            for sub in range(len(subs[module]))
        ]

    def targets(self, batch: Batch, stage: Stage) -> list[Stage]:
        """The forwards that take a forward's outputs."""
        if stage.chunk < self._last[stage.module]:
            return [Stage("F", stage.module, stage.chunk + 1, stage.microbatch, stage.sub)]
        subs = batch.microbatches[stage.microbatch].subs
        return [
            Stage("F", module, 0, stage.microbatch, sub)
            for module in self._model.downstream(stage.module)
            for sub in range(len(subs[module]))
        ]

    def words(self, batch: Batch, stage: Stage) -> str:
        """Its module, chunk, layers, microbatch and first samples, for errors."""
        chunk, samples = self.chunk(stage), [s.id for s in batch.microbatches[stage.microbatch].samples]
        more = f" and {len(samples) - 4} more" if len(samples) > 4 else ""
        return (
            f"{stage.module} chunk {stage.chunk} (layers {chunk.start} to {chunk.stop - 1}), microbatch "
            f"{stage.microbatch} (samples {', '.join(samples[:4])}{more})"
        )
