"""Runs one rank's Program: chunks forward and backward, losses and gradients kept by stage.

Knows nothing of DeepSpeed: how a chunk runs and how a backward reaches the parameters are handed
in, and messages go through a Transport. Whatever the order of a valid program, the gradients are
those of one process computing the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from ds_dip.files import first_line
from ds_dip.models.context import Context
from ds_dip.models.partition import Chunk, Partition
from ds_dip.models.spec import Model, Sizes, fields_of
from ds_dip.planning.batch import Batch, Microbatch
from ds_dip.programs.program import (
    Backward,
    BackwardWeight,
    Forward,
    Instruction,
    Load,
    Message,
    PostReceive,
    PostSend,
    Program,
    Stage,
    WaitReceive,
)
from ds_dip.runtime.clock import Clock, Interval
from ds_dip.runtime.recompute import Again, as_it_was, random_states, roots_of
from ds_dip.runtime.stages import Stages
from ds_dip.runtime.transport import Transport
from ds_dip.runtime.weights import PutOff, putting_off, total_of

Tensors = list[torch.Tensor]
#: Loads the fields of a module's instances ``[start, stop)`` of a microbatch, on the device.
Loader = Callable[[Microbatch, str, tuple[str, ...], int, int], Mapping[str, torch.Tensor]]


class Compute(Protocol):
    """What the engine does for the executor."""

    def forward(self, chunk: Chunk, x: Any, context: Context) -> Any:
        """The chunk's output: a tensor or a tuple of tensors."""
        ...

    def loss(self, output: Any, context: Context) -> torch.Tensor:
        """The loss summed over the microbatch, a scalar."""
        ...

    def backward(self, roots: Sequence[Any], gradients: Tensors) -> None:
        """One backward from the gradient edges of several outputs."""
        ...

    def backward_loss(self, loss: torch.Tensor) -> None:
        """Backward from a loss sum, scaled to the global batch."""
        ...

    def backward_weights(self, total: torch.Tensor) -> None:
        """Backward from a scalar whose gradient is 1, to weights alone."""
        ...


class StageError(RuntimeError):
    """A stage that cannot run; the message names module, chunk and microbatch."""


@dataclass
class _Run:
    """The state of one program: everything is keyed by stage, and nothing is left at the end."""

    batch: Batch
    train: bool
    messages: Mapping[int, Message]
    arrived: dict[tuple[Stage, Stage], Tensors] = field(default_factory=dict)
    handed: dict[tuple[Stage, Stage], Tensors] = field(default_factory=dict)
    fields: dict[Stage, Mapping[str, torch.Tensor]] = field(default_factory=dict)
    leaves: dict[Stage, list[tuple[Stage, Tensors]]] = field(default_factory=dict)
    roots: dict[Stage, list[Any]] = field(default_factory=dict)
    again: dict[Stage, Again] = field(default_factory=dict)
    losses: dict[Stage, torch.Tensor] = field(default_factory=dict)
    #: By forward, for the stages whose weight gradients are put off.
    put_off: dict[Stage, PutOff] = field(default_factory=dict)
    names: dict[tuple[int, str], tuple[str, ...]] = field(default_factory=dict)

    def instances(self, stage: Stage) -> tuple[str, ...]:
        """The names of a stage's instances."""
        key, microbatch = (stage.microbatch, stage.module), self.batch.microbatches[stage.microbatch]
        if key not in self.names:
            self.names[key] = tuple(
                f"{sample.id}/{number}"
                for sample in microbatch.samples
                for number in range(len(sample.modules.get(stage.module, ())))
            )
        start, stop = microbatch.subs[stage.module][stage.sub]
        return self.names[key][start:stop]


