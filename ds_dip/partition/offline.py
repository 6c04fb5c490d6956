"""The offline partitioner as one step: search, or take what the same inputs gave before, and write the file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ds_dip.costs.ending import Ending
from ds_dip.costs.model import CostModel
from ds_dip.costs.strategies import STRATEGIES
from ds_dip.files import FileError, read_json
from ds_dip.models.partition import Partition, model_hash
from ds_dip.models.spec import Model
from ds_dip.partition.file import FORMAT, read_partition, write_partition
from ds_dip.partition.memory import Memory
from ds_dip.partition.report import candidate_modules, nominal_sizes, search_document
from ds_dip.partition.scoring import Scheduler, Scorer
from ds_dip.partition.search import Progress, search
from ds_dip.partition.space import SearchOptions
from ds_dip.partition.workload import Workload

#: Counts changes of the search that may change its answer, so that older files are searched again.
REVISION = 5


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything that an offline partition follows from.

    ``schedule`` names how the run schedules, and ``evaluations`` how many schedules its planner scores
    for a batch; ``costs_sha256`` where the costs come from: of the latency table's bytes, or of the
    device's rates. ``ending`` is what follows a rank's last backward, where that is known. ``strategies`` are the
    memory strategies that the run's plans choose from.
    """

    model: Model
    ranks: int
    workload: Workload
    costs_sha256: str
    schedule: str = "dip"
    evaluations: int = 0
    memory: Memory = field(default_factory=Memory)
    options: SearchOptions = field(default_factory=SearchOptions)
    ending: Ending | None = None
    strategies: tuple[str, ...] = STRATEGIES[:1]

    @property
    def sha256(self) -> str:
        """A hash of all of it."""
        options = asdict(self.options)
        return digest(
            {
                "revision": REVISION,
                "model": model_hash(self.model),
                "ranks": self.ranks,
                "workload": self.workload.sha256,
                "costs": self.costs_sha256,
                "schedule": [self.schedule, self.evaluations],
                "memory": asdict(self.memory),
                "strategies": list(self.strategies),
                "ending": None if self.ending is None else asdict(self.ending),
                "options": options | {"parts": {name: list(own) for name, own in options["parts"].items()}},
            }
        )


def digest(document: Mapping[str, Any]) -> str:
    """SHA-256 of a JSON object, whatever the order of its names."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def partition_offline(
    inputs: Inputs,
    costs: CostModel,
    scheduler: Scheduler,
    final: Scheduler | None = None,
    path: str | Path | None = None,
    *,
    again: bool = False,
    progress: Progress | None = None,
) -> tuple[Partition, bool]:
    """(the partition, whether it was taken from ``path``) after a search whose outcome is written to ``path``.

    ``scheduler`` scores all candidates, ``final`` the best of them again. A file made from the same
    inputs is taken as it is, unless ``again``; any other is replaced. Without a path nothing is written.
    Raises PartitionError and ValueError as ``search`` does, and OSError where the file cannot be written.
    """
    if path is not None and not again and (known := _known(inputs, path)) is not None:
        return known, True
    scorer = Scorer(inputs.model, inputs.workload, costs, scheduler, inputs.memory, inputs.ending, inputs.strategies)
    last = None if final is None else scorer.by(final)
    found = search(scorer, inputs.ranks, inputs.options, progress, last)
    best = found.best
    if path is None:
        return best.partition, False
    record = {
        "table_sha256": inputs.costs_sha256,
        "inputs_sha256": inputs.sha256,
        "memory": [
            {"state_bytes": state, "activation_bytes": activations}
            for state, activations in zip(best.state, best.activations, strict=True)
        ],
        "search": search_document(found, inputs.workload),
    }
    sizes = nominal_sizes(inputs.model, best.partition, inputs.workload)
    write_partition(path, inputs.model, best.partition, costs, sizes, record)
    return best.partition, False


def _known(inputs: Inputs, path: str | Path) -> Partition | None:
    """The partition in ``path`` where it was made from the same inputs and not changed since."""
    with suppress(FileError):
        document = read_json(path, FORMAT)
        if document.get("inputs_sha256") == inputs.sha256:
            partition = read_partition(path, inputs.model)
            if document["search"]["candidates"][0]["modules"] == candidate_modules(partition):
                return partition
    return None
