"""Plans are never believed blindly: the leader checks every one against what it knows itself, before any rank sees it.

A plan from another process may be damaged, made from other data, or made by code with a fault. One that passes here
runs to its end under the strictest model of communication, moves tensors of the shapes that its samples have, stays
within the memory that is given, and trains this replica on its share of the sampler's batch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from ds_dip.planner.plan import Planner, shape_of
from ds_dip.planner.record import PlanError, StepPlan, check_plan
from ds_dip.planning import build_problem
from ds_dip.planning.batch import Batch
from ds_dip.programs import ProgramError, memory, peaks, replay, strategies_of
from ds_dip.programs.compile import boundary
from ds_dip.programs.program import Backward, Forward, Message, PostSend, Program, Stage, WaitSend

#: Relative rounding between two sums of the same numbers.
_ROUNDING = 1e-9
#: Right plans remembered, for batches that are equal to theirs.
_KEPT = 16


class OutdatedError(PlanError):
    """A plan of a batch that was assigned by costs that do not hold for its step: its planner did not know yet."""


class Verifier:
    """Checks plans of training steps by a planner of one's own: its settings, its dataset's metadata, its costs.

    Reads metadata, and takes a few milliseconds in plain Python (docs/planner.md).
    """

    def __init__(self, planner: Planner) -> None:
        settings = planner.settings
        self._planner, self._settings = planner, settings
        self._right: dict[tuple[object, ...], None] = {}
        self._model, self._partition = settings.model, settings.partition
        self._chunks = {(chunk.module, chunk.index): chunk for chunk in self._partition.chunks}
        self._chains = {module.name: self._partition.of(module.name) for module in self._model.modules}
        self._backward = {module.name: self._model.backward(module.name) for module in self._model.modules}
        self._specs = {key: boundary(self._model, chunk) for key, chunk in self._chunks.items()}

    def check(self, plan: StepPlan) -> None:
        """Check a plan of a training step.

        Raises PlanError for the first thing that does not hold, and PlanningError where this planner cannot tell
        what the step's batch is, and OutdatedError where it was assigned by other costs than are adopted for the step.
        """
        wanted = self._planner.batches.of(plan.step)
        if plan.batch.adopted != wanted.adopted:
            raise OutdatedError(f"step {plan.step} was planned before its costs were adopted, or set back")
        self._check_batch(plan.batch, wanted)
        # All that the rest depends on: a batch that equals an earlier one has its programs.
        key = (shape_of(plan.batch), plan.programs, plan.stages, plan.makespan, plan.peak_memory)
        if key in self._right:
            return
        self.check_programs(plan)
        for program in plan.programs:
            self._check_sends(program)
        self._check_memory(plan)
        self._right[key] = None
        if len(self._right) > _KEPT:
            del self._right[next(iter(self._right))]

    def check_programs(self, plan: StepPlan) -> None:
        """Check that a plan's programs run to their end and compute its batch, whatever it was made with.

        Raises PlanError for the first thing that does not hold.
        """
        check_plan(plan, self._model, self._partition, forward_only=False)
        try:
            replay(plan.programs)
        except ProgramError as error:
            raise PlanError(f"the plan's programs could not run: {error}") from error
        self._check_edges(plan)
        for program in plan.programs:
            self._check_times(plan, program)

    def _check_batch(self, found: Batch, wanted: Batch) -> None:
        if found == wanted:
            return
        if found.loss_count != wanted.loss_count:
            raise PlanError(
                f"the plan divides the loss of step {found.step} by {found.loss_count}, its samples have "
                f"{wanted.loss_count}"
            )
        if len(found.microbatches) != len(wanted.microbatches):
            raise PlanError(
                f"the plan has {len(found.microbatches)} microbatches, step {found.step} has {len(wanted.microbatches)}"
            )
        for number, (mine, theirs) in enumerate(zip(wanted.microbatches, found.microbatches, strict=True)):
            ids = [[sample.id for sample in microbatch.samples] for microbatch in (theirs, mine)]
            if ids[0] != ids[1]:
                raise PlanError(
                    f"microbatch {number} of step {found.step} holds the samples {ids[0][:4]}, its share of the "
                    f"sampler's batch is {ids[1][:4]}"
                )
            for theirs_, mine_ in zip(theirs.samples, mine.samples, strict=True):
                if theirs_ != mine_:
                    raise PlanError(f"sample {mine_.id!r} has other metadata in the plan than in the dataset")
            if theirs != mine:
                raise PlanError(f"microbatch {number} does not hold its samples' instances as the partition cuts them")
        raise PlanError(f"the plan of step {found.step} assigns the global batch's samples to replicas otherwise")

    def _edges(self, batch: Batch) -> Iterator[tuple[Stage, Stage]]:
        """Every pair of stages of which the second takes what the first makes, the forwards before the backwards."""
        for number, microbatch in enumerate(batch.microbatches):
            for name, chain in self._chains.items():
                for sub in range(len(microbatch.subs[name])):
                    pairs = [((name, a.index, sub), (name, b.index, sub)) for a, b in pairwise(chain)]
                    pairs += [
                        ((name, chain[-1].index, sub), (target, 0, other))
                        for target in self._model.downstream(name)
                        for other in range(len(microbatch.subs[target]))
                    ]
                    for (module, chunk, piece), (module_, chunk_, piece_) in pairs:
                        yield Stage("F", module, chunk, number, piece), Stage("F", module_, chunk_, number, piece_)
                        if self._backward[name]:
                            yield Stage("B", module_, chunk_, number, piece_), Stage("B", module, chunk, number, piece)

    def _check_edges(self, plan: StepPlan) -> None:
        """What a stage takes was made before it on its rank, or comes in one message of the right shapes."""
        place: dict[Stage, int] = {}
        for program in plan.programs:
            for position, instruction in enumerate(program.instructions):
                if isinstance(instruction, Forward | Backward):
                    place[instruction.stage] = position
        messages = {message.id: message for program in plan.programs for message in program.messages}
        sent = Counter((message.source, message.target) for message in messages.values())
        by_edge = {(message.source, message.target): message for message in messages.values()}
        for edge in self._edges(plan.batch):
            source, target = edge
            sender, receiver = self._rank(source), self._rank(target)
            if sender == receiver:
                if place[source] > place[target]:
                    raise PlanError(f"rank {sender} runs {target} before {source}, whose outcome it takes")
                continue
            if sent.pop(edge, 0) != 1:
                raise PlanError(f"{target} on rank {receiver} needs one message from {source} on rank {sender}")
            self._check_message(by_edge[edge], sender, receiver, plan.batch)
        if sent:
            source, target = next(iter(sent))
            raise PlanError(f"a message goes from {source} to {target}, which takes nothing from it")

    def _check_message(self, message: Message, sender: int, receiver: int, batch: Batch) -> None:
        if (message.sender, message.receiver) != (sender, receiver):
            raise PlanError(
                f"message {message.id} goes from rank {message.sender} to {message.receiver}, its stages are on "
                f"{sender} and {receiver}"
            )
        producer = message.source if message.source.kind == "F" else message.target
        sizes = batch.microbatches[producer.microbatch].sub_sizes(producer.module, producer.sub)
        tensors = tuple(
            (spec.shape(sizes), spec.dtype)
            for spec in self._specs[producer.module, producer.chunk]
            if message.source.kind == "F" or spec.differentiable
        )
        if message.tensors != tensors:
            raise PlanError(f"message {message.id} has the tensors {message.tensors}, its stages make {tensors}")

    def _check_sends(self, program: Program) -> None:
        """A link holds no more sent tensors than its depth."""
        links = {message.id: message.receiver for message in program.messages}
        held: Counter[int] = Counter()
        for instruction in program.instructions:
            if isinstance(instruction, PostSend):
                held[links[instruction.message]] += 1
                if held[links[instruction.message]] > self._settings.link_depth:
                    raise PlanError(
                        f"rank {program.rank} holds more than {self._settings.link_depth} sent messages to rank "
                        f"{links[instruction.message]} at once"
                    )
            elif isinstance(instruction, WaitSend):
                held[links[instruction.message]] -= 1

    def _check_memory(self, plan: StepPlan) -> None:
        """Activations and messages in the programs' order: what the plan says, and no more than there is room for."""
        settings, compute = self._settings, self._settings.rates.compute
        chosen = strategies_of(plan.programs)
        if odd := sorted(set(chosen.values()) - set(settings.strategies)):
            raise PlanError(f"the plan runs stages by the memory strategy {odd[0]!r}, which is not offered")
        if settings.memory_capacity is None:
            # Nothing to exceed, and half of a check's time would go into a figure that is only shown.
            return
        problem = build_problem(
            plan.batch, self._model, self._partition, self._planner.costs, compute=compute,
            chosen=chosen,
        )  # fmt: skip
        held = memory(plan.programs, problem, (), plan.batch, self._model, self._partition, compute)
        for rank, peak in enumerate(peaks(held)):
            limit = settings.memory_capacity[rank]
            if limit is not None and peak > limit * (1 + _ROUNDING):
                raise PlanError(f"rank {rank} would hold {peak:.0f} bytes of activations, the limit is {limit:.0f}")
            if not math.isclose(peak, plan.peak_memory[rank], rel_tol=_ROUNDING, abs_tol=1.0):
                raise PlanError(
                    f"rank {rank} would hold {peak:.0f} bytes of activations, the plan says "
                    f"{plan.peak_memory[rank]:.0f}"
                )

    def _check_times(self, plan: StepPlan, program: Program) -> None:
        times = plan.stages[program.rank]
        slack = _ROUNDING * plan.makespan
        if any(before.end > after.start + slack for before, after in pairwise(times)) or any(
            time.start < -slack or time.end > plan.makespan + slack for time in times
        ):
            raise PlanError(
                f"rank {program.rank} is predicted to run two stages at once, or one outside of the plan's "
                f"{plan.makespan:g} s"
            )

    def _rank(self, stage: Stage) -> int:
        return self._chunks[stage.module, stage.chunk].rank
