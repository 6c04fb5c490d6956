"""The report as a person uses it: opened from a file, hovered, zoomed, searched, by mouse and by keys alone."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ds_dip.reporting.viewer.document import Report
from ds_dip.reporting.viewer.page import write_page
from ds_dip.reporting.viewer.planned import view_of_plan
from ds_dip.reporting.viewer.steps import report_of_run
from ds_dip.scheduling import Problem
from tests.browser.chromium import Page, browser
from tests.viewer_cases import large, plan_of, run_folder, small

pytest.importorskip("playwright", reason="playwright is not installed; install ds-dip[dev]")

VIEW = view_of_plan(small(), plan_of(small()))
BLUE, ORANGE = (0, 114, 178), (230, 159, 0)


@pytest.fixture(scope="module")
def started() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("reports")
    write_page(made / "plan.html", Report("Plan", (VIEW,)))
    write_page(made / "run.html", report_of_run(run_folder(made / "run", 6), steps=4))
    empty = Problem(2, (None, None), (), ())
    write_page(made / "empty.html", Report("Empty", (view_of_plan(empty, plan_of(empty)),)))
    write_page(made / "large.html", Report("Large", (view_of_plan(large(), plan_of(large())),)))
    return made


@pytest.fixture
def shown(started: Any, folder: Path) -> Iterator[Any]:
    """Opens reports by name; in the end none has complained or asked for anything."""
    pages: list[Page] = []

    def show(name: str, **window: Any) -> Page:
        pages.append(Page(started, folder / f"{name}.html", **window))
        return pages[-1]

    yield show
    for page in pages:
        assert page.complaints == []
        assert [url.partition(":")[0] for url in page.requests] == ["file"]
        page.close()


@pytest.mark.parametrize("name", ["plan", "run", "large", "empty"])
def test_it_opens_from_a_file_and_draws(shown: Any, name: str) -> None:
    page = shown(name)
    assert page.state("frames") >= 1
    assert page.page.title()
    assert page.page.locator("#facts dt").count() >= 5
    page.press("Enter", "n", "w", "+", "t", "c", "v", "0", "Escape")


def test_every_stage_is_where_its_times_say_in_the_colour_of_its_module(shown: Any) -> None:
    page = shown("plan")
    page.press("x")
    (planned,) = VIEW.courses
    box = page.page.locator("#timeline").bounding_box()
    tested = 0
    for stage in range(0, len(VIEW.bars), 5):
        bar, time = VIEW.bars[stage], planned.times[stage]
        assert time is not None
        if time[1] - time[0] < 0.008 or bar.kind != "F":
            continue
        x, y = page.place(stage)
        begin, end = page.window()
        assert box["x"] < x < box["x"] + box["width"]
        # The plot is between a gutter and a margin, linear in time.
        share = ((time[0] + time[1]) / 2 - begin) / (end - begin)
        assert x - box["x"] == pytest.approx(148 + share * (box["width"] - 154), abs=1.5)
        modules = list(dict.fromkeys(own.module for own in VIEW.bars))
        assert page.colour(x, y + 9) == (BLUE, ORANGE)[modules.index(bar.module)]
        tested += 1
    assert tested >= 10


@pytest.mark.parametrize("stage", [3, 40, 100, 200])
def test_hover_shows_the_stage_at_its_place(shown: Any, stage: int) -> None:
    page = shown("plan")
    card = page.hover(stage)
    bar = VIEW.bars[stage]
    lines = card.splitlines()
    names = {"F": "forward", "B": "backward", "W": "weight gradient"}
    assert lines[0] == f"{bar.module} {names[bar.kind]}"
    for name, value in (("microbatch", bar.microbatch), ("chunk", bar.chunk), ("rank", bar.rank)):
        assert lines[lines.index(name) + 1] == str(value)
    assert f"#{bar.task}" in lines
    (planned,) = VIEW.courses
    if (before := planned.before[stage]) >= 0:
        ahead = VIEW.bars[before]
        assert f"{ahead.kind} {ahead.module} {ahead.microbatch}" in lines[-1]
        assert f"on rank {ahead.rank}" in lines[-1]
        assert lines[-1].startswith("Started after" if ahead.rank == bar.rank else "Waited for")


def test_hover_tells_bubbles_and_memory(shown: Any) -> None:
    page = shown("plan")
    gap = page.page.evaluate("() => dipReport.view.tracks[0].gaps[1][0]")
    assert gap["start"] == 0
    at = page.page.evaluate("(time) => dipReport.moment(1, time)", gap["end"] / 2)
    page.page.mouse.move(at["x"], at["y"])
    page.settle()
    assert page.card().startswith("Bubble")
    assert "ramp-up: before its first task" in page.card()
    assert "Next: " in page.card()
    page.page.mouse.move(at["x"] + 300, page.place(0)[1] + 36)
    page.settle()
    assert page.card().startswith("Memory of rank 0, planned")
    assert "capacity" in page.card()


def test_keys_zoom_move_and_fit(shown: Any) -> None:
    page = shown("plan")
    whole = page.window()
    page.press("+", "+")
    begin, end = page.window()
    assert end - begin == pytest.approx(0.49 * (whole[1] - whole[0]))
    page.press("ArrowRight")
    assert page.window()[0] == pytest.approx(begin + 0.15 * (end - begin))
    page.press("ArrowLeft", "-", "0")
    assert page.window() == pytest.approx(whole)


def test_the_wheel_zooms_at_the_pointer(shown: Any) -> None:
    page = shown("plan")
    before = page.window()
    x, y = page.place(100)
    page.page.mouse.move(x, y)
    page.page.mouse.wheel(0, -400)
    page.page.wait_for_function("dipReport.state.end - dipReport.state.begin < 1.0")
    page.settle()
    after = page.window()
    assert after[1] - after[0] < 0.7 * (before[1] - before[0])
    assert page.place(100)[0] == pytest.approx(x, abs=1.5)
    page.page.mouse.down()
    page.page.mouse.move(x - 100, y)
    page.page.mouse.up()
    page.settle()
    assert page.place(100)[0] == pytest.approx(x - 100, abs=1.5)
    assert page.state("selected") == -1


def test_search_finds_and_centres(shown: Any) -> None:
    page = shown("plan")
    page.press("/")
    page.page.keyboard.type("vision B mb5 r2")
    page.settle()
    wanted = [
        stage
        for stage, bar in enumerate(VIEW.bars)
        if (bar.module, bar.kind, bar.microbatch, bar.rank) == ("vision", "B", 5, 2)
    ]
    assert wanted
    assert page.page.locator("#found").inner_text() == f"{len(wanted)} found"
    seen = []
    for number in range(len(wanted)):
        page.press("Enter")
        assert page.page.locator("#found").inner_text() == f"{number + 1} of {len(wanted)}"
        stage = page.state("selected")
        seen.append(stage)
        box = page.page.locator("#timeline").bounding_box()
        begin, end = page.window()
        if begin > -0.02 and end < 1.17:
            assert page.place(stage)[0] == pytest.approx(box["x"] + 148 + (box["width"] - 154) / 2, abs=2)
    assert sorted(seen) == wanted
    page.press("Escape")
    assert page.state("matches") is None
    assert page.page.evaluate("document.activeElement.id") == "timeline"


def test_a_search_for_nothing_says_so(shown: Any) -> None:
    page = shown("plan")
    page.page.locator("#query").fill("audio")
    assert page.page.locator("#found").inner_text() == "nothing found"
    page.page.locator("#query").fill("#17")
    assert page.page.locator("#found").inner_text() == "1 found"


def test_transfers_memory_and_path_are_layers(shown: Any) -> None:
    page = shown("plan")
    for key, button in (("t", "transfers"), ("m", "memory"), ("x", "path")):
        before, pressed = page.picture(), page.page.locator(f"#{button}").get_attribute("aria-pressed")
        page.press(key)
        assert page.picture() != before
        assert page.page.locator(f"#{button}").get_attribute("aria-pressed") != pressed
        page.page.locator(f"#{button}").click()
        page.page.mouse.move(2, 2)
        page.settle()
        assert page.picture() == before


def test_causes_of_bubbles_are_named_with_their_sums(shown: Any) -> None:
    page = shown("plan")
    (found,) = VIEW.explanations
    legend = page.page.locator("#legend").inner_text()
    total = sum(own.end - own.start for own in found.bubbles)
    for cause in {own.cause for own in found.bubbles}:
        share = sum(own.end - own.start for own in found.bubbles if own.cause == cause) / total
        assert re.search(rf"{cause} \S+\s\w+ \({round(100 * share)}\s%\)", legend), (cause, legend)
    assert "critical path" in legend
    assert page.page.locator("#path").is_visible()
    assert page.page.locator("#texts li").all_inner_texts() == list(found.text)


def test_planned_and_measured_are_shown_alone_and_together(shown: Any) -> None:
    page = shown("run")
    assert page.state("show") == "both"
    planned, measured = page.place(20, "planned"), page.place(20, "measured")
    assert planned[1] < measured[1]
    card = page.hover(20, "measured")
    assert "difference" in card
    assert "tokens" in card
    together = page.picture()
    page.press("v")
    assert page.state("show") == "planned"
    assert page.picture() != together
    page.page.get_by_role("button", name="Measured", exact=True).click()
    page.settle()
    assert page.state("show") == "measured"
    assert page.place(20)[0] == pytest.approx(measured[0], abs=1.0)
    page.page.locator("#colour").select_option("difference")
    assert "twice as long or more" in page.page.locator("#legend").inner_text()


def test_a_step_is_chosen_from_the_overview(shown: Any) -> None:
    page = shown("run")
    steps = page.page.locator("#steps button")
    assert steps.count() == 6
    assert [steps.nth(number).is_disabled() for number in range(6)] == [True, True, False, False, False, False]
    assert page.page.locator('#steps button[aria-current="true"]').inner_text().strip() == "5"
    assert "fallback: late" in steps.nth(2).get_attribute("aria-label")
    steps.nth(2).click()
    page.settle()
    assert page.page.locator("#view-name").inner_text() == "step 2"
    assert "fallback (late)" in page.page.locator("#facts").inner_text()
    assert "4 of the run's 6 timelines" in page.page.locator("#notes").inner_text()


def test_dark_follows_the_system_and_a_key(shown: Any) -> None:
    page = shown("plan", dark=True)
    back = "() => getComputedStyle(document.body).backgroundColor"
    assert page.page.evaluate(back) == "rgb(20, 24, 28)"
    _, y = page.place(0)
    box = page.page.locator("#timeline").bounding_box()
    assert page.colour(box["x"] + 3, y - 14) == (20, 24, 28)
    page.press("d")
    assert page.page.evaluate(back) == "rgb(255, 255, 255)"
    assert page.colour(box["x"] + 3, y - 14) == (255, 255, 255)


def test_keys_alone_go_through_a_microbatch(shown: Any) -> None:
    page = shown("plan")
    page.press("Enter")
    first = page.state("selected")
    assert first >= 0
    live = page.page.locator("#live")
    assert f"microbatch {VIEW.bars[first].microbatch}" in live.inner_text()
    (planned,) = VIEW.courses
    page.press("n")
    second = page.state("selected")
    assert second != first
    assert VIEW.bars[second].microbatch == VIEW.bars[first].microbatch
    assert planned.times[second] >= planned.times[first]  # type: ignore[operator]
    page.press("p")
    assert page.state("selected") == first
    page.press("w")
    assert page.state("selected") == planned.before[first]
    page.press("]")
    assert VIEW.bars[page.state("selected")].rank == VIEW.bars[planned.before[first]].rank
    assert page.card()
    page.press("Escape")
    assert page.state("selected") == -1
    assert page.card() == ""


def test_every_control_is_reached_by_tab_and_named(shown: Any) -> None:
    page = shown("run")
    named = """() => {
        const own = document.activeElement;
        const label = own.labels && own.labels.length ? own.labels[0].innerText : "";
        return [own.id || own.className || own.dataset.show || own.tagName,
            own.getAttribute("aria-label") || label || own.innerText || own.title];
    }"""
    reached = {}
    for _ in range(40):
        page.page.keyboard.press("Tab")
        name, label = page.page.evaluate(named)
        reached[name] = label
    for name in ("theme", "help", "colour", "transfers", "memory", "zoom-in", "zoom-out", "fit", "query", "timeline"):
        assert reached[name].strip(), name
    assert page.page.locator("#timeline").get_attribute("aria-describedby") == "summary"
    assert "4 microbatches" in page.page.locator("#summary").inner_text()


def test_help_opens_and_closes_by_keys(shown: Any) -> None:
    page = shown("plan")
    page.press("?")
    assert page.page.locator("#keys").is_visible()
    assert "transfers" in page.page.locator("#keys").inner_text()
    page.press("t")
    assert page.state("transfers") is False
    page.press("Escape")
    assert not page.page.locator("#keys").is_visible()


def test_the_same_is_there_as_tables(shown: Any) -> None:
    page = shown("plan")
    page.page.locator("#ranks-table summary").click()
    assert page.page.locator("#ranks-table tbody tr").count() == 4
    page.page.locator("#query").fill("mb3 vision")
    page.page.locator("#stages-table summary").click()
    wanted = sum(bar.microbatch == 3 and bar.module == "vision" for bar in VIEW.bars)
    rows = page.page.locator("#stages-table tbody tr")
    rows.first.wait_for()
    assert rows.count() == wanted
    rows.first.locator("button").click()
    assert VIEW.bars[page.state("selected")].microbatch == 3


def test_a_narrow_window_keeps_everything_in_sight(shown: Any) -> None:
    page = shown("run", width=380, height=740)
    wide = "() => document.documentElement.scrollWidth"
    assert page.page.evaluate(wide) <= 380
    page.page.locator("#timeline").scroll_into_view_if_needed()
    card = page.hover(12, "measured")
    assert "microbatch" in card
    box = page.page.locator("#card").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 380


def test_20_000_stages_are_drawn_and_hovered(shown: Any) -> None:
    page = shown("large")
    view = page.page.evaluate("() => [dipReport.view.count, dipReport.view.ranks]")
    assert view[0] >= 20_000
    page.press("t")
    assert "too many to draw" in page.page.locator("#status").inner_text()
    page.page.evaluate("() => dipReport.centre(10_000)")
    page.settle()
    card = page.hover(10_000)
    assert f"#{page.page.evaluate('() => dipReport.view.task[10000]')}" in card
    begin, end = page.window()
    assert math.isfinite(end - begin)
    page.press("0")
    assert page.window()[1] - page.window()[0] > 20
