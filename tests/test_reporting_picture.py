"""Pictures of timelines: what is where, in pixels and as SVG, and that those of the documentation are ours."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from ds_dip.planner import Planner
from ds_dip.reporting.picture import COLOURS, Box, Panel, panels, pixels, svg
from ds_dip.reporting.timeline import step_timeline
from tests.planner_cases import settings
from tests.test_reporting_timeline import measured

ROOT = Path(__file__).resolve().parents[1]
BOXES = (Box(0, 0.0, 1.0, "F", "vision", "0"), Box(1, 1.0, 4.0, "B", "language", "<1>"))


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour[1:]))


def share(picture: np.ndarray, colour: str) -> float:
    return float((picture == np.array(rgb(colour), dtype=np.uint8)).all(axis=2).mean())


def test_a_box_is_as_wide_as_it_lasts() -> None:
    picture = pixels([Panel("two ranks", 2, BOXES)])
    short, long = share(picture, COLOURS[0][0]), share(picture, COLOURS[1][1])
    # The legend has a little of each colour as well.
    assert long / short == pytest.approx(3.0, rel=0.1)


def test_what_nobody_fills_is_idle() -> None:
    panel = Panel("two ranks", 2, BOXES)
    assert panel.end == 4.0
    assert panel.idle == pytest.approx(0.5)
    assert Panel("none", 2, ()).idle == 0.0


def test_an_svg_is_well_formed_and_names_what_it_shows() -> None:
    drawn = svg([Panel("two & ranks", 2, BOXES)])
    texts = [element.text for element in ET.fromstring(drawn).iter() if element.text and element.text.strip()]
    for expected in ("two & ranks", "rank 0", "rank 1", "0", "<1>", "vision, forward", "language, backward"):
        assert expected in texts


def test_an_empty_panel_is_drawn() -> None:
    assert pixels([Panel("nothing ran", 1, ())]).shape[2] == 3
    assert "nothing ran" in svg([Panel("nothing ran", 1, ())])


def test_a_step_is_drawn_as_planned_and_as_measured() -> None:
    plan = Planner(settings()).plan(0)
    planned, real = panels(step_timeline(plan, measured(plan)))
    assert planned.title.startswith("step 0, planned: ")
    assert real.title.startswith("step 0, measured: ")
    assert real.end > planned.end
    assert len(planned.boxes) == len(real.boxes) == sum(map(len, plan.stages))
    assert [panel.title.split(":")[0] for panel in panels(step_timeline(plan))] == ["step 0, planned"]


def test_the_pictures_of_the_documentation_are_what_the_script_draws(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "launch" / "pictures.py"), str(tmp_path)]
    subprocess.run(command, check=True, timeout=300, env=None)
    for path in tmp_path.iterdir():
        assert path.read_text() == (ROOT / "docs" / "pictures" / path.name).read_text(), path.name
    assert len(list(tmp_path.iterdir())) == 2
