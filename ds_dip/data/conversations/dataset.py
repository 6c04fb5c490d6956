"""The dataset: conversations of files, by their index for planning and by id for training."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from ds_dip.data.ahead import Ahead
from ds_dip.data.conversations.conversation import RecordError, blanked, brief
from ds_dip.data.conversations.forms import Reading
from ds_dip.data.conversations.headers import Facts, Limits, MediaError, UnreadableError
from ds_dip.data.conversations.index import Maker, Progress, Rows, open_rows
from ds_dip.data.conversations.measuring import Reader
from ds_dip.data.conversations.places import Places
from ds_dip.data.conversations.processor import Processor, fingerprint_of, processor_of, without_content
from ds_dip.data.conversations.records import Place
from ds_dip.data.conversations.settings import Settings, read_settings
from ds_dip.data.conversations.sources import source_of, where
from ds_dip.data.faults import Fault, Lost, SampleError
from ds_dip.data.metadata import SampleMetadata
from ds_dip.files import FileError

#: Between a sample's id and the number of the one it stands for.
_INSTEAD = "~"
#: Problems that an error names.
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Problem:
    """A record that is no sample: where it is, and what is wrong."""

    where: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.where}: {self.sentence}"


class Conversations:
    """Samples of files of conversations; ``options`` are those of ``settings.Settings`` (docs/data.md).

    Which records are samples is told by the index alone, so it is the same in every process: with the policy
    ``error`` a record that is none is refused at start, with ``skip`` it is left out, with ``replace`` another sample,
    drawn by its number, stands for it. Raises ValueError for options, FileError for files and for their problems.
    """

    def __init__(self, progress: Progress | None = None, **options: Any) -> None:
        self.settings = read_settings(options)
        self._files = _paths(self.settings)
        self._names = _names(self._files)
        self._reader = _reader(self.settings, self._files)
        self._rows = self._open(progress)
        self._index = self._chosen()
        self._left_out: set[str] = set()
        self._ahead = Ahead(self._load, self.settings.workers, self.settings.ahead)

    def _open(self, progress: Progress | None) -> list[Rows]:
        settings = self.settings
        folder = Path(settings.index) if settings.index is not None else _folder(self._files)
        described = {
            "processor": fingerprint_of(settings.processor),
            "options": settings.model_dump(
                mode="json", exclude={"files", "processor", "problems", "index", "check_media", "workers", "ahead"}
            ),
            "root": str(self._reader.places.root),
        }
        maker = Maker(
            self._reader,
            lambda: self.processor,
            hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest(),
            decoded=settings.verify == "decode",
            check_media=settings.check_media,
            workers=min(16, 2 * len(os.sched_getaffinity(0))),
        )
        return open_rows(self._files, folder, maker, progress)

    @cached_property
    def processor(self) -> Processor:
        """What makes the fields."""
        return processor_of(self.settings.processor)

    def _chosen(self) -> np.ndarray:
        """(file, row, file and row that it stands for) of every sample, int64 [samples, 4]; by the policy."""
        parts, good = [], []
        for file, rows in enumerate(self._rows):
            bad = rows.problems()
            own = np.setdiff1d(np.arange(len(rows)), bad)
            good.append(np.column_stack([np.full(len(own), file), own]))
            parts.append(np.column_stack([np.full(len(bad), file), bad]))
        samples, problems = np.concatenate(good), np.concatenate(parts)
        self._bad = problems
        if len(problems) and self.settings.problems == "error":
            raise FileError(self._refusal())
        if not len(samples):
            raise FileError(f"{self._files[0]}: has no sample ({len(problems)} records with problems); {self._first()}")
        chosen = np.column_stack([samples, samples])
        if self.settings.problems == "replace" and len(problems):
            picks = [Random(f"{file}/{row}").randrange(len(samples)) for file, row in problems.tolist()]
            chosen = np.concatenate([chosen, np.column_stack([samples[picks], problems])])
            chosen = chosen[np.lexsort((chosen[:, 3], chosen[:, 2]))]
        return chosen

    def _refusal(self) -> str:
        count = len(self._bad)
        shown = "; ".join(str(problem) for problem in self.problems(_SHOWN))
        more = f"; and {count - _SHOWN} more" if count > _SHOWN else ""
        return (
            f"{count} of {sum(map(len, self._rows))} records cannot be used: {shown}{more}. Mend them, or set problems "
            "to skip or replace"
        )

    def _first(self) -> str:
        problems = self.problems(1)
        return str(problems[0]) if problems else "the files have no records"

    def problems(self, most: int | None = None) -> list[Problem]:
        """The records that are no samples, in their order, at most so many."""
        found = []
        for file, row in self._bad[:most].tolist():
            entry = self._rows[file][row]
            found.append(Problem(where(self._files[file], entry["line"]), entry["problem"]))
        return found

    @property
    def skipped(self) -> int:
        """Records that are no samples."""
        return len(self._bad)

    @cached_property
    def digest(self) -> str:
        """A hash of all that every process must find alike: samples, their sizes and their order."""
        parts = [*(rows.digest for rows in self._rows), self.settings.problems, self.settings.verify]
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()

    def __len__(self) -> int:
        return len(self._index)

    def row(self, index: int) -> dict[str, Any]:
        """What the index says of the sample at ``index``."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} was asked for, and the dataset holds 0 to {len(self) - 1}")
        file, row = map(int, self._index[index, :2])
        return self._rows[file][row]

    def place(self, index: int) -> str:
        """Where the record of the sample at ``index`` is: file and line."""
        return where(self._files[int(self._index[index, 0])], self.row(index)["line"])

    def metadata(self, index: int) -> SampleMetadata:
        """Sizes of the sample at ``index``, from the index."""
        row = self.row(index)
        file, number, *instead = self._index[index].tolist()
        id = f"{self._names[file]}-{number}"
        if instead != [file, number]:
            id += f"{_INSTEAD}{instead[0]}.{instead[1]}"
        modules = {name: tuple(sizes) for name, sizes in row["modules"].items()}
        merged = {name: tuple(sizes) for name, sizes in row["merged"].items()}
        return SampleMetadata(id, modules, row["loss_tokens"], merged)

    def load(self, sample: str, fields: Sequence[str]) -> Mapping[str, list[np.ndarray]]:
        """The fields of a sample; see the processor for what they hold. What was announced is loaded already.

        Raises ValueError for a sample of another dataset, an unknown field, and for what has changed since the index
        was made or cannot be decoded, with file and line.
        """
        return self._ahead.load(sample, fields)

    @property
    def finds_faults(self) -> bool:
        """Whether samples that cannot be decoded are left out of a run; see ``faults.FaultFinding`` for this and more.

        With the policy ``error`` they end it, and with ``verify: "decode"`` there are none.
        """
        return self.settings.problems != "error" and self.settings.verify != "decode"

    def faults(self, samples: Sequence[str], fields: Sequence[str]) -> list[Fault]:
        """See FaultFinding."""
        found = []
        for sample in samples:
            try:
                self._ahead.load(sample, fields)
            except SampleError as error:
                found.append(Fault(sample, str(error)))
        return found

    def leave_out(self, samples: Sequence[str]) -> None:
        """See FaultFinding."""
        self._left_out.update(samples)
        for sample in samples:
            self._ahead.forget(sample)

    def lost(self, samples: Sequence[str]) -> Lost:
        """See FaultFinding."""
        places = [self._found(sample) for sample in samples if sample in self._left_out]
        return Lost(sum(self._rows[file][row]["loss_tokens"] for file, row in places), len(places))

    def ahead(self, samples: Sequence[str], fields: Sequence[str]) -> None:
        """These samples will be loaded soon, in this order: threads load them from now on."""
        self._ahead.announce(samples, fields)

    def close(self) -> None:
        """Load nothing ahead any more."""
        self._ahead.close()

    def _load(self, sample: str, fields: Sequence[str]) -> Mapping[str, list[np.ndarray]]:
        file, number = self._found(sample)
        row = self._rows[file][number]
        path = self._files[file]
        try:
            record = source_of(path).record(Place(row["line"], row["offset"], row["length"]))
            conversation = self._reader.conversation(record)
            facts = [Facts.of(brief) for brief in row["media"]]
            if [own.kind for own in facts] != [media.kind for media in conversation.media]:
                raise RecordError("has other media")
            if sample in self._left_out:
                return without_content(self.processor.make(blanked(conversation), facts, fields))
            return self.processor.make(conversation, facts, fields)
        except (RecordError, UnreadableError) as error:
            raise ValueError(
                f"{where(path, row['line'])}: {_named(error)}; it was otherwise when the index was made: let the files "
                "be while a run reads them, or make the index anew"
            ) from error
        except MediaError as error:
            advice = 'set problems to skip to leave such samples out, or verify to "decode" to find them before a run'
            raise SampleError(
                f"{where(path, row['line'])}: {_named(error)}" + ("" if self.finds_faults else f"; {advice}")
            ) from error

    def _found(self, sample: str) -> tuple[int, int]:
        name, _, number = sample.partition(_INSTEAD)[0].rpartition("-")
        if name in self._names and number.isdecimal():
            file = self._names.index(name)
            if int(number) < len(self._rows[file]) and "problem" not in self._rows[file][int(number)]:
                return file, int(number)
        raise ValueError(f"sample {sample!r} is not of this dataset, whose files are {', '.join(self._names)}")


