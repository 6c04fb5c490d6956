"""``ds-dip completion``: prints what makes a shell complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from ds_dip.commands import Command

SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_DS_DIP_COMPLETE"


@click.command(
    "completion",
    cls=Command,
    examples=[
        'eval "$(ds-dip completion bash)"    # in this shell; in ~/.bashrc for every one',
        'eval "$(ds-dip completion zsh)"',
        "ds-dip completion fish > ~/.config/fish/completions/ds-dip.fish",
    ],
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the completion of ds-dip for SHELL, to be evaluated there."""
    kind = get_completion_class(shell)
    assert kind is not None
    completion = kind(context.find_root().command, {}, "ds-dip", _VARIABLE)
    # Its own source() runs the shell to ask its version, which may not be installed here.
    click.echo(completion.source_template % completion.source_vars(), nl=False)
