"""Loads what a stage needs: the fields of a range of a module's instances in a microbatch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from ds_dip.data.faults import SampleError
from ds_dip.data.metadata import Dataset, SampleMetadata
from ds_dip.files import first_line


def collate(
    dataset: Dataset, samples: Sequence[SampleMetadata], module: str, fields: Sequence[str], start: int, stop: int
) -> dict[str, np.ndarray]:
    """For each field, instances ``start`` to ``stop`` (exclusive) of ``module``, concatenated along dimension 0.

    Instances count through the microbatch's samples in order. Only samples with one of these instances are loaded.
    Raises ValueError where the range is empty or not in the microbatch, or where what is loaded does not agree with
    the metadata.
    """
    total = sum(len(sample.modules[module]) for sample in samples)
    if not 0 <= start < stop <= total:
        raise ValueError(
            f"instances {start} to {stop} of module {module!r} were asked for, and the microbatch has {total}; "
            "give a range of at least one instance within it"
        )
    parts: dict[str, list[tuple[SampleMetadata, np.ndarray]]] = {name: [] for name in fields}
    first = 0
    for sample in samples:
        last = first + len(sample.modules[module])
        low, high = max(start, first) - first, min(stop, last) - first
        if low < high and fields:
            loaded = _load(dataset, sample, fields)
            for name in fields:
                parts[name] += [(sample, array) for array in _checked(sample, module, name, loaded)[low:high]]
        first = last
    return {name: _joined(name, arrays) for name, arrays in parts.items()}


def _load(dataset: Dataset, sample: SampleMetadata, fields: Sequence[str]) -> Mapping[str, list[np.ndarray]]:
    """What the dataset gives for a sample; ValueError, naming the sample, where it raises or gives no mapping."""
    try:
        loaded = dataset.load(sample.id, fields)
    except SampleError as error:
        raise ValueError(f"sample {sample.id!r} cannot be made: {error}") from error
    except Exception as error:
        raise ValueError(
            f"sample {sample.id!r}: the dataset raised {type(error).__name__} ({first_line(error)}) while it loaded "
            f"{', '.join(fields)}; make load() give every sample whose metadata it has, or leave the sample out"
        ) from error
    if not isinstance(loaded, Mapping):
        raise ValueError(
            f"sample {sample.id!r}: load() gave a {type(loaded).__name__}, expected a mapping from field to a list of "
            "arrays; make it give one"
        )
    return loaded


def _joined(name: str, parts: Sequence[tuple[SampleMetadata, np.ndarray]]) -> np.ndarray:
    """The arrays of a field's instances as one; ValueError where two are not of one width or dtype."""
    (first, whole), *others = parts
    for sample, array in others:
        if (array.shape[1:], array.dtype) != (whole.shape[1:], whole.dtype):
            raise ValueError(
                f"field {name!r}: sample {first.id!r} has instances {_form(whole)} and sample {sample.id!r} "
                f"{_form(array)}; make load() give all instances of a field in one width and data type"
            )
    return whole if not others else np.concatenate([array for _, array in parts])


def _form(array: np.ndarray) -> str:
    return f"[{', '.join(['n', *map(str, array.shape[1:])])}] of {array.dtype}"


def _checked(
    sample: SampleMetadata, module: str, name: str, loaded: Mapping[str, list[np.ndarray]]
) -> list[np.ndarray]:
    """The field's arrays, after comparing them with the metadata."""
    where = f"sample {sample.id!r}, field {name!r}"
    if name not in loaded:
        raise ValueError(f"{where}: the dataset gave only {', '.join(loaded) or 'nothing'}; make load() give it")
    for array in loaded[name]:
        if not isinstance(array, np.ndarray) or not array.ndim or array.dtype.kind not in "biuf":
            found = f"array of {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
            raise ValueError(
                f"{where}: an instance is of type {found}, expected a numpy array of numbers with a row "
                "a token; make load() give one"
            )
    sizes = tuple(len(array) for array in loaded[name])
    wanted = sample.modules[module]
    if len(sizes) != len(wanted):
        raise ValueError(
            f"{where}: {len(sizes)} instances were loaded and the metadata says {len(wanted)} for module {module!r}; "
            "make load() and metadata() agree"
        )
    for place, (size, expected) in enumerate(zip(sizes, wanted, strict=True)):
        if size != expected:
            raise ValueError(
                f"{where}: instance {place} has size {size} and the metadata says {expected} for module {module!r}; "
                "make load() and metadata() agree"
            )
    return list(loaded[name])


def content_hash(dataset: Dataset, samples: Sequence[SampleMetadata], fields: Sequence[str]) -> int:
    """A signed 64-bit hash of what the dataset gives for these samples, to compare between ranks.

    Loads every field of every sample, which is why it is for checking only.
    """
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(sample.id.encode())
        loaded = _load(dataset, sample, fields)
        for name in fields:
            for array in loaded[name]:
                digest.update(f"{name} {array.dtype} {array.shape}".encode())
                digest.update(np.ascontiguousarray(array).tobytes())
    return int.from_bytes(digest.digest()[:8], "big", signed=True)
