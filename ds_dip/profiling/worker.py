"""A rank of ``ds-dip profile``: all ranks measure the same row at the same time, rank 0 decides which and writes it.

The company is the training's: as many processes and threads at once as ranks on the node.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import deepspeed
import torch
from deepspeed import comm as dist
from deepspeed.accelerator import get_accelerator

from ds_dip.costs.layers import layer_sizes, wanted_layers
from ds_dip.costs.machine import device_name, versions
from ds_dip.costs.names import LAYER, RECOMPUTED
from ds_dip.costs.operators import LINKS
from ds_dip.costs.table import LatencyTable, Row, Seconds, read_table, write_table
from ds_dip.models.config import load_model
from ds_dip.models.spec import Model
from ds_dip.planner.codec import Codec
from ds_dip.profiling.cases import CASES, Place, layer_case
from ds_dip.profiling.engine import engine_rows
from ds_dip.profiling.links import Links
from ds_dip.profiling.measure import measure, optimizer_step
from ds_dip.profiling.refine import measured
from ds_dip.profiling.sweep import Line, layer_lines, link_lines, operator_lines, read_sweep
from ds_dip.profiling.timing import Patience, clock_name
from ds_dip.ranks import settings, tell
from ds_dip.runtime.exchange import broadcast, gather

#: Rows that an interval's test and its halves come to on average, for the time left.
_REFINED = 1.4
#: What ranks tell each other: a measured row, what to measure next (a line, its layer, a point), the table.
_ROW: Codec[Row | None] = Codec(Row | None, "a rank's row")
_TASK: Codec[tuple[Line, str, int] | None] = Codec(tuple[Line, str, int] | None, "the next row")
_TABLE: Codec[LatencyTable] = Codec(LatencyTable, "the table")


class Bench:
    """Measures rows of one model on this rank."""

    def __init__(self, model: Model, dtype: str, patience: Patience) -> None:
        device = torch.device(get_accelerator().current_device_name())
        self.place = Place(device, getattr(torch, dtype))
        self.patience = patience
        self._links = Links(device, self.place.dtype)
        self._layers = {wanted.name: wanted for wanted in wanted_layers(model).values()}

    def row(self, line: Line, layer: str, point: int) -> Row | None:
        """One row; None where this rank takes no part."""
        name, shape = line.name, line.shape(point)
        if name in LINKS:
            return self._links.measure(name, shape)
        if name == "optimizer_step":
            return optimizer_step(shape["elements"], self.place, self.patience)
        if name in CASES:
            return measure(name, shape, lambda: CASES[name](shape, self.place), self.patience)
        wanted, recompute = self._layers[layer], name.startswith(RECOMPUTED)
        sizes = layer_sizes(wanted.layer, shape["size"], shape["instances"], shape["spread"])
        return measure(name, shape, lambda: layer_case(wanted, sizes, self.place, recompute=recompute), self.patience)


class Leader:
    """Rank 0: keeps the table on disk, skips what it holds, and has everybody measure the rest."""

    def __init__(self, path: Path, table: LatencyTable, total: int) -> None:
        self.path, self.table = path, table
        self._known = {row.key for row in table.rows}
        self._rows = {row.key: row for row in table.rows}
        self._total, self._done = total, 0

    def known(self, line: Line, point: int) -> Row | None:
        """The row of an earlier run."""
        self._done += 1
        return self._rows.get((line.name, line.tensor_parallel, tuple(sorted(line.shape(point).items()))))

    def add(self, row: Row) -> None:
        """Keep a row, on disk too: what is finished outlives this run."""
        self._rows[row.key] = row
        self.table = replace(self.table, rows=tuple(self._rows.values()))
        write_table(self.path, self.table)

    def tell(self, line: Line) -> None:
        """Say how far it is."""
        tell({"done": self._done, "total": max(self._total, self._done), "what": line.name})


def _together(row: Row | None) -> Row | None:
    """One row of all ranks that took part: medians of their medians, the largest spread."""
    found = [r for r in gather(_ROW, row) if r is not None]
    if not found:
        return None

    def joined(name: str) -> Seconds:
        parts = [getattr(r, name) for r in found]
        return Seconds(median(p.median for p in parts), max(p.spread for p in parts))

    return replace(
        found[0],
        forward=joined("forward"),
        backward_input=joined("backward_input"),
        backward_weight=joined("backward_weight"),
        note=next((r.note for r in found if r.note), ""),
    )


def lines_of(model: Model, sweep_path: str, ranks: int) -> list[tuple[Line, str]]:
    """Every line and, for a whole layer, which."""
    sweep = read_sweep(sweep_path, model)
    found: list[tuple[Line, str]] = [(line, "") for line in operator_lines(model, sweep)]
    found += layer_lines(model, sweep)
    found += [(line, "") for line in link_lines(sweep, ranks)]
    return found


def lead(bench: Bench, leader: Leader, lines: list[tuple[Line, str]]) -> None:
    """Measure every line; whole layers and links are not refined, they only correct and extend."""
    for line, layer in lines:

        def one(line: Line, point: int, layer: str = layer) -> Row:
            row = leader.known(line, point)
            if row is None:
                broadcast(_TASK, (line, layer, point))
                row = _together(bench.row(line, layer, point))
                assert row is not None
                row = replace(row, tensor_parallel=line.tensor_parallel)
                leader.add(row)
            leader.tell(line)
            return row

        plain = line.name.startswith((LAYER, RECOMPUTED)) or line.name in LINKS
        rows: Iterator[Row] = (one(line, point) for point in line.points) if plain else measured(line, one)
        for _ in rows:
            pass
    broadcast(_TASK, None)


def follow(bench: Bench) -> None:
    """Every other rank: measure what rank 0 says, at the same time."""
    while (task := broadcast(_TASK, None)) is not None:
        line, layer, point = task
        _together(bench.row(line, layer, point))


def header(s: dict[str, Any]) -> LatencyTable:
    """An empty table of this machine."""
    return LatencyTable(
        device=device_name(),
        dtype=s["dtype"],
        date=time.strftime("%Y-%m-%d"),
        clock=clock_name(),
        method=(
            f"{dist.get_world_size()} processes of {torch.get_num_threads()} threads measure the same row at once; "
            "warm-up, then repeated until the median's standard error is 2 %, else the row says why not"
        ),
        versions=versions(),
        ranks=dist.get_world_size(),
        threads=torch.get_num_threads(),
        complete=False,
    )


def main() -> None:
    """Run as one rank."""
    s = settings()
    deepspeed.init_distributed(dist_backend=get_accelerator().communication_backend_name())
    torch.set_num_threads(s["threads"])
    get_accelerator().set_device(int(s.get("local", dist.get_rank())) % max(1, get_accelerator().device_count()))
    model, path = load_model(s["model"]), Path(s["out"])
    bench = Bench(model, s["dtype"], Patience(s["least"], s["most"]))
    if dist.get_rank() == 0:
        table = read_table(path) if path.exists() else header(s)
        lines = lines_of(model, s["sweep"], dist.get_world_size())
        points = sum(len(line.points) * (1 if layer else _REFINED) for line, layer in lines)
        leader = Leader(path, replace(table, complete=False), round(points))
        lead(bench, leader, lines)
        table = leader.table
    else:
        follow(bench)
        table = header(s)
    if s["config"]:
        if dist.get_rank() == 0:
            tell({"what": "engine"})
        table = engine_rows(broadcast(_TABLE, table), model, s)
    if dist.get_rank() == 0:
        write_table(path, replace(table, complete=True))
    dist.barrier()


if __name__ == "__main__":
    main()
