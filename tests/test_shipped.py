"""Files that come along: found by name beside the package, and in an installed wheel."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from ds_dip import shipped
from ds_dip.cli import cli

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def fresh() -> Iterator[None]:
    """The folder is looked for once a process."""
    shipped.root.cache_clear()
    yield
    shipped.root.cache_clear()


def test_in_the_repository_they_lie_beside_the_package() -> None:
    assert shipped.root() == ROOT
    assert Path("model_configs/vlm_s.json") in shipped.files()
    assert not [path for path in shipped.files() if "__pycache__" in path.parts]


@pytest.mark.usefixtures("fresh")
def test_in_an_environment_they_are_where_the_wheels_record_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share = tmp_path / "share" / "ds_dip"
    (share / "model_configs").mkdir(parents=True)
    (share / "model_configs" / "vlm_s.json").write_text("{}")
    recorded = [
        SimpleNamespace(locate=lambda: tmp_path / "lib" / "ds_dip" / "cli.py"),
        SimpleNamespace(locate=lambda: tmp_path / "lib" / ".." / "share" / "ds_dip" / "model_configs" / "vlm_s.json"),
    ]
    (tmp_path / "lib").mkdir()
    monkeypatch.setattr(shipped, "__file__", str(tmp_path / "lib" / "ds_dip" / "shipped.py"))
    monkeypatch.setattr(importlib.metadata, "files", lambda _: recorded)
    monkeypatch.chdir(tmp_path)
    assert shipped.root() == share
    assert shipped.find(Path("vlm_s"), "model_configs") == share / "model_configs" / "vlm_s.json"
    assert shipped.files() == [Path("model_configs/vlm_s.json")]


@pytest.mark.usefixtures("fresh")
def test_without_them_names_stay_what_they_are_and_the_example_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "__file__", str(tmp_path / "lib" / "ds_dip" / "shipped.py"))
    monkeypatch.setattr(importlib.metadata, "files", lambda _: None)
    monkeypatch.chdir(tmp_path)
    assert shipped.root() is None
    assert shipped.find(Path("vlm_s"), "model_configs") == Path("vlm_s")
    result = CliRunner().invoke(cli, ["example", "work"])
    assert result.exit_code == 2
    assert "did not come with this installation" in result.output


@pytest.mark.parametrize("name", ["/model_configs/vlm_s.json", "elsewhere/vlm_s.json", "model_configs/none.json"])
def test_other_paths_are_left_alone(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shipped.find(Path(name), "model_configs") == Path(name)


def test_the_wheel_takes_every_file_that_is_looked_for() -> None:
    listed = (ROOT / "setup.cfg").read_text().partition("[options.data_files]")[2].partition("[options.extras")[0]
    patterns = [word for word in listed.split() if "*" in word or word.endswith((".py", ".sh"))]
    taken = {path.relative_to(ROOT) for pattern in patterns for path in ROOT.glob(pattern)}
    # Scripts that set up, test or draw are for the repository.
    only_here = {path for path in shipped.files() if path.parts[0] == "launch" and path not in taken}
    assert {path for path in shipped.files() if path not in taken} == only_here
    assert {path.name for path in taken if path.parts[0] == "launch"} >= {"train.py", "quickstart_ds_config.json"}


def test_the_example_copies_them_and_replaces_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    result = CliRunner().invoke(cli, ["example", str(folder), "--json"])
    assert result.exit_code == 0, result.output
    copied = json.loads(result.output)["files"]
    assert "launch/train.py" in copied
    assert (folder / "model_configs" / "vlm_s.json").read_text() == (ROOT / "model_configs" / "vlm_s.json").read_text()
    again = CliRunner().invoke(cli, ["example", str(folder)])
    assert again.exit_code == 2
    assert "is there already" in again.output
