"""Parts in this process and in several, kept and gone on with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ds_dip.files import FileError
from ds_dip.reproduction.catalogue import parts_of
from ds_dip.reproduction.dip import QUICK
from ds_dip.reproduction.experiment import Line, Part, Progress, Result, Row, Settings
from ds_dip.reproduction.running import Event, ProcessError, order, ordered, run_parts
from ds_dip.reproduction.store import digest, path_of, read_part, write_part

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = Settings(True, QUICK, ROOT / "model_configs", ROOT / "profiling" / "devices")


def part(key: str, steps: int = 2) -> Part:
    def run(settings: Settings, progress: Progress) -> Result:
        for step in range(steps):
            progress(f"step {step}")
        return Result(
            (Row("g", key, key, settings.factor, 0.5, {"a": 1.0}, {"b": "c"}),), numbers={"steps": float(steps)}
        )

    return Part(key, f"part {key}", 1.0, steps, run)


def test_what_is_kept_is_what_was_found(tmp_path: Path) -> None:
    result = Result((Row("g", "s", "t", None),), {"p": (Line("l", ((0.0, 1.5), (1.0, 2.0))),)}, {"n": 0.1})
    write_part(tmp_path, "own", "hash", result)
    assert read_part(tmp_path, "own", "hash") == result
    assert read_part(tmp_path, "own", "other") is None
    assert read_part(tmp_path, "other", "hash") is None
    text = path_of(tmp_path, "own").read_text()
    path_of(tmp_path, "own").write_text(text.replace("1.5", "1.6"))
    assert read_part(tmp_path, "own", "hash") is None
    path_of(tmp_path, "own").write_text(text)
    assert read_part(tmp_path, "own", "hash") == result
    path_of(tmp_path, "own").write_text('{"format": "ds-dip/reproduction-part", "version": 1}')
    assert read_part(tmp_path, "own", "hash") is None
    os.mkfifo(path_of(tmp_path, "pipe"))
    assert read_part(tmp_path, "pipe", "hash") is None


def test_parts_of_other_settings_or_descriptions_are_not_gone_on_with(tmp_path: Path) -> None:
    settings = replace(SETTINGS, models=tmp_path)
    (tmp_path / "one.json").write_text("{}")
    first = digest(settings)
    assert digest(settings) == first
    assert digest(replace(settings, factor=1.1)) != first
    assert digest(replace(settings, effort=replace(QUICK, seed=1))) != first
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "dangling.json").symlink_to(tmp_path / "nothing")
    assert digest(settings) == first
    (tmp_path / "one.json").write_text("{ }")
    assert digest(settings) != first


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path) -> None:
    parts = [part("a"), part("b"), part("c")]

    def stop(event: Event) -> None:
        if event.part.key == "b":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_parts(SETTINGS, parts, tmp_path, 1, stop)
    assert [path.stem for path in tmp_path.iterdir()] == ["a"]
    seen: list[Event] = []
    results = run_parts(SETTINGS, parts, tmp_path, 1, seen.append)
    assert list(results) == ["a", "b", "c"]
    assert [own.part.key for own in seen if own.found] == ["a"]
    assert [(own.part.key, own.what) for own in seen if own.what] == [
        (key, f"step {step}") for key in "bc" for step in range(2)
    ]
    assert {own.part.key for own in seen if own.done} == {"a", "b", "c"}


def test_processes_find_what_one_finds(tmp_path: Path) -> None:
    own = parts_of(quick=True)
    parts = [own["motivation"], own["memory"]]
    seen: list[Event] = []
    several = run_parts(SETTINGS, parts, tmp_path / "several", 2, seen.append)
    assert several == {part.key: part.run(SETTINGS, lambda _: None) for part in parts}
    assert {event.part.key for event in seen if event.done} == {"motivation", "memory"}
    assert sum(bool(event.what) for event in seen) == sum(part.steps for part in parts)


def test_what_a_process_refuses_is_refused_in_its_words(tmp_path: Path) -> None:
    own = parts_of(quick=True)
    with pytest.raises(FileError, match=r"vlm_s.json: cannot be read"):
        run_parts(replace(SETTINGS, models=tmp_path), [own["ablation"], own["memory"]], tmp_path, 2, lambda _: None)


def test_a_process_that_is_killed_is_told_in_one_sentence(tmp_path: Path) -> None:
    own = parts_of(quick=True)

    def kill(event: Event) -> None:
        (children,) = Path("/proc/self/task").glob(f"{os.getpid()}/children")
        os.kill(int(children.read_text().split()[0]), signal.SIGKILL)

    with pytest.raises(ProcessError, match=r"was ended by signal 9, as where memory runs out; the same command"):
        run_parts(SETTINGS, [own["ablation"], own["memory"]], tmp_path, 2, kill)


def test_an_order_says_all_settings() -> None:
    own = parts_of(quick=True)["motivation"]
    assert ordered(order(SETTINGS, own, Path("parts"))) == ("motivation", Path("parts"), SETTINGS)


def test_a_process_ends_with_its_input() -> None:
    command = [sys.executable, "-m", "ds_dip.reproduction"]
    assert subprocess.run(command, stdin=subprocess.DEVNULL, timeout=120, check=True).returncode == 0


@pytest.mark.parametrize("quick", [True, False])
def test_parts_have_names_of_files_and_costs(quick: bool) -> None:
    parts = parts_of(quick)
    assert all(key == own.key and key.replace("-", "").isalnum() and key == key.lower() for key, own in parts.items())
    # Minutes of one core, of two the half.
    assert sum(own.cost for own in parts.values()) < (60 if quick else 1800)
