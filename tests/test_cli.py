"""The command line: lazy, and plain about its errors."""

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import ds_dip.commands
from ds_dip.cli import CommandLine, cli
from ds_dip.config import ConfigError
from ds_dip.files import FileError


def run(*arguments: str) -> "click.testing.Result":
    return CliRunner().invoke(cli, list(arguments))


def commands() -> list[str]:
    return cli.list_commands(click.Context(cli))


def test_help_lists_every_command_with_what_it_does() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for name in commands():
        line = next(line for line in result.output.splitlines() if line.strip().startswith(f"{name} "))
        assert len(line.split()) > 3, f"{name} says nothing of itself"


def test_help_imports_no_command_and_nothing_heavy() -> None:
    code = (
        "import sys; from ds_dip.cli import cli; cli(['--help'], standalone_mode=False);"
        "heavy = {'torch', 'deepspeed', 'numba', 'numpy', 'pydantic', 'rich'} & set(sys.modules);"
        "ours = [m for m in sys.modules if m.startswith('ds_dip.commands.')];"
        "assert not heavy and not ours, (heavy, ours)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("name", commands())
def test_every_command_loads_and_has_help(name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0, result.output
    assert result.output.startswith("Usage: ")


def test_the_modules_are_the_commands() -> None:
    folder = Path(ds_dip.commands.__file__).parent
    modules = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}
    assert set(commands()) == {m.replace("_", "-") for m in modules if not m.startswith("bench_")}
    assert "bench" in commands()


def test_version() -> None:
    assert run("--version").output.startswith("ds-dip, version ")


@pytest.mark.parametrize(
    "arguments",
    [("schedule", "--seconds"), ("train", "--deadline"), ("overhead", "--deadline")],
)
@pytest.mark.parametrize("value", ["nan", "inf", "0", "-1", "x"])
def test_seconds_are_a_number_with_an_end(arguments: tuple[str, str], value: str) -> None:
    result = run("bench", *arguments, value)
    assert result.exit_code == 2
    assert f"Invalid value for '{arguments[1]}'" in result.output


def test_a_benchmark_refuses_its_target_before_it_measures(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "taken" / "curves.svg").mkdir(parents=True)
    for out, found in (
        (tmp_path / "file", "file: is no folder and none can be made (File exists)"),
        (tmp_path / "taken", "curves.svg: is a folder"),
    ):
        result = run("bench", "schedule", "--out", str(out))
        assert result.exit_code == 2
        assert result.output.startswith(f"ds-dip: {out}")
        assert found in result.output


def test_an_unknown_command_is_refused() -> None:
    result = run("solv")
    assert result.exit_code == 2
    assert "No such command 'solv'" in result.output


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ConfigError('"dip.lead" is 1'), 'ds-dip: "dip.lead" is 1\n'),
        (FileError("x.json: is not JSON"), "ds-dip: x.json: is not JSON\n"),
        (PermissionError(13, "Permission denied", "/x"), "ds-dip: /x: Permission denied\n"),
    ],
)
def test_an_error_of_ours_is_one_sentence_and_exit_status_2(
    error: Exception, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = fail_with(error, monkeypatch)
    assert result.exit_code == 2
    assert result.output == sentence


def test_a_defect_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    result = fail_with(ZeroDivisionError("division by zero"), monkeypatch)
    assert isinstance(result.exception, ZeroDivisionError)


def fail_with(error: Exception, monkeypatch: pytest.MonkeyPatch) -> "click.testing.Result":
    @click.command("fail")
    def fail() -> None:
        raise error

    monkeypatch.setattr(CommandLine, "get_command", lambda *_: fail)
    return run("fail")


def every_command(group: click.Group, context: click.Context) -> list[click.Command]:
    found: list[click.Command] = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found += every_command(command, context) if isinstance(command, click.Group) else [command]
    return found


def test_no_command_takes_a_number_that_is_none() -> None:
    context = click.Context(cli)
    ranges = {
        (command.name, option.name): option.type
        for command in every_command(cli, context)
        for option in command.params
        if isinstance(option.type, click.FloatRange)
    }
    assert len(ranges) > 20

    def takes(kind: click.ParamType, value: str) -> bool:
        try:
            kind.convert(value, None, None)
        except click.BadParameter:
            return False
        return True

    assert [where for where, kind in ranges.items() if takes(kind, "nan") or takes(kind, "inf")] == []