class Executor:
    """Executes the instructions of one rank's programs.

    ``loss_sum`` is the summed loss of the last run's microbatches on this rank (None where the
    loss is computed elsewhere), ``logits`` the outputs of the loss chunk by microbatch when asked
    for, ``intervals`` the measured stages. ``watch`` is shown every stage's outputs, losses and the
    gradients it hands back.
    """

    def __init__(
        self,
        model: Model,
        partition: Partition,
        compute: Compute,
        transport: Transport,
        load: Loader,
        *,
        device: torch.device,
        dtype: Callable[[str], torch.dtype],
        seed: int = 0,
        watch: Callable[[Stage, Sequence[torch.Tensor]], None] | None = None,
    ) -> None:
        self._watch = watch or (lambda _, __: None)
        self._model, self._stages, self._seed = model, Stages(model, partition), seed
        self._compute, self._transport, self._load = compute, transport, load
        self._device, self._dtype = device, dtype
        self._clock = Clock()
        self._run: _Run | None = None
        self._keep_logits = False
        self.loss_sum: torch.Tensor | None = None
        self.logits: dict[int, torch.Tensor] = {}
        self.intervals: list[Interval] = []

    def begin(self, program: Program, batch: Batch, *, train: bool, keep_logits: bool = False) -> None:
        """Take up a batch; ``execute`` follows for each of the program's instructions."""
        self._run = _Run(batch, train, {message.id: message for message in program.messages})
        self._run.put_off = {
            replace(i.stage, kind="F"): [] for i in program.instructions if isinstance(i, BackwardWeight)
        }
        self._keep_logits = keep_logits
        self.loss_sum, self.logits = None, {}
        self._clock.begin()

    def finish(self) -> None:
        """End the batch: resolve the measured times.

        Raises StageError if anything is left over, which means the program was not whole.
        """
        run, self._run = self._state(), None
        left: dict[str, dict[Any, Any]] = {
            "arrived": run.arrived,
            "handed on": run.handed,
            "outputs": run.roots,
            "stages to run again": run.again,
            "losses": run.losses,
            "inputs": run.leaves,
            "fields": run.fields,
            "weight gradients put off": run.put_off,
        }
        for name, rest in left.items():
            if rest:
                raise StageError(
                    f"step {run.batch.step}: {name} of {next(iter(rest))} were never used; the program is not whole"
                )
        self.intervals = self._clock.end()

    def abort(self) -> None:
        """Drop the batch after an error."""
        self._run = None

    def execute(self, instruction: Instruction) -> None:
        """Run one instruction."""
        run = self._state()
        if isinstance(instruction, Load):
            self._load_fields(run, instruction.stage)
        elif isinstance(instruction, Forward):
            self._clock.measure(instruction.stage, lambda: self._forward(run, instruction.stage, instruction.strategy))
        elif isinstance(instruction, Backward):
            self._clock.measure(instruction.stage, lambda: self._backward(run, instruction.stage))
        elif isinstance(instruction, BackwardWeight):
            self._clock.measure(instruction.stage, lambda: self._backward_weights(run, instruction.stage))
        else:
            self._communicate(run, instruction)

    def _state(self) -> _Run:
        if self._run is None:
            raise StageError("no batch is under way; call begin() first")
        return self._run

    def _communicate(self, run: _Run, instruction: Instruction) -> None:
        message = run.messages[instruction.message]  # type: ignore[union-attr]  # the four others have a stage
        edge = message.source, message.target
        if isinstance(instruction, PostSend):
            self._transport.post_send(message, run.handed.pop(edge))
        elif isinstance(instruction, PostReceive):
            self._transport.post_receive(message)
        elif isinstance(instruction, WaitReceive):
            run.arrived[edge] = self._transport.wait_receive(message)
        else:
            self._transport.wait_send(message)

    def _sizes(self, run: _Run, stage: Stage) -> Sizes:
        return run.batch.microbatches[stage.microbatch].sub_sizes(stage.module, stage.sub)

    def _load_fields(self, run: _Run, stage: Stage) -> None:
        chunk = self._stages.chunk(stage)
        names = fields_of(self._model.module(stage.module).layers[chunk.start : chunk.stop])
        microbatch = run.batch.microbatches[stage.microbatch]
        start, stop = microbatch.subs[stage.module][stage.sub]
        run.fields[stage] = self._load(microbatch, stage.module, names, start, stop)

    def _take(self, run: _Run, source: Stage, target: Stage) -> Tensors:
        edge = source, target
        tensors = run.arrived.pop(edge, None)
        if tensors is None:
            tensors = run.handed.pop(edge, None)
        if tensors is None:
            raise StageError(f"{target} runs before {source} has handed its tensors on")
        return tensors

    def _forward(self, run: _Run, stage: Stage, strategy: str) -> None:
        sources = self._stages.sources(run.batch, stage)
        leaves: list[tuple[Stage, Tensors]] = []
        taken: dict[Stage, Tensors] = {}
        for source in sources:
            tensors = self._take(run, source, stage)
            if run.train and self._model.backward(source.module):
                tensors = [t.detach().requires_grad_(t.is_floating_point()) for t in tensors]
                leaves.append((source, tensors))
            taken[source] = tensors
        backward = run.train and self._model.backward(stage.module)
        context = Context(
            self._sizes(run, stage),
            run.fields.pop(stage, {}),
            run.instances(stage),
            run.batch.step,
            self._seed,
            selective=backward and strategy == "selective",
        )
        again = backward and strategy == "full"
        if again:
            run.again[stage] = Again(taken, context, random_states(self._device))
        with torch.no_grad() if again else nullcontext():
            output = self._output(run, stage, taken, context)
            tensors = list(output) if isinstance(output, tuple | list) else [output]
            self._check(run, stage, tensors)
            self._watch(stage, tensors)
            if backward:
                run.leaves[stage] = leaves
            if self._stages.loses(stage):
                self._lose(run, stage, output, context, keep=backward and not again)
                return
        if backward and not again:
            run.roots[stage] = roots_of(tensors)
        for target in self._stages.targets(run.batch, stage):
            run.handed[stage, target] = [t.detach() for t in tensors]

    def _output(self, run: _Run, stage: Stage, taken: Mapping[Stage, Tensors], context: Context) -> Any:
        """What the stage's chunk makes of what it took."""
        x = _unpack(next(iter(taken.values()))) if stage.chunk else self._gather(stage, taken)
        with self._named(run, stage, context), putting_off(run.put_off.get(stage)):
            return self._compute.forward(self._stages.chunk(stage), x, context)

    def _again(self, run: _Run, forward: Stage) -> None:
        """Run a forward again, for its backward."""
        again = run.again.pop(forward)
        with as_it_was(again, self._device):
            output = self._output(run, forward, again.taken, again.context)
            if self._stages.loses(forward):
                with self._named(run, forward, again.context):
                    run.losses[forward] = self._compute.loss(output, again.context)
            else:
                run.roots[forward] = roots_of(list(output) if isinstance(output, tuple | list) else [output])

    def _lose(self, run: _Run, stage: Stage, output: Any, context: Context, *, keep: bool) -> None:
        with self._named(run, stage, context):
            loss = self._compute.loss(output, context)
        self._watch(stage, [loss])
        if keep:
            run.losses[stage] = loss
        value = loss.detach().clone()
        self.loss_sum = value if self.loss_sum is None else self.loss_sum + value
        if self._keep_logits:
            self.logits[stage.microbatch] = output.detach()

    @contextmanager
    def _named(self, run: _Run, stage: Stage, context: Context) -> Iterator[None]:
        """Say which stage and which samples an error of a layer or the loss comes from."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, TypeError, LookupError) as error:
            fields = ", ".join(f"{name} {_form(tensor)}" for name, tensor in context.fields.items()) or "none"
            raise StageError(
                f"{self._stages.words(run.batch, stage)}: {first_line(error)}; the fields read here are {fields}: "
                "make what the dataset loads fit the layers"
            ) from error

    def _gather(self, stage: Stage, taken: Mapping[Stage, Tensors]) -> dict[str, Any]:
        """Each upstream module's outputs, sub-microbatches concatenated in instance order."""
        inputs = {}
        for module in self._model.upstream(stage.module):
            parts = [tensors for source, tensors in taken.items() if source.module == module]
            if parts:
                whole = parts[0] if len(parts) == 1 else [torch.cat(columns) for columns in zip(*parts, strict=True)]
            else:
                none = Sizes((), ())
                specs = self._model.module(module).layers[-1].output
                whole = [
                    torch.zeros(spec.shape(none), dtype=self._dtype(spec.dtype), device=self._device) for spec in specs
                ]
            inputs[module] = _unpack(whole)
        return inputs

    def _check(self, run: _Run, stage: Stage, tensors: Sequence[torch.Tensor]) -> None:
        """Outputs must have the planned shapes: the receiver has buffers of just these."""
        specs, sizes = self._stages.specs(stage), self._sizes(run, stage)
        planned = [(spec.shape(sizes), self._dtype(spec.dtype)) for spec in specs]
        found = [(tuple(tensor.shape), tensor.dtype) for tensor in tensors]
        if planned != found:
            raise StageError(
                f"{self._stages.words(run.batch, stage)}: output is {found}, planned from metadata {planned}; "
                "make the dataset's metadata and the layer's output agree"
            )

    def _backward(self, run: _Run, stage: Stage) -> None:
        forward = Stage("F", stage.module, stage.chunk, stage.microbatch, stage.sub)
        if forward in run.again:
            self._again(run, forward)
        leaves = run.leaves.pop(forward)
        if forward in run.losses:
            self._compute.backward_loss(run.losses.pop(forward))
        else:
            roots, gradients = run.roots.pop(forward), self._gradients(run, forward, stage)
            pairs = [(root, g) for root, g in zip(roots, gradients, strict=True) if root is not None]
            if pairs:
                self._compute.backward([root for root, _ in pairs], [g for _, g in pairs])
        for source, tensors in leaves:
            target = Stage("B", source.module, source.chunk, source.microbatch, source.sub)
            gradients = [torch.zeros_like(t) if t.grad is None else t.grad for t in tensors if t.is_floating_point()]
            self._watch(stage, gradients)
            run.handed[stage, target] = gradients

    def _backward_weights(self, run: _Run, stage: Stage) -> None:
        if put_off := run.put_off.pop(replace(stage, kind="F")):
            self._compute.backward_weights(total_of(put_off))

    def _gradients(self, run: _Run, forward: Stage, stage: Stage) -> Tensors:
        """Gradients of a forward's outputs, summed over all who took them."""
        total: Tensors = []
        for target in self._stages.targets(run.batch, forward):
            back = Stage("B", target.module, target.chunk, target.microbatch, target.sub)
            part = self._take(run, back, stage)
            total = [a + b for a, b in zip(total, part, strict=True)] if total else part
        return total


def _form(tensor: torch.Tensor) -> str:
    """Shape, dtype and, of integers at hand, the range: a number that no table has is seen there."""
    words = f"{list(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"
    if tensor.device.type == "cpu" and not tensor.is_floating_point() and tensor.numel():
        words += f" from {int(tensor.min())} to {int(tensor.max())}"
    return words


def _unpack(tensors: Sequence[torch.Tensor]) -> torch.Tensor | tuple[torch.Tensor, ...]:
    return tensors[0] if len(tensors) == 1 else tuple(tensors)
