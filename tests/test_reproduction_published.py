"""What the paper says."""

from __future__ import annotations

import pytest

from ds_dip.reproduction.published import ABLATED, ABLATION, ABLATION_SECONDS, BUBBLE, END_TO_END, H20, H20_TIMES, PEAK


def test_the_paper_says_its_gains_of_the_ablation_as_percentages_too() -> None:
    gains = [round(100 * (figure.value - 1), 1) for figure in ABLATION.values() if figure.value is not None]
    assert gains == pytest.approx([17.3, 38.9, 48.3, 62.8], abs=0.11)
    assert ABLATION.keys() == ABLATED.keys() == ABLATION_SECONDS.keys() - {"megatron"}


def test_figures_have_places() -> None:
    tables = ABLATION, ABLATED, H20, H20_TIMES, PEAK, BUBBLE
    for figure in (
        *(own for table in tables for own in table.values()),
        *(a for pair in END_TO_END.values() for a in pair),
    ):
        assert figure.value
        assert figure.source


def test_perfect_balance_leaves_what_filling_and_draining_take() -> None:
    assert BUBBLE["balanced"].value == pytest.approx(15 / (64 + 15), abs=1e-3)
