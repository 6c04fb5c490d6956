"""The pictures of docs/report.md, and how fluid a report of 20 000 stages is: ``python -m tests.browser.pictures``."""

from __future__ import annotations

import argparse
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from ds_dip.reporting.viewer.document import Report
from ds_dip.reporting.viewer.page import write_page
from ds_dip.reporting.viewer.planned import view_of_plan
from ds_dip.reporting.viewer.steps import report_of_run
from ds_dip.scheduling import solve
from tests.browser.chromium import Page, browser
from tests.viewer_cases import large, plan_of, small

SIZE = {"width": 1280, "height": 760}
#: What is measured: 180 frames each of drawing all of it, zooming in and out, moving while zoomed in, and transfers.
FRAMES = """async () => {
    const canvas = document.getElementById("timeline");
    const wheel = (across, down) => canvas.dispatchEvent(
        new WheelEvent("wheel", { deltaX: across, deltaY: down, clientX: 700, clientY: 500, cancelable: true }));
    const measure = async (action) => {
        const [between, drawing] = [[], []];
        let last = await new Promise(requestAnimationFrame);
        for (let frame = 0; frame < 180; frame++) {
            action(frame);
            const now = await new Promise(requestAnimationFrame);
            between.push(now - last);
            last = now;
            drawing.push(dipReport.state.drawing);
        }
        const share = (values, at) => Number(values.sort((a, b) => a - b)[Math.round(at * 179)].toFixed(1));
        const both = (values) => [share(values, 0.5), share(values, 0.95)];
        return { frame_ms: both(between), draw_ms: both(drawing) };
    };
    const found = { stages: dipReport.view.count };
    found.whole = await measure(() => dipReport.redraw());
    found.zoom = await measure((frame) => wheel(0, frame < 90 ? -40 : 40));
    for (let turn = 0; turn < 20; turn++) wheel(0, -60);
    found.move = await measure((frame) => wheel(frame < 90 ? 50 : -50, 0));
    document.getElementById("fit").click();
    document.getElementById("transfers").click();
    found.transfers = await measure(() => dipReport.redraw());
    return found;
}"""


def pictures(started: Any, folder: Path, run: Path, out: Path) -> None:
    """Every picture, of a plan that was searched, of a run's folder, and of 20 000 stages."""
    problem = small()
    made = solve(problem, evaluations=3000)
    plan = made.plan("0" * 64)
    write_page(folder / "plan.html", Report("Plan plan.json", (view_of_plan(problem, plan, name="plan.json"),)))
    write_page(folder / "run.html", report_of_run(run))
    write_page(folder / "large.html", Report("Plan large.json", (view_of_plan(large(), plan_of(large())),)))

    def take(name: str, source: str, prepare: Callable[[Page], None], **window: Any) -> None:
        page = Page(started, folder / f"{source}.html", **(SIZE | window))
        prepare(page)
        page.settle()
        with Image.open(io.BytesIO(page.page.screenshot())) as shot:
            # A palette takes a third of the place; this way of finding one loses no colour that is rare.
            few = shot.convert("RGB").quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
            few.save(out / f"report-{name}.png", optimize=True)
        page.close()

    def bubble(page: Page) -> None:
        place = page.page.evaluate(
            """() => {
                const gaps = dipReport.view.tracks[0].gaps[1].filter((gap) => gap.cause === "peer");
                const gap = gaps.reduce((one, other) => (other.end - other.start > one.end - one.start ? other : one));
                return dipReport.moment(1, (gap.start + gap.end) / 2);
            }"""
        )
        page.page.mouse.move(place["x"], place["y"])

    def chosen(page: Page) -> None:
        page.press("x", "t", "/")
        page.page.keyboard.type("mb5 vision B r2")
        page.press("Enter", "Escape", "+", "+", "ArrowLeft")
        page.page.mouse.move(2, 2)

    def both(page: Page) -> None:
        page.press("x")
        stage = page.page.evaluate(
            """() => {
                const measured = dipReport.view.tracks[1];
                dipReport.window(0, 0.1 * measured.last);
                return measured.rows[2].find((stage) => measured.start[stage] > 0.02 * measured.last);
            }"""
        )
        page.settle()
        page.hover(stage, "measured")

    def slower(page: Page) -> None:
        page.press("x", "c", "c")

    take("plan", "plan", bubble)
    take("chosen", "plan", chosen, dark=True)
    take("run", "run", both, height=820)
    take("difference", "run", slower, height=820)
    take("large", "large", lambda page: page.press("x", "m"), height=800)
    take("phone", "plan", lambda page: page.press("Enter"), width=390, height=844, dark=True)


def main() -> None:
    """Write the pictures, or measure frames."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="A run's folder with timelines, for the pictures of a run.")
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"), help="Where pictures go.")
    parser.add_argument("--frames", action="store_true", help="Measure frames instead, and print them as JSON.")
    given = parser.parse_args()
    if not given.frames and given.run is None:
        parser.error("--run is needed: the folder of a run, or of ds-dip rehearse --timelines")
    with tempfile.TemporaryDirectory() as folder, browser() as started:
        if given.frames:
            problem = large()
            write_page(Path(folder, "large.html"), Report("Large", (view_of_plan(problem, plan_of(problem)),)))
            page = Page(started, Path(folder, "large.html"), width=1600, height=1000)
            print(json.dumps(page.page.evaluate(FRAMES)))
            page.close()
        else:
            given.out.mkdir(parents=True, exist_ok=True)
            pictures(started, Path(folder), given.run, given.out)


if __name__ == "__main__":
    main()
