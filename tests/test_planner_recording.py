"""Recordings as files: read back equal, and never believed when damaged, cut off or something else."""

from __future__ import annotations

import gzip
import os
import tracemalloc
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ds_dip.costs.corrections import Corrections, Fit, Measurement, RankFactor, ShapeFactor
from ds_dip.costs.rules import CostRules, Rule
from ds_dip.files import FileError, write_json
from ds_dip.planner import Planner
from ds_dip.planner.recording import Recording, Run, folder_of, read_step
from tests.planner_cases import FEW, settings
from tests.profiling_cases import table
from tests.recording_cases import PLANNER, RUN, VERSIONS, record, scaled, simulated


@pytest.fixture(scope="module")
def step_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = record(tmp_path_factory.mktemp("run"), scaled(PLANNER.plan(3)))
    return Recording(folder).steps[3].read_bytes()


@FEW
@given(step=st.integers(0, 300), seed=st.integers(0, 2**32))
def test_what_is_recorded_is_read(tmp_path_factory: pytest.TempPathFactory, step: int, seed: int) -> None:
    written = simulated(PLANNER.plan(step), seed)
    recording = Recording(record(tmp_path_factory.mktemp("run"), written))
    found = recording.read(step)
    assert replace(found, run="") == written
    assert recording.run(found.run) == RUN


def test_settings_are_read_with_their_costs_and_the_corrections_of_each_plan(tmp_path: Path) -> None:
    rules = CostRules((Rule("vision", "forward", scale=2.0),))
    run = Run(settings(table=table(), rules=rules, evaluations=7, seed=3), 40, VERSIONS)
    planner = Planner(settings())
    planner.corrections = Corrections(
        (Fit("vision", "F", 2.0, 0.001),),
        (Measurement("vision", "F", 1.0, 2.0),),
        (RankFactor(1, 1.25),),
        (ShapeFactor("language", "B", 9, 0.75),),
    )
    recording = Recording(record(tmp_path, scaled(planner.plan(0)), run=run))
    found = recording.read(0)
    assert recording.run(found.run) == run
    assert found.plan.corrections == replace(planner.corrections, window=())


def test_a_recording_knows_its_steps_by_number(tmp_path: Path) -> None:
    folder = record(tmp_path, *(scaled(PLANNER.plan(step)) for step in (10, 2, 8)))
    (folder_of(folder, 0) / "step-x.jsonl.gz").write_bytes(b"")
    recording = Recording(folder)
    assert list(recording.steps) == [2, 8, 10]
    for step, sentence in ((11, "ends with step 10"), (1, "begins with step 2"), (9, "has 3 of the steps 2 to 10")):
        with pytest.raises(FileError, match=f"holds no step {step}, the recording {sentence}"):
            recording.read(step)


@pytest.mark.parametrize("made", [True, False])
def test_a_folder_without_a_recording_is_refused(tmp_path: Path, made: bool) -> None:
    folder_of(tmp_path, 0).mkdir(parents=True) if made else None
    with pytest.raises(FileError, match='holds no step-.*"dip.record.every" above 0'):
        Recording(tmp_path)


