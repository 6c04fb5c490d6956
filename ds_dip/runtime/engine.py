"""DIPEngine: DeepSpeed's PipelineEngine, running a Program of its own for every batch.

By subclass and hooks, as DeepSpeed's own ``dualpipev`` does: nothing is patched. The optimizer,
its reduction, ZeRO-1, bf16 and fp16, checkpoints and the monitor stay DeepSpeed's.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch
from deepspeed import comm as dist
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.pipe import schedule
from torch.distributed.distributed_c10d import _get_default_store
from typing_extensions import Self

from ds_dip.config import DIPConfig
from ds_dip.data import Dataset, Order, SampleMetadata, order_of
from ds_dip.models.context import Context
from ds_dip.models.partition import Chunk
from ds_dip.models.spec import fields_of
from ds_dip.planner import PlanSource, StepPlan
from ds_dip.planner.adopted import Adoption
from ds_dip.planner.recorder import Recorder
from ds_dip.programs.program import Instruction
from ds_dip.runtime.checkpoint import Checkpoints
from ds_dip.runtime.executor import Executor
from ds_dip.runtime.feed import Feed
from ds_dip.runtime.finite import CLEAN, FiniteCheck
from ds_dip.runtime.instructions import Execute, ProgramSchedule
from ds_dip.runtime.links import LinkTransport, links_of
from ds_dip.runtime.measure import Measured, Measurer
from ds_dip.runtime.memory import Meter
from ds_dip.runtime.module import DIPModule
from ds_dip.runtime.monitor import scalars
from ds_dip.runtime.omissions import Omissions
from ds_dip.runtime.peers import Peers, sentence_of, set_deadline
from ds_dip.runtime.reduction import ReducingEngine
from ds_dip.runtime.weights import let_put_off


class DIPEngine(Checkpoints, ReducingEngine):
    """Trains a DIPModule; made by ``ds_dip.initialize()``.

    ``plan`` is the plan of the last batch and ``measured`` its measured timeline; ``recorder`` records both on the
    ranks that lead a pipeline, where the run is recorded; ``omissions`` are the samples that were left out, and
    ``adoption`` knows by which measured costs replicas assign samples. As a context manager the engine ends the run
    cleanly (see ``ds_dip.shutdown``).
    """

    def __init__(
        self,
        *args: Any,
        dip: DIPConfig,
        plans: PlanSource,
        dataset: Dataset,
        replan: Callable[[int, int], PlanSource] | None = None,
        recorder: Recorder | None = None,
        **kwargs: Any,
    ) -> None:
        self._started = self.closed = False
        super().__init__(*args, **kwargs)
        self.dip, self.plans, self.dataset, self._replan = dip, plans, dataset, replan
        self.recorder = recorder
        self.plan: StepPlan | None = None
        self.measured: Measured | None = None
        self._asked = (0.0, 0.0)
        self._order: tuple[int, Order] | None = None
        self._stop = self._stopping = 0
        self.module: DIPModule
        model, partition = self.module.model, self.module.partition
        topology = self.module.topology()
        replicas = [
            [topology.get_rank(pipe=stage, data=replica) for stage in range(partition.ranks)]
            for replica in range(self.grid.data_parallel_size)
        ]
        if dip.split_backward is not None:
            let_put_off(self.module)
        self._finite = FiniteCheck([module.name for module in model.modules])
        layers = [
            layer
            for module in model.modules
            for chunk in partition.of(module.name)
            if chunk.rank == self.stage_id
            for layer in module.layers[chunk.start : chunk.stop]
        ]
        own = fields_of(layers)
        self._feed = Feed(model, torch.device(self.device), self.dtype_of, own)
        self.omissions = Omissions(own, dip.loss, counts=self.stage_id == 0, device=torch.device(self.device))
        self._links = LinkTransport(
            links_of(model, partition),
            replicas,
            self.stage_id,
            self.grid.data_parallel_id,
            device=torch.device(self.device),
            dtype=self.dtype_of,
            deadline_s=dip.timeouts.rank_s,
            content=self._feed.content if dip.checked else None,
        )
        self._executor = Executor(
            model,
            partition,
            _EngineCompute(self),
            self._links,
            self._feed.load,
            device=torch.device(self.device),
            dtype=self.dtype_of,
            seed=dip.planner.seed,
            watch=self._finite.watch if self.watched else None,
        )
        self._measurer = Measurer(self.grid, torch.device(self.device))
        follows = dip.planner.adaptive and dip.planner.balanced and not dip.deterministic
        self.adoption = Adoption(model, dip.planner.lead, active=follows)
        self._meter, self._peak = Meter(), 0.0
        self._loss_stage = partition.of(model.loss_module)[-1].rank
        self._load_planned()
        self.peers = Peers(_get_default_store(), self.global_rank, dist.get_world_size())
        set_deadline(dip.timeouts.rank_s)
        self._started = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        from ds_dip.runtime.shutdown import shutdown

        if error is not None:
            self.peers.ended(f"rank {self.global_rank} ended: {sentence_of(error)}")
        shutdown(self, failed=error is not None)

    def dtype_of(self, name: str) -> torch.dtype:
        """The torch dtype of a boundary tensor; ``"compute"`` is the dtype this run trains in."""
        if name != "compute":
            return getattr(torch, name)  # type: ignore[no-any-return]  # TensorSpec holds dtype names only
        if self.bfloat16_enabled():
            return torch.bfloat16
        return torch.float16 if self.fp16_enabled() else torch.float32

    def train_batch(self, data_iter: Any = None) -> torch.Tensor:
        """Train on the sampler's next global batch; the loss over the whole global batch.

        The sampler owns the order of samples, so an iterator is refused with ValueError.
        """
        if data_iter is not None:
            raise ValueError(
                "train_batch() got an iterator, but a plan needs metadata ahead and the sampler owns the order: give "
                "ds_dip.initialize() a DatasetReference as training_data and call train_batch() without arguments"
            )
        with self.peers.told(f"step {self.global_steps}"):
            loss: torch.Tensor = super().train_batch()
            assert self.plan is not None
        self.measured = self._measurer.measured()
        self.plans.measured(self.measured)
        if self.recorder is not None:
            self.recorder.add(self.plan, self.measured)
        if self.global_rank == 0 and self.monitor.enabled:
            about = self.plans.statistics(), self.global_samples, self.module.model, self.train_batch_size()
            self.monitor.write_events(scalars(self.plan, self.measured, *about))
        return loss

    def ask_to_stop(self, reason: int = signal.SIGTERM) -> None:
        """Have ``stop_requested()`` say so on all ranks after the step that is under way; any thread of any rank may.

        ``reason`` is a number above 0, by convention that of a signal.
        """
        self._stop = int(reason)

    def stop_requested(self) -> int:
        """The largest reason that any rank had before the end of the last batch, the same on every rank; 0 for none."""
        return self._stopping

    def set_train_batch_size(self, train_batch_size: int) -> None:
        """Samples of a global batch from the next step on; every rank calls it.

        Microbatches keep their size, their number changes, as in DeepSpeed. The order of samples is another one from
        here on, as when a run is resumed with another batch size. ValueError, on every rank and before anything
        changes, where the size does not fit.
        """
        each = self.train_micro_batch_size_per_gpu() * self.grid.data_parallel_size
        if type(train_batch_size) is not int or train_batch_size < 1 or train_batch_size % each:
            raise ValueError(f"train_batch_size is {train_batch_size!r}, expected a multiple of {each}, from {each} on")
        self._check_size(train_batch_size)
        super().set_train_batch_size(train_batch_size)
        self._plan_anew()

    def set_train_micro_batch_size(self, micro_batch_size: int) -> None:
        """Samples of a microbatch from the next step on, their number kept; otherwise as ``set_train_batch_size``."""
        if type(micro_batch_size) is not int or micro_batch_size < 1:
            raise ValueError(f"micro_batch_size is {micro_batch_size!r}, expected a whole number of at least 1")
        self._check_size(micro_batch_size * self.gradient_accumulation_steps() * self.grid.data_parallel_size)
        super().set_train_micro_batch_size(micro_batch_size)
        self._plan_anew()

    def _check_size(self, batch_size: int) -> None:
        """Raise, on every rank, what the leader's sampler would, and where nobody could plan other batches."""
        if self._replan is None:
            raise ValueError("this engine was made with its plans, whose batches have one size; use initialize()")
        order_of(self.dataset, batch_size)

    def _plan_anew(self) -> None:
        assert self._replan is not None
        corrections = getattr(self.plans, "corrections", None)
        self.plans.close()
        self.plans = self._replan(self.train_batch_size(), self.gradient_accumulation_steps())
        self.plans.resume(corrections)
        self.plans.adopt(self.adoption.adopted)
        self._load_planned()

    def _load_planned(self) -> None:
        """Have what plans name loaded as soon as they are known, where the order of samples does not tell it."""
        if self.grid.data_parallel_size > 1 and hasattr(self.dataset, "ahead"):
            self.plans.tell(lambda plan: self._feed.coming(plan.batch))

    def eval_batch(
        self,
        samples: Sequence[SampleMetadata],
        return_logits: bool = False,
        dataset: Dataset | None = None,
    ) -> Any:
        """The loss over these samples of ``dataset`` (default: the one trained on), by the same rule as in training.

        Every rank passes the same samples and gets the same loss. With ``return_logits`` also a
        mapping from sample id to its rows of the loss chunk's output, on the ranks that compute
        the loss (empty elsewhere).
        """
        self.module.eval()
        with torch.no_grad(), self.peers.told("evaluation"):
            plan = self.plans.evaluation(samples)
            steps = ProgramSchedule(self._instructions(plan), [], **self._schedule_arguments())
            self._run(plan, steps, self.dataset if dataset is None else dataset, return_logits)
            loss: torch.Tensor = self._aggregate_total_loss()
        return (loss, self._logits(plan)) if return_logits else loss

    def _logits(self, plan: StepPlan) -> dict[str, torch.Tensor]:
        rows: dict[str, torch.Tensor] = {}
        for index, output in self._executor.logits.items():
            microbatch = plan.batch.microbatches[index]
            module = self.module.model.loss_module
            parts = torch.split(output, [sum(sample.modules[module]) for sample in microbatch.samples])
            rows.update({sample.id: part for sample, part in zip(microbatch.samples, parts, strict=True)})
        return rows

    def _instructions(self, plan: StepPlan) -> tuple[Instruction, ...]:
        return plan.programs[self.stage_id].instructions

    def _schedule_arguments(self) -> dict[str, int]:
        return {"micro_batches": self.micro_batches, "stages": self.num_stages, "stage_id": self.stage_id}

    def _train_schedule(self) -> ProgramSchedule:
        # Here and not before the batch, so that DeepSpeed's clock of the batch counts the wait for the plan.
        began = time.monotonic()
        self.plan = self.plans.next(self.global_steps)
        self._asked = began, time.monotonic()
        end = [schedule.ReduceTiedGrads(), schedule.ReduceGrads(), schedule.OptimizerStep()]
        return ProgramSchedule(self._instructions(self.plan), end, **self._schedule_arguments())

    def _exchange(self) -> str | None:
        assert self.plan is not None
        note = self._finite.note(self._gradients()) if self.watched else CLEAN
        measured = self._executor.intervals, *self._asked
        told = self.adoption.told(self.plan)
        notes, self._stopping, heard = self._measurer.gather(
            self.plan, *measured, note, self._stop, self._peak, self._feed.seconds, told
        )
        if self.adoption.heard(self.plan.step, heard):
            self.plans.adopt(self.adoption.adopted)
        return self._finite.sentence(notes)

    def _exec_schedule(self, pipe_schedule: ProgramSchedule) -> None:
        assert self.plan is not None
        self._run(self.plan, pipe_schedule, self.dataset, following=self._following())

    def _following(self) -> list[str]:
        """The next step's samples, for a dataset that loads ahead; of several replicas only a plan knows whose."""
        if self.grid.data_parallel_size > 1 or not hasattr(self.dataset, "ahead"):
            return []
        size = self.train_batch_size()
        if self._order is None or self._order[0] != size:
            self._order = size, order_of(self.dataset, size, self.dip.planner.seed)
        return [self.dataset.metadata(index).id for index in self._order[1].indices(self.global_steps + 1)]

    @property
    def loading_seconds(self) -> float:
        """What this rank waited for data in the last batch, copies to the device included."""
        return self._feed.seconds

    def _run(
        self,
        plan: StepPlan,
        steps: ProgramSchedule,
        dataset: Dataset,
        keep_logits: bool = False,
        following: Sequence[str] | None = None,
    ) -> None:
        """Run a plan's program of this rank; afterwards ``total_loss`` is what DeepSpeed's aggregation expects."""
        self._links.step = plan.step
        self._finite.begin()
        self._feed.begin(dataset, plan.batch, following)
        replicas = self.grid.data_parallel_size
        began = time.monotonic()
        count = self.omissions.agree(dataset, plan.batch)
        self._feed.seconds += time.monotonic() - began
        # DeepSpeed divides by the accumulation steps and averages over replicas.
        self._loss_scale = self.gradient_accumulation_steps() * replicas / count
        self._executor.begin(
            plan.programs[self.stage_id], plan.batch, train=torch.is_grad_enabled(), keep_logits=keep_logits
        )
        try:
            super()._exec_schedule(steps)
        except BaseException:
            self._executor.abort()
            raise
        total = self._executor.loss_sum
        self.total_loss = torch.zeros((), device=self.device) if total is None else total.float() * self._loss_scale

    def is_last_stage(self) -> bool:
        """Whether this rank computes the loss (topologically the last one while the base class sets up)."""
        return bool(self.stage_id == self._loss_stage if self._started else super().is_last_stage())

    def _loss_stage_global_rank(self) -> int:
        return self.grid.stage_to_global(self._loss_stage)  # type: ignore[no-any-return]  # untyped

    def _exec_execute(self, instructions: Sequence[Instruction]) -> None:
        self._meter.begin(self.module.parameters())
        for instruction in instructions:
            self._executor.execute(instruction)
        self._executor.finish()
        self._peak = self._meter.end(self.module.parameters())

    def close(self) -> None:
        """Stop the planner, end the recording, drop messages under way; ``ds_dip.shutdown`` calls it."""
        self.closed = True
        self.peers.close()
        self.plans.close()
        if self.recorder is not None:
            self.recorder.close()
        self._links.close()
        if (close := getattr(self.dataset, "close", None)) is not None:
            close()

    def release(self) -> None:
        """Drop what holds process groups and hooks, so that it is gone before the interpreter ends."""
        for parameter in self.module.parameters():
            # ZeRO's; whoever keeps the layers keeps these otherwise.
            parameter.__dict__.pop("_dp_group", None)
        for name in (
            "data_parallel_group",
            "seq_data_parallel_group",
            "_executor",
            "_links",
            "_feed",
            "_measurer",
            "optimizer",
            "basic_optimizer",
            "module",
            "grid",
            "mpu",
        ):
            self.__dict__.pop(name, None)
        self._modules.clear()

    _INSTRUCTION_MAP = {**ReducingEngine._INSTRUCTION_MAP, Execute: _exec_execute}  # noqa: RUF012  # as DeepSpeed has it


class _EngineCompute:
    """How the executor runs chunks on this engine."""

    def __init__(self, engine: DIPEngine) -> None:
        self._engine = engine

    def forward(self, chunk: Chunk, x: Any, context: Context) -> Any:
        """Through DeepSpeed's forward: autocast and its backward hooks."""
        return DeepSpeedEngine.forward(self._engine, chunk, x, context)

    def loss(self, output: Any, context: Context) -> torch.Tensor:
        """The module's loss function."""
        return self._engine.module.loss_fn(output, context)  # type: ignore[no-any-return]  # untyped

    def backward(self, roots: Sequence[Any], gradients: list[torch.Tensor]) -> None:
        """See ``DIPEngine.backward_outputs``."""
        self._engine.backward_outputs(roots, gradients)

    def backward_loss(self, loss: torch.Tensor) -> None:
        """See ``DIPEngine.backward_loss``."""
        self._engine.backward_loss(loss)

    def backward_weights(self, total: torch.Tensor) -> None:
        """See ``DIPEngine.backward_weights``."""
        self._engine.backward_weights(total)
