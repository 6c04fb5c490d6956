"""The subcommands of ``ds-dip``, one Click module each; ``ds_dip.cli`` loads them lazily.

A module ``NAME.py`` here is the command ``NAME`` and holds it as ``command``; the first line of its docstring,
"``ds-dip NAME``: what it does.", is its line in the help, so that listing the commands imports none of them. A name
that starts with an underscore is of no command: commands share what is in it.
"""

from __future__ import annotations

import ast
import importlib
import math
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

BENCH = "bench_"
#: A file that is there.
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
#: Most threads that may search.
MOST_WORKERS = 256


class Finite(click.FloatRange):
    """A number in a range that is neither NaN nor infinite; ``what`` says so."""

    what = "a finite number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; what is none, or is not finite, is refused."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not {self.what}.", param, ctx)
        return number


class Seconds(Finite):
    """Seconds above 0, or from ``min`` on."""

    name = "seconds"
    what = "a finite number of seconds"

    def __init__(self, min: float = 0.0) -> None:
        super().__init__(min=min, min_open=min == 0.0)


def is_ours(path: Path) -> bool:
    """Whether a file is a document that ds_dip reads: they all begin with their format."""
    if not path.exists():
        return False
    with path.open("rb") as stream:
        return stream.read(64).startswith(b'{"format": "ds-dip/')


@contextmanager
def refusing() -> Iterator[None]:
    """A plain ValueError is one sentence about what the user gave: a usage error. Those of our own kinds pass."""
    try:
        yield
    except ValueError as error:
        if type(error) is not ValueError:
            raise
        raise click.UsageError(str(error)) from error


class LazyGroup(click.Group):
    """A group whose commands are the modules of this package that start with ``prefix``."""

    def __init__(self, *args: Any, prefix: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        self.prefix = prefix

    def _modules(self) -> dict[str, str]:
        names = [module.name for module in pkgutil.iter_modules(__path__)]
        if not self.prefix:
            names = [name for name in names if not name.startswith((BENCH, "_"))]
        return {n.removeprefix(self.prefix).replace("_", "-"): n for n in names if n.startswith(self.prefix)}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands' names, sorted; nothing is imported."""
        return sorted(self._modules())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of the command and take its ``command``."""
        module = self._modules().get(cmd_name)
        if module is None:
            return None
        command = importlib.import_module(f"{__name__}.{module}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands from their modules' docstrings."""
        rows = [(name, _summary(module)) for name, module in sorted(self._modules().items())]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def _summary(module: str) -> str:
    text = ast.get_docstring(ast.parse(Path(__path__[0], f"{module}.py").read_bytes())) or ""
    return text.partition("\n")[0].rpartition("``: ")[2]
