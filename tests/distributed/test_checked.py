"""Ranks that load other content, run another plan, or share samples otherwise than their peers find out at once."""

from __future__ import annotations

import pytest

from tests.distributed.ranks import run_ranks


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("content", "load different content for the same sample ids; make the dataset give the same sample"),
        ("plan", "the two ranks run different plans"),
        ("assignment", "replicas have assigned the samples of the global batch differently; make the dataset's"),
    ],
)
def test_ranks_that_disagree_are_told_in_one_sentence(fault: str, sentence: str) -> None:
    results = run_ranks("tests.distributed.checked", 2, fault, seconds=120.0)
    errors = [rows[0]["error"] for rows in results]
    assert all(sentence in error for error in errors), errors
