"""One factor, fitted to one figure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_dip.reproduction.calibration import CLOSE, KEY, MODEL, WANTED, fit, parts
from ds_dip.reproduction.published import ABLATION_SECONDS


@given(st.floats(0.1, 100.0), st.floats(0.0, 10.0), st.floats(0.2, 5.0))
def test_the_factor_gives_the_wanted_seconds(scaling: float, fixed: float, factor: float) -> None:
    found = fit(lambda own: scaling / own + fixed, scaling / factor + fixed)
    assert scaling / found + fixed == pytest.approx(scaling / factor + fixed, rel=2 * CLOSE)


def test_what_no_factor_gives_is_refused() -> None:
    with pytest.raises(ValueError, match="no factor gives 1 s"):
        fit(lambda own: 2.0 + 1 / own, 1)
    with pytest.raises(ValueError, match="no factor gives 1 s"):
        fit(lambda _: 2.0, 1)


def test_it_is_one_part_on_one_figure_that_the_quick_run_does_not_have() -> None:
    assert ("VLM-S", ABLATION_SECONDS["megatron"]) == (MODEL, WANTED)
    assert [own.key for own in parts(quick=False)] == [KEY]
    assert parts(quick=True) == ()
