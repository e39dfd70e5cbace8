"""The `completion` command: a script that completes commands, options and files of `xlexport` in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from xlexport.terminal import print_text

__all__ = ["SHELLS", "VARIABLE", "completion"]

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_XLEXPORT_COMPLETE"  # if this is set, click answers the script's questions


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes xlexport's commands and options in SHELL.

    \b
    For bash, in ~/.bashrc:   eval "$(xlexport completion bash)"
    For zsh, in ~/.zshrc:     eval "$(xlexport completion zsh)"  (after compinit)
    For fish, once:           xlexport completion fish > ~/.config/fish/completions/xlexport.fish

    Completion works in the next shell that you open.
    """  # noqa: D301 (click reads the escape)
    script = get_completion_class(shell)
    assert script is not None  # click supports all three shells
    print_text(script(click.get_current_context().find_root().command, {}, "xlexport", VARIABLE).source())
