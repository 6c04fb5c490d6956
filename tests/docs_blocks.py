"""The code blocks of README.md and docs/, and how each is to be run: what its mark says.

A mark is a comment right above the block: ``<!-- run: nightly -->`` runs it in the nightly tier only,
``<!-- run: no; REASON -->`` never, ``<!-- run: by tests/FILE.py -->`` says that this test runs it. ``ranks 2`` starts
it by DeepSpeed's launcher, and ``after NAME`` puts tests/docs/NAME.py in front of it; marks are joined by commas. A
block without a mark runs in every tier. One that begins with ``# NAME.py`` is that file, for the blocks after it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.distributed.ranks import EXTENSIONS, PORT, remove_leftovers

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
#: Those that run, and those that are only read.
PYTHON, SHELL = ("python",), ("bash",)
OTHERS = ("console", "csv", "ini", "json", "text", "yaml")
#: What pages may count on in their folder.
GIVEN = ("docs", "ds_dip", "launch", "model_configs", "profiling", "tests")
_FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_MARK = re.compile(r"<!-- run: (.*?) -->\n\Z", re.DOTALL)
_PARTS = re.compile(r"nightly|ranks \d+|after [a-z_]+|by tests/\S+\.py|no; .{12,}")


@dataclass(frozen=True)
class Block:
    """One fenced block; ``mark`` is what stands above it, empty for none."""

    page: Path
    line: int
    language: str
    text: str
    mark: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def parts(self) -> list[str]:
        return [self.mark] if self.mark.startswith("no;") else [part.strip() for part in self.mark.split(",") if part]

    @property
    def runs(self) -> bool:
        return self.language in PYTHON + SHELL and not self.mark.startswith("no;") and not self.by

    @property
    def nightly(self) -> bool:
        return "nightly" in self.parts

    @property
    def ranks(self) -> int:
        return next((int(part.split()[1]) for part in self.parts if part.startswith("ranks")), 0)

    @property
    def by(self) -> str:
        return next((part.split()[1] for part in self.parts if part.startswith("by ")), "")

    @property
    def named(self) -> str:
        """The file that the block is, empty for none."""
        match = re.match(r"# (\w+\.py)\b", self.text) if self.language in PYTHON else None
        return match[1] if match else ""

    @property
    def source(self) -> str:
        """The code, with what is put in front of it."""
        before = [ROOT / "tests" / "docs" / f"{part.split()[1]}.py" for part in self.parts if part.startswith("after")]
        return "".join([*(path.read_text() for path in before), self.text])

    def unknown(self) -> list[str]:
        """Parts of the mark that mean nothing."""
        return [part for part in self.parts if not _PARTS.fullmatch(part)]


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    text, found = page.read_text(), []
    for match in _FENCE.finditer(text):
        before = text[: match.start()]
        mark = _MARK.search(before[before.rfind("<!--") :]) if "<!--" in before else None
        line = before.count("\n") + 1
        found.append(Block(page, line, match[1], match[2], " ".join(mark[1].split()) if mark else ""))
    return found


def prepare(folder: Path) -> None:
    """Give a page's folder what documentation counts on: the repository's folders, a configuration and a model."""
    for name in GIVEN:
        (folder / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "launch" / "quickstart_ds_config.json", folder / "ds_config.json")
    shutil.copy(ROOT / "docs" / "scheduling-problem.json", folder / "problem.json")


def run(block: Block, folder: Path, seconds: float = 600.0) -> str:
    """Run a block in a page's folder and return what it printed; AssertionError, with that, where it fails."""
    environment = {
        **os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "TORCH_EXTENSIONS_DIR": str(EXTENSIONS),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": f"{folder}:{ROOT}",
    }  # fmt: skip
    if block.language in SHELL:
        command = ["bash", "-euo", "pipefail", "-c", block.source]
    else:
        script = folder / (block.named or f"block_{block.line}.py")
        script.write_text(block.source)
        command = [sys.executable, str(script)]
        if block.ranks:
            launcher = str(Path(sys.executable).with_name("deepspeed"))
            command = [launcher, "--num_gpus", str(block.ranks), "--master_port", str(PORT), str(script)]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, timeout=seconds, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, text=True, check=False,
        )  # fmt: skip
    finally:
        if block.ranks:
            remove_leftovers()
    assert done.returncode == 0, f"{block} ended with {done.returncode}:\n{done.stdout[-4000:]}"
    return done.stdout
