"""``ds-dip``: the command line. Commands load when they are used; errors of ours are one sentence."""

from __future__ import annotations

from typing import Any

import click

from ds_dip.commands import LazyGroup

#: Exit status where the input cannot be used; 1 is an answer that is no.
REFUSED = 2


class _Refusal(click.ClickException):
    exit_code = REFUSED

    def show(self, file: Any = None) -> None:
        """Print the sentence."""
        click.echo(f"ds-dip: {self.message}", err=True, file=file)


class CommandLine(LazyGroup):
    """The top group: turns the errors that ds_dip raises on purpose into one sentence and exit status 2."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            sentence = _sentence(error)
            if sentence is None:
                raise
            raise _Refusal(sentence) from error


def _sentence(error: Exception) -> str | None:
    """The message of an error of ours or of the operating system; None for a defect, which keeps its traceback."""
    if isinstance(error, OSError) and error.strerror and not isinstance(error, BrokenPipeError):
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if type(error).__module__.partition(".")[0] == "ds_dip":
        return str(error)
    return None


@click.group(cls=CommandLine, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ds_dip", prog_name="ds-dip")
def cli() -> None:
    """Schedules for large multimodal models on DeepSpeed pipelines: look, explain, decide."""


def main() -> None:
    """Run ``ds-dip``."""
    cli(prog_name="ds-dip")
