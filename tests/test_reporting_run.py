"""The report of a run: what it shows, writes and leaves alone."""

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from ds_dip.config import DIPConfig, read_config
from ds_dip.costs.roofline import Rates, Roofline
from ds_dip.planner import Planner, SourceStatistics
from ds_dip.planner.recorder import Recorder
from ds_dip.planner.recording import Recording
from ds_dip.reporting.run import RunReport
from ds_dip.reporting.timeline import read_timeline, timelines
from tests.planner_cases import MODEL, settings
from tests.test_reporting_timeline import measured

PLANNER = Planner(settings())


class Engine:
    """What a report needs of an engine."""

    def __init__(self, rank: int = 0, dip: DIPConfig | None = None) -> None:
        self.global_rank = rank
        self.dip = dip or DIPConfig()
        self.recorder: Recorder | None = None
        self.monitor = SimpleNamespace(tb_monitor=None)
        self.global_samples = 0
        self.omissions = SimpleNamespace(faults=list[str]())
        self.plan: Any = None
        self.measured: Any = None
        self.module = SimpleNamespace(model=MODEL, partition=PLANNER.settings.partition)
        self.plans = SimpleNamespace(statistics=lambda: SourceStatistics(planned=3, fallbacks={"late": 1}))

    def train_batch(self, step: int) -> float:
        self.plan = PLANNER.plan(step)
        self.measured = SimpleNamespace(**vars(measured(self.plan)), bubble=0.25, peak_memory=())
        self.global_samples += 8
        return 1.0 / (1 + step)

    def train_batch_size(self) -> int:
        return 8

    def dtype_of(self, _: str) -> str:
        return "torch.float32"


def train(engine: Engine, run: Path, steps: int = 4, terminal: bool = False) -> str:
    shown = io.StringIO()
    console = Console(file=shown, width=100, force_terminal=terminal)
    with RunReport(engine, run, steps, console) as report:  # type: ignore[arg-type]
        for step in range(steps):
            report.batch(engine.train_batch(step))
        report.end(accuracy=0.96)
    return shown.getvalue()


def test_the_first_rank_writes_the_summary(tmp_path: Path) -> None:
    train(Engine(), tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["accuracy"], summary["steps"], summary["plans"]) == (0.96, 4, 3)
    assert summary["fallbacks"] == {"late": 1}
    assert summary["losses"] == [1.0, 1 / 2, 1 / 3, 1 / 4]
    assert summary["bubble"] == 0.25


def test_samples_that_were_left_out_are_counted_and_told_of(tmp_path: Path) -> None:
    engine = Engine()
    assert "left out" not in train(engine, tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text())["left_out"] == 0
    engine.omissions.faults += ["one", "two"]
    assert "2 samples were left out, since they cannot be decoded: see the log" in train(engine, tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text())["left_out"] == 2


def test_other_ranks_write_and_show_nothing(tmp_path: Path) -> None:
    assert train(Engine(rank=1), tmp_path) == ""
    assert list(tmp_path.iterdir()) == []


def test_without_a_terminal_it_shows_lines_and_the_table(tmp_path: Path) -> None:
    shown = train(Engine(), tmp_path)
    assert "4/4  loss 0.5208" in shown
    assert "bubble 25.0%" in shown
    assert "96.00%" in shown
    assert f"summary: {tmp_path / 'summary.json'}\n" in shown


def test_on_a_terminal_it_shows_a_bar(tmp_path: Path) -> None:
    shown = train(Engine(), tmp_path, terminal=True)
    assert "training" in shown
    assert "4/4" in shown
    assert "samples/s" in shown


def test_the_last_step_and_every_nth_leave_a_timeline_in_the_runs_folder(tmp_path: Path) -> None:
    train(Engine(), tmp_path)
    assert list(timelines(tmp_path)) == [3]
    train(Engine(dip=read_config({"dip": {"trace": {"every": 3}}})), tmp_path / "third", steps=7)
    assert list(timelines(tmp_path / "third")) == [2, 5, 6]
    timeline = read_timeline(timelines(tmp_path / "third")[5])
    assert timeline.measured is not None
    assert timeline.planned.memory


def test_planned_transfers_arrive_when_the_planner_expects_them(tmp_path: Path) -> None:
    took = {}
    for name, link in (("fast", 1e12), ("slow", 1e3)):
        engine = Engine()
        engine.plans.costs = Roofline(MODEL, Rates(link=link, link_latency=0.0))
        train(engine, tmp_path / name)
        timeline = read_timeline(timelines(tmp_path / name)[3])
        took[name] = [transfer.end_s - transfer.start_s for transfer in timeline.planned.transfers]
    assert took["fast"]
    assert max(took["fast"]) < 1e-6
    assert min(took["slow"]) > 1e-3


def test_timelines_can_be_switched_off_or_go_elsewhere(tmp_path: Path) -> None:
    train(Engine(dip=read_config({"dip": {"trace": {"every": 0}}})), tmp_path / "a")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["live.json", "summary.json"]
    elsewhere = {"dip": {"trace": {"every": 1, "keep": 2, "directory": str(tmp_path / "traces")}}}
    train(Engine(dip=read_config(elsewhere)), tmp_path / "b")
    assert list(timelines(tmp_path / "traces")) == [2, 3]


def test_a_batch_before_any_training_is_refused(tmp_path: Path) -> None:
    report = RunReport(Engine(), tmp_path, 1, Console(file=io.StringIO()))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"call batch\(\) after train_batch\(\)"):
        report.batch(1.0)


def test_a_recording_goes_into_the_runs_folder(tmp_path: Path) -> None:
    engine = Engine()
    engine.recorder = Recorder(0, 1, 10, None, pytest.fail)
    engine.recorder.begin(PLANNER.settings, len(PLANNER.dataset))
    RunReport(engine, tmp_path, 1, Console(file=io.StringIO()))  # type: ignore[arg-type]
    engine.train_batch(0)
    engine.recorder.add(engine.plan, engine.measured)
    engine.recorder.close()
    assert list(Recording(tmp_path).steps) == [0]
