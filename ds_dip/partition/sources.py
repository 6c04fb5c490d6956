"""Where a partition's costs come from: a latency table or rates, and a user's rules over them."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path

from ds_dip.costs.composed import TableCosts
from ds_dip.costs.model import CostModel
from ds_dip.costs.parallel import ALONE, TensorParallel
from ds_dip.costs.roofline import Rates
from ds_dip.costs.rules import base_costs, read_rules, with_rules
from ds_dip.costs.table import ROOFLINE, read_table
from ds_dip.models.spec import Model
from ds_dip.partition.offline import digest
from ds_dip.partition.workload import Workload
from ds_dip.planning.cut import sizes_of

#: Share of the predicted time outside of a table's grid that is worth a warning.
_OUTSIDE = 0.01


def cost_source(
    model: Model,
    rates: Rates,
    table: str | Path | None = None,
    rules: str | Path | None = None,
    parallel: TensorParallel = ALONE,
) -> tuple[CostModel, str]:
    """(the cost model of a run, a hash of the files and rates that it is made from).

    With a table the hash is that of its bytes, unless there are rules. Raises FileError for a file that
    cannot be used, CostError for a factory that cannot, and ValueError for a table of another data type
    than ``rates.compute``, or heads that do not divide among the devices of ``parallel``.
    """
    found = None if table is None else read_table(table)
    if found is not None and found.dtype != rates.compute:
        raise ValueError(
            f"{table}: was made for {found.dtype}, and the run is in {rates.compute}; give a table that ds-dip profile "
            f"--dtype {rates.compute} made"
        )
    sha256 = digest(asdict(rates)) if table is None else _sha256(table)
    own = None if rules is None else read_rules(rules, model)
    if parallel.degree > 1:
        sha256 = digest({"costs": sha256, "tensor_parallel": asdict(parallel)})
    costs = with_rules(base_costs(model, rates, found, parallel=parallel), model, own)
    return costs, sha256 if rules is None else digest({"costs": sha256, "rules": _sha256(rules)})


def table_warnings(path: str | Path | None, model: Model, workload: Workload) -> list[str]:
    """Sentences that warn where a latency table has gaps, or does not reach the microbatches of the workload."""
    if path is None:
        return []
    table = read_table(path)
    found = [f"{path}: {table.gap}"] if table.gap else []
    # A table that was computed grows beyond its grid as it does inside.
    if all(row.source == ROOFLINE for row in table.rows):
        return found
    every = workload.replicas * workload.microbatches
    microbatches = (batch[first::every] for batch in workload.batches for first in range(every))
    sizes = (item for samples in microbatches if samples for item in sizes_of(samples, model).items())
    share = TableCosts(model, table).outside_share(sizes)
    if share >= _OUTSIDE:
        found.append(
            f"{path}: {share:.0%} of the layers' predicted time is outside of what was measured, and may be far off; "
            f"run ds-dip profile for {model.name} and the sizes of its data"
        )
    return found


def _sha256(path: str | Path) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
