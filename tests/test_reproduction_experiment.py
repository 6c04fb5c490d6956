"""Figures beside the paper's."""

from __future__ import annotations

import pytest

from ds_dip.reproduction.experiment import Comparison, Row, rows_of, speedup
from ds_dip.reproduction.published import COUNT, SECONDS, Figure


@pytest.mark.parametrize(("ours", "agrees"), [(1.16, False), (1.15, True), (0.86, True), (0.84, False), (None, False)])
def test_a_figure_agrees_within_15_percent(ours: float | None, agrees: bool) -> None:
    assert Comparison(Figure("", 1.0, ""), ours).agrees is agrees


@pytest.mark.parametrize(("ours", "agrees"), [(0.01, True), (11.0, True), (12.0, False), (None, False)])
def test_a_limit_is_kept_below_it(ours: float | None, agrees: bool) -> None:
    assert Comparison(Figure("", 10.0, "", SECONDS, limit=True), ours).agrees is agrees


def test_what_the_paper_does_not_say_neither_agrees_nor_differs() -> None:
    own = Comparison(Figure("", None, "", COUNT), 3.0)
    assert (own.agrees, own.deviation) == (None, None)


def test_speed_is_told_of_systems_that_could_run() -> None:
    rows = [Row("a", "megatron", "", 6.0), Row("a", "ours", "", 2.0), Row("a", "optimus", "", None)]
    assert speedup(rows, "ours", "megatron") == 3
    assert speedup(rows, "ours", "optimus") is None
    assert speedup(rows, "static", "ours") is None
    assert rows_of({}, "a") == []
