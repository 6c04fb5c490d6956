"""Runs the plans of a recorded run again: the leader reads them instead of asking a planner, and publishes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ds_dip.models.partition import model_hash, partition_hash
from ds_dip.models.spec import Model
from ds_dip.planner.ahead import Decided
from ds_dip.planner.channel import Channel
from ds_dip.planner.client import Answer
from ds_dip.planner.leader import LeaderSource
from ds_dip.planner.plan import Planner
from ds_dip.planner.record import StepPlan
from ds_dip.planner.recording import RecordedStep, Recording, Run
from ds_dip.planner.settings import PlannerSettings
from ds_dip.planner.source import SourceStatistics
from ds_dip.planner.verification import Verifier

#: How a recorded fallback is counted.
RECORDED = "recorded"


class ReplayError(ValueError):
    """A recording that is not of this run; the message says what differs."""


class ReplayingSource(LeaderSource):
    """A leader whose plan of every step is the recorded one; evaluations are planned anew, and nothing is corrected.

    ``next`` raises PlanSourceError, on every rank, for a step that was not recorded or was recorded of something else.
    """

    def __init__(self, planner: Planner, recording: Recording, channel: Channel | None = None) -> None:
        super().__init__(planner, channel, correct=False)
        self._recording, self._verifier = recording, Verifier(planner)
        self._known: set[str] = set()

    def next(self, step: int) -> StepPlan:
        """The recorded plan; published before it is returned."""
        plan = super().next(step)
        if plan.kind == "fallback":
            self._planned -= 1
            self._fallbacks[RECORDED] += 1
            self._reasons.append(f"step {step}: {plan.reason}")
        return plan

    def _ask(self, step: int, decided: Decided | None) -> Answer:
        found = self._recording.read(step)
        if found.run not in self._known:
            run, length = self._recording.run(found.run), len(self._planner.dataset)
            _refuse(self._recording, difference(run, self._planner.settings, length))
            self._known.add(found.run)
        _refuse(self._recording, other_samples(found, self._planner))
        self._verifier.check_programs(found.plan)
        _refuse(self._recording, beyond_memory(found.plan, self._planner.settings))
        return Answer(found.plan)

    def statistics(self) -> SourceStatistics:
        """Counts so far; every recorded plan is there when it is asked for."""
        counts = super().statistics()
        return replace(counts, hits=counts.steps)


def check_recording(recording: Recording, settings: PlannerSettings, samples: int) -> None:
    """Check that a recording can be of a run with these settings, before the run starts: by its first step.

    Where the run's batch size changed on the way, any step will do. Raises ReplayError, or FileError for a file that
    cannot be used.
    """
    first: str | None = None
    seen = set()
    for step in recording.steps:
        digest = recording.read(step).run
        if digest in seen:
            continue
        seen.add(digest)
        odd = difference(recording.run(digest), settings, samples)
        if odd is None:
            return
        first = first or odd
    _refuse(recording, first)


def other_samples(found: RecordedStep, planner: Planner) -> str | None:
    """What a recorded step's samples are otherwise than the dataset has them now, as a sentence; None for nothing."""
    own = {sample.id: sample for sample in planner.batches.samples(found.step)}
    for microbatch in found.plan.batch.microbatches:
        for sample in microbatch.samples:
            if own.get(sample.id) != sample:
                what = "is none of this step's" if sample.id not in own else "has other sizes than were recorded"
                return f"sample {sample.id!r} {what}; give the run the dataset that was recorded"
    return None


def beyond_memory(plan: StepPlan, settings: PlannerSettings) -> str | None:
    """What a recorded plan takes more than this run allows, as a sentence; None where it fits."""
    for rank, (peak, limit) in enumerate(zip(plan.peak_memory, settings.memory_capacity or (), strict=False)):
        if limit is not None and peak > limit:
            return (
                f"step {plan.step} was recorded with {peak / 1e9:.3g} GB of activations on rank {rank}, and "
                f"dip.memory_gb allows {limit / 1e9:.3g}; leave the key out of a replay, or raise it"
            )
    return None


def difference(run: Run, settings: PlannerSettings, samples: int) -> str | None:
    """What a recorded run had otherwise than one with these settings, as a sentence; None where nothing matters.

    How plans are made (schedule, search, costs) does not matter to a run that makes none.
    """
    for name, recorded, here in _compared(run, settings, samples):
        if recorded != here:
            return (
                f"was recorded with {name} {recorded}, and this run has {here}; give the run what was recorded, or "
                'remove "dip.replay"'
            )
    return None


def _refuse(recording: Recording, odd: str | None) -> None:
    if odd is not None:
        raise ReplayError(f"{recording.folder}: {odd}")


def _compared(run: Run, settings: PlannerSettings, samples: int) -> Iterator[tuple[str, object, object]]:
    old = run.settings
    yield "model", _named(old.model), _named(settings.model)
    yield "a partition on ranks", old.partition.ranks, settings.partition.ranks
    yield "the partition", partition_hash(old.partition)[:12], partition_hash(settings.partition)[:12]
    yield "sub-microbatches", dict(old.partition.sub_microbatch), dict(settings.partition.sub_microbatch)
    for name in ("batch_size", "microbatches", "replicas", "replica", "seed", "loss"):
        yield name.replace("_", " "), getattr(old, name), getattr(settings, name)
    yield "data type", old.rates.compute, settings.rates.compute
    yield "a dataset of length", run.samples, samples


def _named(model: Model) -> str:
    return f"{model.name} ({model_hash(model)[:12]})"
