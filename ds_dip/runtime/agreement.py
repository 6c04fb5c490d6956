"""What all ranks do together around a checkpoint: exchange what went wrong, and say which run this is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.pipe.engine import PipelineEngine

from ds_dip.models.partition import model_hash, partition_hash
from ds_dip.partition import checkpoint as manifests
from ds_dip.partition.checkpoint import CheckpointError
from ds_dip.planner.adopted import ADOPTED, Adoption
from ds_dip.planner.codec import Codec
from ds_dip.planner.wire import CORRECTIONS
from ds_dip.runtime import drafts
from ds_dip.runtime.exchange import gather
from ds_dip.runtime.peers import Peers, set_deadline
from ds_dip.runtime.transport import TransportError
from ds_dip.runtime.universal import tied_sources

if TYPE_CHECKING:
    from ds_dip.config import DIPConfig
    from ds_dip.planner import PlanSource
    from ds_dip.runtime.module import DIPModule

#: Seconds that a rank waits for others which read or write a checkpoint, at least.
_LONGEST_S = 1800.0


@dataclass(frozen=True, slots=True)
class _Answer:
    """What went wrong on a rank, what must be the same on all, and the files that it gives."""

    problem: str
    same: str | None
    give: dict[str, tuple[int, str]] | None


_ANSWER: Codec[_Answer] = Codec(_Answer, "a rank's answer")


class Agreeing(PipelineEngine):
    """Ranks that go on together or raise the same CheckpointError."""

    if TYPE_CHECKING:
        dip: DIPConfig
        peers: Peers

    @contextmanager
    def _with_all_ranks(self, what: str, remedy: str) -> Iterator[None]:
        """For collectives between reads and writes: a lost rank is a CheckpointError, and a slow disk no lost rank."""
        deadline = self.dip.timeouts.rank_s
        set_deadline(max(deadline, _LONGEST_S))
        try:
            with self.peers.told(what):
                yield
        except TransportError as error:
            raise CheckpointError(f"{error}; {remedy}") from error
        finally:
            set_deadline(deadline)

    def _first_does(self, action: Any) -> str:
        """Have the first rank do something to files; what went wrong there."""
        if self.global_rank != 0:
            return ""
        try:
            action()
        except OSError as error:
            return f"rank 0 could not write {error.filename or 'the checkpoint'} ({error.strerror}); {drafts.KEPT}"
        return ""

    def _agree(
        self,
        problem: str,
        same: str | None = None,
        give: dict[str, tuple[int, str]] | None = None,
        undo: Any = None,
    ) -> list[Any]:
        """Exchange what went wrong: all ranks go on together or raise the same CheckpointError.

        ``same`` must be equal everywhere; returns what every rank gives (default: ``same``). ``undo``
        is what the first rank does before it raises.
        """
        answers = gather(_ANSWER, _Answer(problem, same, give))
        problems = [answer.problem for answer in answers]
        if not any(problems) and any(answer.same != answers[0].same for answer in answers):
            rank = next(rank for rank, answer in enumerate(answers) if answer.same != answers[0].same)
            sentence = (
                f"rank 0 names the checkpoint {answers[0].same}, rank {rank} {answers[rank].same}; give all ranks the "
                "same folder and tag, on a file system that all of them see"
            )
            problems = [sentence]
        if any(problems):
            if undo is not None and self.global_rank == 0:
                undo()
            raise CheckpointError(next(filter(None, problems)))
        return [answer.same if give is None else answer.give for answer in answers]


class Described(Agreeing):
    """What a run says of itself in its checkpoints."""

    if TYPE_CHECKING:
        module: DIPModule
        plans: PlanSource
        adoption: Adoption

    def _manifest(self) -> dict[str, Any]:
        """The manifest that this run would write, without the files."""
        model, partition = self.module.model, self.module.partition
        return {
            "universal": False,
            "step": self.global_steps,
            "partition": manifests.partition_document(partition),
            "partition_sha256": partition_hash(partition),
            "model": model.name,
            "model_sha256": model_hash(model),
            "pipeline_ranks": partition.ranks,
            "replicas": self.grid.data_parallel_size,
            "optimizer": f"{type(self.optimizer).__name__} at ZeRO stage {self.zero_optimization_stage()}",
            "compute": self._compute(),
            "sampler": {
                "seed": self.dip.planner.seed,
                "batch_size": self.train_batch_size(),
                "step": self.global_steps,
            },
        }

    def _compute(self) -> str:
        if self.bfloat16_enabled():
            return "bfloat16"
        return "float16" if self.fp16_enabled() else "float32"

    def _trained_groups(self) -> list[dict[str, Any]]:
        """The optimizer's groups with the parameters that the module knows (ZeRO's own groups are flat)."""
        names = ("round_robin_bit16_groups", "bf16_groups", "fp16_groups")
        for name in names:
            if hasattr(self.optimizer, name):
                return [{"params": list(group)} for group in getattr(self.optimizer, name)]
        return [] if self.optimizer is None else list(self.optimizer.param_groups)

    def _client_state(self) -> dict[str, Any]:
        """Our part of the client state: the manifest, and what the conversion needs to know of this rank."""
        return {
            **self._manifest(),
            "parameters": [
                {self.param_names[p]: tuple(p.shape) for p in group["params"]} for group in self._trained_groups()
            ],
            "tied": tied_sources(self.module),
        }

    def _rank_state(self) -> dict[str, Any]:
        """What every rank keeps: its generators, adopted costs and, on a leader, the planner's corrections."""
        device = get_accelerator()
        corrections = getattr(self.plans, "corrections", None)
        return {
            "torch": torch.get_rng_state(),
            "device": None if str(self.device) == "cpu" else device.get_rng_state(),
            "corrections": None if corrections is None else CORRECTIONS.encode(corrections),
            "adopted": ADOPTED.encode(self.adoption.adopted),
        }
