"""A latency table of a device that is not here: every row computed by the roofline, and marked so. Imports no torch."""

from __future__ import annotations

import time

from ds_dip.costs.devices import Device
from ds_dip.costs.operators import OPERATORS
from ds_dip.costs.roofline import operator_columns
from ds_dip.costs.table import ROOFLINE, LatencyTable, Row, Seconds
from ds_dip.models.spec import Model
from ds_dip.profiling.sweep import Sweep, link_lines, operator_lines


def computed_table(device: Device, model: Model, sweep: Sweep, dtype: str, ranks: int, link: str) -> LatencyTable:
    """Rows of all operators of the model and of the links of ``ranks`` ranks, at the points where lines start.

    Raises ValueError for a data type or a link that the device does not have.
    """
    rates = device.rates(dtype, link)
    rows: dict[object, Row] = {}
    for line in [*operator_lines(model, sweep), *link_lines(sweep, ranks)]:
        for point in line.points:
            shape = line.shape(point)
            forward, of_input, of_weight, kept = operator_columns(line.name, shape, rates)
            row = Row(
                line.name,
                shape,
                line.tensor_parallel,
                Seconds(forward),
                Seconds(of_input),
                Seconds(of_weight),
                kept_bytes=kept,
                peak_bytes=kept,
                source=ROOFLINE,
            )
            rows[row.key] = row
    assert all(row.name in OPERATORS for row in rows.values())
    return LatencyTable(
        device=device.name,
        dtype=dtype,
        date=time.strftime("%Y-%m-%d"),
        clock="none: computed from peak rates and efficiency factors",
        method="roofline of " + "; ".join(device.sources),
        ranks=ranks,
        rows=tuple(rows.values()),
    )