def _named(error: RecordError | MediaError) -> str:
    """The error with the medium that it is of."""
    media = error.media if isinstance(error, MediaError) else None
    return str(error) if media is None else f"{media.kind} {brief(media.source)} {error}"


def _paths(settings: Settings) -> tuple[Path, ...]:
    files = tuple(Path(os.path.abspath(file)) for file in settings.files)
    for file in files:
        source_of(file)
        try:
            file.stat()
        except OSError as error:
            # Before an index is made for it.
            raise FileError(f"{file}: cannot be read ({error.strerror}); give a file of records") from error
    return files


def _names(files: Sequence[Path]) -> list[str]:
    """A short name for every file, each another one."""
    seen: Counter[str] = Counter()
    names = []
    for file in files:
        seen[file.stem] += 1
        names.append(file.stem if seen[file.stem] == 1 else f"{file.stem}#{seen[file.stem]}")
    return names


def _reader(settings: Settings, files: Sequence[Path]) -> Reader:
    root = Path(settings.root) if settings.root is not None else files[0].parent
    if not root.is_dir():
        raise FileError(f"{root}: is no folder; give the folder that paths of media are relative to as root")
    return Reader(
        Reading(frozenset(settings.ignored_keys)),
        Places(root, settings.prefixes, settings.outside),
        Limits(**settings.limits.model_dump()),
    )


def _folder(files: Sequence[Path]) -> Path:
    """Where the index of these files is, unless it is said: beside the first one."""
    if len(files) == 1:
        return files[0].with_name(files[0].name + ".index")
    name = hashlib.sha256("\n".join(map(str, files)).encode()).hexdigest()[:12]
    return files[0].with_name(f"{files[0].name}-{name}.index")