@FEW
@given(data=st.data())
def test_a_damaged_step_is_refused(
    tmp_path_factory: pytest.TempPathFactory, step_file: bytes, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("run") / "step-000003.jsonl.gz"
    # Bytes 4 to 8 and 9 of gzip's head are a time and a system, which say nothing of the content.
    place = data.draw(st.integers(10, len(step_file) - 1))
    damaged = bytearray(step_file)
    damaged[place] ^= data.draw(st.integers(1, 255))
    # A compressed stream ends within a byte, whose last bits say nothing: damage is what changes the content.
    assume(not _holds_the_same(bytes(damaged), step_file))
    path.write_bytes(bytes(damaged))
    with pytest.raises(FileError) as error:
        read_step(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def _holds_the_same(damaged: bytes, whole: bytes) -> bool:
    try:
        return gzip.decompress(damaged) == gzip.decompress(whole)
    except (OSError, EOFError, zlib.error):
        return False


@FEW
@given(data=st.data())
def test_a_step_that_was_cut_off_is_refused(
    tmp_path_factory: pytest.TempPathFactory, step_file: bytes, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("run") / "step-000003.jsonl.gz"
    path.write_bytes(step_file[: data.draw(st.integers(0, len(step_file) - 1))])
    with pytest.raises(FileError, match="cut off"):
        read_step(path)


@FEW
@given(content=st.binary(max_size=200), packed=st.booleans())
def test_garbage_is_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes, packed: bool) -> None:
    path = tmp_path_factory.mktemp("run") / "step-000003.jsonl.gz"
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(FileError, match="step-000003"):
        read_step(path)


def lines_of(step_file: bytes) -> list[bytes]:
    return gzip.decompress(step_file).split(b"\n")


@pytest.mark.parametrize(
    ("line", "old", "new", "sentence"),
    [
        (0, b'"ds-dip/recording"', b'"ds-dip/timeline"', "field 'format' is 'ds-dip/timeline'"),
        (0, b'"version": 1', b'"version": 2', "field 'version' is 2, expected 1"),
        (0, b'"step": 3', b'"step": "3"', "field 'step' is '3', expected int"),
        (0, b'"step": 3', b'"step": 4', "is of step 4, its plan of step 3"),
        (1, b'"kind":"planned"', b'"kind":"guessed"', "does not have the hash it came with"),
        (2, b'"waited":0.0015', b'"waited":-1', "a time that no clock gives"),
        (2, b'"waited":0.0015', b'"waited":"x"', "measured.waited is 'x'"),
        (2, b'"waited":0.0015', b'"waited":NaN', "measured.waited is nan"),
        (2, b'"times":[[', b'"times":[[[0.1,0.2],', "does not measure every stage of its plan once"),
    ],
)
def test_a_wrong_field_is_named(
    tmp_path: Path, step_file: bytes, line: int, old: bytes, new: bytes, sentence: str
) -> None:
    lines = lines_of(step_file)
    assert old in lines[line]
    lines[line] = lines[line].replace(old, new, 1)
    path = tmp_path / "step-000003.jsonl.gz"
    path.write_bytes(gzip.compress(b"\n".join(lines)))
    with pytest.raises(FileError, match=sentence) as error:
        read_step(path)
    assert "\n" not in str(error.value)


def test_another_document_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "step-000003.jsonl.gz"
    write_json(tmp_path / "timeline.json", {"format": "ds-dip/timeline", "version": 1})
    path.write_bytes(gzip.compress((tmp_path / "timeline.json").read_bytes()))
    with pytest.raises(FileError, match="has 1 whole lines, expected 3 of a ds-dip/recording file"):
        read_step(path)


def test_a_step_under_another_steps_name_is_refused(tmp_path: Path) -> None:
    recording = Recording(record(tmp_path, scaled(PLANNER.plan(3))))
    recording.steps[3].rename(recording.folder / "step-000004.jsonl.gz")
    with pytest.raises(FileError, match="step-000004.*holds step 3"):
        Recording(tmp_path).read(4)


def test_missing_and_damaged_settings_are_refused(tmp_path: Path) -> None:
    recording = Recording(record(tmp_path, scaled(PLANNER.plan(3))))
    digest = recording.read(3).run
    (path,) = recording.folder.glob("run-*.jsonl")
    path.write_text(path.read_text().replace('"batch_size":8', '"batch_size":4'))
    with pytest.raises(FileError, match="does not have the hash that its steps name"):
        recording.run(digest)
    path.unlink()
    with pytest.raises(FileError, match="run-.*cannot be read"):
        recording.run(digest)


def test_a_pipe_in_a_steps_place_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "step-000001.jsonl.gz")
    with pytest.raises(FileError, match="is no file"):
        read_step(tmp_path / "step-000001.jsonl.gz")


def test_a_file_of_many_lines_is_counted_before_it_is_taken_apart(tmp_path: Path) -> None:
    path = tmp_path / "step-000001.jsonl.gz"
    path.write_bytes(gzip.compress(b"\n" * 30_000_000))
    tracemalloc.start()
    with pytest.raises(FileError, match="has 30000000 whole lines, expected 3"):
        read_step(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 300e6


def test_a_recording_without_what_was_loaded_is_read_and_one_of_other_ranks_is_not(tmp_path: Path) -> None:
    plan = PLANNER.plan(0)
    folder = record(tmp_path, replace(scaled(plan), loading=(0.5, 0.25)))
    path = Recording(folder).steps[0]
    lines = gzip.decompress(path.read_bytes())
    assert read_step(path).loading == (0.5, 0.25)
    path.write_bytes(gzip.compress(lines.replace(b',"loading":[0.5,0.25]', b"")))
    assert read_step(path).loading == ()
    path.write_bytes(gzip.compress(lines.replace(b'"loading":[0.5,0.25]', b'"loading":[0.5]')))
    with pytest.raises(FileError, match="tells of 1 of 2 ranks what they loaded; record it again"):
        read_step(path)
