"""A dataset of given sizes for tests of orders: importable, as datasets are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ds_dip.data import SampleMetadata


class Sized:
    """Samples of these (images, tokens); ``tokens`` are the sample's number again and again."""

    def __init__(self, sizes: Sequence[tuple[int, int]], name: str = "s") -> None:
        self.sizes, self.name = sizes, name

    def __len__(self) -> int:
        return len(self.sizes)

    def metadata(self, index: int) -> SampleMetadata:
        images, tokens = self.sizes[index]
        modules = {"vision": (4,) * images, "language": (tokens,)}
        return SampleMetadata(f"{self.name}{index}", modules, tokens, {"vision": (1,) * images})

    def load(self, sample: str, fields: Sequence[str]) -> Mapping[str, list[np.ndarray]]:
        number = int(sample.removeprefix(self.name))
        images, tokens = self.sizes[number]
        found = {"tokens": [np.full(tokens, number)], "pixels": [np.full((4, 1), number)] * images}
        return {name: found[name] for name in fields}


def sized(sizes: Sequence[tuple[int, int]], name: str = "s") -> dict[str, object]:
    """A reference to such a dataset, as JSON."""
    return {"factory": "tests.order_cases:Sized", "options": {"sizes": [list(own) for own in sizes], "name": name}}
