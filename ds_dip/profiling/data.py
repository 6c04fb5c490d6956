"""What a dataset asks of a model: histograms of sampled metadata, and the samples themselves for the partitioner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ds_dip.data import Dataset, DatasetReference, SampleMetadata, order_of, write_batch
from ds_dip.files import TargetError, check_writable, write_json

FORMAT = "ds-dip/data-profile"
#: Samples that are looked at unless told otherwise, as DFLOP's data profiler does.
SAMPLES = 10_000
_BINS = 24
#: How a file of samples begins.
_BATCH = b'{"format": "ds-dip/batch"'
#: Samples of a step that is drawn along an order.
_STEP = 64
_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
#: What is counted of a module: instances a sample, the size of each, and a sample's tokens.
COUNTS = ("instances", "size", "tokens")


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of whole numbers: ``edges`` has one more than ``counts``; a bin holds its lower edge."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    mean: float
    quantiles: Mapping[str, float]


def histogram(values: Sequence[float]) -> Histogram:
    """The histogram of at least one number; bins are at least 1 wide."""
    array = np.asarray(values)
    bins = min(_BINS, int(array.max() - array.min()) + 1)
    counts, edges = np.histogram(array, bins=bins, range=(array.min() - 0.5, array.max() + 0.5))
    quantiles = {f"{q:g}": float(np.quantile(array, q)) for q in _QUANTILES}
    return Histogram(
        tuple(float(e) for e in edges), tuple(int(c) for c in counts), round(float(array.mean()), 4), quantiles
    )


def sample(reference: DatasetReference, count: int, seed: int) -> list[SampleMetadata]:
    """Metadata of samples: as a run would draw them where the dataset has an order of its own, with its weights.

    Of another one drawn without replacement, in the dataset's sequence.
    """
    dataset = reference.open()
    total = len(dataset)
    if getattr(dataset, "order", None) is not None:
        return _along(dataset, count, seed)
    if count >= total:
        return [dataset.metadata(index) for index in range(total)]
    picked = np.random.default_rng(seed).choice(total, size=count, replace=False)
    return [dataset.metadata(int(index)) for index in sorted(picked)]


def _along(dataset: Dataset, count: int, seed: int) -> list[SampleMetadata]:
    """The first samples of the dataset's own order, in steps as large as it has samples for."""
    batch = min(_STEP, len(dataset), count)
    while True:
        try:
            order = order_of(dataset, batch, seed)
            break
        except ValueError:
            if batch == 1:
                raise
            batch //= 2
    found: list[SampleMetadata] = []
    step = 0
    while len(found) < count:
        found += map(dataset.metadata, order.indices(step))
        step += 1
    return found[:count]


def histograms(samples: Sequence[SampleMetadata]) -> dict[str, dict[str, Histogram]]:
    """Per module the histograms of ``COUNTS``; sizes are left out where no sample has an instance."""
    names = list(dict.fromkeys(name for s in samples for name in s.modules))
    found = {}
    for name in names:
        own = [s.modules.get(name, ()) for s in samples]
        values = {
            "instances": [len(sizes) for sizes in own],
            "size": [size for sizes in own for size in sizes],
            "tokens": [sum(sizes) for sizes in own],
        }
        found[name] = {count: histogram(numbers) for count, numbers in values.items() if numbers}
    return found


def _begins(path: Path, start: bytes) -> bool:
    with path.open("rb") as stream:
        return stream.read(len(start)) == start


def profile_data(reference: DatasetReference, out: Path, count: int = SAMPLES, seed: int = 0) -> dict[str, Any]:
    """Sample a dataset, write the histograms to ``out`` and the samples next to it as ``.jsonl``; the document.

    Raises TargetError where these cannot be written, and ValueError where the dataset cannot be opened.
    """
    lines = out.with_suffix(".jsonl")
    if lines == out:
        raise TargetError(f"{out}: is where the samples go, next to the histograms; name a file that ends in .json")
    check_writable(out)
    check_writable(lines)
    if lines.exists() and not _begins(lines, _BATCH):
        raise TargetError(f"{lines}: is not of ds_dip and would be replaced by samples; name another file than {out}")
    samples = sample(reference, count, seed)
    if not samples:
        raise ValueError(f"dataset factory {reference.factory!r} gave a dataset of no samples; give it some")
    document = {
        "format": FORMAT,
        "version": 1,
        "dataset": reference.document(),
        "samples": len(samples),
        "seed": seed,
        "batch": lines.name,
        "loss_tokens": _document(histogram([s.loss_tokens for s in samples])),
        "modules": {
            name: {count: _document(of) for count, of in counts.items()} for name, counts in histograms(samples).items()
        },
    }
    write_batch(lines, samples)
    write_json(out, document)
    return document


def _document(of: Histogram) -> dict[str, Any]:
    return {
        "edges": list(of.edges),
        "counts": list(of.counts),
        "mean": of.mean,
        "quantiles": dict(of.quantiles),
    }
