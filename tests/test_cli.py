"""The command line: lazy, and plain about its errors."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import ds_dip.commands
from ds_dip.cli import CommandLine, cli
from ds_dip.commands import Command
from ds_dip.config import ConfigError
from ds_dip.files import FileError, read_object


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


def test_a_defect_is_one_sentence_with_its_place_and_a_status_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").write_text("{}")

    def fail() -> None:
        read_object(tmp_path / "x", "x", most="many")  # type: ignore[arg-type]  # the defect

    result = calling(fail, monkeypatch)
    assert result.exit_code == 70
    assert len(result.output.splitlines()) == 1
    assert re.match(r"ds-dip: a defect: TypeError in ds_dip/files.py:\d+: .*--debug", result.output)


def test_an_interrupted_command_says_so_and_ends_as_shells_expect(monkeypatch: pytest.MonkeyPatch) -> None:
    result = fail_with(KeyboardInterrupt(), monkeypatch)
    assert (result.exit_code, result.output) == (130, "ds-dip: interrupted\n")


@pytest.mark.parametrize("where", ["before", "after"])
def test_debug_adds_the_trace_to_the_sentence(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--debug", "fail"] if where == "before" else ["fail", "--debug"]
    result = fail_with(FileError("x.json: is not JSON"), monkeypatch, *arguments)
    assert result.exit_code == 2
    assert result.output.startswith("Traceback (most recent call last)")
    assert result.output.endswith("ds-dip: x.json: is not JSON\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["solve", "problem.json"], "ds-dip: Missing option '--out'. See ds-dip solve --help.\n"),
        (["data", "inspect", "x"], "counts tokens. See ds-dip data inspect --help.\n"),
        (["solve", "--ou", "x"], "ds-dip: No such option '--ou'. (Did you mean"),
        (["explain"], "or else a --model with its data. See ds-dip explain --help.\n"),
        (["--jsn"], "ds-dip: No such option '--jsn'."),
        (["checkpoint", "sow"], "ds-dip: No such command 'sow'."),
        (["bench", "schedule", "--part", "fast"], "ds-dip: Invalid value for '--part'"),
    ],
)
def test_wrong_usage_is_one_line_that_names_the_help(arguments: list[str], sentence: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert sentence in result.output
    assert len(result.output.splitlines()) == 1


def test_sigterm_ends_a_command_in_order_with_its_status(tmp_path: Path) -> None:
    code = (
        "import os, signal, click, ds_dip.cli\n"
        "from ds_dip.cli import CommandLine\n"
        "@click.command()\n"
        "def wait():\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        signal.pause()\n"
        "    finally:\n"
        "        print('tidied', flush=True)\n"
        "CommandLine.get_command = lambda *_: wait\n"
        "import sys; sys.argv = ['ds-dip', 'wait']; ds_dip.cli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (143, "tidied\n", "")


def test_what_a_stream_cannot_encode_ends_no_command() -> None:
    code = (
        "import sys, click, ds_dip.cli\n"
        "from ds_dip.cli import CommandLine\n"
        "CommandLine.get_command = lambda *_: click.command()(lambda: click.echo('bars \\u2581, a name \\udcff'))\n"
        "sys.argv = ['ds-dip', 'show']; ds_dip.cli.main()\n"
    )
    for encoding in ("ascii", "utf-8"):
        done = subprocess.run(
            [sys.executable, "-c", code], timeout=60, capture_output=True, check=False,
            env={**os.environ, "PYTHONIOENCODING": encoding},
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.startswith(b"bars ")


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> "click.testing.Result":
    def fail() -> None:
        raise error

    return calling(fail, monkeypatch, *arguments)


def calling(function: Callable[[], None], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> "click.testing.Result":
    command = click.command("fail", cls=Command)(function)
    monkeypatch.setattr(CommandLine, "get_command", lambda *_: command)
    return run(*(arguments or ("fail",)))


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
