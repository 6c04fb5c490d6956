"""Samples packed into sequences of one length, each still attending to itself alone."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ds_dip.data.ahead import announce
from ds_dip.data.faults import Fault, Lost, finds_faults
from ds_dip.data.metadata import SampleMetadata
from ds_dip.data.ordering import refuse_order
from ds_dip.data.reference import DatasetReference

#: Samples that are packed together, longest first.
_WINDOW = 4096


class Packed:
    """Packs of a dataset's samples, at most ``length`` tokens of ``module`` each.

    A pack is one sample whose instances are those of its members one after another: a module attends within an
    instance, so a member never sees another. Packs are made once, longest first into the fullest that still has room,
    among samples that ``seed`` brought together. A sample longer than ``length`` is refused, or left out where
    ``longer`` is ``skip``. Raises ValueError for it and for settings that mean nothing.
    """

    def __init__(
        self,
        dataset: Mapping[str, Any],
        length: int,
        module: str = "language",
        longer: str = "error",
        seed: int = 0,
    ) -> None:
        if length < 1 or longer not in ("error", "skip"):
            raise ValueError(f"length is {length} and longer {longer!r}, expected at least 1, and error or skip")
        self._dataset = DatasetReference.parse(dataset).open()
        refuse_order(self._dataset, "the dataset", "pack the parts of a mixture, and put the order around the packs")
        self._length = length
        sizes = [sum(self._dataset.metadata(index).modules.get(module, ())) for index in range(len(self._dataset))]
        self._kept = [index for index, size in enumerate(sizes) if size <= length]
        if len(self._kept) < len(sizes) and longer == "error":
            index = int(np.argmax(sizes))
            raise ValueError(
                f"{len(sizes) - len(self._kept)} samples are longer than {length} tokens, "
                f"{self._dataset.metadata(index).id!r} has {sizes[index]}; give a greater length, or set longer to skip"
            )
        order = np.random.default_rng(seed).permutation(np.array(self._kept, dtype=np.int64)).tolist()
        self._packs = [
            pack
            for first in range(0, len(order), _WINDOW)
            for pack in _packs([(index, sizes[index]) for index in order[first : first + _WINDOW]], length)
        ]
        self._filled = sum(sizes[index] for index in self._kept)

    @property
    def skipped(self) -> int:
        """Samples that were left out for their length."""
        return len(self._dataset) - len(self._kept)

    @property
    def fill(self) -> float:
        """How full packs are: tokens over what they could hold."""
        return self._filled / (self._length * max(1, len(self._packs)))

    def __len__(self) -> int:
        return len(self._packs)

    def metadata(self, index: int) -> SampleMetadata:
        """The sizes of all members, one after another."""
        if not 0 <= index < len(self):
            raise IndexError(f"pack {index} was asked for, and there are 0 to {len(self) - 1}")
        members = [self._dataset.metadata(own) for own in self._packs[index]]
        names = list(dict.fromkeys(name for member in members for name in member.modules))
        modules = {name: tuple(s for member in members for s in member.modules.get(name, ())) for name in names}
        merged = {
            name: tuple(s for m in members for s in m.merged.get(name, m.modules.get(name, ()))) for name in names
        }
        return SampleMetadata(f"pack-{index}", modules, sum(member.loss_tokens for member in members), merged)

    def load(self, sample: str, fields: Sequence[str]) -> Mapping[str, list[np.ndarray]]:
        """The fields of all members, one after another; ValueError for a sample that is no pack of this dataset."""
        prefix, _, number = sample.rpartition("-")
        if prefix != "pack" or not number.isdecimal() or int(number) >= len(self):
            raise ValueError(f"sample {sample!r} is not of this dataset: expected pack-0 to pack-{len(self) - 1}")
        found: dict[str, list[np.ndarray]] = {name: [] for name in fields}
        for own in self._packs[int(number)]:
            loaded = self._dataset.load(self._dataset.metadata(own).id, fields)
            for name in fields:
                found[name] += loaded[name]
        return found

    @property
    def digest(self) -> str:
        """That of the dataset in it."""
        return str(getattr(self._dataset, "digest", ""))

    def ahead(self, samples: Sequence[str], fields: Sequence[str]) -> None:
        """Hand on what will be loaded to a dataset that loads ahead."""
        announce(self._dataset, [member for pack in samples for member in self._members(pack)], fields)

    def _members(self, pack: str) -> list[str]:
        """Ids of a pack's samples."""
        return [self._dataset.metadata(own).id for own in self._packs[int(pack.rpartition("-")[2])]]

    @property
    def finds_faults(self) -> bool:
        """Whether the dataset in it does; see FaultFinding for this and the next ones."""
        return finds_faults(self._dataset)

    def faults(self, samples: Sequence[str], fields: Sequence[str]) -> list[Fault]:
        """Of members, not of packs; see FaultFinding."""
        if not finds_faults(self._dataset):
            return []
        return self._dataset.faults([member for pack in samples for member in self._members(pack)], fields)

    def leave_out(self, samples: Sequence[str]) -> None:
        """See FaultFinding; these are members."""
        if finds_faults(self._dataset):
            self._dataset.leave_out(samples)

    def lost(self, samples: Sequence[str]) -> Lost:
        """See FaultFinding; a pack is lost where all its members are."""
        if not finds_faults(self._dataset):
            return Lost()
        packs = [self._members(pack) for pack in samples]
        found = [self._dataset.lost(members) for members in packs]
        whole = [own.samples == len(members) for own, members in zip(found, packs, strict=True)]
        return Lost(sum(own.tokens for own in found), sum(whole))


def _packs(samples: Sequence[tuple[int, int]], length: int) -> list[list[int]]:
    """Best fit, longest first, of (index, size); packs keep the samples' order."""
    packs: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # (room, pack), ascending
    for place, (_, size) in sorted(enumerate(samples), key=lambda own: (-own[1][1], own[0])):
        fitting = bisect_left(rooms, (size, -1))
        if fitting == len(rooms):
            packs.append([place])
            insort(rooms, (length - size, len(packs) - 1))
        else:
            room, pack = rooms.pop(fitting)
            packs[pack].append(place)
            insort(rooms, (room - size, pack))
    return sorted([samples[place][0] for place in sorted(pack)] for pack in packs)
