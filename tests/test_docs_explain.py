"""The commands of docs/explain.md and docs/compare.md, run as they are written there, on less data."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from ds_dip.cli import cli
from ds_dip.explaining import CAUSES
from ds_dip.explaining.schedules import SCHEDULES
from ds_dip.explaining.what_if import CHANGES

ROOT = Path(__file__).resolve().parents[1]
#: Options of long commands, for a test.
LESS = {"--batches": "1", "--evaluations": "20", "--seeds": "1", "--most-laps": "1", "--batch-size": "4"}
LESS_TOO = {"--microbatches": "4"}


def commands(name: str) -> list[list[str]]:
    """The commands of a page's bash blocks, as arguments."""
    text = (ROOT / "docs" / name).read_text()
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("ds-dip ")]


def shortened(arguments: list[str]) -> list[str]:
    if "model_configs/vlm_s.json" not in arguments:
        return arguments
    found = list(arguments)
    for option, value in (LESS | LESS_TOO).items():
        if option in found:
            found[found.index(option) + 1] = value
    if "all" in found:
        found[found.index("all")] = "memory"
    return found


@pytest.mark.parametrize("page", ["explain.md", "compare.md"])
def test_the_commands_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("docs", "model_configs", "profiling"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    found = commands(page)
    assert len(found) >= 2
    for arguments in found:
        result = CliRunner().invoke(cli, shortened(arguments))
        assert result.exit_code == 0, (arguments, result.output)


def test_pages_name_all_causes_changes_and_schedules() -> None:
    explained, compared = ((ROOT / "docs" / name).read_text() for name in ("explain.md", "compare.md"))
    assert re.findall(r"^\| `([\w-]+)` \|", explained, re.MULTILINE)[: len(CAUSES)] == list(CAUSES)
    assert all(f"| `{name}` |" in explained for name in CHANGES)
    assert set(re.findall(r"^\| `([\w-]+)` \|", compared, re.MULTILINE)) == set(SCHEDULES)
