"""Values that options take: names of models and bundles, files, and lists."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from xlruntime.hub_cache import bundle_folder, split_name

__all__ = [
    "BUNDLE",
    "DOCUMENT",
    "DOWNLOAD",
    "MODEL",
    "NAMES",
    "OUTPUT",
    "PATH",
    "BundleName",
    "Integers",
    "ModelName",
    "OutputFile",
    "Several",
]

DOWNLOAD = "xlexport.download"  # the key of the context's `meta` that holds --download


class ModelName(click.Path):
    """A path, or another name of a model; the text is kept, because "./name" is always a path."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name; with --download, first fetch what is on the hub unless something local has the name."""
        wanted = ctx is not None and ctx.meta.get(DOWNLOAD) and not ctx.resilient_parsing
        if wanted and "/" in split_name(str(value))[0] and not os.path.lexists(value):
            from xlexport.hub_download import download

            download(str(value))
        return super().convert(value, param, ctx)


class BundleName(ModelName):
    """The folder of a bundle: its path, or `ORG/NAME` or `ORG/NAME@REVISION` in the hub's cache."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the folder that the name means."""
        return bundle_folder(super().convert(value, param, ctx))


class Several(click.ParamType[tuple[Any, ...]]):
    """A list of values separated by commas.

    Args:
        name: of the values, for messages.
        kind: makes one of its text.
    """

    def __init__(self, name: str, kind: Callable[[str], Any]) -> None:
        self.name, self.kind = name, kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        """Return the values of an option."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(self.kind(part.strip()) for part in value.split(",") if part.strip())
        except ValueError:
            self.fail(f"{value!r} is not a list of {self.name} separated by commas.", param, ctx)


class Integers(Several):
    """A list of integers separated by commas: with `some` at least one, none smaller than `at_least`."""

    def __init__(self, some: bool = False, at_least: int | None = None) -> None:
        super().__init__("integers", int)
        self.some, self.at_least = some, at_least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return the integers of an option."""
        integers = super().convert(value, param, ctx)
        if self.some and not integers:
            self.fail("an empty list; give integers separated by commas.", param, ctx)
        if self.at_least is not None and any(integer < self.at_least for integer in integers):
            self.fail(f"{value!r} is not a list of integers of at least {self.at_least}.", param, ctx)
        return integers


class OutputFile(click.Path):
    """A file to write; the name of a folder is refused."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, readable=False, allow_dash=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path of an option."""
        if isinstance(value, str) and value.endswith(("/", os.sep)):
            self.fail(f"{value!r} is the name of a folder. Give that of a file.", param, ctx)
        return super().convert(value, param, ctx)


PATH = click.Path(path_type=Path)
NAMES = Several("names", str)
BUNDLE = BundleName()
MODEL = ModelName()
OUTPUT = OutputFile()
# click must not check these files: `score` reports unreadable ones and scores the others.
DOCUMENT = click.Path(path_type=Path, allow_dash=True, readable=False)
