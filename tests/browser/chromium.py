"""Where the browser is, and pages in it that hear every complaint."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


def executable() -> str:
    """The browser's path; without one the test is skipped, or fails where DS_DIP_REQUIRE_BROWSER is set."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        reason = f"none of {', '.join(NAMES)} is on the PATH; install one (apt-get install chromium)"
        if os.environ.get("DS_DIP_REQUIRE_BROWSER"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@contextmanager
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    from playwright.sync_api import sync_playwright

    path = executable()
    with sync_playwright() as driver:
        # As root, as in a container, Chromium has no sandbox; the pages are our own.
        started = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield started
        finally:
            started.close()


class Page:
    """A report that is open in a window of its own, from file:// and offline."""

    def __init__(self, started: Any, path: Path, width: int = 1280, height: int = 800, dark: bool = False) -> None:
        scheme = "dark" if dark else "light"
        self._context = started.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, offline=True
        )
        self.page = self._context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.settle()

    def close(self) -> None:
        """Close the window."""
        self._context.close()

    def settle(self) -> None:
        """Wait until what was asked for is drawn: two frames."""
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        for key in keys:
            self.page.keyboard.press(key)
        self.settle()

    def state(self, name: str) -> Any:
        """A field of what the page shows."""
        return self.page.evaluate(f"() => dipReport.state.{name}")

    def window(self) -> tuple[float, float]:
        """The visible times."""
        begin, end = self.page.evaluate("() => [dipReport.state.begin, dipReport.state.end]")
        return begin, end

    def place(self, stage: int, track: str | None = None) -> tuple[float, float]:
        """The middle of a stage in the window."""
        at = self.page.evaluate("([stage, track]) => dipReport.place(stage, track || undefined)", [stage, track])
        return at["x"], at["y"]

    def hover(self, stage: int, track: str | None = None) -> str:
        """Move to a stage; what the card says."""
        self.page.mouse.move(*self.place(stage, track))
        self.settle()
        return self.card()

    def card(self) -> str:
        """What the card says; nothing where it is hidden."""
        shown = self.page.locator("#card")
        return str(shown.inner_text()) if shown.is_visible() else ""

    def colour(self, x: float, y: float) -> tuple[int, int, int]:
        """The timeline's pixel at a place of the window."""
        found = self.page.evaluate(
            """([x, y]) => {
                const canvas = document.getElementById("timeline");
                const box = canvas.getBoundingClientRect();
                const copy = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
                copy.drawImage(canvas, box.left - x, box.top - y);
                return [...copy.getImageData(0, 0, 1, 1).data];
            }""",
            [x, y],
        )
        return found[0], found[1], found[2]

    def picture(self) -> bytes:
        """The timeline's pixels."""
        return bytes(self.page.locator("#timeline").screenshot())
