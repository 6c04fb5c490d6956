"""live.json and what is shown of it: bounded, checked, honest about runs that are no more."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from ds_dip.cli import cli
from ds_dip.config import read_config
from ds_dip.files import FileError
from ds_dip.planner import SourceStatistics
from ds_dip.reporting.live import (
    EVERY,
    SENTENCE,
    STEPS,
    Fallback,
    Live,
    LiveWriter,
    RankMemory,
    condition,
    read_live,
)
from ds_dip.reporting.run import RunReport
from ds_dip.reporting.summary import StepRecord
from ds_dip.reporting.watch import figures, sparkline, view
from tests.test_reporting_run import Engine, train

HOST = socket.gethostname()
PLANNED: Any = SimpleNamespace(step=0, kind="planned", reason="")


def record(step: int, **changes: float) -> StepRecord:
    values = {"loss": 1.0, "samples": 8, "seconds": 0.5, "predicted_s": 0.3, "measured_s": 0.4, "bubble": 0.25}
    return StepRecord(step=step, **{**values, **changes})  # type: ignore[arg-type]


def live(**changes: Any) -> Live:
    first = Live("training", HOST, os.getpid(), 1e9, 2e9, 3, 10, tuple(record(step) for step in range(3)))
    return replace(first, **{"started": 4e9, **changes})


def shown(given: Live, found: str, width: int = 120) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(view(given, found, "runs/a", now=given.updated))
    return out.getvalue()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_run_writes_what_a_watcher_reads(tmp_path: Path) -> None:
    train(Engine(), tmp_path, steps=4)
    found = read_live(tmp_path)
    assert (found.state, found.done, found.steps, found.pid, found.host) == ("ended", 4, 4, os.getpid(), HOST)
    assert [own.step for own in found.recent] == [0, 1, 2, 3]
    assert [own.loss for own in found.recent] == [1.0, 1 / 2, 1 / 3, 1 / 4]
    assert (found.plans.planned, found.plans.fallbacks) == (3, {"late": 1})
    assert [own.rank for own in found.memory] == list(range(len(found.memory)))
    assert all(own.predicted_bytes > 0 and own.measured_bytes is None for own in found.memory)


def test_memory_is_beside_its_limit(tmp_path: Path) -> None:
    train(Engine(dip=read_config({"dip": {"memory_gb": 2.0}})), tmp_path, steps=1)
    assert {own.limit_bytes for own in read_live(tmp_path).memory} == {2e9}


def test_a_fallback_stays_until_the_next_with_its_reason(tmp_path: Path) -> None:
    engine = Engine()
    with RunReport(engine, tmp_path, 3, Console(file=io.StringIO())) as report:  # type: ignore[arg-type]
        for step in range(3):
            loss = engine.train_batch(step)
            if step == 1:
                engine.plan = replace(engine.plan, kind="fallback", reason="late: no plan within 5 s")
            report.batch(loss)
        report.end()
    assert read_live(tmp_path).last_fallback == Fallback(1, "late: no plan within 5 s")


@pytest.mark.parametrize(
    ("error", "state", "sentence"),
    [(None, "stopped", ""), (ValueError("no such file"), "failed", "ValueError: no such file")],
)
def test_a_run_that_does_not_get_to_its_end_says_how(
    error: Exception | None, state: str, sentence: str, tmp_path: Path
) -> None:
    engine = Engine()

    def go() -> None:
        with RunReport(engine, tmp_path, 9, Console(file=io.StringIO())) as report:  # type: ignore[arg-type]
            report.batch(engine.train_batch(0))
            if error is not None:
                raise error

    if error is None:
        go()
    else:
        with pytest.raises(ValueError, match="no such file"):
            go()
    found = read_live(tmp_path)
    assert (found.state, found.sentence, found.done) == (state, sentence, 1)


def test_the_file_has_one_size_however_long_the_run(tmp_path: Path) -> None:
    clock = Clock()
    writer = LiveWriter(tmp_path, 10**6, pytest.fail, clock)
    plan: Any = SimpleNamespace(step=7, kind="fallback", reason="x" * 10**5)
    memory = [RankMemory(rank, 1e9, 1e9, 2e9) for rank in range(4)]
    sizes = []
    for step in range(4 * STEPS):
        writer.step(record(10**6 + step), plan, memory)
        if (step + 1) % STEPS == 0:
            writer.write(SourceStatistics(reasons=("y" * 10**5,)), sentence="z" * 10**5)
            sizes.append((tmp_path / "live.json").stat().st_size)
    assert max(sizes) - min(sizes) < 50
    assert max(sizes) < 200 * STEPS + 2 * SENTENCE + 2000
    assert len(read_live(tmp_path).recent) == STEPS


def test_it_is_written_once_a_second_at_most(tmp_path: Path) -> None:
    clock = Clock()
    writer = LiveWriter(tmp_path, 9, pytest.fail, clock)
    assert writer.step(record(0), PLANNED, [])
    writer.write(SourceStatistics())
    clock.now += EVERY / 2
    assert not writer.step(record(1), PLANNED, [])
    clock.now += EVERY / 2
    assert writer.step(record(2), PLANNED, [])


def test_training_goes_on_where_it_cannot_be_written(tmp_path: Path) -> None:
    warned: list[str] = []
    (tmp_path / "live.json").mkdir()
    writer = LiveWriter(tmp_path, 9, warned.append)
    writer.begin()
    writer.write(SourceStatistics())
    assert len(warned) == 1
    assert "training goes on" in warned[0]


def test_a_loss_that_is_no_number_is_said(tmp_path: Path) -> None:
    writer = LiveWriter(tmp_path, 9, pytest.fail)
    writer.step(record(0), PLANNED, [])
    writer.step(record(1, loss=float("nan")), PLANNED, [])
    writer.write(SourceStatistics())
    found = read_live(tmp_path)
    assert (found.done, [own.step for own in found.recent]) == (2, [0])
    assert found.sentence == "step 1: the loss is nan"
    assert found.sentence in shown(found, "training")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"done": "3"}, "field 'done' is '3'"),
        ({"state": "asleep"}, "field 'state' is 'asleep', expected one of training"),
        ({"more": 1}, "field 'more' is 1"),
        ({"version": 2}, "field 'version' is 2"),
    ],
)
def test_a_damaged_file_is_refused_with_its_field(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    train(Engine(), tmp_path, steps=1)
    document = json.loads((tmp_path / "live.json").read_text())
    (tmp_path / "live.json").write_text(json.dumps({**document, **change}))
    with pytest.raises(FileError, match=message):
        read_live(tmp_path)


def test_a_process_that_is_gone_is_told_apart_from_one_that_is_silent() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(60)
    assert condition(live(), now=2e9) == "training"
    assert condition(live(pid=gone.pid), now=2e9 + 6) == "dead"
    # A container's processes have other numbers; this one wrote just now.
    assert condition(live(pid=gone.pid), now=2e9 + 4) == "training"
    # Another process has the number by now.
    assert condition(live(started=1.0), now=2e9 + 6) == "dead"
    assert condition(live(), now=2e9 + 61) == "silent"
    slow = tuple(record(step, seconds=30.0) for step in range(3))
    assert condition(live(recent=slow), now=2e9 + 61) == "training"
    elsewhere = live(host="another", pid=gone.pid)
    assert (condition(elsewhere, now=2e9 + 6), condition(elsewhere, now=2e9 + 61)) == ("training", "silent")
    assert condition(live(state="ended", pid=gone.pid)) == "ended"


def test_figures_are_means_of_the_newest_steps() -> None:
    recent = tuple(record(step, loss=float(step), stall_s=0.02) for step in range(30))
    found = figures(live(recent=recent))
    assert found["step"] == 29
    assert found["loss"] == sum(range(10, 30)) / 20
    assert found["samples_per_s"] == pytest.approx(16.0)
    assert found["error"] == pytest.approx(0.25)
    assert found["stall"] == pytest.approx(0.05)
    assert set(figures(live(recent=())).values()) == {None}


def test_a_slow_step_counts_as_long_as_it_took_in_what_is_shown_too() -> None:
    slow = record(0, seconds=7.5, measured_s=7.6, stall_s=4.0)
    given = live(recent=(slow, record(1)))
    assert figures(given)["samples_per_s"] == pytest.approx(2.0)
    lines = {line.split()[0]: line.split() for line in shown(given, "training").splitlines() if line.strip()}
    assert lines["samples/s"][1:3] == ["2.0", "16.0"]
    assert lines["stall"][1:3] == ["50.00%", "0.00%"]


def test_figures_without_measure_are_shown() -> None:
    huge = record(0, predicted_s=1e308, stall_s=1e308)
    text = shown(live(recent=(huge, record(1)), memory=(RankMemory(0, 1e308),)), "training")
    assert "rank 0" in text


def test_all_of_it_is_shown() -> None:
    text = shown(
        live(
            plans=replace(live().plans, lead=2.0, fallbacks={"late": 2, "dead": 0}),
            last_fallback=Fallback(1, "late: no plan within 5 s"),
            memory=(RankMemory(0, 1.5e9, 1.6e9, 1.2e9), RankMemory(1, 3e8)),
        ),
        "training",
    )
    for part in (
        "runs/a  training", "3/10", "loss", "1.0000", "16.0", "400.0 ms", "300.0 ms", "25.0%", "2 steps ahead",
        "2 late", "step 1: late: no plan within 5 s", "rank 0", "1.5 GB", "1.6 GB", "1.2 GB", "rank 1", "300 MB",
    ):  # fmt: skip
        assert part in text, part
    assert "dead" not in text


@pytest.mark.parametrize(
    ("found", "told"),
    [("dead", "the process is gone"), ("failed", "it broke"), ("silent", "nothing was written for"), ("ended", "")],
)
def test_a_run_that_is_no_more_is_told_as_such(found: str, told: str) -> None:
    text = shown(live(sentence="it broke" if found == "failed" else ""), found)
    assert f"runs/a  {found}" in text
    assert told in text


def test_a_run_before_its_first_step_is_shown() -> None:
    assert "no step yet" in shown(live(recent=(), done=0), "training")


def test_a_curve_runs_from_the_least_to_the_most() -> None:
    assert sparkline([0.0, 7.0, 3.0]) == "▁█▄"
    assert sparkline([2.0, 2.0]) == "▄▄"
    assert sparkline([]) == ""


def watch(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["watch", *arguments])


def test_the_command_shows_a_run_and_tells_by_its_status_how_it_ended(tmp_path: Path) -> None:
    train(Engine(), tmp_path, steps=2)
    result = watch(str(tmp_path))
    assert result.exit_code == 0
    assert "ended" in result.output
    document = json.loads(watch(str(tmp_path), "--once", "--json").output)
    assert document["condition"] == "ended"
    assert document["loss"] == pytest.approx(0.75)
    assert document["live"]["done"] == 2
    failed = json.loads((tmp_path / "live.json").read_text()) | {"state": "failed", "sentence": "it broke"}
    (tmp_path / "live.json").write_text(json.dumps(failed))
    result = watch(str(tmp_path))
    assert result.exit_code == 1
    assert "it broke" in result.output


def test_a_folder_without_a_run_is_refused_now_or_after_the_wait(tmp_path: Path) -> None:
    for arguments in ((), ("--wait", "1")):
        result = watch(str(tmp_path), *arguments)
        assert result.exit_code == 2
        assert result.output.startswith(f"ds-dip: {tmp_path}/live.json: is not there")


def test_the_command_follows_a_run_on_a_terminal_until_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(Engine(), tmp_path, steps=2)
    path = tmp_path / "live.json"
    training = json.loads(path.read_text()) | {"state": "training", "steps": 3}
    path.write_text(json.dumps(training))
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            path.write_text(json.dumps(training | {"state": "ended", "done": 3}))

    monkeypatch.setattr("ds_dip.commands.watch.time.sleep", sleep)
    monkeypatch.setenv("FORCE_COLOR", "1")
    result = watch(str(tmp_path), "--interval", "0.5")
    assert result.exit_code == 0
    assert looks == [0.5, 0.5]
    assert "3/3" in result.output


def test_tensorboard_gets_pictures_and_reasons(tmp_path: Path) -> None:
    images: list[tuple[str, Any, int]] = []
    texts: list[tuple[str, str, int]] = []
    writer = SimpleNamespace(
        add_image=lambda name, image, at, dataformats: images.append((name, image, at)),
        add_text=lambda name, text, at: texts.append((name, text, at)),
    )
    engine = Engine(dip=read_config({"dip": {"trace": {"picture": 2, "every": 0}}}))
    engine.monitor = SimpleNamespace(tb_monitor=SimpleNamespace(summary_writer=writer))
    with RunReport(engine, tmp_path, 5, Console(file=io.StringIO())) as report:  # type: ignore[arg-type]
        for step in range(5):
            loss = engine.train_batch(step)
            if step == 3:
                engine.plan = replace(engine.plan, kind="fallback", reason="dead")
            report.batch(loss)
        report.end()
    assert [(name, at) for name, _, at in images] == [("DIP/timeline", 16), ("DIP/timeline", 32), ("DIP/timeline", 40)]
    assert all(image.ndim == 3 and image.shape[2] == 3 and image.std() > 10 for _, image, _ in images)
    assert texts == [("DIP/fallback", "step 3: dead", 32)]
