"""Explanations in words and letters, and as a document."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given

from ds_dip.explaining import CAUSES, explain, explanation_document
from ds_dip.explaining.explanation import REASONS
from ds_dip.explaining.words import MARKS, bytes_of, drawing, path_lines, seconds_of, sentences
from ds_dip.scheduling import Problem, Schedule, interleave, one_f_one_b, retime
from ds_dip.scheduling.instances import multimodal, uniform
from tests.test_explaining import MANY, cases

UNIFORM = uniform(4, 1, 8)
TIGHT = multimodal(4, 6, 3, cap=2.0)


def spans(problem: Problem, schedule: Schedule) -> dict[int, tuple[float, float]]:
    times = retime(problem, schedule)
    return {task: (start, times.end[task]) for task, start in times.start.items()}


def test_every_cause_has_a_mark_of_its_own() -> None:
    assert list(MARKS) == list(CAUSES)
    assert len(set(MARKS.values())) == len(MARKS)
    assert not set(MARKS.values()) & set("FBWfbw ")


def test_sentences_tell_makespan_path_causes_and_whom_to_blame() -> None:
    found = explain(UNIFORM, one_f_one_b(UNIFORM))
    lines = sentences(UNIFORM, found, 33.0)
    assert lines[0] == (
        "the makespan is 33 s: 4 ranks work 96 s of 132 s, 27.3% is bubble; no schedule of this problem is below 33 s "
        "(0.0% over it)"
    )
    assert lines[1] == "critical path: 22 tasks on 4 ranks: backbone backward 22 s (67%), backbone forward 11 s (33%)"
    assert lines[2] == "peer: 18 s, 50% of all bubbles: a rank waits for a task of another rank"
    assert (
        "rank 0 waits 5 s (56% of its bubbles) for 4 backbone backwards on rank 1, most for microbatch 0, 2 s" in lines
    )
    assert (
        "rank 1 is done 2 s (22% of its bubbles) before the batch ends, with the backbone backward of microbatch 7 "
        "(chunk 0) on rank 0" in lines
    )


def test_waiting_for_memory_names_what_is_kept_back() -> None:
    found = explain(TIGHT, interleave(TIGHT))
    lines = sentences(TIGHT, found)
    assert any("because memory keeps back" in line for line in lines)
    assert "of its tasks had to wait for memory" in lines[1]


def test_a_rank_is_drawn_as_its_tasks_and_bubbles() -> None:
    schedule = one_f_one_b(UNIFORM)
    lines = drawing(UNIFORM, explain(UNIFORM, schedule), spans(UNIFORM, schedule), width=33)
    assert lines[0] == "rank 0 Ffff......bbfbbfbbfBBFbb.bb.bb.BB"
    assert lines[3] == "rank 3 ///FBBfbbfbbFBBfbbfbbfbbFBB\\\\\\\\\\\\"
    assert lines[-1].strip() == "F B W on the critical path, f b w not; / ramp-up, . peer, \\ ramp-down"


@MANY
@given(case=cases())
def test_a_drawing_is_filled_where_time_passes(case: tuple[Problem, Schedule]) -> None:
    problem, schedule = case
    found = explain(problem, schedule)
    lines = drawing(problem, found, spans(problem, schedule), width=40)
    assert len(lines) == problem.ranks + 1
    if found.makespan > 0:
        assert all(len(line) == len("rank 0 ") + 40 and " " not in line[7:] for line in lines[:-1])


@MANY
@given(case=cases())
def test_a_document_is_json_with_all_of_it(case: tuple[Problem, Schedule]) -> None:
    problem, schedule = case
    found = explain(problem, schedule)
    document = json.loads(json.dumps(explanation_document(problem, found, 1.0), allow_nan=False))
    assert (document["format"], document["version"]) == ("ds-dip/explanation", 1)
    assert document["critical_path"] == [link.task for link in found.critical_path]
    assert {own["reason"] for own in document["links"]} <= set(REASONS)
    assert math.fsum(own["end"] - own["start"] for own in document["bubbles"]) == pytest.approx(
        math.fsum(value for own in document["seconds"] for value in own.values()), abs=1e-9 * max(1.0, found.makespan)
    )
    assert all(isinstance(line, str) and line for line in document["text"])


def test_the_path_is_named_and_its_middle_left_out() -> None:
    found = explain(UNIFORM, one_f_one_b(UNIFORM))
    lines = path_lines(UNIFORM, found, most=6)
    assert len(lines) == 7
    assert lines[0].strip() == "0 s to       1 s  rank 0: 1 x backbone forward of microbatch 0 (by first)"
    assert lines[3].startswith("… ")
    delayed = replace(UNIFORM, edges=tuple((a, b, 0.25) for a, b, _ in UNIFORM.edges))
    assert "after 0.25 s of message" in path_lines(delayed, explain(delayed, one_f_one_b(delayed)))[1]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0 s"), (12345.6, "12346 s"), (1.2345, "1.23 s"), (0.0995, "0.0995 s"), (0.0123, "12.3 ms"), (2e-6, "2 us")],
)
def test_seconds_are_read_in_their_size(value: float, text: str) -> None:
    assert seconds_of(value) == text


def test_bytes_are_read_in_their_size() -> None:
    assert [bytes_of(own) for own in (0.0, 12.0, 4.5e3, 7.25e6, 1.5e12)] == [
        "0 B",
        "12 B",
        "4.5 kB",
        "7.25 MB",
        "1.5e+03 GB",
    ]
