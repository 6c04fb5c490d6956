"""Comparisons with what the paper says."""

from __future__ import annotations

import pytest

from ds_dip.reproduction.contenders import Outcome
from ds_dip.reproduction.published import ABLATION, ABLATION_SECONDS, END_TO_END, H20, Figure
from ds_dip.reproduction.results import (
    OURS,
    TITLES,
    Comparison,
    Entry,
    compare_ablation,
    compare_end_to_end,
    compare_h20,
    speedup,
)


def test_the_paper_says_its_gains_of_the_ablation_as_percentages_too() -> None:
    gains = [round(100 * (figure.speedup - 1), 1) for figure in ABLATION.values()]
    assert gains == pytest.approx([17.3, 38.9, 48.3, 62.8], abs=0.11)
    assert len(ABLATION) == len(ABLATION_SECONDS) - 1


def outcome(mean: float) -> Outcome:
    return Outcome((mean,), (mean,), "", "")


def test_comparisons_take_what_the_paper_compares() -> None:
    names = ("fsdp", "megatron", "static", "optimus", "balanced", OURS)
    entries = [Entry("VLM-S", name, outcome(seconds)) for name, seconds in zip(names, (3, 6, 4, 5, 9, 2), strict=True)]
    assert speedup(entries, OURS, "megatron") == 3
    least, most, *none = compare_end_to_end([entries])
    assert (least.ours, most.ours) == (1.5, 3)
    assert (least.where, most.where) == ("VLM-S over FSDP (analytic)", f"VLM-S over {TITLES['megatron']}")
    assert "fsdp" in least.assumptions
    assert "fsdp" not in most.assumptions
    assert [own.ours for own in none] == [None, None]
    assert [own.ours for own in compare_h20(entries)] == [1.5, 3]
    refused = [Entry("VLM-S", "megatron", None, "too large"), *entries[2:]]
    assert speedup(refused, OURS, "megatron") is None
    assert all(own.ours is None for own in compare_ablation(refused))


@pytest.mark.parametrize(("ours", "agrees"), [(1.16, False), (1.15, True), (0.86, True), (0.84, False), (None, False)])
def test_a_figure_agrees_within_15_percent(ours: float | None, agrees: bool) -> None:
    assert Comparison(Figure("", 1.0, ""), ours, ()).agrees is agrees


def test_figures_have_places() -> None:
    for figure in (*ABLATION.values(), *H20.values(), *(own for pair in END_TO_END.values() for own in pair)):
        assert figure.speedup > 1
        assert figure.source
