"""The `configure` command: a bundle with other settings of evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from xlexport.commands.long_help import LongCommand, headed
from xlexport.commands.options import evaluation_options, force_option
from xlexport.commands.values import BUNDLE, PATH
from xlexport.terminal import tell

__all__ = ["configure"]


@click.command(cls=LongCommand)
@click.argument("bundle", type=BUNDLE)
@headed(
    "Output",
    click.option("-o", "--output", type=PATH, required=True, help="Bundle folder to write."),
    force_option,
)
@headed(
    "Model settings",
    evaluation_options,
    click.option(
        "--restart/--no-restart",
        default=None,
        help="Reset position and memory if a document exceeds the model's positions.  [default: the bundle's]",
    ),
)
def configure(bundle: Path, output: Path, force: bool, **evaluation: Any) -> None:
    """Write a copy of BUNDLE with other evaluation settings. Weights, graphs and fingerprint stay the same.

    The copy of a bundle of format 4 has the present format, with or without other settings.

    `xlexport verify` compares a bundle under its own settings; `parity.json` says which settings were verified.
    """
    from xlexport import api

    api.configure(bundle, output, force=force, tell=tell, **evaluation)
    tell(f"wrote {output}")
