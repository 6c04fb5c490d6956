"""Samples -> microbatches whose instances are cut into sub-microbatches (DIP, online step 2)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ds_dip.data.metadata import SampleMetadata
from ds_dip.models.partition import Partition
from ds_dip.models.spec import Model, Sizes
from ds_dip.planning.batch import Batch, Microbatch

#: What a loss may be divided by: the supervised tokens or the samples of the global batch.
LOSS_RULES = ("tokens", "samples")


class PlanningError(ValueError):
    """A batch that cannot be planned; the message says which sample or module and what to do."""


def cut(
    step: int,
    samples: Sequence[SampleMetadata],
    share: Sequence[Sequence[int]],
    model: Model,
    partition: Partition,
    *,
    loss: str = "tokens",
) -> Batch:
    """One replica's Batch: the samples of the global batch at the positions in ``share``.

    A module's N instances of a microbatch become M = ceil(N/B) uniform sub-microbatches whose
    sizes differ by at most 1; no instance gives none. A module that takes another module's outputs
    is never cut: its instances merge what all the sub-microbatches upstream produced.
    Raises PlanningError for metadata that does not fit the model and for a batch without a loss.
    """
    microbatches = tuple(
        _microbatch([samples[position] for position in positions], model, partition) for positions in share
    )
    return Batch(step, microbatches, loss_count(samples, loss))


def loss_count(samples: Sequence[SampleMetadata], loss: str = "tokens") -> int:
    """What the losses of a global batch are divided by (see ``LOSS_RULES``).

    Raises PlanningError where that would be 0: no gradient could be scaled.
    """
    if loss not in LOSS_RULES:
        raise PlanningError(f"loss rule {loss!r} is unknown: use one of {', '.join(LOSS_RULES)}")
    count = len(samples) if loss == "samples" else sum(sample.loss_tokens for sample in samples)
    if count < 1:
        raise PlanningError(
            f"none of the global batch's {len(samples)} samples has a supervised token, so there is no loss to "
            "divide: leave such samples out of the dataset, make the batch larger, or count samples instead"
        )
    return count


def sizes_of(samples: Sequence[SampleMetadata], model: Model) -> dict[str, Sizes]:
    """Each module's instances over these samples, in sample order.

    Raises PlanningError for a module that the model does not have, and for ``merged`` sizes that
    are not one an instance.
    """
    names = {module.name for module in model.modules}
    for sample in samples:
        if unknown := sorted((sample.modules.keys() | sample.merged.keys()) - names):
            raise PlanningError(
                f"sample {sample.id!r} has sizes for {', '.join(unknown)}, which model {model.name!r} does not have: "
                f"its modules are {', '.join(module.name for module in model.modules)}"
            )
        for name, merged in sample.merged.items():
            if len(merged) != len(sample.modules.get(name, ())):
                raise PlanningError(
                    f"sample {sample.id!r} has {len(sample.modules.get(name, ()))} instances for {name} but "
                    f"{len(merged)} merged sizes: give one merged size an instance"
                )
    result = {}
    for module in model.modules:
        tokens: list[int] = []
        merged_tokens: list[int] = []
        for sample in samples:
            own = sample.modules.get(module.name, ())
            tokens += own
            merged_tokens += sample.merged.get(module.name, own)
        result[module.name] = Sizes(tuple(tokens), tuple(merged_tokens))
    return result


def uniform(instances: int, size: int | None) -> tuple[tuple[int, int], ...]:
    """Ranges of ceil(instances / size) pieces whose sizes differ by at most 1; one piece for None."""
    if not instances:
        return ()
    pieces = 1 if size is None else -(-instances // size)
    bounds = [piece * instances // pieces for piece in range(pieces + 1)]
    return tuple(pairwise(bounds))


def _microbatch(samples: Sequence[SampleMetadata], model: Model, partition: Partition) -> Microbatch:
    sizes = sizes_of(samples, model)
    limits = dict(partition.sub_microbatch)
    subs = {}
    for module in model.modules:
        name = module.name
        upstream = model.upstream(name)
        if not len(sizes[name]):
            feeding = [source for source in upstream if len(sizes[source])]
            if feeding or name == model.loss_module:
                why = f"takes the outputs of {', '.join(feeding)}" if feeding else "ends in the loss"
                raise PlanningError(
                    f"samples {', '.join(sample.id for sample in samples[:4])}: {name} {why} but has no instance; "
                    f"give every sample at least one instance of {name}"
                )
        subs[name] = uniform(len(sizes[name]), None if upstream else limits.get(name))
    return Microbatch(tuple(samples), sizes, subs)
