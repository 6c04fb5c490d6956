"""Every command of ds-dip, alike: examples that parse, JSON, --debug, and bars on terminals alone."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ds_dip.cli import STATUSES, cli
from ds_dip.commands import Command, Group, Shipped
from ds_dip.commands._progress import waiting

ROOT = Path(__file__).resolve().parents[1]
#: They print no figures.
NO_JSON = {"completion"}
#: Where a command ends in a line of the shell.
_ENDS = {">", "|"}


def tree(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command and group below, with its path."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from tree(command, (*path, name))


TREE = [((), cli), *tree(cli)]
LEAVES = [(path, command) for path, command in TREE if not isinstance(command, click.Group)]
EXAMPLES = [
    (path, example) for path, command in TREE for example in getattr(command, "examples", ()) if "eval " not in example
]


def name(path: object) -> str:
    return " ".join(path) or "ds-dip" if isinstance(path, tuple) else ""


def options(command: click.Command) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts}


def test_there_are_many() -> None:
    assert len(LEAVES) > 20
    assert len(EXAMPLES) > 40


@pytest.mark.parametrize(("path", "command"), TREE, ids=name)
def test_a_command_has_examples_in_its_help_and_debug(path: tuple[str, ...], command: click.Command) -> None:
    assert isinstance(command, Command | Group), f"{name(path)} is not made with cls=Command"
    assert command.examples, f"{name(path)} has no examples"
    assert "--debug" in options(command)
    help = CliRunner().invoke(cli, [*path, "--help"]).output
    for example in command.examples:
        assert example.splitlines()[0] in help
        assert " ".join(("ds-dip", *path)) in example


@pytest.mark.parametrize(("path", "example"), EXAMPLES, ids=name)
def test_an_example_parses(
    path: tuple[str, ...], example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = shlex.split(example.replace("\\\n", " "), comments=True)
    assert words.pop(0) == "ds-dip"
    words = words[: next((n for n, word in enumerate(words) if word in _ENDS), len(words))]
    command: click.Command = cli
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None, example
        command = found
    # What the reader has: the repository's folders, and files of their own.
    monkeypatch.chdir(tmp_path)
    for folder in ("launch", "model_configs", "profiling"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    for word in words:
        if re.fullmatch(r"[\w-]+\.(json|jsonl|parquet|csv)", word):
            (tmp_path / word).write_text("")
    command.make_context(command.name, words)


@pytest.mark.parametrize(("path", "command"), LEAVES, ids=name)
def test_what_prints_figures_prints_them_as_json(path: tuple[str, ...], command: click.Command) -> None:
    assert ("--json" in options(command)) is (path[0] not in NO_JSON), name(path)


def modules() -> list[Path]:
    """Of commands that call other processes, searches or measurements."""
    folder = ROOT / "ds_dip" / "commands"
    return [path for path in sorted(folder.glob("*.py")) if not path.name.startswith("__")]


#: What takes longer than a moment.
LONG = {"run_ranks", "result_of", "optimize", "partition_offline", "solve", "reproduce", "examine", "convert", "again",
        "what_if", "setup_what_if", "compared"}  # fmt: skip
#: What shows how far it is: on standard error, on a terminal alone.
BARS = {"waiting", "searching", "_progress", "_display", "Progress"}


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.stem)
def test_what_takes_long_shows_how_far_it_is(path: Path) -> None:
    tree = ast.parse(path.read_bytes())
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = {getattr(call, "id", getattr(call, "attr", "")) for call in calls}
    if names & LONG:
        assert names & BARS, f"{path.name} calls {', '.join(sorted(names & LONG))} without a bar"


def test_a_bar_is_nothing_where_standard_error_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with waiting("measuring", 2) as heard:
        heard({"done": 1})
        heard({"what": "else"})
    assert capsys.readouterr() == ("", "")


def test_a_bar_on_a_terminal_tells_how_much_is_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with waiting("measuring") as heard:
        heard({"done": 1, "total": 2})
    out, shown = capsys.readouterr()
    assert out == ""
    assert "measuring" in shown
    assert "1/2" in shown


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed_for_a_shell(shell: str) -> None:
    result = CliRunner().invoke(cli, ["completion", shell])
    assert result.exit_code == 0
    assert "_DS_DIP_COMPLETE" in result.output


@pytest.mark.parametrize(
    ("words", "completed"),
    [("ds-dip so", "solve"), ("ds-dip bench sch", "schedule"), ("ds-dip solve --ev", "--evaluations"),
     ("ds-dip solve --deb", "--debug"), ("ds-dip checkpoint con", "convert"), ("ds-dip completion f", "fish")],
)  # fmt: skip
def test_commands_and_options_complete(words: str, completed: str) -> None:
    variables = {"_DS_DIP_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    result = CliRunner().invoke(cli, [], prog_name="ds-dip", env=variables)
    assert f"plain,{completed}" in result.output.splitlines()


def test_exit_statuses_are_told_in_the_help_and_the_documentation() -> None:
    help = " ".join(CliRunner().invoke(cli, ["--help"]).output.split())
    page = (ROOT / "docs" / "command-line.md").read_text()
    for line in STATUSES.splitlines():
        status, _, meaning = line.partition(" ")
        assert f"{status} {' '.join(meaning.split())}" in help
        assert f"| {status} | {' '.join(meaning.split())} |" in page


def test_models_and_devices_are_found_by_name_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model, device = Shipped("model_configs"), Shipped("profiling/devices")
    expected = ROOT / "model_configs" / "vlm_s.json"
    assert model.convert("vlm_s", None, None) == expected
    assert model.convert("vlm_s.json", None, None) == expected
    assert model.convert("model_configs/vlm_s.json", None, None) == expected
    assert device.convert("h800", None, None) == ROOT / "profiling" / "devices" / "h800.json"
    assert model.convert("mine", None, None) == Path("mine")
    (tmp_path / "vlm_s").write_text("mine comes first")
    assert model.convert("vlm_s", None, None) == Path("vlm_s")


def test_every_module_of_a_command_is_imported_by_the_tree() -> None:
    for path in modules():
        importlib.import_module(f"ds_dip.commands.{path.stem}")
