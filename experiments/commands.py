"""What the commands of experiments share; it needs no PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from xlexport.errors import XlexportError
from xlruntime.errors import XlruntimeError
from xltraining.errors import XltrainingError

__all__ = ["FILE", "ShortErrors"]

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


class ShortErrors(click.Command):
    """A command whose expected failures are one line."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (XltrainingError, XlexportError, XlruntimeError) as error:
            raise click.ClickException(str(error)) from error
