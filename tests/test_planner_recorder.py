"""The recorder: which steps it keeps, and that neither a slow nor a broken disk holds training up."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ds_dip.files import FileError
from ds_dip.planner import recorder as module
from ds_dip.planner.recorder import BACKLOG, Recorder
from ds_dip.planner.recording import Recording, folder_of
from tests.planner_cases import settings
from tests.recording_cases import PLANNER, record, scaled

PLANS = [PLANNER.plan(step) for step in range(8)]


def recorder(run: Path | None, every: int = 1, keep: int = 1000, **options: Any) -> tuple[Recorder, list[str]]:
    said: list[str] = []
    made = Recorder(0, every, keep, run, said.append, **options)
    made.begin(PLANNER.settings, len(PLANNER.dataset))
    return made, said


def add(recorder: Recorder, *steps: int) -> None:
    for step in steps:
        recorder.add(PLANS[step], scaled(PLANS[step]))


def test_every_nth_step_is_recorded_and_the_newest_are_kept(tmp_path: Path) -> None:
    made, said = recorder(tmp_path, every=2, keep=3)
    add(made, *range(8))
    made.close()
    recording = Recording(tmp_path)
    assert list(recording.steps) == [2, 4, 6]
    found = recording.read(6)
    assert (found.plan, found.stages) == (PLANS[6], scaled(PLANS[6]).stages)
    assert recording.run(found.run).settings == PLANNER.settings
    assert said == []


def test_a_step_replaces_those_from_its_number_on(tmp_path: Path) -> None:
    made, _ = recorder(tmp_path)
    add(made, 0, 1, 2, 3, 2)  # the run was set back
    made.close()
    assert list(Recording(tmp_path).steps) == [0, 1, 2]
    another, _ = recorder(tmp_path)
    add(another, 1)  # another run goes on from a checkpoint
    another.close()
    assert list(Recording(tmp_path).steps) == [0, 1]


def test_steps_name_the_settings_that_they_were_planned_by(tmp_path: Path) -> None:
    made, _ = recorder(tmp_path)
    add(made, 0)
    made.begin(settings(batch_size=4), 40)
    add(made, 1)
    made.close()
    recording = Recording(tmp_path)
    sizes = [recording.run(recording.read(step).run).settings.batch_size for step in (0, 1)]
    assert sizes == [8, 4]


def test_without_a_folder_nothing_is_recorded_and_it_says_so_once(tmp_path: Path) -> None:
    made, said = recorder(None)
    add(made, 0, 1)
    assert len(said) == 1
    assert '"dip.record.directory"' in said[0]
    made.into(tmp_path)
    made.into(tmp_path / "another")
    add(made, 2)
    made.close()
    assert list(Recording(tmp_path).steps) == [2]
    assert not (tmp_path / "another").exists()


def test_the_folder_that_is_replayed_is_refused(tmp_path: Path) -> None:
    made, _ = recorder(None, replayed=tmp_path / "." / "run")
    with pytest.raises(FileError, match='is the folder of "dip.replay"'):
        made.into(tmp_path / "run")


def test_a_disk_that_refuses_is_told_once_and_training_goes_on(tmp_path: Path) -> None:
    folder_of(tmp_path, 0).parent.mkdir(parents=True)
    folder_of(tmp_path, 0).write_text("in the way")
    made, said = recorder(tmp_path)
    add(made, 0, 1, 2)
    made.close()
    assert made.left_out == 3
    assert len(said) == 2
    assert said[0].startswith("step 0 was not recorded: ")
    assert said[1] == "3 steps of the run were not recorded"


def test_a_disk_that_stands_still_holds_training_up_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    going = threading.Event()
    write = module.write_step

    def still(*arguments: Any) -> Any:
        going.wait(60.0)
        return write(*arguments)

    monkeypatch.setattr(module, "write_step", still)
    monkeypatch.setattr(module, "PATIENCE_S", 0.2)
    made, said = recorder(tmp_path)
    for _ in range(BACKLOG + 1):  # one in hand, the others waiting
        add(made, 0)
    began = time.monotonic()
    add(made, *([0] * 100))
    waited = time.monotonic() - began
    assert waited < 0.2 * 50
    assert made.left_out >= 99
    assert "64 steps behind" in said[0]
    going.set()
    made.close()
    assert list(Recording(tmp_path).steps) == [0]


def test_the_end_waits_no_longer_than_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    going = threading.Event()
    monkeypatch.setattr(module, "write_step", lambda *_: going.wait(60.0))
    monkeypatch.setattr(module, "END_S", 0.1)
    made, said = recorder(tmp_path)
    add(made, 0, 1, 2)
    made.close()
    made.close()
    assert said[-1].endswith("of the run were not recorded")
    going.set()


def test_what_was_written_is_whole_whenever_the_run_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, scaled(PLANS[0]))
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error")))
    made, said = recorder(tmp_path)
    add(made, 1)
    made.close()
    assert "Input/output error" in said[0]
    assert list(Recording(tmp_path).steps) == [0]
    assert Recording(tmp_path).read(0).plan == PLANS[0]
