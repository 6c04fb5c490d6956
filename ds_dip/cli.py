"""``ds-dip``: the command line. Commands load when they are used; errors are one sentence, with ``--debug`` a trace."""

from __future__ import annotations

import signal
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import click

from ds_dip.commands import LazyGroup, debugging

#: Exit status where the input cannot be used; 1 is an answer that is no.
REFUSED = 2
#: Exit status of a defect of ours, as sysexits.h numbers it.
DEFECT = 70
#: A signal ends with this and its number.
SIGNALLED = 128
STATUSES = """\
0    done, and the answer is yes
1    the answer is no: problems were found, a plan does not hold, training cannot work here
2    an option, a file or a setting cannot be used; the sentence says which and what to do
70   a defect of ds_dip
130  ended by Ctrl-C (SIGINT), 143 by SIGTERM; what a command says it keeps is kept
"""
_PACKAGE = Path(__file__).parent


class _Refusal(click.ClickException):
    exit_code = REFUSED

    def show(self, file: Any = None) -> None:
        """Print the sentence."""
        click.echo(f"ds-dip: {self.message}", err=True, file=file)


class _Interrupted(_Refusal):
    exit_code = SIGNALLED + signal.SIGINT


class _Defect(_Refusal):
    exit_code = DEFECT


class CommandLine(LazyGroup):
    """The top group: turns what goes wrong into one sentence and an exit status; ``--debug`` adds the trace."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Read the arguments of ds-dip itself."""
        try:
            return super().make_context(*args, **extra)
        except click.UsageError as error:
            raise _usage(error) from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            self._trace(ctx)
            raise _Interrupted("interrupted") from error
        except (click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except click.UsageError as error:
            self._trace(ctx)
            raise _usage(error) from error
        except click.ClickException:
            self._trace(ctx)
            raise
        except Exception as error:
            self._trace(ctx)
            sentence = _sentence(error)
            if sentence is None:
                raise _Defect(_defect(error)) from error
            raise _Refusal(sentence) from error

    @staticmethod
    def _trace(ctx: click.Context) -> None:
        if debugging(ctx):
            click.echo(traceback.format_exc(), err=True, nl=False)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples and what exit statuses mean."""
        super().format_epilog(ctx, formatter)
        with formatter.section("Exit status"):
            formatter.write_dl([(line.split()[0], line.partition(" ")[2].strip()) for line in STATUSES.splitlines()])


def _usage(error: click.UsageError) -> click.ClickException:
    """A usage error in one line, which names the help that says more."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error
    where = error.ctx.command_path if error.ctx is not None else "ds-dip"
    sentence = " ".join(error.format_message().split())
    return _Refusal(f"{sentence}{'' if sentence.endswith(('.', '?', '!')) else '.'} See {where} --help.")


def _sentence(error: Exception) -> str | None:
    """The message of an error of ours or of the operating system; None for a defect."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if type(error).__module__.partition(".")[0] == "ds_dip":
        return str(error)
    return None


def _defect(error: Exception) -> str:
    """What happened, and the place of ours that it happened in last."""
    place = "ds_dip"
    for frame in traceback.extract_tb(error.__traceback__):
        if Path(frame.filename).is_relative_to(_PACKAGE):
            place = f"{Path(frame.filename).relative_to(_PACKAGE.parent)}:{frame.lineno}"
    what = " ".join(str(error).split())
    return (
        f"a defect: {type(error).__name__} in {place}{': ' + what if what else ''}; the same command with --debug "
        "shows the trace, which belongs into a report"
    )


@click.group(
    "ds-dip",
    cls=CommandLine,
    context_settings={"help_option_names": ["-h", "--help"]},
    examples=[
        "ds-dip doctor                      # can this machine train, what is missing",
        "ds-dip solve problem.json --out plan.json",
        "ds-dip watch runs/quickstart       # a run, while it goes",
        'eval "$(ds-dip completion bash)"   # complete commands and options in this shell',
    ],
)
@click.version_option(package_name="ds_dip", prog_name="ds-dip")
def cli() -> None:
    """Schedules for large multimodal models on DeepSpeed pipelines: look, explain, decide."""


def _end(number: int, _: object) -> NoReturn:
    sys.exit(SIGNALLED + number)


def main() -> None:
    """Run ``ds-dip``."""
    # As Ctrl-C does: processes that were started end, and drafts go.
    signal.signal(signal.SIGTERM, _end)
    cli(prog_name="ds-dip")
