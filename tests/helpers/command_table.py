"""The commands of the command line, for tests."""

from __future__ import annotations

import click

from xlexport.commands import cli


def all_commands() -> dict[str, click.Command]:
    """Return every command of `xlexport` by its name."""
    context = click.Context(cli)
    found = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}
