"""The commands of docs/conversations.md, run as they are written there; indices go elsewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from ds_dip.cli import cli

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "conversations.md").read_text()


def commands() -> list[list[str]]:
    blocks = re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("ds-dip data ")]


@pytest.mark.parametrize(("number", "samples", "problems"), [(0, 3, 3), (1, 12, 12)])
def test_the_commands_do_what_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, samples: int, problems: int
) -> None:
    pytest.importorskip("PIL", reason="install the extra hf")
    monkeypatch.chdir(ROOT)
    arguments = [part.replace("/tmp/", f"{tmp_path}/") for part in commands()[number]]  # as it is written
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == (1 if problems else 0), result.output
    assert f"{samples} samples, {problems} problems" in result.output
    if "--picture" in arguments:
        assert (tmp_path / "sizes.svg").read_text().startswith("<svg")


def test_every_option_of_the_dataset_is_told_of() -> None:
    from ds_dip.data.conversations.settings import Settings

    for name in Settings.model_fields:
        assert f"`{name}`" in TEXT, name
