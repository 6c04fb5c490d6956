"""``ds-dip profile``'s runs: ranks measured together, resumed where an earlier run ended. Imports no torch here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ds_dip.costs.machine import versions
from ds_dip.costs.table import LatencyTable, read_table
from ds_dip.data import DatasetReference
from ds_dip.files import FileError, check_writable
from ds_dip.models.config import load_model
from ds_dip.models.spec import Model
from ds_dip.profiling.sweep import read_sweep
from ds_dip.ranks import run_ranks

DIGITS = "ds_dip.data.digits:Digits"
#: Samples of the digits: enough for every batch that is measured.
_DIGITS_SAMPLES = 200_000
#: Versions that a measurement depends on: rows of others are not continued.
_LIBRARIES = ("torch", "deepspeed")
Heard = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Company:
    """How many ranks of how many threads run at once, how long each row is repeated, and for how long all may take.

    ``least`` and ``most`` are seconds of a row's part (see ``timing.Patience``); ``port`` 0 takes a free one.
    """

    ranks: int = 2
    threads: int = 1
    least: float = 0.02
    most: float = 0.12
    deadline: float = 900.0
    port: int = 0


def dataset_for(model: Model, factory: str | None, options: Mapping[str, Any]) -> DatasetReference:
    """The dataset by its factory; without one the quickstart's digits, cut and merged as the model's encoder does it.

    Raises FileError where the digits do not fit the model.
    """
    if factory is not None:
        return DatasetReference(factory, dict(options))
    try:
        encoder = model.module("vision").layers
        own = {"patch": encoder[0].options["patch"], "merge": encoder[-1].options["merge"]}
    except KeyError as error:
        raise FileError(
            f"model {model.name!r} has no encoder named vision, which the digits need: name your own dataset by "
            "--dataset"
        ) from error
    return DatasetReference(DIGITS, {"samples": _DIGITS_SAMPLES, **own, **options})


def unfinished(out: Path, company: Company, dtype: str, device: str) -> LatencyTable | None:
    """The table of an earlier run that this one continues; None where there is none.

    Raises FileError where the table is another machine's, or was made otherwise, so that rows do not mix.
    """
    if not out.exists():
        return None
    table = read_table(out)
    here = versions()
    now: dict[str, object] = {
        "device": device, "data type": dtype, "ranks": company.ranks, "threads": company.threads,
        **{name: here[name] for name in _LIBRARIES},
    }  # fmt: skip
    then: dict[str, object] = {
        "device": table.device, "data type": table.dtype, "ranks": table.ranks, "threads": table.threads,
        **{name: table.versions.get(name) for name in _LIBRARIES},
    }  # fmt: skip
    for name, value in now.items():
        if then[name] != value:
            raise FileError(
                f"{out}: was measured with {name} {then[name]}, and this run has {value}; name another file, or start "
                "over with --fresh"
            )
    return table


def profile(
    model_path: Path, sweep: Path, out: Path, dtype: str, company: Company, heard: Heard, engine: Mapping[str, Any]
) -> None:
    """Measure into ``out``; rows that it holds already are kept.

    ``engine`` holds ``config`` (the DeepSpeed JSON, "" for no engine rows), ``dataset`` and ``options``.
    Raises FileError for files that cannot be used, RanksError where a rank fails; finished rows are kept.
    """
    check_writable(out)
    read_sweep(sweep, load_model(model_path))
    settings = {
        "model": str(model_path.resolve()), "sweep": str(sweep.resolve()), "out": str(out.resolve()), "dtype": dtype,
        "least": company.least, "most": company.most, "threads": company.threads, **engine,
    }  # fmt: skip
    run_ranks(
        "ds_dip.profiling.worker", company.ranks, company.threads, settings, company.deadline, heard, company.port
    )


def check(
    model_path: Path,
    table: Path,
    batches: int,
    rounds: int,
    company: Company,
    heard: Heard,
    engine: Mapping[str, Any],
) -> dict[str, Any]:
    """What the table predicts against what layers, stages and iterations take here (see ``fidelity.report``)."""
    with TemporaryDirectory() as folder:
        result = Path(folder, "report.json")
        settings = {
            "model": str(model_path.resolve()), "table": str(table.resolve()), "result": str(result),
            "batches": batches, "rounds": rounds, "least": company.least, "most": company.most,
            "threads": company.threads, **engine,
        }  # fmt: skip
        run_ranks(
            "ds_dip.profiling.check", company.ranks, company.threads, settings, company.deadline, heard, company.port
        )
        document: dict[str, Any] = json.loads(result.read_text())
        return document
