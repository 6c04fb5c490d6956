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
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

BENCH = "bench_"
#: Most threads that may search.
MOST_WORKERS = 256
#: Where a run of ds-dip notes that it was asked for traces.
_DEBUG = "ds_dip.debug"
#: How a document of ours begins.
_OURS = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"format"\s*:\s*"ds-dip/')


class Shipped(click.Path):
    """A path that is read; what is not there is looked for among the files that come along (``ds_dip.shipped``).

    A plain name means the one in ``folder``: ``--model vlm_s`` is model_configs/vlm_s.json.
    """

    def __init__(self, folder: str = "", **options: Any) -> None:
        super().__init__(path_type=Path, **options)
        self.folder = folder

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path; refused as click does."""
        from ds_dip.shipped import find

        return super().convert(find(Path(value), self.folder), param, ctx)


#: A file that is there, of ours or of the user.
FILE = Shipped(exists=True, dir_okay=False)
#: A model's description by its path or name, or a folder of transformers.
MODEL = Shipped("model_configs")
#: A device's description by its path or name.
DEVICE = Shipped("profiling/devices")
#: The same two, which have to be there.
MODEL_THERE = Shipped("model_configs", exists=True)
MODEL_FILE = Shipped("model_configs", exists=True, dir_okay=False)
DEVICE_FILE = Shipped("profiling/devices", exists=True, dir_okay=False)


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
    """Whether a file is a document that ds_dip reads: they all begin with their format, however they are laid out."""
    if not path.exists():
        return False
    with path.open("rb") as stream:
        return _OURS.match(stream.read(256)) is not None


@contextmanager
def refusing() -> Iterator[None]:
    """A plain ValueError is one sentence about what the user gave: a usage error. Those of our own kinds pass."""
    try:
        yield
    except ValueError as error:
        if type(error) is not ValueError:
            raise
        raise click.UsageError(str(error)) from error


def debugging(ctx: click.Context) -> bool:
    """Whether ``--debug`` was given, to ds-dip or to the command."""
    return bool(ctx.find_root().meta.get(_DEBUG))


def _note_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.find_root().meta[_DEBUG] = True


class _WithExamples(click.Command):
    """A command with ``examples``, each a line or the parts of a long one, and with ``--debug``."""

    def __init__(self, *args: Any, examples: Sequence[str | Sequence[str]] = (), **options: Any) -> None:
        super().__init__(*args, **options)
        self.examples = tuple(own if isinstance(own, str) else " \\\n    ".join(own) for own in examples)
        # Eager: an error in any other option is shown with its trace too.
        self.params.append(
            click.Option(
                ["--debug"], is_flag=True, is_eager=True, expose_value=False, callback=_note_debug,
                help="Show where an error comes from, not only its sentence.",
            )
        )  # fmt: skip

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, which no terminal wraps."""
        if self.examples:
            with formatter.section("Examples"):
                indent = " " * formatter.current_indent
                formatter.write("".join(f"{indent}{line}\n" for own in self.examples for line in own.splitlines()))
        super().format_epilog(ctx, formatter)


class Command(_WithExamples):
    """What every command of ds-dip is made with: ``examples`` of its use, and ``--debug``."""


class Group(_WithExamples, click.Group):
    """A group of commands in one module, with examples too."""

    command_class = Command


class LazyGroup(Group):
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

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands and options that begin so; no command is imported."""
        modules = sorted(self._modules().items())
        found = [CompletionItem(name, help=_summary(own)) for name, own in modules if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)


def _summary(module: str) -> str:
    text = ast.get_docstring(ast.parse(Path(__path__[0], f"{module}.py").read_bytes())) or ""
    return text.partition("\n")[0].rpartition("``: ")[2]
